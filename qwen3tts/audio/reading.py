"""Reading recordings of any kind: files, file objects and arrays, as mono float32 at the model's rate.

Mixing and resampling equal the official package's (channel mean, then soxr HQ, length rounded up), but run block by
block: besides the result, at most a second or so of audio is held in memory.
"""

import io
import logging
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from qwen3tts.audio.fetching import MAX_BYTES, fetch, is_url
from qwen3tts.errors import AudioError, shortened

logger = logging.getLogger(__name__)

Samples: TypeAlias = npt.NDArray[np.float32]
AudioSource: TypeAlias = str | os.PathLike[str] | BinaryIO | npt.NDArray[Any] | tuple[npt.NDArray[Any], int]
"""What `read_audio` takes."""

MAX_SECONDS = 600
MAX_CHANNELS = 8
MIN_RATE, MAX_RATE = 2_000, 192_000
MAX_PEAK = 16.0
"""Float samples beyond this are integers that were never scaled."""
CANCELLED, AUDIBLE = 1e-3, 1e-3
"""A mix quieter than that part of its channels, where these are louder than -60 dB, is what inverted channels leave."""
MAX_SHOWN = 300
"""characters of a name in a message"""
BLOCK = 65_536
UNKNOWN = (1 << 63) - 1
"""libsndfile's number of frames where the header does not say it"""
MAX_UNKNOWN = 64_000_000
"""samples of all channels that are decoded to find that out: ten minutes in stereo at 48 kHz, a second of work"""
INTEGER_SCALES = {"int16": (0, 1 << 15), "int32": (0, 1 << 31), "uint8": (128, 1 << 7)}
"""dtype -> (zero, full scale) of PCM arrays"""


def read_audio(
    source: AudioSource, rate: int = 24_000, *, sample_rate: int | None = None, allow_url: bool = False
) -> Samples:
    """Decodes, mixes to mono and resamples.

    Args:
        source: a path; a binary file object; (array, sample rate); an array with `sample_rate` given. Files may be
            whatever libsndfile reads: WAV, FLAC, Ogg (Vorbis, Opus), MP3, AIFF. Arrays are [samples],
            [samples, channels] or [channels, samples] (the longer axis is time); floats with full scale 1, or int16,
            int32 and uint8 PCM.
        rate: of the result in Hz.
        sample_rate: of a bare array in Hz.
        allow_url: download `source` if it is an http(s) URL; at most 50 MB and 20 s.

    Returns:
        float32 [ceil(n * rate / rate of the source)], a copy.

    Raises:
        AudioError: no such file, damaged, empty or truncated, not audio, longer than 10 minutes, more than 8 channels,
            a rate outside 2,000..192,000 Hz, samples that are not finite, integers passed off as floats, a URL without
            `allow_url`.
    """
    if isinstance(source, tuple):
        array, sample_rate = _pair(source, sample_rate)
        return _from_array(array, sample_rate, rate)
    if isinstance(source, np.ndarray):
        return _from_array(source, sample_rate, rate)
    if sample_rate is not None:
        raise AudioError(f"sample_rate={sample_rate!r:.60} was given with {_shown(source)}; a file tells its own rate")
    if isinstance(source, str) and is_url(source):
        if not allow_url:
            raise AudioError(f"{_quoted(source)} is a URL; nothing is downloaded unless allow_url=True is given")
        return _from_bytes(_Memory(fetch(source)), _quoted(source), rate)
    if isinstance(source, str | os.PathLike):
        with _opened(source) as file:
            return _decode(file, file.fileno(), _quoted(source), rate)
    if hasattr(source, "read"):
        return _from_bytes(_whole(source), _shown(source), rate)
    raise AudioError(
        f"cannot read audio from {_shown(source)}; expected a path, a binary file object (io.BytesIO for bytes), "
        "(array, sample_rate), or an array with sample_rate="
    )


def _shown(source: object) -> str:
    return _quoted(source) if isinstance(source, str | os.PathLike) else f"a {type(source).__name__}"


def _quoted(name: str | os.PathLike[str]) -> str:
    """A path in quotes. Somebody may have passed the contents of a file for its name: such a string is shortened."""
    text = os.fspath(name)
    return repr(text) if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN // 2]!r}... ({len(text):,} characters)"


# ------------------------------------------------------------------ arrays


def _pair(source: tuple[Any, ...], sample_rate: int | None) -> tuple[npt.NDArray[Any], Any]:
    if len(source) != 2 or not isinstance(source[0], np.ndarray):
        kinds = ", ".join(type(item).__name__ for item in source)
        raise AudioError(f"cannot read audio from a tuple of ({kinds}); expected (array, sample rate)")
    if sample_rate is not None:
        raise AudioError(f"sample_rate={sample_rate} was given besides the {source[1]} of the tuple; give one")
    return source[0], source[1]


def _from_array(array: npt.NDArray[Any], sample_rate: Any, rate: int) -> Samples:
    what = f"the array (dtype {array.dtype}, shape {list(array.shape)})"
    if sample_rate is None:
        raise AudioError(f"{what} has no rate; pass (array, sample_rate) or sample_rate=")
    if isinstance(sample_rate, bool) or not isinstance(sample_rate, int | float | np.integer | np.floating):
        raise AudioError(f"the sample rate is {sample_rate!r}; expected a number of Hz")
    if sample_rate != int(sample_rate if math.isfinite(sample_rate) else 0):
        raise AudioError(f"the sample rate is {sample_rate}; expected a whole number of Hz")
    if array.dtype.name not in INTEGER_SCALES and array.dtype.kind != "f":
        raise AudioError(f"{what} has no audio dtype; expected floats, int16, int32 or uint8")
    if array.ndim not in (1, 2):
        raise AudioError(f"{what} has {array.ndim} axes; expected [samples] or [samples, channels]")
    if array.ndim == 2 and array.shape[0] < array.shape[1]:
        array = array.T
    collector = _Collector(what, int(sample_rate), rate, 1 if array.ndim == 1 else array.shape[1])
    collector.check_length(array.shape[0])
    zero, scale = INTEGER_SCALES.get(array.dtype.name, (0, 1))
    for start in range(0, array.shape[0], BLOCK):
        with np.errstate(over="ignore"):  # what float32 does not hold becomes infinite, and is refused
            block = array[start : start + BLOCK].astype(np.float32)
        collector.add((block - np.float32(zero)) / np.float32(scale) if scale != 1 else block)
    return collector.finish()


# ------------------------------------------------------------------ files


@contextmanager
def _opened(source: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A regular file, opened for reading. Never waits: a FIFO without a writer would block for ever."""
    name = os.fspath(source)
    try:
        descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise AudioError(f"cannot read {_quoted(source)}: there is no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise AudioError(f"cannot read {_quoted(source)}: {getattr(error, 'strerror', None) or error}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise AudioError(f"cannot read {_quoted(source)}: it is {kind}; expected an audio file")
    with open(descriptor, "rb", buffering=0) as file:  # a buffer would leave the descriptor somewhere else
        yield file


class _Memory(io.BytesIO):
    """A file in memory. Damaged files make libsndfile seek to before its start; an exception inside its callback would
    only be printed."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


def _whole(source: Any) -> BinaryIO:
    """A file object's bytes from where it stands; it may be a pipe or a socket, libsndfile must seek."""
    pieces: list[bytes] = []
    size = 0
    while True:
        try:
            piece = source.read(1 << 20)
        except (OSError, ValueError, TypeError) as error:
            raise AudioError(f"cannot read audio from {_shown(source)}: {shortened(error)}") from error
        if not isinstance(piece, bytes | bytearray | memoryview):
            got = type(piece).__name__
            raise AudioError(f"{_shown(source)} returns {got}; expected bytes: open the file in binary mode ('rb')")
        if not piece:
            return _Memory(b"".join(pieces))
        pieces.append(bytes(piece))
        size += len(piece)
        if size > MAX_BYTES:
            raise AudioError(f"{_shown(source)} has more than {MAX_BYTES:,} bytes; pass the path of such a large file")


def _from_bytes(file: BinaryIO, what: str, rate: int) -> Samples:
    return _decode(file, file, what, rate)


def _decode(file: BinaryIO, handle: int | BinaryIO, what: str, rate: int) -> Samples:
    """file: at its start, to look at its header; handle: the same file as libsndfile gets it. By descriptor, not by
    name: some extensions make libsndfile take any bytes at all for audio."""
    import soundfile

    size = file.seek(0, io.SEEK_END)
    if not size:
        raise AudioError(f"cannot read {what}: the file is empty")
    _check_complete(file, size, what)
    file.seek(0)
    try:
        with soundfile.SoundFile(handle, closefd=False) as decoder:
            collector = _Collector(what, decoder.samplerate, rate, decoder.channels)
            declared = decoder.frames
            if declared != UNKNOWN and decoder.format != "MP3":  # an MP3's is an estimate
                collector.check_length(declared)
            if declared == UNKNOWN:  # soundfile seeks to where a read has ended, which fails at the end of such a file
                decoder.seekable = lambda: False
            while len(block := decoder.read(BLOCK, dtype="float32")):
                collector.add(block)
                if declared == UNKNOWN:
                    collector.check_work()
            if decoder.format != "MP3" and declared != UNKNOWN and collector.count < declared:
                raise _truncated(what, f"{collector.count:,} of {declared:,} samples could be read")
    except soundfile.SoundFileRuntimeError as error:
        detail = shortened(str(error).rpartition(": ")[2].rstrip(".")) or "unknown error"
        raise AudioError(
            f"cannot read {what}: {detail}. Readable are WAV, FLAC, Ogg, MP3 and AIFF; other formats can be converted, "
            "for example by ffmpeg -i INPUT OUTPUT.wav"
        ) from error
    return collector.finish()


def _truncated(what: str, detail: str) -> AudioError:
    return AudioError(f"cannot read {what}: the file is truncated: {detail}")


def _check_complete(file: BinaryIO, size: int, what: str) -> None:
    """libsndfile reads what is left of a WAV or Ogg file that was cut; a reference must match its transcript."""
    file.seek(0)
    head = file.read(8)
    if head[:4] in (b"RIFF", b"FORM"):
        promised = 8 + int.from_bytes(head[4:8], "little" if head[:4] == b"RIFF" else "big")
        if size < promised - 8 and promised < 0x7FFF_0000:  # larger: a stream of unknown length; 8: a common slip
            raise _truncated(what, f"its header promises {promised:,} bytes, it has {size:,}")
    if head[:4] == b"OggS":
        file.seek(max(0, size - 0x2_0000))  # a page has at most 65,307 bytes
        tail = file.read()
        page = tail[tail.rfind(b"OggS") :]
        segments = page[26] if len(page) > 26 else 255
        if len(page) < 27 + segments or len(page) < 27 + segments + sum(page[27 : 27 + segments]):
            raise _truncated(what, "its last page is incomplete")


# ------------------------------------------------------------------ mixing and resampling


class _Collector:
    """Blocks [n] or [n, channels] in, one mono recording at another rate out."""

    def __init__(self, what: str, source_rate: int, rate: int, channels: int) -> None:
        if not MIN_RATE <= source_rate <= MAX_RATE:
            raise AudioError(
                f"cannot read {what}: its sample rate is {source_rate} Hz; expected {MIN_RATE} to {MAX_RATE}"
            )
        if not 1 <= channels <= MAX_CHANNELS:
            raise AudioError(f"cannot read {what}: it has {channels} channels; expected 1 to {MAX_CHANNELS}")
        self.what, self.source_rate, self.rate, self.channels = what, source_rate, rate, channels
        self.count = 0
        self.peak = self.channel_peak = 0.0
        self._done: list[Samples] = []
        self._resampler: Any = None
        if source_rate != rate:
            import soxr

            self._resampler = soxr.ResampleStream(source_rate, rate, 1, dtype="float32", quality=soxr.HQ)

    def check_length(self, count: int) -> None:
        """Raises AudioError if that many samples per channel are too many."""
        if count > MAX_SECONDS * self.source_rate:
            raise AudioError(
                f"cannot read {self.what}: it lasts {count / self.source_rate:,.0f} s; at most {MAX_SECONDS} s are "
                "read. A voice needs some seconds of speech: cut the recording"
            )

    def check_work(self) -> None:
        """Raises AudioError if a recording whose length nobody knows has taken too much work already."""
        if self.count * self.channels > MAX_UNKNOWN:
            raise AudioError(
                f"cannot read {self.what}: its header does not say how long it is, and it does not end after "
                f"{self.count / self.source_rate:,.0f} s. A voice needs some seconds of speech: cut the recording"
            )

    def add(self, block: Samples) -> None:
        """The next samples; full scale is 1."""
        if block.ndim == 2:
            self.channel_peak = max(self.channel_peak, float(np.abs(block).max(initial=0)))
            with np.errstate(over="ignore", invalid="ignore"):  # refused below
                block = sum(block.T[1:], start=block[:, 0]) / np.float32(block.shape[1])
        peak = float(np.abs(block).max(initial=0))
        if not math.isfinite(peak):
            first = int(np.flatnonzero(~np.isfinite(block))[0])
            found = f"sample {self.count + first} is {block[first]}"
            raise AudioError(f"cannot read {self.what}: {found}, not a finite number")
        self.count += len(block)
        self.check_length(self.count)
        self.peak = max(self.peak, peak)
        self._done.append(np.array(block) if self._resampler is None else self._resampler.resample_chunk(block))

    def finish(self) -> Samples:
        """The whole recording."""
        if not self.count:
            raise AudioError(f"cannot read {self.what}: it has no samples")
        if self.peak > MAX_PEAK:
            raise AudioError(
                f"cannot read {self.what}: its peak is {self.peak:g}, full scale is 1. Integers must be scaled: pass "
                "them as int16, or divide by 32768"
            )
        if self.channel_peak > AUDIBLE and self.peak < CANCELLED * self.channel_peak:
            raise AudioError(
                f"cannot read {self.what}: its channels cancel each other when they are mixed: one is another "
                "inverted. Pass one channel alone, or invert one"
            )
        if self.peak > 1:
            logger.warning("the peak of %s is %.3f, full scale is 1", self.what, self.peak)
        if self._resampler is not None:
            self._done.append(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))
        joined = np.concatenate(self._done)
        length = math.ceil(self.count * (float(self.rate) / self.source_rate))
        return np.pad(joined[:length], (0, max(0, length - len(joined))))
