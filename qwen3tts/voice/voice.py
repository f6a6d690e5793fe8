"""Who speaks: a preset of the checkpoint, a cloned voice, or nobody in particular."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from qwen3tts.errors import VoiceError
from qwen3tts.voice.files import read_voices, write_voice
from qwen3tts.voice.record import (
    CodeArray,
    FloatArray,
    VoiceRecord,
    check_fingerprint,
    check_ref_codes,
    check_ref_text,
    check_x_vector,
)

if TYPE_CHECKING:
    from qwen3tts.api import TTS

VoiceKind = Literal["preset", "x_vector", "icl", "no_speaker"]


@dataclass(frozen=True, eq=False, repr=False)
class Voice:
    """One voice; make it with preset(), clone(), load(), from_x_vector(), from_reference() or no_speaker().

    Immutable, picklable and hashable. Two voices are equal when they speak alike: the same preset, or the same x-vector
    and recording bit for bit, whatever their labels.
    """

    kind: VoiceKind
    name: str | None = None
    """preset: its lower-case name; x-vector and icl: a label for messages"""
    x_vector: FloatArray | None = None
    """float32 [enc_dim], read-only; for kinds "x_vector" and "icl" """
    ref_codes: CodeArray | None = None
    """int16 [R, 16], read-only: the recording that speech goes on from; for kind "icl" """
    ref_text: str | None = None
    """what the recording says; for kind "icl" """
    fingerprint: str | None = None
    """names the speaker encoder that made the x-vector; a model with another one warns"""

    def __post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name.strip()):
            raise VoiceError(f"A voice's name is {self.name!r}, expected a string that is not blank.")
        if self.kind not in ("x_vector", "icl"):
            if self.x_vector is not None or self.fingerprint is not None:
                raise VoiceError(f"A voice of kind {self.kind!r} has no x-vector.")
            self._check_name()
        else:
            object.__setattr__(self, "x_vector", check_x_vector(self.x_vector))
            object.__setattr__(self, "fingerprint", check_fingerprint(self.fingerprint))
        if self.kind == "icl":
            object.__setattr__(self, "ref_codes", check_ref_codes(self.ref_codes))
            object.__setattr__(self, "ref_text", check_ref_text(self.ref_text))
        elif self.ref_codes is not None or self.ref_text is not None:
            raise VoiceError(f"A voice of kind {self.kind!r} has no recording.")

    def _check_name(self) -> None:
        if self.kind == "preset" and self.name is not None:
            object.__setattr__(self, "name", self.name.strip().lower())
        elif self.kind != "no_speaker" or self.name is not None:
            raise VoiceError(
                f"A voice of kind {self.kind!r} with name {self.name!r} does not exist: use Voice.preset(), "
                "Voice.from_x_vector(), Voice.from_reference(), Voice.load() or Voice.no_speaker()."
            )

    # ------------------------------------------------------------ making one

    @classmethod
    def preset(cls, name: str) -> "Voice":
        """A preset of a custom voice checkpoint, by its name in any case. Whether it exists is checked on use."""
        if not isinstance(name, str):
            raise VoiceError(f"A preset's name is of type {type(name).__name__}, expected str.")
        return cls("preset", name)

    @classmethod
    def from_x_vector(cls, x_vector: npt.ArrayLike, name: str | None = None, fingerprint: str | None = None) -> "Voice":
        """A speaker embedding for base checkpoints: numbers [enc_dim] (the talker's width), copied as float32."""
        return cls("x_vector", name, x_vector, fingerprint=fingerprint)  # type: ignore[arg-type]  # __post_init__ checks

    @classmethod
    def from_reference(
        cls,
        x_vector: npt.ArrayLike,
        ref_codes: npt.ArrayLike,
        ref_text: str,
        name: str | None = None,
        fingerprint: str | None = None,
    ) -> "Voice":
        """A recording to go on from (in-context learning), for base checkpoints: x-vector [enc_dim], codec codes
        [R, 16], and what they say. White space at the ends of the transcript is dropped."""
        return cls("icl", name, x_vector, ref_codes, ref_text, fingerprint)  # type: ignore[arg-type]  # see above

    @classmethod
    def no_speaker(cls) -> "Voice":
        """No speaker at all: for voice design, where the instruction describes the voice."""
        return cls("no_speaker")

    @classmethod
    def clone(cls, audio: Any, text: str | None = None, *, tts: "TTS", **options: Any) -> "Voice":
        """A voice from a recording, made with a base model: the same as tts.clone(audio, text, **options)."""
        return tts.clone(audio, text, **options)

    # ------------------------------------------------------------ files

    @classmethod
    def load(cls, path: str | os.PathLike[str], name: str | None = None) -> "Voice":
        """Reads a voice file (see qwen3tts.voice.files); its label is `name` or the file's. Raises VoiceError."""
        voices = cls.load_all(path, name)
        if len(voices) > 1:
            raise VoiceError(f"{path}: holds {len(voices)} voices: take one with `qwen3tts voice convert --index`, or "
                             "read all with Voice.load_all().")
        return voices[0]

    @classmethod
    def load_all(cls, path: str | os.PathLike[str], name: str | None = None) -> list["Voice"]:
        """All voices of a file: one, or more of an official prompt file made from several recordings."""
        path = Path(path)
        return [cls.from_record(record, name or path.stem) for record in read_voices(path)]

    def save(self, path: str | os.PathLike[str], *, plain: bool = False) -> None:
        """Writes .json or .safetensors by the path's ending, whole or not at all; loading gives an equal voice.

        plain: JSON with the five keys that other runtimes know and nothing else. The label is not stored: it is the
        file's name. Raises VoiceError, also for presets and no_speaker(), which have nothing to store.
        """
        write_voice(Path(path), self.record(), plain=plain)

    @classmethod
    def from_record(cls, record: VoiceRecord, name: str | None = None) -> "Voice":
        """The voice of a file's contents."""
        kind: VoiceKind = "x_vector" if record.ref_codes is None else "icl"
        name = name if name is None or name.strip() else None
        return cls(kind, name, record.x_vector, record.ref_codes, record.ref_text, record.fingerprint)

    def record(self) -> VoiceRecord:
        """What a file stores. Raises VoiceError for presets and no_speaker()."""
        if self.x_vector is None:
            raise VoiceError(f"{self!r} is no cloned voice: there is nothing to store.")
        return VoiceRecord(self.x_vector, self.ref_codes, self.ref_text, self.fingerprint)

    def without_reference(self) -> "Voice":
        """The x-vector alone."""
        if self.x_vector is None:
            raise VoiceError(f"{self!r} has no x-vector.")
        return Voice("x_vector", self.name, self.x_vector, fingerprint=self.fingerprint)

    # ------------------------------------------------------------ as a value

    @property
    def frames(self) -> int:
        """R, frames of 80 ms of the recording; 0 without one."""
        return 0 if self.ref_codes is None else len(self.ref_codes)

    def _key(self) -> tuple[object, ...]:
        if self.x_vector is None:
            return self.kind, self.name
        codes = None if self.ref_codes is None else self.ref_codes.tobytes()
        return self.kind, self.x_vector.tobytes(), codes, self.ref_text

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Voice) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the checks; a bare array would come back writable.
        return Voice, (self.kind, self.name, self.x_vector, self.ref_codes, self.ref_text, self.fingerprint)

    def __repr__(self) -> str:
        if self.kind == "preset":
            return f"Voice.preset({self.name!r:.60})"
        if self.x_vector is None:
            return "Voice.no_speaker()"
        vector = f"<float32 [{self.x_vector.size}]>"
        if self.ref_codes is None or self.ref_text is None:
            return f"Voice.from_x_vector({vector}, name={self.name!r:.60})"
        text = self.ref_text if len(self.ref_text) <= 40 else self.ref_text[:37] + "..."
        return f"Voice.from_reference({vector}, <{self.frames} frames>, {text!r}, name={self.name!r:.60})"
