"""Rows that come, pause, fail, are cancelled and end in a random order on one decoder, and what each of them spoke;
then the same rows by themselves."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from decode_checks.forcing import speak
from qwen3tts.errors import NumericsError
from qwen3tts.runtime.protocols import FrameBatch, FrameDecoder, RowRequest, Slot


@dataclass
class Lived:
    """One row."""

    request: RowRequest
    """with all text that it was given; on the host once the row has left"""
    broken: bool = False
    """its text holds a NaN"""
    codes: list[list[int]] = field(default_factory=list)
    end: str | None = None
    """"eos", "length", "cancelled" or "error" """

    def alone(self) -> RowRequest:
        """The row as one that is never cancelled and has its text from the beginning."""
        if self.end in ("eos", "length"):
            return replace(self.request, text_complete=True)
        sound = replace(self.request, text_complete=True, max_frames=len(self.codes))
        return replace(sound, trailing=sound.trailing.nan_to_num()) if self.broken else sound


@dataclass(frozen=True)
class Habits:
    """How rows live."""

    most_joins: int = 2
    """at a step"""
    most_frames: int = 7
    """asked for at a step"""
    cancelled: float = 0.05
    """chance of a row at each step"""
    chosen: float = 0.4
    """chance of a step to ask only some of the rows"""
    broken: float = 0.0
    """chance of a row to get a NaN in its text"""


class Life:
    """`steps` on one decoder. The same rng on two decoders lives the same life as long as the same comes out."""

    def __init__(
        self,
        decoder: FrameDecoder,
        rng: random.Random,
        new_row: Callable[[random.Random], RowRequest],
        new_text: Callable[[random.Random], Tensor],
        habits: Habits = Habits(),
    ) -> None:
        self.decoder, self.rng, self.habits = decoder, rng, habits
        self.new_row, self.new_text = new_row, new_text
        self.open: dict[Slot, Lived] = {}
        self.rows: list[Lived] = []
        """all that were ever admitted"""
        self.row_frames = 0
        self.log: list[Any] = []
        """what came out of every step, in numbers that can be compared"""

    def step(self) -> None:
        """Some rows join, some get text, some speak, some leave."""
        self._join()
        for slot, row in list(self.open.items()):
            if not row.request.text_complete and self.rng.random() < 0.5:
                self._add_text(slot, row)
        broken = [slot for slot, row in self.open.items() if row.broken]
        for slot in broken:
            self._advance([slot])
        sound = [slot for slot in self.open if slot not in broken]
        if self.rng.random() < self.habits.chosen:
            self._advance(self.rng.sample(sound, self.rng.randint(0, len(sound))))
        else:
            self._advance(sound if broken else None)
        for slot in [slot for slot in self.open if self.rng.random() < self.habits.cancelled]:
            self._leave(slot, "cancelled")

    def finish(self) -> None:
        """Whoever is still there leaves."""
        for slot in list(self.open):
            self._leave(slot, "cancelled")

    def _join(self) -> None:
        rows = [self._row() for _ in range(self.rng.randint(0, self.habits.most_joins))]
        fit = self.decoder.room_for([row.request for row in rows])
        slots = self.decoder.admit([row.request for row in rows[:fit]])
        self.open.update(zip(slots, rows[:fit], strict=True))
        self.rows += rows[:fit]
        self.log.append((fit, tuple(slots), self.decoder.free_slots(), self.decoder.open_slots()))

    def _row(self) -> Lived:
        request, broken = self.new_row(self.rng), self.rng.random() < self.habits.broken
        if broken and len(request.trailing):
            text = request.trailing.clone()
            text[self.rng.randrange(len(text))] = torch.nan
            request = replace(request, trailing=text)
        return Lived(request, broken and len(request.trailing) > 0)

    def _add_text(self, slot: Slot, row: Lived) -> None:
        more, last = self.new_text(self.rng), self.rng.random() < 0.4
        self.decoder.add_text(slot, more, last)
        row.request = replace(row.request, trailing=torch.cat((row.request.trailing, more)), text_complete=last)

    def _advance(self, asked: list[Slot] | None) -> None:
        frames = self.rng.randint(0, self.habits.most_frames)
        try:
            batch = self.decoder.advance(frames, asked)
        except NumericsError:
            if asked is None or not self.open[asked[0]].broken:
                raise
            self.log.append("error")
            return self._leave(asked[0], "error")
        self.log.append(listed(batch))
        for slot, count, reason, codes in zip(*listed(batch), strict=True):
            row = self.open[slot]
            row.codes += codes
            self.row_frames += count
            if reason is not None:
                self._leave(slot, reason)

    def _leave(self, slot: Slot, end: str) -> None:
        row = self.open.pop(slot)
        row.end = end
        row.request = replace(row.request, prefill=row.request.prefill.cpu(), trailing=row.request.trailing.cpu())
        self.decoder.release(slot)
        self.decoder.release(slot)  # twice is as good as once


def listed(batch: FrameBatch) -> tuple[Any, Any, Any, list[list[list[int]]]]:
    """A FrameBatch in numbers that can be compared."""
    codes = [codes[:count].tolist() for codes, count in zip(batch.codes, batch.counts, strict=True)]
    return batch.slots, batch.counts, batch.finished, codes


def differences_alone(decoder: Any, rows: Sequence[Lived], together: int, step: int) -> list[str]:
    """Speaks every row again, `together` of them at a time, and says what is not as it was.

    With together=1 they are alone; more are as good where a row's bits do not depend on its neighbours."""
    found, spoken = [], [row for row in rows if row.codes]
    for first in range(0, len(spoken), together):
        group = spoken[first : first + together]
        requests = [row.alone() for row in group]
        for row, codes in zip(group, speak(decoder, requests, step), strict=True):
            if codes.tolist() != row.codes:
                same = min(len(codes), len(row.codes))
                places = [i for i in range(same) if codes[i].tolist() != row.codes[i]]
                where = f"frame {places[0]}" if places else f"{len(row.codes)} frames, {len(codes)} alone"
                found.append(f"row with seed {row.request.seed}, {row.end}: {where}")
    return found
