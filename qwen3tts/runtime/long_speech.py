"""A long text spoken in parts and joined."""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qwen3tts.runtime.speech import Speech

FADE_SECONDS = 0.01
"""each part fades out and the next one in over this time, so that a joint cannot click"""


def join(parts: Sequence[NDArray[np.float32]], sample_rate: int) -> NDArray[np.float32]:
    """float32 [n_i] each -> float32 [sum n_i]: linear fades at the joints, none at the outer ends."""
    if not parts:
        return np.zeros(0, np.float32)
    faded = [part.copy() for part in parts]
    for before, after in itertools.pairwise(faded):
        for part, ramp in ((before[::-1], FADE_SECONDS), (after, FADE_SECONDS)):
            length = min(len(part), round(ramp * sample_rate))
            part[:length] *= np.linspace(0.0, 1.0, length, dtype=np.float32)
    return np.concatenate(faded)


@dataclass(frozen=True, eq=False)
class LongSpeech:
    """What generate_long returns: the joined samples and how each part went."""

    texts: tuple[str, ...]
    parts: tuple[Speech, ...]
    samples: NDArray[np.float32]
    """the parts one after another, joined with short fades"""
    sample_rate: int

    @property
    def cut(self) -> tuple[int, ...]:
        """Indices of the parts that hit their limit and may lack their end."""
        return tuple(i for i, part in enumerate(self.parts) if not part.complete)

    @property
    def complete(self) -> bool:
        """True if the model ended every part itself."""
        return not self.cut

    @property
    def duration(self) -> float:
        """Seconds of audio."""
        return sum(part.duration for part in self.parts)

    @property
    def seed(self) -> int:
        """Of all parts; the part's number is another word of the random counter."""
        return self.parts[0].seed

    def joined(self) -> Speech:
        """The whole as one Speech: all codes, "length" if a part was cut, the seconds of all parts together."""
        first = self.parts[0]
        timings = dataclasses.replace(
            first.timings, decode_seconds=sum(part.timings.decode_seconds for part in self.parts)
        )
        return dataclasses.replace(
            first,
            samples=self.samples,
            codes=np.concatenate([part.codes for part in self.parts]),
            finish_reason="eos" if self.complete else "length",
            timings=timings,
        )

    def save(self, path: str | os.PathLike[str], *, gain: float = 1.0) -> None:
        """As Speech.save."""
        from qwen3tts.audio.files import write_audio

        write_audio(path, self.samples, self.sample_rate, gain=gain)

    def __repr__(self) -> str:
        cut = f", parts {list(self.cut)} cut" if self.cut else ""
        return f"LongSpeech({self.duration:.2f} s in {len(self.parts)} parts, seed={self.seed}{cut})"
