"""Runs of a decode core and of the plain decoder on given codes, with the logits of every pick.

The core picks its codes on the device, inside of a frame. To make it go on with another one, the head of that codebook
is replaced for that one frame: all its rows are zero but the wanted one, which is so large that nothing else can be
drawn. What follows the pick is then the core's own arithmetic, unchanged."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.torch.frame_decoder import TorchFrameDecoder
from qwen3tts.backends.torch.picking import Row
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import RowRequest, Slot

LARGE = 256.0
"""times a logit that is one of the largest: no other candidate keeps a weight. A power of two, so it is exact"""
Forced = Mapping[tuple[int, int], int]
"""(frame, codebook) -> the code to go on with"""


def heads_of(talker: Talker) -> list[Tensor]:
    """The weights of the heads of codebooks 0, 1, ..."""
    return [head.weight for head in (talker.codec_head, *talker.code_predictor.lm_head)]


def speak(decoder: Any, rows: Sequence[RowRequest], step: int) -> list[Tensor]:
    """All frames of the rows, `step` at a time: int64 [frames, groups] each."""
    slots = decoder.admit(rows)
    made: dict[Slot, list[Tensor]] = {slot: [] for slot in slots}
    try:
        for _ in range(0, max(row.max_frames for row in rows), step):
            batch = decoder.advance(step, slots)
            for slot, codes, count in zip(batch.slots, batch.codes, batch.counts, strict=True):
                made[slot].append(codes[:count])
    finally:
        for slot in slots:
            decoder.release(slot)
    return [torch.cat(parts) for parts in made.values()]


class KeptLogits:
    """Logits of all picks of some rows, NaN where there was none."""

    def __init__(self, talker: Talker, rows: int, frames: int, dtype: torch.dtype = torch.float32) -> None:
        config = talker.config
        shape = (frames, rows, config.num_code_groups, config.vocab_size)
        self.values = torch.full(shape, math.nan, dtype=dtype, device=talker.device)
        """[frames, rows, groups, the talker's vocabulary]"""

    def put(self, frame: int, row: int, book: int, logits: Tensor) -> None:
        """Of one pick; code 0 of the frame after the last one is left out."""
        if frame < len(self.values):
            self.values[frame, row, book, : logits.shape[0]] = logits


# ------------------------------------------------------------ the core


@contextlib.contextmanager
def _forced_heads(talker: Talker, codes: Mapping[int, int]) -> Iterator[None]:
    """Inside, picks of these codebooks come out as these codes, if their logits are above 0."""
    heads = heads_of(talker)
    with torch.no_grad():
        before = {book: heads[book].detach().clone() for book in codes}
        try:
            for book, code in codes.items():
                heads[book].zero_()
                heads[book][code] = before[book][code] * LARGE
            yield
        finally:
            for book, weight in before.items():
                heads[book].copy_(weight)


def speak_forced(
    core: NativeFrameDecoder, talker: Talker, row: RowRequest, forced: Forced, kept: KeptLogits | None = None
) -> Tensor:
    """One row alone, frame by frame, which goes on with some given codes: int64 [frames, groups].

    kept: filled with the logits of all picks that are not forced, the core's graphs notwithstanding.
    Raises ValueError if a code could not be forced."""

    def stage(frame: int) -> dict[int, int]:
        """What is picked by a frame (-1: the admission): its codes 1.. and code 0 of the next one."""
        return {book: code for (at, book), code in forced.items() if at == (frame if book else frame + 1)}

    looking = _Logits(core, talker, kept) if kept is not None else contextlib.nullcontext()
    made = []
    with looking as logits:
        with _forced_heads(talker, stage(-1)):
            slots = core.admit([row])
        try:
            for frame in range(-1, row.max_frames):
                if frame >= 0:
                    with _forced_heads(talker, stage(frame)):
                        batch = core.advance(1, slots)
                    if batch.counts != (1,):
                        break
                    made.append(batch.codes[0, 0])
                if logits is not None:
                    logits.take(frame, slots, stage(frame))
        finally:
            core.release(slots[0])
    codes = torch.stack(made)
    for (frame, book), code in forced.items():
        if int(codes[frame, book]) != code:
            raise ValueError(f"code {code} of codebook {book} could not be forced at frame {frame}")
    return codes


def speak_with_logits(
    core: NativeFrameDecoder, talker: Talker, rows: Sequence[RowRequest], kept: KeptLogits
) -> list[Tensor]:
    """Rows side by side on the core's own codes: int64 [frames, groups] each. kept: filled."""
    made: list[Tensor] = []
    with _Logits(core, talker, kept) as logits:
        slots = core.admit(rows)
        try:
            logits.take(-1, slots, {})
            for frame in range(len(kept.values)):
                batch = core.advance(1, slots)
                if batch.counts != (1,) * len(rows):
                    raise ValueError(f"not every row made frame {frame}: {batch.counts}")
                made.append(batch.codes[:, 0])
                logits.take(frame, slots, {})
        finally:
            for slot in slots:
                core.release(slot)
    return list(torch.stack(made, 1))


class _Logits:
    """Inside, a core without graphs leaves the logits of a frame where they can be read."""

    def __init__(self, core: NativeFrameDecoder, talker: Talker, kept: KeptLogits) -> None:
        if core.captured:
            raise ValueError("graphs write logits where they were captured to: the core must have none")
        self.core, self.kept = core, kept
        self.sizes = [weight.shape[0] for weight in heads_of(talker)]
        self.each = core.slots * talker.config.vocab_size
        self.buffer = torch.zeros(len(self.sizes) * self.each, device=talker.device)

    def __enter__(self) -> "_Logits":
        self.core.launches.core.keep_logits(self.buffer.data_ptr())
        return self

    def __exit__(self, *_: object) -> None:
        self.core.launches.core.keep_logits(0)

    def take(self, frame: int, slots: Sequence[Slot], forced: Mapping[int, int]) -> None:
        """What a frame has left (-1: an admission): its codes 1.. and code 0 of the next one."""
        for book, size in enumerate(self.sizes):
            if book in forced or (frame < 0 and book):
                continue
            logits = self.buffer[book * self.each :][: self.core.slots * size].view(-1, size)
            for row, slot in enumerate(slots):
                # The prompts of an admission lie in the order in which they came.
                place = row if frame < 0 else self.core._rows[slot].place
                self.kept.put(frame if book else frame + 1, row, book, logits[place])


# ------------------------------------------------------------ the plain decoder


class _ForcedPicker:
    """Picks given codes and keeps the logits. A Picker (qwen3tts.backends.torch.picking)."""

    def __init__(self, rows: Sequence[RowRequest], codes: Sequence[Tensor], device: torch.device, kept: Any) -> None:
        self.numbers = {id(request): i for i, request in enumerate(rows)}
        self.codes, self.kept = [c.to(device) for c in codes], kept

    def begin(self, rows: Sequence[Row]) -> None:
        """See Picker."""

    def predictor(self, rows: Sequence[Row], codebook: int, logits: Tensor) -> Tensor:
        """See Picker."""
        return self._pick(rows, codebook, logits)

    def talker(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        """See Picker."""
        return self._pick(rows, 0, logits)

    def _pick(self, rows: Sequence[Row], book: int, logits: Tensor) -> Tensor:
        picked = []
        for row, values in zip(rows, logits, strict=True):
            number, frame = self.numbers[id(row.request)], row.frames
            self.kept.put(frame, number, book, values)
            codes = self.codes[number]
            picked.append(codes[min(frame, len(codes) - 1), book])  # past the end: nobody's
        return torch.stack(picked)


def plain_logits(
    talker: Talker, padding: Tensor, rows: Sequence[RowRequest], codes: Sequence[Tensor], kept: Any
) -> None:
    """The plain decoder on given codes ([frames, groups] for each row, equally many), in the talker's dtype; the
    talker's widths, prompts and texts as in `rows`. kept: filled (a KeptLogits, or what has its `put`)."""
    decoder = TorchFrameDecoder(talker, padding, slots=len(rows), max_positions=1 << 20, kv_bytes=None)
    decoder.picker = _ForcedPicker(rows, codes, talker.device, kept)
    slots = decoder.admit(rows)
    for _ in range(len(codes[0])):
        decoder.advance(1, slots)
    decoder.close()
