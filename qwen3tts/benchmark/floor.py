"""What a frame must read at least, and how long that takes: the floor under every time per frame."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qwen3tts.model.kv_cache import kv_bytes_per_position
from qwen3tts.model.talker import Talker

PROBE_BYTES = {"cuda": 2 << 30, "cpu": 256 << 20}
"""more than any cache holds"""


@dataclass(frozen=True)
class FrameBytes:
    """Bytes that one frame of some rows reads. The predictor's weights are read once a codebook: no cache is assumed to
    keep them."""

    predictor: int
    talker: int
    keys_and_values: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.predictor + self.talker + self.keys_and_values


def _bytes(module: Any) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def frame_bytes(talker: Talker, rows: int, positions: int) -> FrameBytes:
    """For `rows` rows with so many positions each. Embedding rows are left out: they are a few kilobytes."""
    predictor = talker.code_predictor
    stack = _bytes(predictor.model.layers) + _bytes(predictor.model.norm)
    heads = _bytes(predictor.lm_head)
    projection = predictor.small_to_mtp_projection
    once = _bytes(projection) if isinstance(projection, nn.Linear) else 0
    passes = talker.config.num_code_groups - 1
    return FrameBytes(
        predictor=passes * stack + heads + once,
        talker=_bytes(talker.model.layers) + _bytes(talker.model.norm) + _bytes(talker.codec_head),
        keys_and_values=rows * positions * kv_bytes_per_position(talker.config.transformer, talker.dtype),
    )


def read_bandwidth(device: torch.device, repeats: int = 5) -> float:
    """Bytes a second that a sum over a large tensor reads: what memory gives in practice."""
    x = torch.ones(PROBE_BYTES.get(device.type, PROBE_BYTES["cpu"]) // 4, device=device)
    best = float("inf")
    for _ in range(repeats + 1):
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            x.sum()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1e3)
        else:
            started = time.perf_counter()
            x.sum()
            best = min(best, time.perf_counter() - started)
    return x.nbytes / best
