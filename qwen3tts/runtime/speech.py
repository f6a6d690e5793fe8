"""What generate() returns."""

import base64
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qwen3tts.runtime.protocols import FinishReason


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds. Texts of one call share its prompts and frames, so they report the same figures for those."""

    prompt_seconds: float
    """tokenizing and embedding the prompts"""
    prefill_seconds: float
    """running the prompts through the talker"""
    generation_seconds: float
    """all up to the last code: prompts, prefill, frames"""
    decode_seconds: float
    """codes to samples, this text's alone"""

    @property
    def inference_seconds(self) -> float:
        """generation + decode."""
        return self.generation_seconds + self.decode_seconds


@dataclass(frozen=True, eq=False)
class Speech:
    """One spoken text. `save` it, play it in a notebook, or use the samples."""

    samples: NDArray[np.float32]
    """[frames * 1920] in [-1, 1]; empty if decoding was not asked for"""
    sample_rate: int
    codes: NDArray[np.int16]
    """[frames, 16]"""
    finish_reason: FinishReason
    """"eos": the model ended the speech; "length": it was cut at a limit"""
    seed: int
    """generate again with it and get the same"""
    timings: Timings
    samples_per_frame: int = 1920

    @property
    def frames(self) -> int:
        """Code frames of 80 ms."""
        return len(self.codes)

    @property
    def duration(self) -> float:
        """Seconds of audio."""
        return self.frames * self.samples_per_frame / self.sample_rate

    @property
    def complete(self) -> bool:
        """True if the model ended the speech itself; False if a limit cut it."""
        return self.finish_reason == "eos"

    def save(self, path: str | os.PathLike[str], *, gain: float = 1.0) -> None:
        """Writes .wav, .flac or .ogg by the path's ending, whole or not at all. Raises AudioError."""
        from qwen3tts.audio.files import write_audio

        write_audio(path, self.samples, self.sample_rate, gain=gain)

    def __repr__(self) -> str:
        return f"Speech({self.duration:.2f} s, {self.frames} frames, {self.finish_reason!r}, seed={self.seed})"

    def _repr_html_(self) -> str:
        from qwen3tts.audio.files import wav_bytes

        data = base64.b64encode(wav_bytes(self.samples, self.sample_rate)).decode()
        return f'<audio controls src="data:audio/wav;base64,{data}"></audio>'
