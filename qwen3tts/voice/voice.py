"""Who speaks: a preset of the checkpoint, an x-vector, or nobody in particular."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qwen3tts.errors import VoiceError
from qwen3tts.voice.files import FloatArray, read_x_vector

VoiceKind = Literal["preset", "x_vector", "no_speaker"]


@dataclass(frozen=True, eq=False, repr=False)
class Voice:
    """One voice; make it with preset(), from_x_vector(), load() or no_speaker().

    Immutable, picklable and hashable. Two voices are equal when they speak alike: the same preset, or the same
    x-vector bit for bit, whatever its label.
    """

    kind: VoiceKind
    name: str | None = None
    """preset: its lower-case name; x-vector: a label for messages"""
    x_vector: FloatArray | None = None
    """float32 [enc_dim], read-only; for kind "x_vector" alone"""

    def __post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name.strip()):
            raise VoiceError(f"A voice's name is {self.name!r}, expected a string that is not blank.")
        if self.kind == "x_vector":
            object.__setattr__(self, "x_vector", _x_vector(self.x_vector))
        elif self.x_vector is not None:
            raise VoiceError(f"A voice of kind {self.kind!r} has no x-vector.")
        elif self.kind == "preset" and self.name is not None:
            object.__setattr__(self, "name", self.name.strip().lower())
        elif self.kind != "no_speaker" or self.name is not None:
            raise VoiceError(
                f"A voice of kind {self.kind!r} with name {self.name!r} does not exist: use "
                "Voice.preset(), Voice.from_x_vector(), Voice.load() or Voice.no_speaker()."
            )

    @classmethod
    def preset(cls, name: str) -> "Voice":
        """A preset of a custom voice checkpoint, by its name in any case. Whether it exists is checked on use."""
        if not isinstance(name, str):
            raise VoiceError(f"A preset's name is of type {type(name).__name__}, expected str.")
        return cls("preset", name)

    @classmethod
    def from_x_vector(cls, x_vector: npt.ArrayLike, name: str | None = None) -> "Voice":
        """A speaker embedding for base checkpoints: numbers [enc_dim] (the talker's width), copied as float32."""
        return cls("x_vector", name, x_vector)  # type: ignore[arg-type]  # converted and checked in __post_init__

    @classmethod
    def no_speaker(cls) -> "Voice":
        """No speaker at all: for voice design, where the instruction describes the voice."""
        return cls("no_speaker")

    @classmethod
    def load(cls, path: str | Path) -> "Voice":
        """Reads an x-vector from a voice file; see qwen3tts.voice.files. VoiceError names the file and the key."""
        path = Path(path)
        return cls.from_x_vector(read_x_vector(path), name=path.stem)

    def _key(self) -> tuple[object, ...]:
        if self.x_vector is None:
            return self.kind, self.name
        return self.kind, self.x_vector.tobytes()

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Voice) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return Voice, (self.kind, self.name, self.x_vector)  # through the checks; a bare array would come back writable

    def __repr__(self) -> str:
        if self.kind == "preset":
            return f"Voice.preset({self.name!r})"
        if self.x_vector is None:
            return "Voice.no_speaker()"
        return f"Voice.from_x_vector(<float32 [{self.x_vector.size}]>, name={self.name!r})"


def _x_vector(values: object) -> FloatArray:
    """Checks and copies: float32 [enc_dim], finite, read-only."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; torch tensors in bf16 or with a gradient
        raise VoiceError(
            f"An x-vector cannot be made of a {type(values).__name__} ({error}). Give numbers of shape "
            "[enc_dim]; of a torch tensor, tensor.detach().float().cpu().numpy()."
        ) from None
    if array.dtype.kind not in "fiu":
        raise VoiceError(f"An x-vector holds numbers, not dtype {array.dtype}.")
    if array.ndim != 1 or array.size == 0:
        raise VoiceError(f"An x-vector has the shape [enc_dim], not {list(array.shape)}.")
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused
        vector = np.array(array, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(vector))
    if bad.size:
        raise VoiceError(
            f"An x-vector has {bad.size} of {vector.size} values that are not finite float32 numbers, the "
            f"first at index {bad[0]}: {array[bad[0]]}."
        )
    vector.flags.writeable = False
    return vector
