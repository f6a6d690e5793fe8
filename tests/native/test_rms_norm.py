"""RMSNorm against plain torch: the same rounding, any width, any stride, any number of rows."""

import numpy as np
import pytest
import torch

from qwen3tts.backends.native.checks import row_stride
from qwen3tts.backends.native.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from qwen3tts.errors import KernelArgumentError
from qwen3tts.model.layers import RMSNorm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (3, 2), (1, 7), (5, 31), (2, 64), (33, 128), (9, 129), (1, 1024), (3, 1023), (2, 2048), (1, 9001))


def draw(generator, shape, dtype, scale=1.0):
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def ordered(x):
    """Floats as integers whose differences count representable numbers between them."""
    if x.dtype == torch.float32:
        bits = x.contiguous().view(torch.int32).to(torch.int64)
        return torch.where(bits < 0, -(2**31) - bits, bits)
    bits = x.contiguous().view(torch.int16).to(torch.int64)
    return torch.where(bits < 0, -(2**15) - bits, bits)


def assert_close(got, want, equal_share):
    """Equal in nearly all elements. Where the last bit of the fp32 scale tips the first rounding, the second one can
    make two units in the last place of it; fp32 may differ by eight everywhere, for another order of sums."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    apart = (ordered(got.cpu()) - ordered(want.cpu())).abs()
    assert apart.max() <= (8 if got.dtype == torch.float32 else 2), apart.max()
    assert (apart > 0).sum() <= max(1, (1 - equal_share) * apart.numel()), (apart > 0).double().mean()


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_model(native, generator, dtype):
    for shape in SHAPES:
        x, weight = draw(generator, shape, dtype, 3.0), draw(generator, shape[-1:], dtype)
        layer = RMSNorm(shape[-1], 1e-6)
        layer.weight.data = weight
        got = rms_norm(native, x.to(native.device), weight.to(native.device), 1e-6)
        assert_close(got, layer(x).detach(), 0.0 if dtype == torch.float32 else 0.99)
        assert torch.equal(layer(x), rms_norm_reference(x, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_with_residual_equals_the_model(native, generator, dtype):
    for shape in SHAPES:
        x, residual = draw(generator, shape, dtype), draw(generator, shape, dtype, 4.0)
        weight = draw(generator, shape[-1:], dtype)
        total, got = add_rms_norm(native, *(t.to(native.device) for t in (x, residual, weight)), 1e-5)
        want_total, want = add_rms_norm_reference(x, residual, weight, 1e-5)
        assert torch.equal(total.cpu(), want_total)
        assert_close(got, want, 0.0 if dtype == torch.float32 else 0.99)


def test_as_exact_as_torch(native, generator):
    x, weight = draw(generator, (7, 1537), torch.float32), draw(generator, (1537,), torch.float32)
    exact = rms_norm_double(x, weight, 1e-6)
    got = rms_norm(native, x.to(native.device), weight.to(native.device), 1e-6).cpu()
    error, torch_error = (got - exact).abs().max(), (rms_norm_reference(x, weight, 1e-6) - exact).abs().max()
    assert error <= 2 * torch_error + 1e-7


def rms_norm_double(x, weight, eps):
    wide = x.double()
    return weight.double() * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone_unaligned_strided_and_among_others(native, generator, dtype):
    for width in (5, 128, 200, 1024):
        rows, weight = draw(generator, (9, width), dtype).to(native.device), draw(generator, (width,), dtype)
        weight = weight.to(native.device)
        want = rms_norm(native, rows, weight, 1e-6)
        for row in (0, 4, 8):
            assert torch.equal(rms_norm(native, rows[row : row + 1], weight, 1e-6)[0], want[row])
        padded = torch.full((9, width + 3), float("nan"), dtype=dtype, device=native.device)
        shifted = padded[:, 1 : width + 1]
        shifted.copy_(rows)
        assert torch.equal(rms_norm(native, shifted, weight, 1e-6), want)
        assert torch.equal(rms_norm(native, rows[::2], weight, 1e-6), want[::2])


def test_the_heads_of_a_fused_projection(native, generator):
    fused = draw(generator, (1, 24 * 128), torch.bfloat16).to(native.device)
    weight = draw(generator, (128,), torch.bfloat16).to(native.device)
    keys = fused[:, 16 * 128 :].unflatten(-1, (-1, 128))
    assert torch.equal(rms_norm(native, keys, weight, 1e-6), rms_norm(native, keys.contiguous(), weight, 1e-6))


def test_in_place_and_nothing_else_written(native, generator):
    for dtype in DTYPES:
        for width in (3, 128, 1025):
            x, residual = draw(generator, (4, width), dtype), draw(generator, (4, width), dtype)
            weight = draw(generator, (width,), dtype).to(native.device)
            want_total, want = add_rms_norm(native, x.to(native.device), residual.to(native.device), weight, 1e-6)
            frame = torch.full((6, width + 8), 7.0, dtype=dtype, device=native.device)
            inner = frame[1:5, 4 : 4 + width]
            inner.copy_(residual)
            mine = x.to(native.device, copy=True)
            add_rms_norm(native, mine, inner, weight, 1e-6, total_out=inner, out=mine)
            assert torch.equal(inner, want_total)
            assert torch.equal(mine, want)
            again, inner = x.to(native.device), inner.copy_(residual)
            total, _ = add_rms_norm(native, again, inner, weight, 1e-6, out=inner)
            assert torch.equal(total, want_total)
            assert torch.equal(inner, want)
            assert torch.equal(again.cpu(), x)
            inner.fill_(7.0)
            assert torch.equal(frame, torch.full_like(frame, 7.0))


def test_both_wave_widths_give_the_same_bits(emulated, generator):
    for width in (1, 77, 128, 1000, 2048):
        x, weight = draw(generator, (5, width), torch.float32), draw(generator, (width,), torch.float32)
        assert torch.equal(rms_norm(emulated(32), x, weight, 1e-6), rms_norm(emulated(64), x, weight, 1e-6))


def test_special_values(native):
    weight = torch.ones(4, device=native.device)
    x = torch.tensor([[0.0, 0, 0, 0], [float("inf"), 1, 1, 1], [float("nan"), 1, 1, 1], [1e-30, 0, 0, -1e-30]])
    got = rms_norm(native, x.to(native.device), weight, 1e-6).cpu()
    want = rms_norm_reference(x, weight.cpu(), 1e-6)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)
    assert rms_norm(native, x[:0].to(native.device), weight, 1e-6).shape == (0, 4)


def test_wrong_arguments_are_named(native):
    x, weight = torch.zeros(2, 8, device=native.device), torch.ones(8, device=native.device)
    cases = [
        ((x.double(), weight), "x is float64, expected bfloat16 or float16 or float32"),
        ((x, weight.half()), "weight is float16, expected float32"),
        ((x, weight[:7]), r"weight has the shape \[7\], expected \[8\]"),
        ((x.T.contiguous().T, weight), "x has the stride 2 in its last dimension, expected 1"),
        ((x.to("meta"), weight), "x is on meta"),
        ((x.tolist(), weight), "x is list, expected a tensor"),
        ((torch.zeros((), device=native.device), weight), "x has no dimension"),
    ]
    for (first, second), message in cases:
        with pytest.raises(KernelArgumentError, match=message):
            rms_norm(native, first, second, 1e-6)
    with pytest.raises(KernelArgumentError, match=r"residual has the shape \[2, 4\], expected \[2, 8\]"):
        add_rms_norm(native, x, x[:, :4], weight, 1e-6)
    with pytest.raises(KernelArgumentError, match=r"out has the shape"):
        rms_norm(native, x, weight, 1e-6, out=x[:1])
    for eps in ("x", float("nan"), -1.0):
        with pytest.raises(KernelArgumentError, match="eps is"):
            rms_norm(native, x, weight, eps)
    with pytest.raises(KernelArgumentError, match="its rows overlap"):
        rms_norm(native, x, weight, 1e-6, out=torch.zeros_like(weight).expand(2, 8))
    with pytest.raises(KernelArgumentError, match="total_out shares memory with out"):
        add_rms_norm(native, x, x, weight, 1e-6, total_out=x, out=x)


def test_row_strides():
    x = torch.zeros(4, 6, 8)
    assert row_stride("x", x) == 8
    assert row_stride("x", x[:, ::2]) == 16
    assert row_stride("x", x[:, 0]) == 48
    assert row_stride("x", x[:1, 2:4, :3]) == 8
    assert row_stride("x", torch.zeros(5)) == 5
    with pytest.raises(KernelArgumentError, match="equal distances"):
        row_stride("x", x[:, :5])
    assert row_stride("x", x[0, :1].expand(6, 8)) == 0
    assert row_stride("x", x[:, ::2], written=True) == 16
    for overlapping in (x[0, :1].expand(6, 8), x.as_strided((3, 8), (7, 1))):
        with pytest.raises(KernelArgumentError, match="its rows overlap"):
            row_stride("x", overlapping, written=True)
    assert row_stride("x", x.as_strided((0, 8), (7, 1)), written=True) == 8


def test_the_module_itself_refuses_what_is_impossible(native):
    call = native.module.rms_norm
    with pytest.raises(ValueError, match="expected rows >= 0 and a width >= 1"):
        call(0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1e-6, 0, 0)
    with pytest.raises(ValueError, match="residual and sum belong together"):
        call(8, 8, 8, 0, 8, 1, 4, 4, 4, 4, 4, 1e-6, 0, 0)
    with pytest.raises(ValueError, match="dtype code 3"):
        call(0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1e-6, 3, 0)
