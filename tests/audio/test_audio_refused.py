"""Recordings that are refused: damaged files, what is no file, arrays that are no audio."""

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from qwen3tts.audio.reading import read_audio
from qwen3tts.errors import AudioError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from damaged_contents import encoded, recordings, tone, wav

SAID = {
    "empty": "empty",
    "text": "ffmpeg",
    "voice": "ffmpeg",
    "video": "ffmpeg",
    "magic.ogg": "truncated",
    "nan": "sample 1234 is nan",
    "nan_64": "sample 1234 is nan",
    "inf": "sample 0 is inf",
    "huge": "peak",
    "huge_64": "sample 0 is inf",
    "cancelling": "channels cancel each other",
    "rate_1": " 1 Hz",
    "many_channels": "200 channels",
    "no_samples": "no samples",
    "claims_more": "truncated",
    "bomb": "lasts 610 s; at most 600 s",
    "bomb_of_unknown_length": "does not say how long it is",
}
"""name, with or without its ending -> what the message says besides "cannot read" """


def test_damaged_recordings(seed, tmp_path):
    """From memory; tests/voice/test_damaged_files.py reads them from files."""
    names = set()
    for name, data in recordings(np.random.default_rng(seed)):
        with pytest.raises(AudioError, match="cannot read") as caught:
            print(name, len(read_audio(io.BytesIO(data))), "samples were read")
        stem = name.partition(".")[0]
        assert SAID.get(name, SAID.get(stem, "")) in str(caught.value), name
        names |= {name, stem}
    assert SAID.keys() <= names


def unknown_length(flac):
    """The same FLAC file whose header says nothing of its length, as an encoder writes it into a pipe."""
    return flac[:21] + bytes([flac[21] & 0xF0, 0, 0, 0, 0]) + flac[26:]


def test_work_on_a_recording_of_unknown_length_is_bounded(seed, monkeypatch):
    samples = np.stack([tone(np.random.default_rng(seed), 200_000)] * 2, 1)
    data = unknown_length(encoded("FLAC", "PCM_16", samples))
    np.testing.assert_array_equal(
        read_audio(io.BytesIO(data)), read_audio(io.BytesIO(encoded("FLAC", "PCM_16", samples)))
    )
    monkeypatch.setattr("qwen3tts.audio.reading.MAX_UNKNOWN", 2 * 200_000)
    assert len(read_audio(io.BytesIO(data))) == 200_000
    monkeypatch.setattr("qwen3tts.audio.reading.MAX_UNKNOWN", 2 * 200_000 - 1)
    with pytest.raises(AudioError, match="does not say how long it is"):
        read_audio(io.BytesIO(data))


@pytest.mark.filterwarnings("error")
def test_damaged_bytes_never_crash(seed):
    """Random bytes changed or cut: a recording, or an AudioError. Nothing is raised inside libsndfile's callbacks."""
    rng = np.random.default_rng(seed)
    samples = tone(rng, 60_000)
    whole = [
        wav(samples),
        encoded("FLAC", "PCM_16", samples),
        encoded("OGG", "VORBIS", samples),
        encoded("MP3", "MPEG_LAYER_III", samples),
        encoded("AIFF", "PCM_16", np.stack((samples, samples[::-1]), 1)),
    ]
    refused = 0
    for i in range(150):
        data = bytearray(whole[i % len(whole)])
        for _ in range(rng.integers(1, 6)):
            data[int(rng.integers(0, min(len(data), rng.choice([64, 100_000]))))] = int(rng.integers(0, 256))
        try:
            assert len(read_audio(io.BytesIO(bytes(data[: rng.integers(1, len(data)) if i % 3 == 0 else None])))) > 0
        except AudioError:
            refused += 1
    assert refused > 20


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo.wav")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "locked.wav").write_bytes(wav(np.zeros(100)))
    refusals = {
        "missing.wav": "no such file",
        "fifo.wav": "no regular file",
        "folder.wav": "a folder",
        "a\0b.wav": "null",
        "x" * 5000: "name",
        "folder.wav/x.wav": "no such file",
    }
    for name, pattern in refusals.items():
        with pytest.raises(AudioError, match=pattern):
            read_audio(str(tmp_path / name))
    with pytest.raises(AudioError, match="no regular file"):
        read_audio("/dev/zero")


def test_descriptors_are_closed(tmp_path, seed):
    (tmp_path / "x.wav").write_bytes(wav(tone(np.random.default_rng(seed), 2000)))
    (tmp_path / "bad.wav").write_bytes(b"no sound")
    os.mkfifo(tmp_path / "fifo")

    def read(name):
        try:
            read_audio(tmp_path / name)
        except AudioError:
            return

    read("x.wav")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        for name in ("x.wav", "bad.wav", "fifo"):
            read(name)
    assert len(os.listdir("/proc/self/fd")) == before


BAD_SOURCES = [
    (None, {}, "NoneType"),
    (42, {}, "a int"),
    (b"RIFF", {}, "io.BytesIO"),
    ([0.0, 0.1], {}, "a list"),
    (np.zeros(100), {}, "no rate"),
    ((np.zeros(100), None), {}, "no rate"),
    ((np.zeros(100), "24000"), {}, "number of Hz"),
    ((np.zeros(100), True), {}, "number of Hz"),
    ((np.zeros(100), 24000.5), {}, "whole number"),
    ((np.zeros(100), float("nan")), {}, "whole number"),
    ((np.zeros(100), float("inf")), {}, "whole number"),
    ((np.zeros(100), 0), {}, "0 Hz"),
    ((np.zeros(100), -24000), {}, "-24000 Hz"),
    ((np.zeros(100), 10**9), {}, "1000000000 Hz"),
    ((np.zeros(100), 24000), {"sample_rate": 24000}, "give one"),
    ((np.zeros(100),), {}, "expected \\(array, sample rate\\)"),
    (("x.wav", 24000), {}, "expected \\(array, sample rate\\)"),
    ((np.zeros(0), 24000), {}, "no samples"),
    ((np.zeros((0, 2)), 24000), {}, "no samples|channels"),
    ((np.zeros(()), 24000), {}, "0 axes"),
    ((np.zeros((2, 3, 4)), 24000), {}, "3 axes"),
    ((np.zeros((100, 50)), 24000), {}, "50 channels"),
    ((np.zeros(100, complex), 24000), {}, "dtype"),
    ((np.zeros(100, bool), 24000), {}, "dtype"),
    ((np.zeros(100, np.int64), 24000), {}, "dtype"),
    ((np.array(["a"]), 24000), {}, "dtype"),
    ((np.array([0, np.nan, 0]), 24000), {}, "sample 1 is nan"),
    ((np.array([0, 0, -np.inf]), 24000), {}, "sample 2 is -inf"),
    ((np.full(100, 1e300), 24000), {}, "sample 0 is inf"),
    ((np.full((9, 2), -1e300), 24000), {}, "sample 0 is -inf"),
    ((np.full((9, 4), 3e38, np.float32), 24000), {}, "sample 0 is inf"),
    ((np.array([[1e300, -1e300]] * 3), 24000), {}, "sample 0 is nan"),
    ((np.arange(-5000.0, 5000.0), 24000), {}, "divide by 32768"),
    ((np.zeros(601 * 2000, np.int16), 2000), {}, "at most 600 s"),
    (io.StringIO("text"), {}, "binary mode"),
    ("x.wav", {"sample_rate": 24000}, "tells its own rate"),
    ("https://example.org/x.wav", {}, "allow_url"),
    ("HTTP://example.org/x.wav", {}, "allow_url"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("source", "settings", "pattern"), BAD_SOURCES, ids=range(len(BAD_SOURCES)))
def test_bad_sources(source, settings, pattern):
    with pytest.raises(AudioError, match=pattern):
        read_audio(source, **settings)


def test_channels_that_cancel(seed):
    left = tone(np.random.default_rng(seed), 40_000)[:, None]
    for channels in ((left, -left), (left, -left, 0.3 * left, -0.3 * left)):
        pcm = np.round(np.hstack(channels) * 32767).astype(np.int16)
        for source in (np.hstack(channels), pcm, 0.01 * np.hstack(channels)):
            with pytest.raises(AudioError, match="channels cancel each other"):
                read_audio((source, 44100))
    for kept in (np.hstack((left, -0.99 * left)), np.zeros((100, 2)), np.full((100, 2), 1e-5), left):
        assert len(read_audio((kept, 24000))) == len(kept)


def test_messages_stay_short():
    for text in ("AB/+" * 50_000, "no/such/" + "x" * 4000, "https://example.org/" + "x" * 50_000):
        with pytest.raises(AudioError, match="characters") as caught:
            read_audio(text)
        assert len(str(caught.value)) < 400


def test_file_object_that_fails():
    class Broken(io.RawIOBase):
        def read(self, size=-1):
            raise OSError("the disk is gone")

    with pytest.raises(AudioError, match="the disk is gone"):
        read_audio(Broken())
    closed = io.BytesIO(b"RIFF")
    closed.close()
    with pytest.raises(AudioError, match="closed"):
        read_audio(closed)


def test_endless_file_object(monkeypatch):
    monkeypatch.setattr("qwen3tts.audio.reading.MAX_BYTES", 5_000_000)

    class Endless(io.RawIOBase):
        def read(self, size=-1):
            return bytes(size)

    with pytest.raises(AudioError, match="more than 5,000,000 bytes"):
        read_audio(Endless())
