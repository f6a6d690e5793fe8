"""Writing speech to WAV, FLAC and Ogg Vorbis files."""

import io
import logging
import numbers
import os
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qwen3tts.audio.atomic import Batch, check_writable, replacing
from qwen3tts.errors import AudioError, shortened

logger = logging.getLogger(__name__)

FORMATS = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16"), ".ogg": ("OGG", "VORBIS")}
"""file name extension -> libsndfile's names of container and encoding"""

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def check_audio_path(path: str | os.PathLike[str]) -> Path:
    """The file that `path` stands for, after checking extension and folder. Nothing is written.

    Raises:
        AudioError: unknown extension, or no file can be put there.
    """
    extension = Path(path).suffix.lower()
    if extension not in FORMATS:
        found = f"the extension {extension!r}" if extension else "no extension"
        raise AudioError(f"cannot write {os.fspath(path)!r}: {found}; expected one of {', '.join(FORMATS)}")
    return check_writable(path)


def write_audio(
    path: str | os.PathLike[str],
    samples: npt.NDArray[np.float32],
    sample_rate: int,
    *,
    gain: float = 1.0,
    batch: Batch | None = None,
) -> None:
    """Writes mono audio; the extension of `path` picks the format: .wav and .flac with 16 bits, .ogg Vorbis.

    The file appears whole or not at all, and one already there stays until the new one is complete.

    Args:
        samples: float [n], full scale is 1; what exceeds it after `gain` is clipped with a logged warning.
        sample_rate: in Hz.
        gain: linear factor.
        batch: the file appears when this ends, together with others.

    Raises:
        AudioError: unknown extension, missing folder, no permission, no space, samples that are not finite numbers, or
            a `gain` that is not.
    """
    target = check_audio_path(path)
    scaled = _scaled(samples, gain)
    if not scaled.size:
        raise AudioError(f"cannot write {os.fspath(path)!r}: there are no samples")
    with replacing(target, batch) as temporary:
        _encode(temporary, scaled, sample_rate, *FORMATS[Path(path).suffix.lower()])


def wav_bytes(samples: npt.NDArray[np.float32], sample_rate: int) -> bytes:
    """A whole 16-bit WAV file in memory, for players in notebooks and browsers. Same contents as `write_audio`."""
    pcm = _pcm16(_scaled(samples, 1.0)).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(pcm.tobytes())
    return buffer.getvalue()


def check_gain(gain: float) -> None:
    """Raises AudioError unless `gain` is a number from 0 to the largest that float32 has."""
    if isinstance(gain, bool) or not isinstance(gain, numbers.Real) or not 0 <= gain <= _FLOAT32_MAX:
        raise AudioError(f"gain is {gain!r:.60}, expected a finite float32 number >= 0 (1 leaves the audio as it is)")


def _scaled(samples: npt.NDArray[np.float32], gain: float) -> npt.NDArray[np.float32]:
    check_gain(gain)
    array = np.asarray(samples)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.floating):
        raise AudioError(f"audio has dtype {array.dtype} and shape {array.shape}, expected float32 and [samples]")
    if not np.isfinite(array).all():
        first = int(np.flatnonzero(~np.isfinite(array))[0])
        found = f"audio sample {first} of {array.size} is {array[first]}"
        raise AudioError(f"{found}, not a finite number; nothing was written")
    with np.errstate(over="ignore"):  # to infinity, which is clipped
        scaled = array.astype(np.float32) * np.float32(gain)
    clipped = int(np.count_nonzero(np.abs(scaled) > 1))
    if clipped:
        peak = float(np.abs(scaled).max())
        logger.warning("%d of %d samples are clipped: the peak is %.3f, full scale is 1", clipped, scaled.size, peak)
    clamped: npt.NDArray[np.float32] = np.clip(scaled, np.float32(-1), np.float32(1))
    return clamped


def _pcm16(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    # Readers divide by 32768, so this is the nearest value. libsndfile's own conversion rounds down instead.
    pcm: npt.NDArray[np.int16] = np.clip(np.rint(samples * np.float32(32768)), -32768, 32767).astype(np.int16)
    return pcm


def _encode(path: Path, samples: npt.NDArray[np.float32], sample_rate: int, container: str, encoding: str) -> None:
    # libsndfile is given the file's name, not a Python object: it would call back into Python to write, and a Ctrl-C
    # or a full disk inside such a callback is lost.
    import soundfile

    try:
        with soundfile.SoundFile(path, "w", sample_rate, 1, encoding, format=container) as file:
            # At most a second at a time: libsndfile's Vorbis encoder overflows the stack on a long single write.
            for start in range(0, samples.size, sample_rate):
                block = samples[start : start + sample_rate]
                file.write(_pcm16(block) if encoding == "PCM_16" else block)
        written = soundfile.info(path).frames
    except (soundfile.LibsndfileError, AssertionError) as error:  # an assertion is how soundfile reports a short write
        detail = f" ({shortened(error).rstrip('.')})" if str(error) else ""
        raise OSError(None, f"the data could not be stored{detail}; is the disk full?") from error
    # Vorbis and FLAC do not report every short write.
    if written != samples.size:
        raise OSError(None, f"only {written} of {samples.size} samples arrived in the file; is the disk full?")
