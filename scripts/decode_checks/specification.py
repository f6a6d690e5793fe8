"""The codes of the specification: the plain decoder in fp32 on the CPU, and at every pick what it was next to."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decode_checks.drawing import DrawnTalker, draw_row
from decode_checks.near import near_picks
from qwen3tts.backends.torch.frame_decoder import TorchFrameDecoder
from qwen3tts.backends.torch.picking import MIN_TOKENS, Row, RowPicker
from qwen3tts.model.sampling import SamplingParams, process_talker_logits
from qwen3tts.model.talker import Talker
from qwen3tts.runtime.protocols import RowRequest

SEEDS = tuple(range(1, 11))
NEAR = 1e-2
"""logits: picks further than this from every other one are not listed"""
GREEDY = SamplingParams(False, 1.0, 0, 1.0)


def sampled(seed: int) -> SamplingParams:
    """The default, and with top_p for every other seed."""
    return SamplingParams(True, 0.9, 50, 1.0 if seed % 2 else 0.95)


def specification_rows(talker: Talker, frames: int, seeds: Sequence[int] = SEEDS) -> list[RowRequest]:
    """Greedy rows of all seeds, then sampled ones: prompts and texts of different lengths, texts that end early and
    ones that do not."""
    rows = []
    for kind in ("greedy", "sampled"):
        for i, seed in enumerate(seeds):
            params = GREEDY if kind == "greedy" else sampled(seed)
            text = (3 + 11 * i) % (frames + 10)
            rows.append(draw_row(talker, seed, prompt=20 + 3 * i, text=text, frames=frames, sampling=params))
    return rows


@dataclass(frozen=True)
class Specification:
    """What `make` leaves for other machines."""

    preset: str
    checksum: int
    """of the model's bits"""
    codes: NDArray[np.int16]
    """[rows, frames, 16]"""
    places: NDArray[np.int16]
    """[n, 4]: row, frame, codebook and another code that the pick was near to"""
    distances: NDArray[np.float32]
    """[n]: how near, in logits"""
    facts: dict[str, str | float]

    @property
    def frames(self) -> int:
        """Of each row."""
        return int(self.codes.shape[1])

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the rows, each of which is there greedy and sampled."""
        return SEEDS[: len(self.codes) // 2]

    def distance(self, row: int, frame: int, codebook: int, other: int) -> float | None:
        """How near a pick was to another code, in logits; None: further than NEAR, or not next to it at all."""
        where = (self.places == np.array([row, frame, codebook, other])).all(1)
        return float(self.distances[where].min()) if where.any() else None

    def save(self, path: Path) -> None:
        """Writes it as .npz."""
        head = {"preset": self.preset, "checksum": str(self.checksum), "facts": self.facts}
        np.savez_compressed(
            path, head=np.frombuffer(json.dumps(head).encode(), np.uint8), codes=self.codes, places=self.places,
            distances=self.distances,
        )  # fmt: skip

    @staticmethod
    def load(path: Path) -> "Specification":
        """Reads what save() wrote."""
        with np.load(path) as file:
            head = json.loads(file["head"].tobytes())
            return Specification(
                head["preset"], int(head["checksum"]), file["codes"], file["places"], file["distances"], head["facts"]
            )


class NearPicker(RowPicker):
    """Lists what every pick was next to."""

    def __init__(self, talker: Talker, rows: Sequence[RowRequest]) -> None:
        super().__init__(talker)
        self.numbers = {id(request): i for i, request in enumerate(rows)}
        self.places: list[tuple[int, int, int, int]] = []
        self.distances: list[float] = []

    def predictor(self, rows: Sequence[Row], codebook: int, logits: Tensor) -> Tensor:
        """See Picker."""
        codes = super().predictor(rows, codebook, logits)
        for i, row in enumerate(rows):
            self._note(row, codebook, logits[i], row.request.predictor, int(codes[i]))
        return codes

    def talker(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        """See Picker."""
        processed = [
            process_talker_logits(
                logits[i], row.seen, row.request.repetition_penalty, self._suppressed,
                self._eos_id if row.frames < MIN_TOKENS else None,
            )
            for i, row in enumerate(rows)
        ]  # fmt: skip
        codes = super().talker(rows, logits)
        for i, row in enumerate(rows):
            self._note(row, 0, processed[i], row.request.talker, int(codes[i]))
        return codes

    def _note(self, row: Row, codebook: int, logits: Tensor, params: SamplingParams, picked: int) -> None:
        word = int(row.word(codebook)) if params.do_sample else 0
        for near in near_picks(logits, params, word, picked):
            if near.distance < NEAR:
                self.places.append((self.numbers[id(row.request)], row.frames, codebook, near.code))
                self.distances.append(near.distance)


def make_specification(
    drawn: DrawnTalker, preset: str, frames: int, seeds: Sequence[int] = SEEDS, say: Callable[[str], None] = print
) -> Specification:
    """Runs all rows of a model in fp32 on the CPU."""
    talker, started = drawn.talker, time.perf_counter()
    if talker.device.type != "cpu" or talker.dtype != torch.float32:
        raise ValueError(f"a specification is fp32 on the CPU, not {talker.dtype} on {talker.device}")
    rows = specification_rows(talker, frames, seeds)
    decoder = TorchFrameDecoder(talker, drawn.padding, slots=len(rows), max_positions=2048, kv_bytes=None)
    decoder.picker = picker = NearPicker(talker, rows)
    slots, made = decoder.admit(rows), []
    say(f"prompts after {time.perf_counter() - started:.0f} s")
    for frame in range(frames):
        batch = decoder.advance(1, slots)
        if batch.counts != (1,) * len(rows):
            raise ValueError(f"not every row made frame {frame}: {batch.counts}")
        made.append(batch.codes[:, 0])
        if frame % 10 == 9:
            say(f"{frame + 1} frames after {time.perf_counter() - started:.0f} s")
    facts: dict[str, str | float] = {
        "torch": torch.__version__, "seconds": round(time.perf_counter() - started, 1), "rows": len(rows),
    }  # fmt: skip
    return Specification(
        preset, drawn.checksum, torch.stack(made, 1).to(torch.int16).numpy(),
        np.array(picker.places, np.int16).reshape(-1, 4), np.array(picker.distances, np.float32), facts,
    )  # fmt: skip
