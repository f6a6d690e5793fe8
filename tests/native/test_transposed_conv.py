"""Transposed convolution by products, directly and tiled, against float64 and torch's own."""

import pytest
import torch
from torch.nn import functional as F

from qwen3tts.backends.native.blas import Blas
from qwen3tts.backends.native.transposed_conv import (
    METHODS,
    is_packed,
    pack_weight,
    transposed_conv,
    transposed_conv_reference,
)
from qwen3tts.errors import KernelArgumentError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# batch, in, out, steps, stride, taps
SHAPES = ((1, 1, 1, 1, 1, 1), (2, 3, 5, 4, 2, 1), (1, 16, 8, 1, 8, 2), (3, 17, 33, 5, 3, 2), (1, 31, 7, 67, 4, 2),
          (2, 8, 40, 33, 5, 2), (1, 20, 3, 130, 2, 1))  # fmt: skip


def draw(native, shape, dtype):
    """x with its history, weight, bias."""
    batch, channels_in, channels_out, steps, stride, taps = shape
    seed = torch.seed() % 2**31
    print("seed", seed)
    generator = torch.Generator().manual_seed(seed)
    sizes = ((batch, channels_in, steps + taps - 1), (channels_in, channels_out, taps * stride), (channels_out,))
    return [torch.randn(size, generator=generator).to(dtype).to(native.device) for size in sizes]


def run(native, x, weight, bias, stride, method):
    if method != "gemm":
        return transposed_conv(native, x, weight, bias, stride, method=method)
    return transposed_conv(native, x, pack_weight(weight), bias, stride, blas=Blas(native))


def bound(x, weight, stride, dtype):
    size = transposed_conv_reference(x.double().abs(), weight.double().abs(), None, stride) + 1
    return size * (2 * weight.shape[0] * 2.0**-24 + 2 * ROUNDING[dtype]) + 4 * ROUNDING[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_method_equals_float64_up_to_rounding(native, shape, dtype):
    x, weight, bias = draw(native, shape, dtype)
    batch, _, channels_out, steps, stride, _ = shape
    for use_bias in (bias, None):
        wide = None if use_bias is None else use_bias.double()
        want = transposed_conv_reference(x.double(), weight.double(), wide, stride)
        for method in METHODS:
            y = run(native, x, weight, use_bias, stride, method)
            assert y.shape == (batch, channels_out, steps * stride)
            assert y.dtype == dtype
            assert y.is_contiguous()
            assert ((y.double() - want).abs() <= bound(x, weight, stride, dtype)).all(), method


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_direct_and_tiled_are_bit_equal_with_any_layout_of_the_weight(native, shape):
    x, weight, bias = draw(native, shape, torch.float32)
    stride = shape[4]
    direct = transposed_conv(native, x, weight, bias, stride, method="direct")
    assert torch.equal(direct, transposed_conv(native, x, weight, bias, stride, method="tiled"))
    assert torch.equal(direct, transposed_conv(native, x, pack_weight(weight), bias, stride, method="direct"))
    assert torch.equal(direct, transposed_conv(native, x, pack_weight(weight), bias, stride, method="tiled"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("taps", [1, 2])
def test_a_stream_may_be_cut_anywhere(native, taps, dtype):
    stride = 3
    x, weight, bias = draw(native, (2, 9, 11, 40, stride, taps), dtype)
    whole = {method: run(native, x, weight, bias, stride, method) for method in METHODS}
    pieces = {method: [] for method in METHODS}
    start = 0
    for steps in (1, 2, 7, 30):
        piece = x[..., start : start + steps + taps - 1]  # a view: rows further apart than they are long
        for method in METHODS:
            pieces[method].append(run(native, piece, weight, bias, stride, method))
        start += steps
    for method in METHODS:
        joined = torch.cat(pieces[method], -1)
        if method == "gemm":
            assert ((joined - whole[method]).abs().double() <= bound(x, weight, stride, dtype)).all()
        else:
            assert torch.equal(joined, whole[method])


def test_torchs_own_convolution(native):
    """Zeros as history are the start of a stream: then it is the plain causal convolution."""
    x, weight, bias = draw(native, (2, 12, 6, 19, 5, 2), torch.float32)
    x[..., 0] = 0
    want = F.conv_transpose1d(x[..., 1:], weight, bias, stride=5)[..., : 19 * 5]
    for method in METHODS:
        y = run(native, x, weight, bias, 5, method)
        assert ((y - want).abs().max() / want.abs().max()).item() < 1e-5


def test_packing_keeps_values_and_comes_back():
    weight = torch.randn(6, 5, 8)
    packed = pack_weight(weight)
    assert is_packed(packed)
    assert not is_packed(weight)
    assert torch.equal(packed, weight)
    assert packed.untyped_storage().nbytes() == weight.untyped_storage().nbytes()
    back = packed.contiguous()
    assert back.stride() == weight.stride()
    assert torch.equal(back, weight)


def test_nothing_to_do(native):
    x, weight, bias = draw(native, (2, 3, 4, 1, 2, 2), torch.float32)
    assert transposed_conv(native, x[..., :1], weight, bias, 2, method="direct").shape == (2, 4, 0)
    assert transposed_conv(native, x[:0], weight, bias, 2, method="tiled").shape == (0, 4, 2)


def test_wrong_arguments_are_named(native):
    x, weight, bias = draw(native, (1, 3, 4, 5, 2, 2), torch.float32)
    cases = [
        ((x, weight, bias, 3), {}, r"weight has the shape \[3, 4, 4\] at stride 3, expected \[in, out, 3 or 6\]"),
        ((x, weight[:2], bias, 2), {}, r"weight has the shape \[2, 4, 4\], expected \[3, any, any\]"),
        ((x, weight, bias[:3], 2), {}, r"bias has the shape \[3\], expected \[4\]"),
        ((x.double(), weight, bias, 2), {}, "x is float64"),
        ((x[..., :0], weight, bias, 2), {}, "x has no sample"),
        ((x.transpose(1, 2).contiguous().transpose(1, 2), weight, bias, 2), {}, "stride 3 along time, expected 1"),
        ((x, weight, bias, 2.0), {}, "stride is 2.0, expected a whole number"),
        ((x, weight, bias, 2), {"method": "direct", "out": weight.view(-1)[:40].view(1, 4, 10)}, "memory with weight"),
        ((x, weight, bias, 2), {"method": "fast"}, "'gemm', 'direct', 'tiled'"),
        ((x, weight, bias, 2), {}, "needs a Blas object"),
        ((x, weight, bias, 2), {"blas": Blas(native)}, r"pack_weight\(weight\)"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(KernelArgumentError, match=message):
            transposed_conv(native, *arguments, **options)


def test_the_module_itself_refuses_what_is_impossible(native):
    arguments = native.module.TransposedConvArguments
    with pytest.raises(ValueError, match="3 taps, expected 1 or 2"):
        native.module.transposed_conv_direct(arguments(0, 0, 0, 0, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 0), 0)
    with pytest.raises(ValueError, match="limited to 65535"):
        native.module.transposed_conv_tiled(arguments(0, 0, 0, 0, 1, 1, 70000, 1, 1, 1, 1, 1, 1, 1, 1, 0), 0)
    with pytest.raises(ValueError, match="weight packed"):
        native.module.transposed_conv_gemm(
            arguments(0, 0, 0, 0, 1, 2, 3, 1, 1, 1, 1, 1, 3, 1, 1, 0), 0, Blas(native).handle, 0
        )
