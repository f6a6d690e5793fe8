"""The skinny product against float64, and the promise that a row has the same bits in any company."""

import pytest
import torch

from qwen3tts.backends.native.blas import Blas
from qwen3tts.backends.native.skinny_product import skinny_product, skinny_product_reference
from qwen3tts.errors import BackendError, KernelArgumentError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SHAPES = ((1, 1, 1), (2, 3, 7), (3, 5, 8), (4, 17, 129), (5, 9, 1024), (7, 33, 511), (8, 12, 2048), (8, 2050, 24),
          (9, 4, 65), (19, 6, 300))  # fmt: skip


def draw(native, seed, *shapes, dtype):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype).to(native.device) for shape in shapes]


def bound(x, weight, dtype):
    """Twice the last place of a result at this scale, and the rounding of fp32 sums of |x||w|."""
    size = x.double().abs() @ weight.double().abs().T
    return size * x.shape[-1] * 2.0**-24 + (size + 1) * 2 * ROUNDING[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_equals_float64_up_to_rounding(native, shape, dtype):
    rows, n, k = shape
    seed = torch.seed() % 2**31
    print("seed", seed)
    x, weight, bias = draw(native, seed, (rows, k), (n, k), (n,), dtype=dtype)
    for use_bias in (None, bias):
        for out_dtype in {dtype, torch.float32}:
            y = skinny_product(native, x, weight, use_bias, dtype=out_dtype)
            want = skinny_product_reference(x, weight, use_bias, dtype=torch.float64)
            assert y.dtype == out_dtype
            assert y.shape == (rows, n)
            assert ((y.double() - want).abs() <= bound(x, weight, out_dtype) + 8 * ROUNDING[out_dtype]).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", [5, 72, 1030, 1288, 4104])
def test_a_row_has_the_same_bits_alone_and_among_others(native, k, dtype):
    seed = torch.seed() % 2**31
    print("seed", seed)
    x, weight = draw(native, seed, (11, k), (70, k), dtype=dtype)
    whole = skinny_product(native, x, weight, dtype=torch.float32)
    for rows in (1, 2, 3, 5, 8, 10):
        assert torch.equal(skinny_product(native, x[:rows], weight, dtype=torch.float32), whole[:rows])
    for row in (0, 4, 10):
        assert torch.equal(skinny_product(native, x[row], weight, dtype=torch.float32), whole[row])
    # a few outputs, or many (2100: other kernels for eight rows), and weights that are not aligned
    assert torch.equal(skinny_product(native, x, weight[3:8], dtype=torch.float32), whole[:, 3:8])
    shifted = torch.empty(weight.numel() + 1, dtype=dtype, device=native.device)[1:].view_as(weight).copy_(weight)
    assert torch.equal(skinny_product(native, x, shifted, dtype=torch.float32), whole)
    if k == 72:
        many = skinny_product(native, x[:8], weight.repeat(30, 1), dtype=torch.float32)
        assert torch.equal(many, whole[:8].repeat(1, 30))


def test_every_wave_width_gives_the_same_bits(emulated):
    for dtype in DTYPES:
        x, weight = draw(emulated(32), 3, (5, 1100), (9, 1100), dtype=dtype)
        assert torch.equal(skinny_product(emulated(32), x, weight), skinny_product(emulated(64), x, weight))


def test_strides_and_outputs(native):
    x, weight = draw(native, 11, (2, 4, 40), (6, 24), dtype=torch.float32)
    part = x[:, :, :24]
    assert torch.equal(skinny_product(native, part, weight), skinny_product(native, part.contiguous(), weight))
    wide = torch.full((2, 4, 9), 7.0, device=native.device)
    skinny_product(native, part, weight, out=wide[:, :, 2:8])
    assert torch.equal(wide[:, :, 2:8], skinny_product(native, part, weight))
    assert (wide[:, :, :2] == 7).all()
    assert (wide[:, :, 8:] == 7).all()
    beside = torch.cat((part.reshape(8, 24), torch.full((8, 9), 7.0, device=native.device)), 1)
    skinny_product(native, beside[:, :24], weight, out=beside[:, 26:32])
    assert torch.equal(beside[:, 26:32], skinny_product(native, part.reshape(8, 24), weight))
    assert (beside[:, [24, 25, 32]] == 7).all()
    assert skinny_product(native, part[:0], weight).shape == (0, 4, 6)
    assert skinny_product(native, part, weight[:0]).shape == (2, 4, 0)


def test_wrong_arguments_are_named(native):
    x, weight = torch.zeros(2, 8, device=native.device), torch.zeros(4, 8, device=native.device)
    cases = [
        ((x.double(), weight), {}, "x is float64"),
        ((x, weight[:, :7]), {}, r"weight has the shape \[4, 7\], expected \[any, 8\]"),
        ((x, weight.half()), {}, "weight is float16, expected float32"),
        ((x, weight, weight[0]), {}, r"bias has the shape \[8\], expected \[4\]"),
        ((x, weight), {"dtype": torch.float16}, "expected torch.float32 or torch.float32"),
        ((x, weight), {"out": x}, r"out has the shape \[2, 8\], expected \[2, 4\]"),
        ((x[:, :0], weight[:, :0]), {}, "x has no columns"),
        ((x, weight), {"out": 5}, "out is int, expected a tensor"),
        ((x, weight), {"out": torch.zeros(1, 4, device=x.device).expand(2, 4)}, "its rows overlap"),
        ((x, x.repeat(4, 1)), {"out": x}, "out shares memory with x"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(KernelArgumentError, match=message):
            skinny_product(native, *arguments, **options)
    with pytest.raises(ValueError, match="k and the row stride of x are limited"):
        native.module.skinny_product(16, 16, 0, 16, 1, 1, 1 << 29, 1, 1, 0, 0, 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_librarys_product(native, dtype):
    seed = torch.seed() % 2**31
    print("seed", seed)
    blas = Blas(native)
    assert blas.library
    for rows, n, k in ((1, 5, 9), (4, 33, 64), (9, 8, 130)):
        x, weight = draw(native, seed, (rows, k), (n, k), dtype=dtype)
        out = torch.empty(rows, n, dtype=torch.float32, device=native.device)
        want = skinny_product_reference(x, weight, dtype=torch.float64)
        assert ((blas.linear(x, weight, out=out).double() - want).abs() <= bound(x, weight, torch.float32)).all()
        assert ((blas.linear(x, weight).double() - want).abs() <= bound(x, weight, dtype)).all()
    with pytest.raises(KernelArgumentError, match=r"weight has the shape"):
        blas.linear(x, weight[:, 1:].contiguous())


def test_a_library_that_is_not_there(native):
    with pytest.raises(BackendError, match=r"no-such-library\.so"):
        Blas(native, path="no-such-library.so")


def test_products_that_no_library_can_do(native):
    gemm = Blas(native).handle.gemm
    with pytest.raises(ValueError, match="expected 0 or 1"):
        gemm(0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, False, 0.5, 0, 0, 0)
    with pytest.raises(ValueError, match="row steps 1, 1, 1 of A, B and C, expected at least 2, 3, 3"):
        gemm(0, 0, 0, 1, 3, 2, 1, 1, 1, 1, 0, 0, 0, False, 0.0, 0, 0, 0)
    with pytest.raises(ValueError, match="of the inputs' type or fp32"):
        gemm(0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, False, 0.0, 0, 1, 0)
