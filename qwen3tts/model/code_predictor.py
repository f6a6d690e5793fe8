"""The code predictor: from a talker hidden state and code 0, codes 1..15 of the frame, one pass each."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qwen3tts.model.config import TalkerConfig
from qwen3tts.model.kv_cache import EqualRows
from qwen3tts.model.layers import DecoderBlock, Head, Linear, RMSNorm, RotaryTable, lookup_table, run_blocks

Pick = Callable[[int, Tensor], Tensor]
"""(codebook, fp32 logits [B, vocabulary]) -> int64 [B]"""


class PredictorStack(nn.Module):
    """Named as in the checkpoint (`talker.code_predictor.model.*`). The tables have the talker's width."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        t = config.code_predictor.transformer
        self.layers = nn.ModuleList(DecoderBlock(t, i) for i in range(t.num_layers))
        self.norm = RMSNorm(t.hidden_size, t.rms_norm_eps)
        self.codec_embedding = nn.ModuleList(
            lookup_table(config.code_predictor.vocab_size, config.transformer.hidden_size)
            for _ in range(config.num_code_groups - 1)
        )


class CodePredictor(nn.Module):
    """Passes of one frame: [h, E(code 0)] -> code 1; P_0(code 1) -> code 2; ... ; P_13(code 14) -> code 15."""

    rotary: RotaryTable

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config.code_predictor.transformer
        self.groups = config.num_code_groups
        self.model = PredictorStack(config)
        width, talker_width = self.config.hidden_size, config.transformer.hidden_size
        self.lm_head = nn.ModuleList(Head(width, config.code_predictor.vocab_size) for _ in range(self.groups - 1))
        self.small_to_mtp_projection: nn.Module = (
            Linear(talker_width, width) if width != talker_width else nn.Identity()
        )

    def prepare(self) -> None:
        """Rotary tables for the positions of one frame."""
        weight = self.model.norm.weight
        self.rotary = RotaryTable(self.config, self.groups, weight.device, weight.dtype)

    def new_cache(self, rows: int) -> EqualRows:
        """Keys and values for `rows` rows; reused for every frame."""
        weight = self.model.norm.weight
        return EqualRows(self.config, rows, self.groups, weight.device, weight.dtype)

    def embed_codes(self, codes: Tensor) -> list[Tensor]:
        """P_i(codes[:, i]) for i = 0..14: int64 [B, 15] -> 15 x [B, talker hidden]."""
        dtype = self.model.norm.weight.dtype
        return [table(codes[:, i]).to(dtype) for i, table in enumerate(self.model.codec_embedding)]

    def forward(self, hidden: Tensor, code_0: Tensor, pick: Pick, cache: EqualRows) -> tuple[Tensor, Tensor]:
        """hidden [B, talker hidden], code_0 = E(code 0) [B, talker hidden] -> codes 1..15 int64 [B, 15], and the sum
        of all 16 code embeddings [B, talker hidden], rounded once."""
        embeddings, codes = [code_0], []
        x, count = torch.stack((hidden, code_0), 1).flatten(0, 1), 2
        for i, (head, table) in enumerate(zip(self.lm_head, self.model.codec_embedding, strict=True)):
            cache.begin(count, restart=i == 0)
            out = run_blocks(self.model.layers, self.model.norm, self.small_to_mtp_projection(x), self.rotary, cache)
            cache.commit()
            last = out.unflatten(0, (-1, count))[:, -1]
            codes.append(pick(i + 1, head(last)))
            x, count = table(codes[-1]).to(hidden.dtype), 1
            embeddings.append(x)
        return torch.stack(codes, 1), torch.stack(embeddings, 1).sum(1)
