"""A decode core in fp32 against the codes of the specification: equal, or parted at a proven tie."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from decode_checks.forcing import speak, speak_forced
from decode_checks.specification import Specification, specification_rows
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.model.talker import Talker

TIE = 1e-4
"""logits: a pick nearer than this to another one is decided by the order of sums"""
MOST_TIES = 2
"""in the rows of one kind, of which there are ten"""


@dataclass(frozen=True)
class Difference:
    """Where a row parts from the specification, having followed it until there."""

    row: int
    frame: int
    codebook: int
    specification: int
    """code"""
    core: int
    """code"""
    distance: float | None
    """of the specification's pick from the core's, in logits; None: it was not near to it"""

    @property
    def tie(self) -> bool:
        """Whether the order of sums decides."""
        return self.distance is not None and self.distance < TIE


@dataclass
class Comparison:
    """What came out for one model."""

    preset: str
    rows: int
    frames: int
    picks: int
    differences: list[Difference] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[Difference]:
        """Differences of greedy or sampled rows."""
        return [d for d in self.differences if (d.row < self.rows // 2) == (kind == "greedy")]

    @property
    def failed(self) -> bool:
        """A difference that is no tie, or more ties than there may be."""
        return any(not d.tie for d in self.differences) or any(
            len(self.of_kind(kind)) > MOST_TIES for kind in ("greedy", "sampled")
        )

    def summary(self) -> dict[str, Any]:
        """For JSON."""
        ties = {f"ties_{kind}": sum(d.tie for d in self.of_kind(kind)) for kind in ("greedy", "sampled")}
        return {
            "equal": not self.failed, "rows": self.rows, "frames": self.frames, "picks": self.picks, **ties,
            "differences": [asdict(d) | {"tie": d.tie} for d in self.differences],
        }  # fmt: skip


def compare(
    core: NativeFrameDecoder, talker: Talker, specification: Specification, say: Callable[[str], None] = print
) -> Comparison:
    """All rows side by side; those that part at a tie go on alone, with the specification's code."""
    rows = specification_rows(talker, specification.frames, specification.seeds)
    wanted = torch.from_numpy(specification.codes.astype("int64"))
    found = Comparison(specification.preset, len(rows), specification.frames, wanted.numel())
    for number, (row, codes, made) in enumerate(zip(rows, wanted, _speak_all(core, rows), strict=True)):
        forced: dict[tuple[int, int], int] = {}
        while (difference := _first(specification, number, codes, made)) is not None:
            found.differences.append(difference)
            say(f"{specification.preset}: {'tie' if difference.tie else 'DIFFERENT'} {difference}")
            if not difference.tie:
                break
            forced[difference.frame, difference.codebook] = difference.specification
            made = speak_forced(core, talker, row, forced)
    return found


def _speak_all(core: NativeFrameDecoder, rows: list[Any]) -> list[Tensor]:
    return [
        codes
        for first in range(0, len(rows), core.slots)
        for codes in speak(core, rows[first : first + core.slots], core.frames_per_replay)
    ]


def _first(specification: Specification, row: int, want: Tensor, made: Tensor) -> Difference | None:
    """The first difference of a row. A row that ended early differs at the frame that it did not make."""
    frames = len(made)
    places = (want[:frames] != made).nonzero()
    if len(places) == 0:
        return None if frames == len(want) else Difference(row, frames, 0, int(want[frames, 0]), -1, None)
    frame, book = (int(i) for i in places[0])
    core = int(made[frame, book])
    distance = specification.distance(row, frame, book, core)
    return Difference(row, frame, book, int(want[frame, book]), core, distance)
