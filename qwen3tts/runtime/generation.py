"""From prompts to codes: admits rows as places become free, advances all of them, collects what they make."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qwen3tts.errors import CapacityError
from qwen3tts.runtime.protocols import FinishReason, FrameDecoder, RowRequest, Slot


@dataclass(frozen=True)
class ProgressEvent:
    """Told to a progress callback, between frames: after each one, or after every few where a backend makes more in one
    go."""

    stage: Literal["generate", "decode"]
    frames_done: int
    """over all texts of the call"""
    frames_limit: int
    """as many as there can be at most (generate) or will be (decode)"""


FRAMES_WHILE_WAITING = 8
"""frames to ask for at most while texts wait for the place of a row that ends"""

Progress = Callable[[ProgressEvent], None]


@dataclass
class RowResult:
    """What one row made."""

    pieces: list[Tensor] = field(default_factory=list)
    finish_reason: FinishReason = "length"

    def codes(self, groups: int) -> NDArray[np.int16]:
        """int16 [frames, groups]."""
        joined = torch.cat(self.pieces) if self.pieces else torch.zeros(0, groups, dtype=torch.int64)
        return joined.numpy().astype(np.int16)


def generate_codes(
    decoder: FrameDecoder,
    requests: Sequence[RowRequest],
    *,
    on_prefill: Callable[[float], None],
    clock: Callable[[], float],
    progress: Progress | None = None,
) -> list[RowResult]:
    """Runs all requests to their ends, as many side by side as the decoder has room for, and frees every slot, also
    when something raises. A request that can never fit raises CapacityError before the first one is run. on_prefill is
    told the seconds of each admission."""
    waiting = deque(enumerate(requests))
    running: dict[Slot, int] = {}
    known: frozenset[Slot] | None = None
    results = [RowResult() for _ in requests]
    limit, done = sum(request.max_frames for request in requests), 0
    try:
        while waiting or running:
            places = decoder.room_for([request for _, request in waiting])
            if places:
                started, known = clock(), decoder.open_slots()
                batch = [waiting.popleft() for _ in range(places)]
                slots = decoder.admit([request for _, request in batch])
                running.update(zip(slots, (index for index, _ in batch), strict=True))
                known = None
                on_prefill(clock() - started)
            if not running:
                raise CapacityError(
                    "All streams of this model, or all its memory for keys and values, are in use. Close one, or load "
                    "with more max_streams or kv_bytes."
                )
            frames = decoder.frames_per_call
            made = decoder.advance(min(frames, FRAMES_WHILE_WAITING) if waiting else frames, tuple(running))
            for i, slot in enumerate(made.slots):
                result, count = results[running[slot]], made.counts[i]
                result.pieces.append(made.codes[i, :count])
                done += count
                reason = made.finished[i]
                if reason is not None:
                    result.finish_reason = reason
                    limit -= requests[running[slot]].max_frames - sum(map(len, result.pieces))
                    decoder.release(slot)
                    del running[slot]
            if progress is not None:
                progress(ProgressEvent("generate", done, limit))
    finally:
        if known is not None:  # interrupted between an admission and its record
            running.update(dict.fromkeys(decoder.open_slots() - known, 0))
        for slot in running:
            decoder.release(slot)
    return results
