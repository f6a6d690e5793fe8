"""Audio files are exact, whole or absent, and survive what disks and users do."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from qwen3tts.audio.files import FORMATS, wav_bytes, write_audio
from qwen3tts.errors import AudioError, Qwen3TTSError

RATE = 24000


def noise(count: int, seed: int, scale: float = 0.2) -> np.ndarray:
    print(f"seed {seed}")
    return (np.random.default_rng(seed).standard_normal(count) * scale).clip(-1, 1).astype(np.float32)


def fresh_seed() -> int:
    return int.from_bytes(os.urandom(4))


@pytest.mark.parametrize("extension", [".wav", ".flac", ".WAV"])
@pytest.mark.parametrize("count", [1, 23, RATE, 2 * RATE + 17])
def test_16_bit_files_hold_the_nearest_value(extension: str, count: int, tmp_path: Path) -> None:
    samples = noise(count, fresh_seed(), 0.4)
    path = tmp_path / f"a{extension}"
    write_audio(path, samples, RATE)
    read, rate = soundfile.read(path, dtype="int16")
    expected = np.clip(np.floor(samples.astype(np.float64) * 32768 + 0.5), -32768, 32767)
    ties = np.abs(samples.astype(np.float64) * 32768 % 1 - 0.5) < 1e-9
    assert rate == RATE
    assert read.shape == (count,)
    assert np.array_equal(read[~ties], expected[~ties])
    write_audio(path, (read / 32768).astype(np.float32), RATE)
    assert np.array_equal(soundfile.read(path, dtype="int16")[0], read)


def test_wav_bytes_are_the_file(tmp_path: Path) -> None:
    samples = noise(RATE + 5, fresh_seed())
    write_audio(tmp_path / "a.wav", samples, RATE)
    assert wav_bytes(samples, RATE) == (tmp_path / "a.wav").read_bytes()
    assert wav_bytes(samples[:0], RATE)[:4] == b"RIFF"


def test_fifteen_minutes_of_vorbis(tmp_path: Path) -> None:
    # In a child: a stack overflow inside the encoder would take the whole test run with it.
    code = f"""
import numpy as np
from qwen3tts.audio.files import write_audio
time = np.arange(15 * 60 * {RATE}) / {RATE}
write_audio({str(tmp_path / "long.ogg")!r}, (0.3 * np.sin(1500 * time)).astype(np.float32), {RATE})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    info = soundfile.info(tmp_path / "long.ogg")
    assert (info.frames, info.samplerate, info.channels, info.subtype) == (15 * 60 * RATE, RATE, 1, "VORBIS")
    position = 0
    for block in soundfile.blocks(tmp_path / "long.ogg", 10 * RATE, dtype="float32"):
        time = np.arange(position, position + block.size) / RATE
        np.testing.assert_allclose(block, 0.3 * np.sin(1500 * time), atol=0.05)
        position += block.size
    assert position == info.frames


def test_gain_and_clipping(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    samples = np.array([0.25, -0.25, 0.5, -0.75], np.float32)
    with caplog.at_level(logging.WARNING):
        write_audio(tmp_path / "a.wav", samples, RATE, gain=0.5)
        write_audio(tmp_path / "one.wav", np.array([1.0, -1.0], np.float32), RATE)
    assert not caplog.records
    assert soundfile.read(tmp_path / "a.wav", dtype="int16")[0].tolist() == [4096, -4096, 8192, -12288]
    with caplog.at_level(logging.WARNING):
        write_audio(tmp_path / "b.wav", samples, RATE, gain=2.0)
    assert soundfile.read(tmp_path / "b.wav", dtype="int16")[0].tolist() == [16384, -16384, 32767, -32768]
    assert "1 of 4 samples are clipped: the peak is 1.500" in caplog.text


@pytest.mark.parametrize("gain", [float("nan"), float("inf"), -0.5, 3.5e38, 10**400, "1", None, True, 1j, [1.0]])
def test_bad_gain(gain: Any, tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="gain is"):
        write_audio(tmp_path / "a.wav", np.zeros(5, np.float32), RATE, gain=gain)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused_and_the_old_file_stays(bad: float, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"old")
    samples = np.zeros(100, np.float32)
    samples[41] = bad
    with pytest.raises(AudioError, match="sample 41 of 100"):
        write_audio(path, samples, RATE)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.wav"]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((3, 2), np.float32), r"shape \(3, 2\)"),
        (np.zeros(3, np.int16), "dtype int16"),
        (np.zeros(0, np.float32), "no samples"),
    ],
)
def test_wrong_arrays(samples: np.ndarray, message: str, tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=message):
        write_audio(tmp_path / "a.wav", samples, RATE)
    assert not list(tmp_path.iterdir())


def test_wrong_places(tmp_path: Path) -> None:
    samples = np.zeros(5, np.float32)
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.wav").mkdir()
    cases = {
        "a.mp3": r"extension '\.mp3'; expected one of \.wav, \.flac, \.ogg",
        "a": "no extension",
        "missing/a.wav": "folder '.*missing' does not exist",
        "file/a.wav": "is not a folder",
        "folder.wav": "that is a folder",
        f"{'x' * 300}.wav": "name too long",
    }
    before = sorted(entry.name for entry in tmp_path.iterdir())
    for name, message in cases.items():
        with pytest.raises(AudioError, match=f"(?i){message}"):
            write_audio(tmp_path / name, samples, RATE)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before


def test_no_permission_is_an_audio_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(AudioError, match="no permission"):
        write_audio(tmp_path / "a.wav", np.zeros(5, np.float32), RATE)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.wav").write_bytes(b"old")
    (tmp_path / "link.wav").symlink_to("real.wav")
    write_audio(tmp_path / "link.wav", np.zeros(50, np.float32), RATE)
    assert (tmp_path / "link.wav").is_symlink()
    assert soundfile.info(tmp_path / "real.wav").frames == 50


@pytest.mark.parametrize("extension", sorted(FORMATS))
def test_disk_full(extension: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{extension}"
    path.write_bytes(b"old")
    code = f"""
import resource
import numpy as np
from qwen3tts.audio.files import write_audio
from qwen3tts.errors import AudioError
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
samples = np.random.default_rng(1).uniform(-0.5, 0.5, 10 * {RATE}).astype(np.float32)
try:
    write_audio({str(path)!r}, samples, {RATE})
except AudioError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "disk full" in done.stdout or "File too large" in done.stdout
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("old", [None, b"old"])
def test_interrupt_leaves_nothing_half_written(old: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "a.ogg"
    if old is not None:
        path.write_bytes(old)
    code = f"""
import numpy as np
from qwen3tts.audio.files import write_audio
samples = np.tile(np.random.default_rng(1).uniform(-0.5, 0.5, 60 * {RATE}).astype(np.float32), 120)
print("start", flush=True)
write_audio({str(path)!r}, samples, {RATE})
print("done", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "start\n"
    while child.poll() is None and not list(tmp_path.glob(".*.part")):
        time.sleep(0.005)
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    assert "done" not in out
    assert "KeyboardInterrupt" in err
    assert list(tmp_path.iterdir()) == ([] if old is None else [path])
    if old is not None:
        assert path.read_bytes() == old


def test_errors_belong_to_the_tree() -> None:
    assert issubclass(AudioError, Qwen3TTSError)
    assert issubclass(AudioError, OSError)
