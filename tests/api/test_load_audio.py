"""Qwen3TTSTokenizer.load_audio against results of the official one, made by scripts/parity/load_audio.py."""

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

import qwen3tts
from qwen3tts import OptionError
from qwen3tts.errors import AudioError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "parity"))
from load_audio import CASES, TARGETS, forms, recording


@pytest.fixture(scope="module")
def codec(tiny_checkpoint):
    return qwen3tts.Qwen3TTSTokenizer.from_pretrained(tiny_checkpoint("base", seed=2))


def test_equals_the_official_package(codec, tmp_path):
    with np.load(Path(__file__).with_name("load_audio.npz")) as expected:
        checked = 0
        for rate, channels, container in CASES:
            path = tmp_path / f"a.{container.lower()}"
            for form, source in forms(recording(rate, channels, container), path).items():
                for target in TARGETS:
                    samples = codec.load_audio(source, target)
                    wanted = expected[f"{rate}-{channels}-{target}-{form}"]
                    assert (samples.dtype, samples.shape) == (np.float32, wanted.shape)
                    np.testing.assert_allclose(samples, wanted, atol=2e-6)
                    checked += 1
        assert checked == len(expected.files)


def test_arguments(codec, tmp_path):
    assert list(inspect.signature(codec.load_audio).parameters) == ["x", "target_sr"]
    path = tmp_path / "a.wav"
    path.write_bytes(recording(16_000, 1, "WAV"))
    samples = codec.load_audio(x=path, target_sr=np.int64(24_000))
    np.testing.assert_array_equal(samples, codec.load_audio(str(path), 24_000))
    assert (codec.encode(path)[0][0] == codec.encode(samples, sr=24_000)[0][0]).all()
    for rate in (0, -1, 10**9, 2.5, True, None, "24000"):
        with pytest.raises(OptionError, match="^target_sr is .*; expected a whole number of Hz"):
            codec.load_audio(path, rate)
    for bad in (samples, (samples, 24_000), None):
        with pytest.raises(TypeError, match="expected a path, URL or base64"):
            codec.load_audio(bad, 24_000)
    with pytest.raises(AudioError, match="no such file"):
        codec.load_audio(str(tmp_path / "b.wav"), 24_000)


def test_encode_takes_paths_of_both_kinds(codec, tmp_path):
    paths = []
    for rate in (16_000, 24_000):
        paths.append(tmp_path / f"{rate}.wav")
        paths[-1].write_bytes(recording(rate, 1, "WAV"))
    wanted = [codec.encode(str(path))[0][0] for path in paths]
    for sources in (paths, [paths[0], str(paths[1])], [str(paths[0]), paths[1]]):
        assert all((a == b).all() for a, b in zip(codec.encode(sources)[0], wanted, strict=True))
    assert (codec.encode(paths[0])[0][0] == wanted[0]).all()
    with pytest.raises(TypeError, match="mixed"):
        codec.encode([paths[0], np.zeros(3000, np.float32)], sr=24_000)
