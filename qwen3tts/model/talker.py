"""The talker: text and codes in, one hidden state and the logits of codebook 0 per frame out."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qwen3tts.model.code_predictor import CodePredictor
from qwen3tts.model.config import TalkerConfig
from qwen3tts.model.kv_cache import PackedRows, RowCache, positions_after
from qwen3tts.model.layers import DecoderBlock, Head, Linear, RMSNorm, RotaryTable, lookup_table, run_blocks


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. From host memory to a GPU it goes in stream order: the host does not wait."""
    if x.device == device:
        return x
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def host_rows(table: Tensor, ids: Tensor, *, pin: bool) -> Tensor:
    """table[ids], both in host memory: int64 [N] -> [N, width]; pin: in page-locked memory, for a copy to a GPU.

    One thread does it, whatever torch is set to: to wake others takes longer than to copy the rows of a prompt."""
    rows = torch.empty(len(ids), table.shape[1], dtype=table.dtype, pin_memory=pin)
    source, target = table.detach().view(torch.uint8).numpy(), rows.view(torch.uint8).numpy()
    np.take(source, ids.numpy(), axis=0, out=target)
    return rows


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
        ids = ids.to(table.weight.device)
        if device.type == "cuda" and ids.device.type == "cpu":
            rows = host_rows(table.weight, ids, pin=True).to(device, non_blocking=True)
        else:
            rows = to_device(table(ids), device)
        out: Tensor = self.text_projection(rows.to(self.dtype))
        return out

    def embed_codec(self, ids: Tensor) -> Tensor:
        """E(ids): int64 [N] -> [N, hidden]."""
        out: Tensor = self.model.codec_embedding(ids)
        return out.to(self.dtype)

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
