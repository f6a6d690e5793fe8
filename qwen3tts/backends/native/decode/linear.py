"""The fused products of a decoder layer; kernels: csrc/common/decode/linear*.cpp."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from qwen3tts.backends.native.cases import Call, Case, largest_difference
from qwen3tts.backends.native.checks import (
    DTYPE_CODES,
    FLOATS,
    FP32_MAX,
    check,
    check_apart,
    instance,
    length,
    number,
    row_stride,
)
from qwen3tts.backends.native.module import Native
from qwen3tts.backends.native.rms_norm import rms_norm_reference
from qwen3tts.errors import KernelArgumentError

Epilogue = Literal["store", "residual", "silu_mul"]

EPILOGUES: dict[Epilogue, int] = {"store": 0, "residual": 1, "silu_mul": 2}
"""csrc/common/decode/linear.h"""

MAX_ROWS = 128


@dataclass(frozen=True)
class Norm:
    """The RMSNorm in front of a product: weight [k] of x's dtype."""

    weight: Tensor
    eps: float


def linear_reference(
    x: Tensor,
    weights: Sequence[Tensor],
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    epilogue: Epilogue = "store",
    y: Tensor | None = None,
    output: torch.dtype | None = None,
) -> Tensor:
    """What `linear` writes, by plain torch with sums in fp64. y: what stood there before, for "residual".

    In bf16 the norm's scale is applied to the sums, as csrc/common/decode/linear.h says."""
    v, scale = x, None
    if norm is not None and x.dtype == torch.bfloat16:
        v = x * norm.weight
        scale = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + norm.eps)
    elif norm is not None:
        v = rms_norm_reference(x, norm.weight, norm.eps)
    sums = v.double() @ torch.cat(list(weights)).double().T
    sums = (sums if scale is None else sums * scale).float()
    if bias is not None:
        sums = sums + bias.float()
    if output is not None and output != x.dtype:
        return sums.to(output)
    rounded = sums.to(x.dtype)
    if epilogue == "residual":
        assert y is not None
        return y + rounded
    if epilogue == "silu_mul":
        gate, up = rounded.chunk(2, -1)
        return F.silu(gate) * up
    return rounded


def linear(
    native: Native,
    x: Tensor,
    weights: Sequence[Tensor],
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    epilogue: Epilogue = "store",
    out: Tensor | None = None,
    output: torch.dtype | None = None,
    normed: Tensor | None = None,
) -> Tensor:
    """x [rows, k], up to 128 rows, and one to three weights [n, k] -> y [rows, all n]; "silu_mul": [rows, n].

    x may be strided; the weights have its dtype or are fp32. output: dtype of y, x's or fp32.
    out: where to write y, apart from the others; needed for "residual", which adds to it.
    normed: [rows, k], where the normed x is written.
    Raises KernelArgumentError."""
    check("x", x, native=native, dtype=FLOATS, shape=(None, None), contiguous=False)
    rows, k = x.shape
    if rows > MAX_ROWS:
        raise KernelArgumentError(f"x has {rows} rows, expected at most {MAX_ROWS}.")
    n = _check_weights(native, x, weights, bias, epilogue)
    eps = 0.0
    if norm is not None:
        eps = number("norm.eps", instance("norm", norm, Norm).eps, 0.0, FP32_MAX)
        check("norm.weight", norm.weight, native=native, dtype=x.dtype, shape=(k,))
    if normed is not None:
        check("normed", normed, native=native, dtype=x.dtype, shape=(rows, k))
    dtype = x.dtype if output is None else output
    if dtype not in (x.dtype, torch.float32):
        raise KernelArgumentError(f"output is {dtype}, expected {x.dtype} or torch.float32.")
    if out is None and epilogue == "residual":
        raise KernelArgumentError("The epilogue 'residual' adds to y: give it as out=.")
    y = torch.empty(rows, n, dtype=dtype, device=x.device) if out is None else out
    check("out", y, native=native, dtype=dtype, shape=(rows, n), contiguous=False)
    y_stride = row_stride("out", y, written=True)
    if out is not None or normed is not None:
        inputs = {"x": x, "bias": bias, "norm.weight": None if norm is None else norm.weight}
        check_apart({"out": out, "normed": normed}, inputs | {f"weights[{i}]": w for i, w in enumerate(weights)})
    if rows == 0:
        return y
    x_stride = row_stride("x", x)
    try:
        native.module.linear(
            x.data_ptr(), x_stride, 0 if norm is None else norm.weight.data_ptr(), eps,
            [(w.data_ptr(), w.shape[0]) for w in weights], 0 if bias is None else bias.data_ptr(), y.data_ptr(),
            y_stride, 0 if normed is None else normed.data_ptr(), rows, k, DTYPE_CODES[x.dtype],
            DTYPE_CODES[weights[0].dtype], DTYPE_CODES[dtype], EPILOGUES[epilogue], native.stream(),
        )  # fmt: skip
    except ValueError as error:  # std::invalid_argument
        raise KernelArgumentError(f"{error}.") from error
    return y


def _check_weights(
    native: Native, x: Tensor, weights: Sequence[Tensor], bias: Tensor | None, epilogue: Epilogue
) -> int:
    """How many outputs a row of y has."""
    if not isinstance(epilogue, str) or epilogue not in EPILOGUES:
        raise KernelArgumentError(f"epilogue is {epilogue!r}, expected one of {', '.join(EPILOGUES)}.")
    if not 1 <= length("weights", weights) <= 3:
        raise KernelArgumentError(f"{len(weights)} weights, expected 1 to 3.")
    for i, weight in enumerate(weights):
        allowed = {x.dtype, torch.float32} if i == 0 else weights[0].dtype
        check(f"weights[{i}]", weight, native=native, dtype=allowed, shape=(None, x.shape[1]))
    total = sum(weight.shape[0] for weight in weights)
    if bias is not None:
        check("bias", bias, native=native, dtype=weights[0].dtype, shape=(total,))
    if epilogue != "silu_mul":
        return total
    if len(weights) != 2 or weights[0].shape != weights[1].shape:
        raise KernelArgumentError("The epilogue 'silu_mul' needs two weights of one shape, gate and up.")
    return weights[0].shape[0]


@dataclass(frozen=True)
class _Product:
    name: str
    parts: tuple[int, ...]
    k: int
    norm: bool
    epilogue: Epilogue
    heads: bool = False


_PRODUCTS = (
    _Product("q k v", (2048, 1024, 1024), 1024, True, "store"),
    _Product("o", (1024,), 2048, False, "residual"),
    _Product("gate up", (3072, 3072), 1024, True, "silu_mul"),
    _Product("down", (1024,), 3072, False, "residual"),
    _Product("head", (2048,), 1024, True, "store", True),
    _Product("head", (3072,), 1024, True, "store", True),
    _Product("q k v", (2048, 1024, 1024), 2048, True, "store"),
    _Product("o", (2048,), 2048, False, "residual"),
    _Product("gate up", (6144, 6144), 2048, True, "silu_mul"),
    _Product("down", (2048,), 6144, False, "residual"),
    _Product("head", (3072,), 2048, True, "store", True),
    _Product("projection", (1024,), 2048, False, "store"),
)


def selftest_cases() -> list[Case]:
    """The products of the released models at 1 to 64 rows in bf16, one of each kind in other dtypes, small ones."""
    small = _Product("small", (48, 24), 96, True, "store")
    cases = [_case(product, rows, torch.bfloat16) for product in _PRODUCTS for rows in (1, 8, 32, 64)]
    cases += [_case(product, 1, dtype) for product in _PRODUCTS[:5] for dtype in (torch.float16, torch.float32)]
    return cases + [_case(small, 3, dtype, small=True) for dtype in DTYPE_CODES]


def _case(product: _Product, rows: int, dtype: torch.dtype, small: bool = False) -> Case:
    def prepare(native: Native, generator: torch.Generator) -> Call:
        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(shape, generator=generator) * scale).to(native.device, dtype)

        x, weights = draw(rows, product.k), [draw(n, product.k, scale=product.k**-0.5) for n in product.parts]
        norm = Norm(draw(product.k), 1e-6) if product.norm else None
        outputs = product.parts[0] if product.epilogue == "silu_mul" else sum(product.parts)
        output = torch.float32 if product.heads else dtype
        before = draw(rows, outputs).to(output)
        y = before.clone()
        written: list[Tensor] = []  # of the first run alone: "residual" adds at each

        def run() -> None:
            linear(native, x, weights, norm=norm, epilogue=product.epilogue, out=y, output=output)
            if not written:
                written.append(y.clone())

        moved = sum(w.nbytes for w in weights) + x.nbytes + y.nbytes * (2 if product.epilogue == "residual" else 1)
        return Call(
            run,
            lambda: written,
            lambda: (linear_reference(x, weights, norm=norm, epilogue=product.epilogue, y=before, output=output),),
            moved,
        )

    sizes = "+".join(map(str, product.parts))
    return Case(
        "linear",
        f"{product.name}: {rows} x {product.k} -> {sizes}{', norm' if product.norm else ''}, {product.epilogue}",
        str(dtype).removeprefix("torch."),
        prepare,
        largest_difference,
        "of the largest output",
        1e-5 if dtype == torch.float32 else 2e-2 if dtype == torch.bfloat16 else 3e-3,
        small=small,
    )
