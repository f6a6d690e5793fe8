"""A decoder for all rows: those that draw from a torch generator go to the plain decoder, all others to the core.

The official package's draws come from torch's generators, whose state is the host's: no graph can draw from them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.errors import CapacityError
from qwen3tts.runtime.protocols import FrameBatch, FrameDecoder, RowRequest, Slot


class _Inner(NamedTuple):
    decoder: FrameDecoder
    slot: Slot


class MixedFrameDecoder:
    """See runtime.protocols.FrameDecoder. Not thread-safe: one caller at a time.

    Both decoders share the number of slots; the plain one's keys and values come on top of the core's memory."""

    def __init__(self, core: NativeFrameDecoder, plain: FrameDecoder) -> None:
        self.core, self.plain = core, plain
        self._rows: dict[Slot, _Inner] = {}
        self._next_slot = 0

    def close(self) -> None:
        """Frees the memory of both; only release() works afterwards. May be called again."""
        self.core.close()
        self.plain.close()

    @property
    def frames_per_call(self) -> int:
        """See FrameDecoder."""
        decoders = {row.decoder for row in self._rows.values()} or {self.core}
        return min(decoder.frames_per_call for decoder in decoders)

    @property
    def slots(self) -> int:
        """Rows side by side."""
        return self.core.slots

    def free_slots(self) -> int:
        """See FrameDecoder."""
        return self.slots - len(self._rows)

    def open_slots(self) -> frozenset[Slot]:
        """See FrameDecoder."""
        return frozenset(self._rows)

    def room_for(self, rows: Sequence[RowRequest]) -> int:
        """See FrameDecoder."""
        room = self.free_slots()
        for decoder in (self.core, self.plain):
            theirs = [i for i, row in enumerate(rows) if self._decoder(row) is decoder]
            fit = decoder.room_for([rows[i] for i in theirs])
            if fit < len(theirs):
                room = min(room, theirs[fit])
        return min(room, len(rows))

    def _decoder(self, row: RowRequest) -> FrameDecoder:
        return self.core if row.generator is None else self.plain

    def admit(self, rows: Sequence[RowRequest], wait: bool = True) -> list[Slot]:
        """See FrameDecoder."""
        room = self.room_for(rows)
        if room < len(rows):
            raise CapacityError(
                f"There is room for {room} of {len(rows)} texts: {self.free_slots()} of {self.slots} slots are free. "
                "Close a stream, or load with more max_streams or kv_bytes."
            )
        inner: dict[int, _Inner] = {}
        try:
            for decoder in (self.plain, self.core):
                theirs = [i for i, row in enumerate(rows) if self._decoder(row) is decoder]
                if theirs:
                    slots = decoder.admit([rows[i] for i in theirs], wait)
                    inner.update((i, _Inner(decoder, slot)) for i, slot in zip(theirs, slots, strict=True))
        except BaseException:
            for decoder, slot in inner.values():
                decoder.release(slot)
            raise
        admitted = {Slot(self._next_slot + i): inner[i] for i in range(len(rows))}
        self._next_slot += len(rows)
        self._rows.update(admitted)
        return list(admitted)

    def add_text(self, slot: Slot, rows: Tensor, last: bool) -> None:
        """See FrameDecoder."""
        decoder, inner = self._rows[slot]
        decoder.add_text(inner, rows, last)

    def release(self, slot: Slot) -> None:
        """See FrameDecoder."""
        row = self._rows.pop(slot, None)
        if row is not None:
            row.decoder.release(row.slot)

    def advance(self, frames: int, slots: Sequence[Slot] | None = None) -> FrameBatch:
        """See FrameDecoder."""
        chosen = self._rows if slots is None else {slot: self._rows[slot] for slot in slots}
        outer = {inner: slot for slot, inner in chosen.items()}
        found: dict[Slot, tuple[FrameBatch, int]] = {}
        for decoder in (self.core, self.plain):
            theirs = tuple(inner.slot for inner in chosen.values() if inner.decoder is decoder)
            if theirs:
                batch = decoder.advance(frames, theirs)
                if len(theirs) == len(chosen):  # the usual case: nothing to bring together
                    return FrameBatch(
                        tuple(outer[_Inner(decoder, slot)] for slot in batch.slots),
                        batch.codes, batch.counts, batch.finished,
                    )  # fmt: skip
                found.update((outer[_Inner(decoder, slot)], (batch, i)) for i, slot in enumerate(batch.slots))
        active = [slot for slot in chosen if slot in found]
        counts = tuple(found[slot][0].counts[found[slot][1]] for slot in active)
        groups = self.core.state.groups
        codes = torch.zeros(len(active), max(counts, default=0), groups, dtype=torch.int64)
        for out, slot, count in zip(codes, active, counts, strict=True):
            batch, i = found[slot]
            out[:count] = batch.codes[i, :count]
        finished = tuple(found[slot][0].finished[found[slot][1]] for slot in active)
        return FrameBatch(tuple(active), codes, counts, finished)
