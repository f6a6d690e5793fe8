"""Reading recordings: formats, rates and layouts give what soxr and a plain mean give."""

import io
import subprocess

import numpy as np
import pytest
import soundfile
import soxr

from qwen3tts.audio.reading import read_audio

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
    buffer = io.BytesIO()
    soundfile.write(buffer, tone(seed, 3000), 24000, format="WAV", subtype="PCM_16")
    data = bytearray(buffer.getvalue())
    assert data[36:40] == b"data"
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    assert read_audio(io.BytesIO(bytes(data))).shape == (3000,)


def test_loud_floats_warn(caplog):
    with caplog.at_level("WARNING"):
        assert read_audio((np.full(100, 1.5), 24000)).max() == 1.5
    assert "peak" in caplog.text
