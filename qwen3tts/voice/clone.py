"""A voice from a recording: x-vector, reference codes, transcript, and warnings about a recording that fits badly."""

import logging
import numbers
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from qwen3tts.errors import VoiceError
from qwen3tts.voice.record import MAX_REFERENCE_FRAMES, check_ref_text
from qwen3tts.voice.voice import Voice

logger = logging.getLogger(__name__)

DEFAULT_SILENT_TAIL = 0.5
"""Seconds. Without it the end of the recording may be heard again at the start of the speech."""
MAX_SILENT_TAIL = 10.0

FRAMES_PER_SECOND = 12.5
LONG_SECONDS = 60.0
SHORT_SECONDS = 1.0
"""A voice can be made from less, but hardly resembles it; 3 to 15 seconds are recommended."""

SILENT_PEAK = 1e-4
"""-80 dB of full scale: nobody speaks in such a recording"""

# How a transcript must fit its recording. Everyday speech takes 3 to 5 frames of 80 ms a token, very slow reading 10.
MIN_FRAMES_PER_TOKEN = 1.0
MAX_FRAMES_PER_TOKEN = 15.0
LEEWAY_FRAMES = 25
"""2 seconds of pauses around the words"""


class Encoders(Protocol):
    """What a backend offers for cloning; see backends.torch.encoders."""

    def encode(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
        """float32 [n] at the codec's rate -> codes [ceil(n / 1920), 16]."""
        ...

    def embed(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """float32 [n] at the codec's rate -> x-vector [enc_dim]."""
        ...

    def fingerprint(self) -> str:
        """Names the speaker encoder."""
        ...

    def close(self) -> None:
        """Frees the weights."""
        ...


def clone_voice(
    encoders: Encoders,
    samples: npt.NDArray[np.float32],
    rate: int,
    text: str | None,
    *,
    name: str | None,
    silent_tail: float,
    x_vector_only: bool,
    count_tokens: Callable[[str], int],
) -> Voice:
    """samples float32 [n] at `rate` Hz, the codec's. See TTS.clone for the rest. Warns through logging."""
    tail = check_silent_tail(silent_tail)
    transcript = None if text is None or x_vector_only else check_ref_text(text)
    seconds = len(samples) / rate
    peak = float(np.abs(samples).max(initial=0))
    if peak < SILENT_PEAK:
        raise VoiceError(f"The recording is silent (its peak is {peak:.1g} of full scale): there is no voice in it.")
    if transcript is not None and (seconds + tail) * FRAMES_PER_SECOND > MAX_REFERENCE_FRAMES:
        raise VoiceError(
            f"The recording lasts {seconds:.0f} s and {tail:g} s of silence follow; a voice keeps at most "
            f"{MAX_REFERENCE_FRAMES / FRAMES_PER_SECOND:.0f} s. Cut it: 3 to 15 s are enough."
        )
    x_vector = encoders.embed(samples)  # refuses what is too short
    if not SHORT_SECONDS <= seconds <= LONG_SECONDS:
        logger.warning("The recording lasts %.2f s; 3 to 15 s make a voice that resembles it.", seconds)
    fingerprint = encoders.fingerprint()
    if transcript is None:
        return Voice.from_x_vector(x_vector, name, fingerprint)
    warning = misfit(count_tokens(transcript), seconds)
    if warning is not None:
        logger.warning("%s", warning)
    codes = encoders.encode(np.pad(samples, (0, round(tail * rate))))
    return Voice.from_reference(x_vector, codes, transcript, name, fingerprint)


def misfit(tokens: int, seconds: float) -> str | None:
    """What is wrong with a transcript of so many tokens for a recording of so many seconds; None if it can fit.

    It cannot if a token has less than one frame of 80 ms, or if the recording is longer than 15 frames a token and
    2 seconds. Such a pair makes speech that skips, repeats or collapses."""
    frames, count = seconds * 12.5, f"{tokens} token{'' if tokens == 1 else 's'}"
    if frames < MIN_FRAMES_PER_TOKEN * tokens:
        return (
            f"The transcript has {count}, too many for {seconds:.1f} s of speech: does it say more than the "
            "recording does?"
        )
    if frames > MAX_FRAMES_PER_TOKEN * tokens + LEEWAY_FRAMES:
        return (
            f"The transcript has {count}, too few for {seconds:.1f} s of speech: does it leave out a part of "
            "the recording, or is much of that silence?"
        )
    return None


def check_silent_tail(seconds: object) -> float:
    """Seconds of silence to add. Raises VoiceError."""
    value = float(seconds) if isinstance(seconds, numbers.Real) else -1.0  # NumPy's numbers are Real too
    if isinstance(seconds, bool) or not 0 <= value <= MAX_SILENT_TAIL:
        raise VoiceError(f"silent_tail is {seconds!r:.60}; expected 0 to {MAX_SILENT_TAIL:g} seconds.")
    return value
