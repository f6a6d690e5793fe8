"""The pass codec-kernels on a tiny model: the same speech, the same objects and bytes after, a check that can fail."""

import hashlib

import numpy as np
import pytest
import torch

import qwen3tts
from qwen3tts import GenerateOptions
from qwen3tts.backends.native import codec_kernels, open_native
from qwen3tts.backends.native.blas import Blas
from qwen3tts.backends.native.codec_kernels import CodecKernels
from qwen3tts.backends.native.transposed_conv import METHODS, is_packed, pack_weight, transposed_conv
from qwen3tts.checkpoint.loading import ALIGNED
from qwen3tts.errors import OptimizationApplicationError, OptimizationCompatibilityError, OptionError
from qwen3tts.model.causal import CausalConvTranspose1d, StreamState

OPTIONS = GenerateOptions(max_frames=3, seed=7)


def layers_of(tts):
    return [m for m in tts.engine.runtime.codec.model.modules() if isinstance(m, CausalConvTranspose1d)]


def layout(tts):
    """Objects, strides and bytes of the codec's state."""
    decoder = tts.engine.runtime.codec.model
    return {
        key: (id(p), p.stride(), p.untyped_storage().nbytes(), hashlib.sha256(p.detach().numpy().tobytes()).hexdigest())
        for key, p in decoder.named_parameters()
    }


@pytest.mark.parametrize("method", METHODS)
def test_it_speaks_the_same_and_leaves_nothing_behind(tts, method):
    before, at_first = tts.generate("Good morning.", "ryan", "english", options=OPTIONS), layout(tts)
    tts.apply_optimization_plan(("codec-kernels", {"method": method}))
    assert all("forward" in vars(layer) for layer in layers_of(tts))
    during = tts.generate("Good morning.", "ryan", "english", options=OPTIONS)
    assert np.array_equal(before.codes, during.codes)
    np.testing.assert_allclose(before.samples, during.samples, atol=1e-5)
    now, packed = layout(tts), [layer.conv.weight for layer in layers_of(tts)]
    moved = {f"{layer.name}.conv.weight" for layer in layers_of(tts) if method == "gemm"}
    for key, (identity, _, size, digest) in at_first.items():
        assert (now[key][0], now[key][3]) == (identity, digest), key
        assert now[key][2] == size or key in moved, key
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in packed}
    assert len(storages) == (1 if method == "gemm" else len(packed))  # one allocation, and no second copy
    assert 0 <= sum(storages.values()) - sum(p.nbytes for p in packed) < ALIGNED * len(packed)
    assert all(is_packed(layer.conv.weight) == (method == "gemm") for layer in layers_of(tts))
    (entry,) = tts.optimization_manifest("inference")["passes"]
    assert entry["configuration"] == {"method": method}
    assert entry["runtime_status"]["layers"] == len(layers_of(tts))
    assert entry["metadata"].get("library") == ("plain loops" if method == "gemm" else None)
    tts.restore_optimization_plan()
    assert layout(tts) == at_first
    assert not any("forward" in vars(layer) for layer in layers_of(tts))
    after = tts.generate("Good morning.", "ryan", "english", options=OPTIONS)
    assert np.array_equal(before.samples, after.samples)


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_in_pieces_is_the_whole(tts, method):
    decoder = tts.engine.runtime.codec.model
    seed = torch.seed() % 2**31
    print("seed", seed)
    codes = torch.randint(0, 64, (7, 16), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        want = decoder(codes, StreamState())
        tts.apply_optimization_plan(("codec-kernels", {"method": method}))
        state = StreamState()
        pieces = torch.cat([decoder(codes[a:b], state) for a, b in ((0, 1), (1, 3), (3, 7))])
    assert (pieces - want).abs().max() < 1e-5


def test_its_check_passes_and_can_fail(tts, monkeypatch):
    runtime = tts.engine.runtime
    for method in METHODS:
        item = CodecKernels(method=method)
        result = tts.apply_optimization_plan(item)
        evidence = item.check(runtime, result.applied[0].result.state, result.context)
        assert evidence.passed
        assert 0 < evidence.error <= evidence.bound == 1e-5
        tts.restore_optimization_plan()
    wrong = codec_kernels.transposed_conv
    monkeypatch.setattr(codec_kernels, "transposed_conv", lambda *a, **o: wrong(*a, **o) * 1.0001)
    result = tts.apply_optimization_plan(item)
    assert not item.check(runtime, result.applied[0].result.state, result.context).passed


def test_a_failure_half_way_leaves_the_layout_as_it_was(tts, monkeypatch):
    at_first, calls = layout(tts), []
    make = codec_kernels._forward

    def failing(layer, *rest):
        calls.append(layer)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return make(layer, *rest)

    monkeypatch.setattr(codec_kernels, "_forward", failing)
    with pytest.raises(OptimizationApplicationError, match="out of memory"):
        tts.apply_optimization_plan("codec-kernels")
    assert len(calls) == 3
    assert layout(tts) == at_first
    assert not any("forward" in vars(layer) for layer in layers_of(tts))


def test_many_rounds_change_nothing(tts):
    at_first = layout(tts)
    for _ in range(20):
        tts.apply_optimization_plan("codec-kernels")
        tts.restore_optimization_plan()
    assert layout(tts) == at_first


def test_what_cannot_be_done_is_refused_before_anything_changes(model, emulated):
    with pytest.raises(OptionError, match="'gemm', 'direct', 'tiled'"):
        model.apply_optimization_plan(("codec-kernels", {"method": "fast"}))
    with pytest.raises(OptimizationCompatibilityError, match="no native kernels for the device 'cpu'"):
        model.apply_optimization_plan("codec-kernels")
    runtime = model.engine.runtime
    runtime.native = emulated(32)
    layer = layers_of(model)[1]
    kernel, layer.conv.kernel_size = layer.conv.kernel_size, (3 * layer.stride,)
    try:
        with pytest.raises(OptimizationCompatibilityError, match=f"has the kernel {3 * layer.stride} at stride"):
            model.apply_optimization_plan("codec-kernels")
    finally:
        layer.conv.kernel_size = kernel
        del runtime.native


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_on_a_card(tiny_checkpoint, backend):
    """Audio equal up to rounding, the check within its bound, one copy of every weight, the first layout afterwards."""
    with qwen3tts.load(tiny_checkpoint(), backend=backend, profile="reference") as tts:
        runtime = tts.engine.runtime
        codes = torch.randint(0, 64, (9, 16), generator=torch.Generator().manual_seed(3))
        (want,) = runtime.codec.decode([runtime.codec.open()], [codes])
        strides = [layer.conv.weight.stride() for layer in layers_of(tts)]
        for method in METHODS:
            item = CodecKernels(method=method)
            result = tts.apply_optimization_plan(item)
            (got,) = runtime.codec.decode([runtime.codec.open()], [codes])
            assert (got - want).abs().max() < 1e-4
            assert item.check(runtime, result.applied[0].result.state, result.context).passed
            tts.restore_optimization_plan()
            (again,) = runtime.codec.decode([runtime.codec.open()], [codes])
            assert (again - want).abs().max() < 1e-5  # torch's own convolution may add in another order each time
            assert [layer.conv.weight.stride() for layer in layers_of(tts)] == strides


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_a_captured_layer_replays(backend):
    """Both products, the workspace and the interleaving inside one graph, on new input."""
    native = open_native(backend)
    blas, device = Blas(native), native.device
    x, weight = torch.randn(1, 24, 12, device=device), pack_weight(torch.randn(24, 10, 8, device=device))
    transposed_conv(native, x, weight, None, 4, blas=blas)  # the library sets up what it needs
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = transposed_conv(native, x, weight, None, 4, blas=blas)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert torch.equal(y, transposed_conv(native, x, weight, None, 4, blas=blas))
