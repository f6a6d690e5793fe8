"""The codec decoder: any chunking gives the same samples; layers against their formulas."""

import numpy as np
import pytest
import torch

import qwen3tts.model.codec_decoder as codec_decoder
from qwen3tts.backends.torch.runtime import load_runtime
from qwen3tts.checkpoint import open_checkpoint
from qwen3tts.model.causal import CausalConv1d, CausalConvTranspose1d, SnakeBeta, StreamState
from qwen3tts.options import RuntimeOptions


@pytest.fixture(scope="module")
def codec(tiny_checkpoint):
    window = {"speech_tokenizer": {"decoder_config": {"sliding_window": 72}}}  # the released models' own
    checkpoint = open_checkpoint(tiny_checkpoint("base", seed=2, override=window))
    runtime = load_runtime(checkpoint, torch.device("cpu"), torch.float32, RuntimeOptions())
    return runtime.codec.model


def random_codes(seed, frames, size=64):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, size, (frames, 16)))


@torch.inference_mode()
def test_any_chunking_gives_the_same_samples(codec, seed):
    rng = np.random.default_rng(seed)
    for frames in (1, 2, 13, 101):
        codes = random_codes(seed, frames)
        whole = codec(codes, StreamState())
        assert whole.shape == (frames * 1920,)
        assert whole.abs().max() <= 1
        for _ in range(2):
            cuts = np.sort(rng.integers(0, frames + 1, rng.integers(1, 8)))
            pieces = [p for p in np.split(codes.numpy(), cuts) if len(p)]
            state = StreamState()
            joined = torch.cat([codec(torch.from_numpy(piece), state) for piece in pieces])
            assert state.frames == frames
            assert float((joined - whole).abs().max()) <= 1e-5


@torch.inference_mode()
def test_chunk_size_is_for_memory_alone(codec, seed, monkeypatch):
    codes = random_codes(seed + 1, 83)
    whole = codec(codes, StreamState())
    for size in (11, 1000):
        monkeypatch.setattr(codec_decoder, "CHUNK", size)
        assert float((codec(codes, StreamState()) - whole).abs().max()) <= 1e-5


@torch.inference_mode()
def test_state_does_not_grow(codec, seed):
    state = StreamState()
    sizes = []
    codec(random_codes(seed, 71), state)  # the window is full from here on
    for i in range(4):
        codec(random_codes(seed + i, 5), state)
        held = [*state.tails.values(), *(t for pair in state.window.values() for t in pair)]
        sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in held))
    assert sizes == sizes[:1] * 4


@torch.inference_mode()
def test_official_chunking_is_exact_to_300_frames_and_not_after(codec, seed):
    codes = random_codes(seed + 3, 420)
    exact = codec(codes, StreamState())
    official = torch.cat(list(codec.decode_official(codes)))
    assert official.shape == exact.shape
    assert float((official - exact)[: 300 * 1920].abs().max()) <= 1e-5
    assert float((official - exact)[300 * 1920 :].abs().max()) > 1e-3
    window = codec(codes[275:], StreamState())[25 * 1920 :]
    assert float((official[300 * 1920 :] - window).abs().max()) <= 1e-5


@pytest.mark.parametrize(("kernel", "dilation"), [(7, 1), (7, 9), (3, 1), (1, 1)])
@torch.inference_mode()
def test_causal_convolution_formula(kernel, dilation, seed):
    torch.manual_seed(seed)
    layer = CausalConv1d(3, 2, kernel, dilation)
    x = torch.randn(1, 3, 20)
    out = layer(x, StreamState())
    for t in (0, 1, 7, 19):
        expected = layer.conv.bias.clone()
        for j in range(kernel):
            source = t - (kernel - 1 - j) * dilation
            if source >= 0:
                expected += layer.conv.weight[:, :, j] @ x[0, :, source]
        assert torch.allclose(out[0, :, t], expected, atol=1e-5)


@pytest.mark.parametrize(("stride", "factor"), [(5, 2), (3, 2), (2, 1)])
@torch.inference_mode()
def test_transposed_convolution_by_phase(stride, factor, seed):
    """output[t * s + p] = input[t] W[p] + input[t - 1] W[p + s] + b."""
    torch.manual_seed(seed)
    layer = CausalConvTranspose1d(4, 3, factor * stride, stride)
    x = torch.randn(1, 4, 6)
    state = StreamState()
    out = torch.cat([layer(x[..., :1], state), layer(x[..., 1:4], state), layer(x[..., 4:], state)], -1)
    assert out.shape == (1, 3, 6 * stride)
    for t in range(6):
        for p in range(stride):
            expected = layer.conv.bias + x[0, :, t] @ layer.conv.weight[:, :, p]
            if factor == 2 and t:
                expected = expected + x[0, :, t - 1] @ layer.conv.weight[:, :, p + stride]
            assert torch.allclose(out[0, :, t * stride + p], expected, atol=1e-5)


@torch.inference_mode()
def test_snake_beta_formula(seed):
    torch.manual_seed(seed)
    layer = SnakeBeta(5)
    torch.nn.init.normal_(layer.alpha)
    torch.nn.init.normal_(layer.beta)
    layer.prepare()
    x = torch.randn(2, 5, 9)
    a, b = layer.alpha.double().exp()[:, None], layer.beta.double().exp()[:, None]
    expected = x.double() + torch.sin(x.double() * a) ** 2 / (b + 1e-9)
    assert torch.allclose(layer(x).double(), expected, atol=1e-5)
