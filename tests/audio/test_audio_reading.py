"""Reading recordings: formats, rates and layouts give what soxr and a plain mean give; everything else is refused."""

import functools
import io
import os
import struct
import subprocess
import sys
import threading
import time
import wave
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from qwen3tts.audio import fetching
from qwen3tts.audio.reading import read_audio
from qwen3tts.errors import AudioError

RATES = (8000, 16000, 22050, 44100, 48000)


def tone(seed, samples, channels=1, rate=24000):
    """float64 [samples, channels], peak below 0.8."""
    rng = np.random.default_rng([seed, samples, channels])
    t = np.arange(samples)[:, None] / rate
    sines = 0.5 * np.sin(2 * np.pi * rng.uniform(100, 900, channels) * t)
    return sines + 0.02 * rng.uniform(-1, 1, (samples, channels))


def expected(samples, rate):
    """The official package's path, at once: float32, mean of the channels, soxr HQ, length rounded up."""
    mono = samples.astype(np.float32)
    mono = mono.mean(axis=1) if mono.ndim == 2 else mono
    if rate == 24000:
        return mono
    out = soxr.resample(mono, rate, 24000, quality="HQ")
    length = int(np.ceil(len(mono) * (24000 / rate)))
    return np.pad(out[:length], (0, max(0, length - len(out))))


# ------------------------------------------------------------------ what is read


@pytest.mark.parametrize("rate", [*RATES, 24000, 11025, 96000])
@pytest.mark.parametrize("channels", [1, 2])
def test_arrays_equal_soxr_directly(rate, channels, seed):
    for n in (3, 7, int(np.random.default_rng([seed, rate]).integers(1000, 200_000))):
        wide = tone(seed, n, channels, rate)
        pcm = np.round(wide * 32767).astype(np.int16)
        if channels == 1:
            wide, pcm = wide[:, 0], pcm[:, 0]
        ours = read_audio((wide, rate))
        assert ours.dtype == np.float32
        assert ours.shape == (int(np.ceil(n * (24000 / rate))),)
        np.testing.assert_array_equal(ours, expected(wide, rate))
        np.testing.assert_array_equal(read_audio(pcm, sample_rate=rate), expected(pcm / 32768, rate))
        np.testing.assert_array_equal(read_audio((wide.T, rate)), ours)  # [channels, samples] is as good


def test_one_sample():
    for rate in RATES:
        assert read_audio((np.ones(1), rate)).shape == (int(np.ceil(24000 / rate)),)


def test_other_target_rates(seed):
    samples = tone(seed, 30000)[:, 0].astype(np.float32)
    resampled = soxr.resample(samples, 24000, 16000, quality="HQ")
    np.testing.assert_array_equal(read_audio((samples, 24000), 16000), resampled)


@pytest.mark.parametrize(("dtype", "zero", "scale"), [("int16", 0, 2**15), ("int32", 0, 2**31), ("uint8", 128, 2**7)])
def test_integers_are_scaled(dtype, zero, scale):
    info = np.iinfo(dtype)
    values = np.array([info.min, zero, info.max, zero + 5], dtype)
    ours = read_audio((values, 24000))
    np.testing.assert_allclose(ours, (values.astype(np.float64) - zero) / scale, atol=1e-7)
    np.testing.assert_array_equal(read_audio((values.astype(values.dtype.newbyteorder()), 24000)), ours)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_floats_are_taken_as_they_are(dtype, seed):
    values = tone(seed, 500)[:, 0].astype(dtype)
    np.testing.assert_array_equal(read_audio((values, np.int64(24000))), values.astype(np.float32))


def test_result_is_a_copy(seed):
    samples = tone(seed, 500)[:, 0].astype(np.float32)
    ours = read_audio((samples, 24000))
    ours[:] = 0
    assert samples.any()
    samples.flags.writeable = False
    assert read_audio((samples, 24000)).flags.writeable


FORMATS = [
    ("x.wav", "WAV", "PCM_16", 4e-5),
    ("x.wav", "WAV", "FLOAT", 0),
    ("x.wav", "WAV", "PCM_24", 1e-6),
    ("x.wav", "WAV", "ULAW", 0.02),
    ("x.flac", "FLAC", "PCM_16", 4e-5),
    ("x.ogg", "OGG", "VORBIS", 0.05),
    ("x.opus", "OGG", "OPUS", 0.15),
    ("x.mp3", "MP3", "MPEG_LAYER_III", 0.05),
    ("x.aiff", "AIFF", "PCM_16", 4e-5),
]


@pytest.mark.parametrize(("name", "container", "encoding", "limit"), FORMATS, ids=[f"{f[1]}-{f[2]}" for f in FORMATS])
@pytest.mark.parametrize("channels", [1, 2])
def test_files_round_trip(name, container, encoding, limit, channels, seed, tmp_path):
    """From a path (str or Path), any extension, a file object, and a stream that cannot seek."""
    samples = tone(seed, 50_000, channels)
    path = tmp_path / name
    soundfile.write(path, samples, 24000, format=container, subtype=encoding)
    ours = read_audio(path)
    mono = samples.astype(np.float32).mean(axis=1)
    if container == "MP3":  # the encoder's delay may stay
        assert abs(len(ours) - len(mono)) <= 3 * 1152
        lag = int(np.argmax(np.correlate(ours[4000:20000], mono[6000:16000], "valid"))) - 2000
        ours, mono = ours[4000 + lag : 44000 + lag], mono[4000:44000]
    assert ours.shape == mono.shape
    assert float(np.sqrt(np.mean((ours - mono) ** 2))) <= limit
    decoded = soundfile.read(path, dtype="float32", always_2d=True)[0].mean(axis=1)
    rounding = 1e-6 if container == "MP3" else 0  # its decoder rounds otherwise from run to run
    np.testing.assert_allclose(read_audio(str(path)), decoded, rtol=0, atol=rounding)
    renamed = path.rename(tmp_path / "recording.bin")
    for source in (renamed, io.BytesIO(renamed.read_bytes())):
        np.testing.assert_allclose(read_audio(source), decoded, rtol=0, atol=rounding)
    with open(renamed, "rb") as file, subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE) as pipe:
        np.testing.assert_allclose(read_audio(pipe.stdout), decoded, rtol=0, atol=rounding)


@pytest.mark.parametrize("rate", RATES)
def test_files_are_resampled(rate, seed, tmp_path):
    samples = tone(seed, int(np.random.default_rng([seed, rate]).integers(60_000, 150_000)), 2, rate)
    soundfile.write(tmp_path / "x.flac", samples, rate)
    decoded = soundfile.read(tmp_path / "x.flac", dtype="float32")[0]
    np.testing.assert_array_equal(read_audio(tmp_path / "x.flac"), expected(decoded, rate))


def test_streamed_wav_without_a_length(seed):
    """What ffmpeg writes into a pipe."""
    data = bytearray(wav_bytes(tone(seed, 3000)[:, 0]))
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    assert read_audio(io.BytesIO(bytes(data))).shape == (3000,)


def test_loud_floats_warn(caplog):
    with caplog.at_level("WARNING"):
        assert read_audio((np.full(100, 1.5), 24000)).max() == 1.5
    assert "peak" in caplog.text


# ------------------------------------------------------------------ what is refused


def wav_bytes(samples, rate=24000):
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(np.asarray(samples) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def wav_header(*, channels=1, rate=24000, bits=16, form=1, data=b"\0" * 4000, size=None):
    """A RIFF file with whatever is asked for in its header."""
    align = channels * bits // 8
    fmt = struct.pack("<HHIIHH", form, channels, rate, rate * align & 0xFFFFFFFF, align & 0xFFFF, bits)
    length = len(data) if size is None else size
    body = b"WAVEfmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", length) + data
    return b"RIFF" + struct.pack("<I", 36 + length & 0xFFFFFFFF) + body


def encoded(container, encoding, seed, **settings):
    buffer = io.BytesIO()
    soundfile.write(buffer, tone(seed, 60_000, **settings), 24000, format=container, subtype=encoding)
    return buffer.getvalue()


def hostile_files(seed):
    """name -> (bytes, pattern of the message)."""
    rng = np.random.default_rng(seed)
    flac, ogg = encoded("FLAC", "PCM_16", seed), encoded("OGG", "VORBIS", seed)
    aiff = encoded("AIFF", "PCM_16", seed)
    wav = wav_bytes(tone(seed, 60_000)[:, 0])
    nan = np.zeros(5000, "<f4")
    nan[1234] = np.nan
    infinite = np.full(5000, np.inf, "<f4").tobytes()
    files = {
        "empty.wav": (b"", "empty"),
        "text.wav": (b"This is no sound. " * 500, "ffmpeg"),
        "zeros.wav": (b"\0" * 10_000, "cannot read"),
        "noise.mp3": (bytes(2000) + rng.bytes(20_000), "cannot read"),
        "text.mp3": (b"This is no sound. " * 500, "cannot read"),
        "text.au": (b"This is no sound. " * 500, "cannot read"),
        "noise.vox": (rng.bytes(20_000), "cannot read"),
        "text.gsm": (b"This is no sound. " * 500, "cannot read"),
        "text.raw": (b"This is no sound. " * 500, "cannot read"),
        "page.ogg": (b"OggS", "truncated"),
        "magic.flac": (b"fLaC", "cannot read"),
        "riff.wav": (b"RIFF", "cannot read"),
        "nan.wav": (wav_header(form=3, bits=32, data=nan.tobytes()), "sample 1234 is nan"),
        "inf.wav": (wav_header(form=3, bits=32, data=infinite), "sample 0 is inf"),
        "huge.wav": (wav_header(form=3, bits=32, data=np.full(99, 1e30, "<f4").tobytes()), "peak"),
        "rate0.wav": (wav_header(rate=0), "cannot read"),
        "rate1.wav": (wav_header(rate=1), "1 Hz|read"),
        "rate_max.wav": (wav_header(rate=0xFFFFFFFF), "cannot read"),
        "rate_2g.wav": (wav_header(rate=0x7FFFFFFF), "cannot read"),
        "no_channels.wav": (wav_header(channels=0), "cannot read"),
        "many_channels.wav": (wav_header(channels=200), "200 channels"),
        "no_samples.wav": (wav_header(data=b""), "no samples"),
        "claims_more.wav": (wav_header(size=1_000_000_000), "truncated"),
        "unknown_encoding.wav": (wav_header(form=0x1234), "cannot read"),
        "zip.wav": (b"PK\x03\x04" + rng.bytes(5000), "cannot read"),
        "video.mp4": (b"\0\0\0\x20ftypisom" + rng.bytes(5000), "ffmpeg"),
    }
    for name, data in (("cut.flac", flac), ("cut.ogg", ogg), ("cut.wav", wav), ("cut.aiff", aiff)):
        for i, keep in enumerate(rng.uniform(0.02, 0.98, 6)):
            files[f"{i}{name}"] = (data[: int(keep * len(data))], "cannot read")
    return files


def test_hostile_files(seed, tmp_path):
    for name, (data, pattern) in hostile_files(seed).items():
        path = tmp_path / name
        path.write_bytes(data)
        for source in (path, io.BytesIO(data)):
            with pytest.raises(AudioError, match=pattern) as caught:
                print(name, len(read_audio(source)), "samples were read")
        print(f"{name}: {caught.value}")


@pytest.mark.filterwarnings("error")
def test_damaged_bytes_never_crash(seed):
    """Random bytes changed or cut: a recording, or an AudioError. Nothing is raised inside libsndfile's callbacks."""
    rng = np.random.default_rng(seed)
    whole = [
        wav_bytes(tone(seed, 20_000)[:, 0]),
        encoded("FLAC", "PCM_16", seed),
        encoded("OGG", "VORBIS", seed),
        encoded("MP3", "MPEG_LAYER_III", seed),
        encoded("AIFF", "PCM_16", seed, channels=2),
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
    (tmp_path / "locked.wav").write_bytes(wav_bytes(np.zeros(100)))
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
    (tmp_path / "x.wav").write_bytes(wav_bytes(tone(seed, 2000)[:, 0]))
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
    left = tone(seed, 40_000)
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


PROBE = """
import resource, sys, time
from pathlib import Path
from qwen3tts.audio.reading import read_audio
from qwen3tts.errors import AudioError
import soundfile, soxr
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        read_audio(path)
        print("read", path.name)
    except AudioError as error:
        pass
print("grew", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_too_long_recordings_cost_no_memory(seed, tmp_path):
    """A bomb: hours of silence in a small FLAC file, and a WAV header that promises what is not there."""
    with soundfile.SoundFile(tmp_path / "bomb.flac", "w", 96000, 2) as file:
        for _ in range(610):
            file.write(np.zeros((96000, 2), np.int16))
    assert (tmp_path / "bomb.flac").stat().st_size < 2_000_000
    data = bytearray((tmp_path / "bomb.flac").read_bytes())
    data[21] &= 0xF0  # the number of samples: unknown
    data[22:26] = bytes(4)
    (tmp_path / "bomb_unknown.flac").write_bytes(bytes(data))
    (tmp_path / "promise.wav").write_bytes(wav_header(size=0x7FFFFFF0))
    run = subprocess.run([sys.executable, "-c", PROBE, str(tmp_path)], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert [line for line in lines if line.startswith("read")] == ["read promise.wav"]
    assert int(lines[-1].split()[1]) < 200_000  # KB


# ------------------------------------------------------------------ downloads


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        served = self.server.served
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(200):
                self.wfile.write(b"R")
                self.wfile.flush()
                time.sleep(0.05)
        elif self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        elif self.path in served:
            self.send_response(200)
            self.send_header("Content-Length", str(len(served[self.path]) + (99 if "short" in self.path else 0)))
            self.end_headers()
            self.wfile.write(served[self.path])
        else:
            self.send_error(404)

    def log_message(self, *_):
        return


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.handle_error = lambda *_: None  # a client that leaves early is part of the test
    httpd.served = {}
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    httpd.url = f"http://127.0.0.1:{httpd.server_port}"
    yield httpd
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_downloads(server, seed):
    samples = tone(seed, 5000)[:, 0]
    server.served["/x.wav"] = wav_bytes(samples)
    np.testing.assert_allclose(read_audio(f"{server.url}/x.wav", allow_url=True), samples, atol=1e-4)
    assert read_audio(f"{server.url}/to/{server.url}/x.wav", allow_url=True).shape == (5000,)
    with pytest.raises(AudioError, match="allow_url"):
        read_audio(f"{server.url}/x.wav")


def test_bad_downloads(server, monkeypatch):
    server.served |= {"/big": bytes(3_000_000), "/short": b"RIFF", "/text": b"no sound at all"}
    limited = functools.partial(fetching.fetch, max_bytes=2_000_000, max_seconds=1)
    monkeypatch.setattr("qwen3tts.audio.reading.fetch", limited)
    refusals = {
        "/nothing": "404",
        "/big": "more than 2,000,000 bytes",
        "/short": "99 bytes early|IncompleteRead",
        "/slow": "longer than 1 s",
        "/text": "ffmpeg",
        "/to/file:///etc/hostname": "file",
        "/to/ftp://127.0.0.1/x": "ftp",
    }
    for path, pattern in refusals.items():
        with pytest.raises(AudioError, match=pattern):
            read_audio(server.url + path, allow_url=True)
    with pytest.raises(AudioError, match="cannot read"):
        read_audio("http://127.0.0.1:9/x.wav", allow_url=True)


def test_paths_that_look_like_urls(tmp_path, monkeypatch):
    """Only http and https are addresses."""
    monkeypatch.chdir(tmp_path)
    for name in ("file:///etc/hostname", "ftp://127.0.0.1/x.wav", "data:audio/wav;base64,AAAA", "x" * 250):
        with pytest.raises(AudioError, match="no such file"):
            read_audio(name, allow_url=True)
    assert not fetching.is_url(str(Path("http:/x")))
