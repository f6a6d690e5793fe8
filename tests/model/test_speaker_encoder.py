"""The speaker encoder: log-mel, layers against their formulas, the shortest recording; the lazy pair of encoders."""

import dataclasses
import threading

import numpy as np
import pytest
import torch

import qwen3tts.model.speaker_encoder as speaker_encoder
from qwen3tts.audio.mel import log_mel
from qwen3tts.backends.torch.encoders import TorchEncoders
from qwen3tts.checkpoint import model_keys, open_checkpoint
from qwen3tts.errors import AudioError, ConfigError, NumericsError, Qwen3TTSError, VoiceError
from qwen3tts.model.mel import LogMel
from qwen3tts.model.speaker_encoder import AttentivePooling, Res2Net, SpeakerEncoder, same_conv

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint):
    return open_checkpoint(tiny_checkpoint("base", seed=5))


@pytest.fixture(scope="module")
def encoders(checkpoint):
    return TorchEncoders(checkpoint, CPU, torch.float32)


@pytest.fixture(scope="module")
def model(encoders):
    encoders.embed(np.zeros(4000, np.float32))
    return encoders._speaker


def noise(seed, samples):
    return (0.1 * np.random.default_rng([seed, samples]).standard_normal(samples)).astype(np.float32)


def test_log_mel_against_numpy(seed):
    for n in (1024, 1280, 5000, 24001):
        samples = noise(seed, n)
        ours = LogMel(24000, 128)(torch.from_numpy(samples))
        assert ours.shape == (1, 128, n // 256)
        np.testing.assert_allclose(ours[0].T.numpy(), log_mel(samples, 24000), atol=1e-4)


def test_log_mel_has_128_bands():
    with pytest.raises(ConfigError, match="mel_dim is 80, expected 128"):
        LogMel(24000, 80)


@pytest.mark.parametrize(("kernel", "dilation"), [(5, 1), (3, 4), (3, 2), (1, 1)])
@torch.inference_mode()
def test_convolution_mirrors_its_input(kernel, dilation, seed):
    torch.manual_seed(seed)
    layer = same_conv(3, 2, kernel, dilation)
    for steps in (dilation * (kernel - 1) // 2 + 1, 20):
        x = torch.randn(1, 3, steps)
        out = layer(x)
        assert out.shape == (1, 2, steps)
        for t in range(steps):
            expected = layer.bias.clone()
            for j in range(kernel):
                source = abs(t + (j - kernel // 2) * dilation)
                source = source if source < steps else 2 * (steps - 1) - source
                expected += layer.weight[:, :, j] @ x[0, :, source]
            assert torch.allclose(out[0, :, t], expected, atol=1e-5)


@torch.inference_mode()
def test_res2net_chain(seed):
    torch.manual_seed(seed)
    layer = Res2Net(8, 4, 3, 2)
    x = torch.randn(1, 8, 11)
    a, b, c, d = x.split(2, 1)
    first, second, third = layer.blocks
    y = first(b)
    z = second(c + y)
    assert torch.allclose(layer(x), torch.cat((a, y, z, third(d + z)), 1), atol=1e-6)


@torch.inference_mode()
def test_pooling_formula_and_block_size(seed, monkeypatch):
    torch.manual_seed(seed)
    layer = AttentivePooling(6, 4)
    x = torch.randn(1, 6, 301)
    mean, deviation = x.mean(2), x.var(2, unbiased=False).sqrt()
    joined = torch.cat((x, mean[..., None].expand_as(x), deviation[..., None].expand_as(x)), 1)
    weights = torch.softmax(layer.conv(torch.tanh(torch.relu(layer.tdnn.conv(joined)))), 2)
    weighted = (weights * x).sum(2)
    spread = (weights * (x - weighted[..., None]) ** 2).sum(2).sqrt()
    expected = torch.cat((weighted, spread), 1)[..., None]
    for size in (2048, 50, 1):
        monkeypatch.setattr(speaker_encoder, "BLOCK", size)
        assert torch.allclose(layer(x), expected, atol=1e-5)


def test_shortest_recording(encoders, model, seed):
    """1280 samples are 5 mel frames, one more than the widest convolution mirrors."""
    assert model.min_samples == 1280
    assert np.isfinite(encoders.embed(noise(seed, 1280))).all()
    for n in (0, 1, 384, 1279):
        with pytest.raises(AudioError, match=f"{n} samples .* at least 1280"):
            encoders.embed(noise(seed, n))
    with pytest.raises(AudioError, match="expected \\[n\\]"):
        encoders.embed(noise(seed, 4000)[None])


@torch.inference_mode()
def test_shortest_recording_follows_from_the_config(checkpoint, seed):
    wide = dataclasses.replace(checkpoint.config.speaker_encoder, enc_kernel_sizes=(5, 3, 3, 5, 1))
    torch.manual_seed(seed)
    model = SpeakerEncoder(wide)
    assert model.min_samples == 9 * 256  # kernel 5, dilation 4: 8 frames mirrored
    assert model(torch.from_numpy(noise(seed, 9 * 256))).isfinite().all()
    with pytest.raises(AudioError):
        model(torch.from_numpy(noise(seed, 9 * 256 - 1)))


def test_keys_are_those_of_the_checkpoint(checkpoint, model):
    prefix = "speaker_encoder."
    file = {key: shape for key, shape in model_keys(checkpoint.config) if key.startswith(prefix)}
    assert {prefix + name: tuple(p.shape) for name, p in model.named_parameters()} == file


def test_rounds_in_the_dtype_of_the_model(checkpoint, encoders, seed):
    """bf16 is near fp32, made of bf16 numbers, and returned as fp32; the codec encoder stays in fp32."""
    narrow = TorchEncoders(checkpoint, CPU, torch.bfloat16)
    samples = noise(seed, 30000)
    ours, wide = narrow.embed(samples), encoders.embed(samples)
    assert ours.dtype == wide.dtype == np.float32
    np.testing.assert_array_equal(torch.from_numpy(ours).bfloat16().float().numpy(), ours)
    assert 0 < np.linalg.norm(ours - wide) / np.linalg.norm(wide) < 0.1
    np.testing.assert_array_equal(narrow.encode(samples), encoders.encode(samples))


def test_each_encoder_is_loaded_when_it_is_first_used(checkpoint, seed):
    encoders = TorchEncoders(checkpoint, CPU, torch.float32)
    assert (encoders._codec, encoders._speaker) == (None, None)
    codes = encoders.encode(noise(seed, 5000))
    assert (codes.shape, codes.dtype) == ((3, 16), np.int16)
    assert encoders._speaker is None
    assert encoders.embed(noise(seed, 5000)).shape == (checkpoint.config.speaker_encoder.enc_dim,)
    encoders.close()
    assert (encoders._codec, encoders._speaker) == (None, None)
    for call in (encoders.encode, encoders.embed):
        with pytest.raises(Qwen3TTSError, match="This model was closed"):
            call(noise(seed, 5000))


def test_threads_share_the_encoders(checkpoint, seed):
    encoders = TorchEncoders(checkpoint, CPU, torch.float32)
    inputs = [noise(seed, n) for n in (3000, 9000, 15000, 21000)]
    results = {}
    threads = [
        threading.Thread(target=lambda i=i, x=x: results.update({i: (encoders.encode(x), encoders.embed(x))}))
        for i, x in enumerate(inputs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, samples in enumerate(inputs):
        np.testing.assert_array_equal(results[i][0], encoders.encode(samples))
        np.testing.assert_array_equal(results[i][1], encoders.embed(samples))


def test_fingerprint_belongs_to_the_speaker_encoder(checkpoint, encoders, tiny_checkpoint):
    fingerprint = encoders.fingerprint()
    assert len(fingerprint) == 16
    int(fingerprint, 16)
    assert fingerprint == TorchEncoders(checkpoint, CPU, torch.bfloat16).fingerprint()
    other = open_checkpoint(tiny_checkpoint("base", seed=6))
    assert fingerprint != TorchEncoders(other, CPU, torch.float32).fingerprint()
    same_weights = open_checkpoint(tiny_checkpoint("base", seed=5, eos_gain=1.5))  # only codec_head differs
    assert fingerprint == TorchEncoders(same_weights, CPU, torch.float32).fingerprint()


def test_models_without_a_speaker_encoder(tiny_checkpoint, seed):
    encoders = TorchEncoders(open_checkpoint(tiny_checkpoint("custom_voice")), CPU, torch.float32)
    assert not encoders.can_embed
    for call in (lambda: encoders.embed(noise(seed, 5000)), encoders.fingerprint):
        with pytest.raises(VoiceError, match="custom_voice model has no speaker encoder"):
            call()
    assert encoders.encode(noise(seed, 1920)).shape == (1, 16)


@pytest.mark.parametrize("value", [3e38, np.nan, -np.inf])
def test_overflow_is_an_error(encoders, seed, value):
    samples = noise(seed, 6000)
    samples[2000:] = value
    for call in (encoders.embed, encoders.encode):
        with pytest.raises(NumericsError, match="not finite|overflows"):
            call(samples)
