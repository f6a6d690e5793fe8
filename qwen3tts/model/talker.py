"""The talker: text and codes in, one hidden state and the logits of codebook 0 per frame out."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from qwen3tts.model.code_predictor import CodePredictor
from qwen3tts.model.config import TalkerConfig
from qwen3tts.model.kv_cache import PackedRows, RowCache, positions_after
from qwen3tts.model.layers import DecoderBlock, Head, Linear, RMSNorm, RotaryTable, lookup_table, run_blocks

ROWS_ALIGNED = 512
"""bytes; where rows begin behind other numbers: as a tensor of their own would"""


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. From host memory to a GPU it goes in stream order: the host does not wait."""
    if x.device == device:
        return x
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def host_rows(table: Tensor, ids: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """table[ids] into out [N, bytes of a row], all in host memory. Raises IndexError for an id past the end.

    One thread does it, whatever torch is set to: to wake others takes longer than to copy the rows of a prompt."""
    source = table.detach().view(torch.uint8).numpy()
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(source):
        raise IndexError(f"ids from {ids.min()} to {ids.max()} of a table with {len(source)} rows")
    np.take(source, ids, axis=0, out=out, mode="clip")  # as it checks ids itself, numpy goes through a copy


def uploaded_rows(
    table: Tensor, ids: NDArray[np.int64], numbers: NDArray[np.int64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """table[ids] of a table in host memory, and numbers as they are: both on the device by one copy, in stream order.

    The host does not wait, and nothing that it writes later is sent."""
    width = table.shape[1] * table.element_size()
    start = -(-numbers.nbytes // ROWS_ALIGNED) * ROWS_ALIGNED
    staged = torch.empty(start + len(ids) * width, dtype=torch.uint8, pin_memory=device.type == "cuda")
    host = staged.numpy()
    host[: numbers.nbytes].view(np.int64)[:] = numbers
    host_rows(table, ids, host[start:].reshape(len(ids), width))
    sent = staged.to(device, non_blocking=True)
    rows = sent[start:].view(table.dtype).view(len(ids), table.shape[1])
    return rows, sent[: numbers.nbytes].view(torch.int64)


class TextProjection(nn.Module):
    """fc2(silu(fc1(x))), both with bias: text embeddings to the talker's width."""

    def __init__(self, text_hidden: int, hidden: int) -> None:
        super().__init__()
        self.linear_fc1 = Linear(text_hidden, text_hidden)
        self.linear_fc2 = Linear(text_hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class TalkerStack(nn.Module):
    """Blocks, final norm and the two embedding tables; named as in the checkpoint (`talker.model.*`)."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        t = config.transformer
        self.layers = nn.ModuleList(DecoderBlock(t, i) for i in range(t.num_layers))
        self.norm = RMSNorm(t.hidden_size, t.rms_norm_eps)
        self.codec_embedding = lookup_table(config.vocab_size, t.hidden_size)
        self.text_embedding = lookup_table(config.text_vocab_size, config.text_hidden_size)


class Talker(nn.Module):
    """Keys are those of the checkpoint without the prefix `talker.`. Call `prepare` once after loading."""

    rotary: RotaryTable

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TalkerStack(config)
        self.text_projection = TextProjection(config.text_hidden_size, config.transformer.hidden_size)
        self.codec_head = Head(config.transformer.hidden_size, config.vocab_size)
        self.code_predictor = CodePredictor(config)

    @property
    def dtype(self) -> torch.dtype:
        """Of activations and products; tables and heads may be stored in another one."""
        return self.model.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.norm.weight.device

    def prepare(self, max_positions: int) -> None:
        """Fixes what depends on weights and limits alone: the rotary tables for `max_positions` positions."""
        self.rotary = RotaryTable(self.config.transformer, max_positions, self.device, self.dtype)
        self.code_predictor.prepare()

    # ------------------------------------------------------------ embeddings

    def embed_text(self, ids: Tensor) -> Tensor:
        """T(ids): int64 [N] -> [N, hidden] on the talker's device, wherever ids and the table of text tokens are."""
        table, device = self.model.text_embedding, self.device
        if device.type == "cuda" and table.weight.device.type == "cpu":
            return self.embed_text_with(ids.cpu().numpy(), np.zeros(0, np.int64))[0]
        return self._projected(to_device(table(ids.to(table.weight.device)), device))

    def embed_text_with(self, ids: NDArray[np.int64], numbers: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """T(ids) [N, hidden], and other numbers on the talker's device: with one copy, if the table is on the host."""
        table = self.model.text_embedding.weight
        if table.device.type == "cpu":
            rows, sent = uploaded_rows(table, ids, numbers, self.device)
            return self._projected(rows), sent
        sent = to_device(torch.from_numpy(np.concatenate((ids, numbers))), self.device)
        return self.embed_text(sent[: len(ids)]), sent[len(ids) :]

    def _projected(self, rows: Tensor) -> Tensor:
        out: Tensor = self.text_projection(rows.to(self.dtype))
        return out

    def embed_codec(self, ids: Tensor) -> Tensor:
        """E(ids): int64 [N] -> [N, hidden]."""
        return F.embedding(ids, self.model.codec_embedding.weight).to(self.dtype)

    def embed_frame(self, codes: Tensor) -> Tensor:
        """Sum of the 16 code embeddings of a frame: int64 [B, 16] -> [B, hidden], one rounding."""
        parts = [self.embed_codec(codes[:, 0]), *self.code_predictor.embed_codes(codes[:, 1:])]
        return torch.stack(parts, 1).sum(1)

    # ------------------------------------------------------------ steps

    def forward(self, x: Tensor, rows: Sequence[RowCache], counts: Sequence[int]) -> Tensor:
        """New positions of some rows, packed: [sum(counts), hidden] -> hidden states after the final norm."""
        cache = PackedRows(rows, counts)
        self.rotary.cover(positions_after(rows, counts))
        hidden = run_blocks(self.model.layers, self.model.norm, x, self.rotary, cache)
        cache.commit()
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """codec_head: [B, hidden] -> fp32 [B, vocabulary]."""
        out: Tensor = self.codec_head(hidden)
        return out
