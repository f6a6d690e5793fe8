"""FrameDecoder in plain torch: all rows share the products of a step; attention and sampling are each row's own."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from qwen3tts.backends.torch.picking import Picker, Row, RowPicker
from qwen3tts.errors import CapacityError
from qwen3tts.model.kv_cache import EqualRows, kv_bytes_per_position
from qwen3tts.model.layers import independent_rows
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import FrameBatch, RowRequest, Slot


class TorchFrameDecoder:
    """See runtime.protocols.FrameDecoder. Not thread-safe: one caller at a time."""

    frames_per_call = 1
    """nothing is gained by more, and callers hear of each frame"""

    def __init__(
        self,
        talker: Talker,
        text_padding: Tensor | Callable[[], Tensor],
        *,
        slots: int,
        max_positions: int,
        kv_bytes: int | None,
    ) -> None:
        """text_padding [hidden]: the text row of frames past the end of the text, or what makes it when the first row
        is admitted: where another decoder makes the frames, nobody has to."""
        self.talker, self.slots, self.max_positions, self.kv_bytes = talker, slots, max_positions, kv_bytes
        self._pad = text_padding
        self._made_pad: Tensor | None = None
        """of a row that had to be made"""
        self.picker: Picker = RowPicker(talker)
        """who picks codes from logits; may be replaced while no slot is open"""
        self._rows: dict[Slot, Row] = {}
        self._next_slot = 0
        self._predictor_cache: EqualRows | None = None

    def free_slots(self) -> int:
        """See FrameDecoder."""
        return self.slots - len(self._rows)

    # ------------------------------------------------------------ admission

    def open_slots(self) -> frozenset[Slot]:
        """See FrameDecoder."""
        return frozenset(self._rows)

    def room_for(self, rows: Sequence[RowRequest]) -> int:
        """See FrameDecoder."""
        each = kv_bytes_per_position(self.talker.config.transformer, self.talker.dtype)
        for row in rows:
            self._check_alone(row, each)
        used = each * sum(row.cache.capacity for row in self._rows.values())
        free = None if self.kv_bytes is None else self.kv_bytes - used
        count = 0
        for row in rows[: self.free_slots()]:
            if free is not None:
                free -= each * positions_needed(row)
                if free < 0:
                    break
            count += 1
        return count

    def _check_alone(self, row: RowRequest, bytes_per_position: int) -> None:
        need = positions_needed(row)
        what = f"({row.prefill.shape[0]} for its prompt, {row.max_frames} for its frames)"
        if need > self.max_positions:
            raise CapacityError(
                f"A text needs {need} positions {what}, but {self.max_positions} are available. Shorten the text or "
                "max_frames."
            )
        if self.kv_bytes is not None and need * bytes_per_position > self.kv_bytes:
            raise CapacityError(
                f"A text needs {need} positions {what}; keys and values take {need * bytes_per_position:,} bytes, "
                f"more than kv_bytes={self.kv_bytes:,}. Shorten the text or max_frames, or raise kv_bytes."
            )

    def admit(self, rows: Sequence[RowRequest], wait: bool = True) -> list[Slot]:
        """See FrameDecoder."""
        room = self.room_for(rows)
        if room < len(rows):
            raise CapacityError(
                f"There is room for {room} of {len(rows)} texts: {self.free_slots()} of {self.slots} slots are free. "
                "Close a stream, or load with more max_streams or kv_bytes."
            )
        admitted: list[tuple[Slot, Row]] = []
        with exact_arithmetic(self.talker.device):
            if rows and self._made_pad is None and not isinstance(self._pad, Tensor):
                self._made_pad = self._pad()
            for request in rows:
                row = Row(request, self.talker, positions_needed(request))
                hidden = self.talker(request.prefill, [row.cache], [request.prefill.shape[0]])[-1:]
                self.picker.begin([row])
                self._draw_tokens([row], hidden)
                admitted.append((Slot(self._next_slot + len(admitted)), row))
        self._next_slot += len(admitted)
        self._rows.update(admitted)
        return [slot for slot, _ in admitted]

    def forget_padding(self) -> None:
        """The padding row is made anew when it is needed, if it was not given as a tensor. No row is open."""
        self._made_pad = None

    def release(self, slot: Slot) -> None:
        """See FrameDecoder."""
        self._rows.pop(slot, None)

    def close(self) -> None:
        """Frees the memory of all rows, whoever still holds the decoder."""
        self._rows.clear()
        self._predictor_cache = None
        self._pad, self._made_pad = torch.empty(0, device="meta"), None

    # ------------------------------------------------------------ frames

    def add_text(self, slot: Slot, rows: Tensor, last: bool) -> None:
        """See FrameDecoder."""
        row = self._rows[slot]
        if row.text_complete:
            raise ValueError("the text of this slot is complete")
        row.trailing, row.text_complete = torch.cat((row.trailing, rows)), last

    def advance(self, frames: int, slots: Sequence[Slot] | None = None) -> FrameBatch:
        """See FrameDecoder."""
        chosen = self._rows if slots is None else {slot: self._rows[slot] for slot in slots}
        active = {slot: row for slot, row in chosen.items() if row.finished is None}
        made: dict[Slot, list[Tensor]] = {slot: [] for slot in active}
        with exact_arithmetic(self.talker.device):
            for _ in range(frames):
                running = [(slot, row) for slot, row in active.items() if row.can_advance]
                if not running:
                    break
                codes = self._frame([row for _, row in running])
                for (slot, _), row_codes in zip(running, codes, strict=True):
                    made[slot].append(row_codes)
        groups = self.talker.config.num_code_groups
        longest = max((len(rows) for rows in made.values()), default=0)
        out = torch.zeros(len(active), longest, groups, dtype=torch.int64)
        for i, rows in enumerate(made.values()):
            if rows:
                out[i, : len(rows)] = torch.stack(rows)
        return FrameBatch(
            tuple(active),
            out,
            tuple(len(rows) for rows in made.values()),
            tuple(row.finished for row in active.values()),
        )

    def _frame(self, rows: Sequence[Row]) -> Tensor:
        """One frame of each row: codes int64 [rows, 16] on the host. Draws the token of the frame after it, too."""
        talker = self.talker
        hidden = torch.stack([row.hidden for row in rows])
        tokens = torch.stack([row.token for row in rows])
        self.picker.begin(rows)
        pick = partial(self.picker.predictor, rows)
        with independent_rows():
            cache = self._cache_for(len(rows))
            codes, embedded = talker.code_predictor(hidden, talker.embed_codec(tokens), pick, cache)
            x = embedded + torch.stack([self._text_row(row) for row in rows])
            hidden = talker(x, [row.cache for row in rows], [1] * len(rows))
            for row in rows:
                row.frames += 1
            self._draw_tokens(rows, hidden)
        return torch.cat((tokens[:, None], codes), 1).cpu()

    def _text_row(self, row: Row) -> Tensor:
        if row.frames < row.trailing.shape[0]:
            return row.trailing[row.frames]
        pad = self._pad if isinstance(self._pad, Tensor) else self._made_pad
        assert pad is not None  # since the row was admitted
        return pad

    def _cache_for(self, rows: int) -> EqualRows:
        if self._predictor_cache is None or self._predictor_cache.rows != rows:
            self._predictor_cache = self.talker.code_predictor.new_cache(rows)
        return self._predictor_cache

    def _draw_tokens(self, rows: Sequence[Row], hidden: Tensor) -> None:
        """Draws code 0 of each row's next frame from hidden [rows, hidden] and sees whether the row ends there."""
        tokens = self.picker.talker(rows, self.talker.logits(hidden))
        for i, row in enumerate(rows):
            row.hidden, row.token = hidden[i], tokens[i]
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if token == self.talker.config.codec_eos_id:
                row.finished = "eos"
            elif row.frames >= row.request.max_frames:
                row.finished = "length"


def positions_needed(row: RowRequest) -> int:
    """Positions a row takes in its whole life: its prompt and one per frame."""
    return row.prefill.shape[0] + row.max_frames
