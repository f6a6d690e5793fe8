"""The mel front end against a direct evaluation of its definition, and the picture made with it."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from qwen3tts.audio.mel import FLOOR, HOP, N_FFT, N_MELS, hz_to_mel, log_mel, mel_filters, mel_to_hz
from qwen3tts.audio.plot import check_plot_path, plot_speech
from qwen3tts.errors import AudioError

RATE = 24000


def slow_frame(samples: np.ndarray, frame: int) -> np.ndarray:
    """One mel frame, term by term in float64: DFT by its sum, filters as triangles."""
    pad = (N_FFT - HOP) // 2
    index = np.arange(N_FFT) + frame * HOP - pad
    index = np.abs(index)
    index = np.where(index >= samples.size, 2 * (samples.size - 1) - index, index)
    position = np.arange(N_FFT)
    block = samples.astype(np.float64)[index] * (0.5 - 0.5 * np.cos(2 * np.pi * position / N_FFT))
    bins = np.arange(N_FFT // 2 + 1)
    spectrum = np.exp(-2j * np.pi * np.outer(bins, position) / N_FFT) @ block
    magnitude = np.sqrt(np.abs(spectrum) ** 2 + 1e-9)

    def hz(mel: float) -> float:
        return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)

    top = 15 + 27 * math.log(RATE / 2 / 1000) / math.log(6.4)
    edges = [hz(top * k / (N_MELS + 1)) for k in range(N_MELS + 2)]
    result = np.zeros(N_MELS)
    for band in range(N_MELS):
        low, centre, high = edges[band : band + 3]
        for k in bins:
            f = k * RATE / N_FFT
            height = min((f - low) / (centre - low), (high - f) / (high - centre))
            result[band] += max(0.0, height) * 2 / (high - low) * magnitude[k]
    return np.log(np.maximum(result, FLOOR))


@pytest.mark.parametrize("count", [1024, 5000, 24001])
def test_log_mel_is_its_definition(count: int) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    generator = np.random.default_rng(seed)
    samples = (generator.standard_normal(count) * np.exp(generator.uniform(-6, 0))).astype(np.float32)
    mel = log_mel(samples, RATE)
    assert mel.shape == ((count + 2 * 384 - N_FFT) // HOP + 1, N_MELS)
    assert mel.dtype == np.float32
    for frame in {0, mel.shape[0] // 2, mel.shape[0] - 1}:
        np.testing.assert_allclose(mel[frame], slow_frame(samples, frame), atol=2e-4)


@pytest.mark.parametrize("count", [1, 2, 384, 385])
def test_short_and_silent_input(count: int) -> None:
    mel = log_mel(np.zeros(count, np.float32), RATE)
    assert mel.shape[0] >= 1
    assert np.isfinite(mel).all()


def test_scale_is_its_own_inverse_and_a_tone_lands_in_its_band() -> None:
    for hz in (0.0, 440.0, 999.9, 1000.0, 5000.0, 12000.0):
        assert mel_to_hz(np.array([hz_to_mel(hz)]))[0] == pytest.approx(hz)
    tone = np.sin(2 * np.pi * 3000 * np.arange(RATE) / RATE).astype(np.float32)
    centre = mel_filters(RATE)[log_mel(tone, RATE)[20].argmax()].argmax() * RATE / N_FFT
    assert centre == pytest.approx(3000, abs=120)


@pytest.mark.parametrize(("count", "title"), [(1, ""), (30001, "A title with $ and 你好 " * 9)])
def test_picture(count: int, title: str, tmp_path: Path) -> None:
    from matplotlib.image import imread

    samples = np.random.default_rng(3).uniform(-0.5, 0.5, count).astype(np.float32)
    plot_speech(tmp_path / "a.png", samples, RATE, title)
    image = imread(tmp_path / "a.png")
    assert image.shape[1] >= 1000
    assert 0.05 < image[..., :3].std() < 0.6
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


def test_picture_shows_what_the_file_holds(tmp_path: Path) -> None:
    samples = np.random.default_rng(4).uniform(-0.5, 0.5, 3000).astype(np.float32)
    plot_speech(tmp_path / "gain.png", samples, RATE, gain=3.0)
    plot_speech(tmp_path / "louder.png", np.clip(samples * np.float32(3), -1, 1), RATE)
    plot_speech(tmp_path / "plain.png", samples, RATE)
    pictures = {path.stem: path.read_bytes() for path in tmp_path.iterdir()}
    assert pictures["gain"] == pictures["louder"]
    assert pictures["gain"] != pictures["plain"]


def test_picture_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.zeros(100, np.float32)
    with pytest.raises(AudioError, match=r"written as \.png"):
        plot_speech(tmp_path / "a.jpg", samples, RATE)
    with pytest.raises(AudioError, match="does not exist"):
        plot_speech(tmp_path / "b" / "a.png", samples, RATE)
    with pytest.raises(AudioError, match="no samples"):
        plot_speech(tmp_path / "a.png", samples[:0], RATE)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AudioError, match=r"pip install 'qwen3tts\[plot\]'"):
        check_plot_path(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
