"""Products of many rows with the k of a model: another kernel than for odd k (csrc/common/decode/linear_mma.cpp)."""

import pytest
import torch

from qwen3tts.backends.native.decode.linear import Norm, linear, linear_reference

HALF = (torch.bfloat16, torch.float16)
EPS = 1e-6


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


def draw(native, generator, shape, dtype, scale=1.0):
    return (torch.randn(shape, generator=generator) * scale).to(dtype).to(native.device)


# (k, outputs of each part, epilogue, norm, rows): one to three tiles of weight rows to a block and several groups of
# them; all weights in shared memory, or a ring; one or two tiles of columns to a warp.
SHAPES = (
    (1024, (24,), "residual", False, 20),
    (3072, (40,), "store", False, 33),
    (1024, (19, 16, 8), "store", True, 30),
    (2048, (24, 9), "store", True, 20),
    (1024, (2120, 24), "store", True, 3),
    (2048, (2200, 2200), "silu_mul", True, 2),
    (1024, (9, 9), "silu_mul", True, 70),
)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("k", "parts", "epilogue", "norm", "rows"), SHAPES)
def test_equals_the_reference(native, generator, dtype, k, parts, epilogue, norm, rows):
    x = draw(native, generator, (rows, k), dtype)
    weights = [draw(native, generator, (n, k), dtype, k**-0.5) for n in parts]
    of_norm = Norm(draw(native, generator, (k,), dtype), EPS) if norm else None
    outputs = parts[0] if epilogue == "silu_mul" else sum(parts)
    before = draw(native, generator, (rows, outputs), dtype)
    got = linear(native, x, weights, norm=of_norm, epilogue=epilogue, out=before.clone())
    want = linear_reference(x, weights, norm=of_norm, epilogue=epilogue, y=before)
    sums = linear_reference(x, weights, norm=of_norm, output=torch.float32)
    # Roundings of sums and of normed columns that go the other way; a tile or a chunk that is missing is far more.
    largest = sums.double().abs().max()
    allowed = 6 * torch.finfo(dtype).eps * largest * (largest if epilogue == "silu_mul" else 1)
    error = (got.double() - want.double()).abs()
    assert (error <= allowed).all(), error.max() / allowed
    # Rows of their own, in other tiles: the same bits.
    for some in (slice(rows - 1, rows), slice(rows // 3, rows - 1)):
        alone = linear(native, x[some], weights, norm=of_norm, epilogue=epilogue, out=before[some].clone())
        assert torch.equal(alone, got[some]), some


# Where csrc/common/decode/linear_passes.cpp has a kernel: passes of 16 rows, whole and not, one to eight of them.
PASSES = (
    (1024, (16, 32, 16), "store", 17),
    (1024, (48,), "store", 40),
    (2048, (64, 32), "store", 31),
    (1024, (24, 24), "silu_mul", 50),
    (2048, (32, 32), "silu_mul", 18),
    (1024, (32,), "store", 128),
)
# Where csrc/common/decode/linear_stream.cpp has one: blocks of 32 and 64 rows, whole and not, and two of them.
STREAMS = (
    (2048, (48, 48), "silu_mul", 17),
    (2048, (48, 48), "silu_mul", 40),
    (2048, (96, 96), "silu_mul", 70),
    (2048, (32,), "residual", 32),
    (2048, (64,), "residual", 128),
    (3072, (32,), "residual", 20),
    (3072, (32,), "residual", 33),
    (6144, (64,), "residual", 31),
    (6144, (64,), "residual", 64),
)


@pytest.mark.parametrize(("k", "parts", "epilogue", "rows"), PASSES + STREAMS)
def test_kernels_of_one_shape_have_the_bits_of_the_general_kernel(native, generator, k, parts, epilogue, rows):
    """One more output in each part, and the weights fit the general kernel alone."""
    dtype = torch.bfloat16
    x = draw(native, generator, (rows, k), dtype)
    weights = [draw(native, generator, (n, k), dtype, k**-0.5) for n in parts]
    norm = None if epilogue == "residual" else Norm(draw(native, generator, (k,), dtype), EPS)
    outputs = parts[0] if epilogue == "silu_mul" else sum(parts)
    # A bias, and sums that are not rounded: one part is a head of the code predictor.
    head = epilogue == "store" and len(parts) == 1
    bias = draw(native, generator, (outputs,), dtype) if head else None
    before = draw(native, generator, (rows, outputs + 1), dtype)
    old, old_longer = (before[:, :outputs].contiguous(), before.clone()) if epilogue == "residual" else (None, None)
    normed = torch.empty_like(x) if norm else None
    options = {"norm": norm, "epilogue": epilogue, "output": torch.float32 if head else None}
    got = linear(native, x, weights, bias=bias, normed=normed, out=old, **options)

    odd = [
        torch.cat([w, draw(native, generator, (1, k), dtype)])
        for w in (weights if epilogue == "silu_mul" else weights[-1:])
    ]
    longer = odd if epilogue == "silu_mul" else [*weights[:-1], *odd]
    bias = torch.cat([bias, bias[:1]]) if head else None
    other = torch.empty_like(x) if norm else None
    want = linear(native, x, longer, bias=bias, normed=other, out=old_longer, **options)[:, :outputs]
    assert torch.equal(got, want)
    if norm:
        assert torch.equal(normed, other)
