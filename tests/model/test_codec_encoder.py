"""The codec encoder: layers against their formulas, what a cut changes, the quantizer against a slow one."""

import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import qwen3tts.model.codec_encoder as codec_encoder
from qwen3tts.checkpoint import codec_keys, load_module, open_checkpoint
from qwen3tts.errors import AudioError
from qwen3tts.model.causal import StreamState
from qwen3tts.model.codec_encoder import Codebook, CodecEncoder, Downsample, StridedConv1d, WholeSequence

MARGIN = 1e-3
"""codes whose nearest and second-nearest entries are closer than this may change with the order of sums"""


def load(folder):
    checkpoint = open_checkpoint(folder)
    with torch.device("meta"):
        model = CodecEncoder(checkpoint.config.codec.encoder, checkpoint.config.codec.decoder.num_quantizers)
    with checkpoint.codec_weights() as weights:
        load_module(model, weights, prefix="encoder.", device=torch.device("cpu"), dtype_of=lambda *_: torch.float32)
    model.prepare()
    return checkpoint, model.eval()


@pytest.fixture(scope="module")
def loaded(tiny_checkpoint):
    return load(tiny_checkpoint("base", seed=3))


@pytest.fixture(scope="module")
def encoder(loaded):
    return loaded[1]


def sound(seed, samples):
    """Tones over noise, float32 [samples]."""
    rng = np.random.default_rng([seed, samples])
    t = np.arange(samples) / 24000
    tones = sum(np.sin(2 * np.pi * f * t + f) for f in rng.uniform(80, 4000, 4))
    return torch.from_numpy((0.1 * tones + 0.03 * rng.standard_normal(samples)).astype(np.float32))


@torch.inference_mode()
def embeddings(encoder, samples):
    """What the quantizer gets: [frames, hidden]."""
    return encoder.downsample(encoder.encoder_transformer(encoder.encoder(samples[None, None])[0].T))


def slow_quantize(encoder, x):
    """float64: (codes, margins), both [frames, 16]."""
    codes, margins = [], []
    for part in encoder.quantizer.children():
        residual = x.double() @ part.input_proj.weight[..., 0].double().T
        for book in (module for module in part.modules() if isinstance(module, Codebook)):
            usage = book.cluster_usage.double().clamp(min=1e-5)
            entries = book.embed_sum.double() / usage[:, None]
            distance = (residual[:, None] - entries[None]).square().sum(-1).sqrt()
            near, index = distance.topk(2, largest=False)
            codes.append(index[:, 0])
            margins.append(near[:, 1] - near[:, 0])
            residual = residual - entries[index[:, 0]]
    return torch.stack(codes, -1).numpy(), torch.stack(margins, -1).numpy()


def assert_codes_equal(ours, theirs, margin):
    """Equal where the margin allows it; past an excused difference the later acoustic codes of a frame may differ."""
    for frame in range(len(theirs)):
        for book in range(theirs.shape[1]):
            if ours[frame, book] != theirs[frame, book]:
                assert margin[frame, book] <= MARGIN, (frame, book)
                if book:
                    break


@torch.inference_mode()
def test_frames(encoder, seed):
    lengths = [1, 2, 959, 960, 961, 1919, 1920, 1921, *np.random.default_rng(seed).integers(1, 40000, 6)]
    for n in map(int, lengths):
        codes = encoder(sound(seed, n))
        assert codes.shape == (-(-n // 1920), 16)
        assert codes.dtype == torch.int64
        assert codes.min() >= 0
        assert codes.max() < encoder.config.codebook_size


@torch.inference_mode()
def test_quantizer_against_a_slow_one(encoder, seed):
    x = embeddings(encoder, sound(seed, 60 * 1920 + 7))
    codes, margin = slow_quantize(encoder, x)
    assert (margin > MARGIN).mean() > 0.9
    assert len(np.unique(codes[:, 0])) > 1
    assert_codes_equal(encoder.quantizer(x).numpy(), codes, margin)


@torch.inference_mode()
def test_cut_at_a_frame_changes_no_earlier_code(encoder, seed):
    rng = np.random.default_rng(seed)
    for n in map(int, rng.integers(5 * 1920, 60 * 1920, 3)):
        whole = sound(seed, n)
        x = embeddings(encoder, whole)
        codes, margin = encoder(whole).numpy(), slow_quantize(encoder, x)[1]
        for frames in map(int, rng.integers(1, n // 1920 + 1, 3)):
            cut = whole[: frames * 1920]
            assert float((embeddings(encoder, cut) - x[:frames]).abs().max()) <= 1e-5
            assert_codes_equal(encoder(cut).numpy(), codes[:frames], margin)


@torch.inference_mode()
def test_cut_inside_a_frame_changes_that_frame_alone(encoder, seed):
    """Each convolution pads its own input, which is not the same as zeros after the samples."""
    n = 20 * 1920
    cut = n - int(np.random.default_rng(seed).integers(1, 1900))
    whole, zeros = sound(seed, n), F.pad(sound(seed, n)[:cut], (0, n - cut))
    ours = embeddings(encoder, whole[:cut])
    for other in (whole, zeros):
        difference = (ours - embeddings(encoder, other)).abs().amax(-1)
        assert float(difference[:-1].max()) <= 1e-5
        assert float(difference[-1]) > 1e-4


@torch.inference_mode()
def test_piece_size_is_for_memory_alone(encoder, seed, monkeypatch):
    samples = sound(seed, int(np.random.default_rng(seed).integers(100_000, 200_000)))
    pieces = encoder.encoder(samples[None, None])
    for size in (1, 7, 10_000):
        monkeypatch.setattr(codec_encoder, "PIECE", size)
        assert float((encoder.encoder(samples[None, None]) - pieces).abs().max()) <= 1e-5


@torch.inference_mode()
def test_long_recordings_need_no_score_matrix(loaded):
    """5,000 positions: a float mask would take 100 MB, the scores of a layer 400 MB."""
    program = (
        "import importlib.util, resource, sys, torch\n"
        "spec = importlib.util.spec_from_file_location('loader', sys.argv[1])\n"
        "loader = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(loader)\n"
        "model = loader.load(sys.argv[2])[1]\n"
        "samples = torch.rand(200 * 24000) - 0.5\n"
        "with torch.inference_mode():\n"
        "    model(samples[:24000])\n"
        "    before = loader.peak()\n"
        "    frames = len(model(samples))\n"
        "print(frames, loader.peak() - before)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, __file__, str(loaded[0].path)], capture_output=True, text=True, check=True
    )
    frames, grown = map(int, run.stdout.split())
    print(f"grew by {grown / 1e6:.0f} MB")
    assert frames == 2500
    assert grown < 90e6


def peak():
    """Bytes of the largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(("kernel", "stride"), [(7, 1), (8, 4), (10, 5), (3, 1), (1, 1)])
@torch.inference_mode()
def test_strided_convolution_formula(kernel, stride, seed):
    """Output t sees inputs up to (t + 1) * stride - 1; what is not there is zero."""
    torch.manual_seed(seed)
    layer = StridedConv1d(3, 2, kernel, stride)
    for n in (1, stride, 4 * stride + 1, 23):
        x = torch.randn(1, 3, n)
        out = layer(x, StreamState())
        assert out.shape == (1, 2, -(-n // stride))
        for t in range(out.shape[-1]):
            expected = layer.conv.bias.clone()
            for j in range(kernel):
                source = (t + 1) * stride - kernel + j
                if 0 <= source < n:
                    expected += layer.conv.weight[:, :, j] @ x[0, :, source]
            assert torch.allclose(out[0, :, t], expected, atol=1e-5)


@torch.inference_mode()
def test_downsample_repeats_the_edges(seed):
    torch.manual_seed(seed)
    layer = Downsample(3)
    for n in (1, 2, 7, 8):
        x = torch.randn(n, 3)
        out = layer(x)
        assert out.shape == (-(-n // 2), 3)
        for t in range(len(out)):
            picked = [x[min(max(2 * t - 2 + j, 0), n - 1)] for j in range(4)]
            expected = sum(layer.conv.weight[:, :, j] @ row for j, row in enumerate(picked))
            assert torch.allclose(out[t], expected, atol=1e-5)


@torch.inference_mode()
def test_attention_is_causal_and_has_no_window(seed):
    torch.manual_seed(seed)
    steps = 400
    q, k, v = (torch.randn(steps, 2, 8) for _ in range(3))
    out = WholeSequence(steps, torch.device("cpu")).attend(0, q, k, v)
    for t in (0, 1, 200, 399):
        weights = torch.softmax(torch.einsum("hd,thd->ht", q[t].double(), k[: t + 1].double()) / 8**0.5, -1)
        expected = torch.einsum("ht,thd->hd", weights, v[: t + 1].double()).flatten()
        assert torch.allclose(out[t].double(), expected, atol=1e-5)


@torch.inference_mode()
def test_lowest_of_equal_entries(seed):
    torch.manual_seed(seed)
    book = Codebook(40, 5)
    book.cluster_usage.fill_(2.0)
    torch.nn.init.normal_(book.embed_sum)
    book.embed_sum[[30, 17, 25]] = book.embed_sum[9].clone()
    book.cluster_usage[3] = 0  # an entry that was never used is far away, not a division by zero
    book.prepare()
    assert book.nearest(book.entries[[30, 9, 25, 3]]).tolist() == [9, 9, 9, 3]


def test_keys_are_those_of_the_checkpoint(loaded):
    checkpoint, encoder = loaded
    ours = {"encoder." + name for name, _ in encoder.named_parameters()}
    file = {key for key, _ in codec_keys(checkpoint.config.codec) if key.startswith("encoder.")}
    assert ours <= file
    unused = file - ours
    acoustic = "encoder.quantizer.acoustic_residual_vector_quantizer.layers."
    assert all(
        key.endswith(("codebook.initialized", "output_proj.weight"))
        or (key.startswith(acoustic) and int(key.removeprefix(acoustic).split(".")[0]) >= 15)
        for key in unused
    )


@pytest.mark.parametrize("shape", [(0,), (1, 24000), (2, 3, 4)])
def test_wrong_shapes_are_refused(encoder, shape):
    with pytest.raises(AudioError, match="expected \\[n\\]"):
        encoder(torch.zeros(shape))
