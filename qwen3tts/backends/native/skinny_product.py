"""A linear layer on a few rows, each with the same bits in any company; kernel: csrc/common/skinny_product.cpp."""

from functools import partial

import torch
from torch import Tensor

from qwen3tts.backends.native.blas import Blas
from qwen3tts.backends.native.cases import Call, Case, largest_difference
from qwen3tts.backends.native.checks import DTYPE_CODES, FLOATS, check, check_apart, row_stride
from qwen3tts.backends.native.module import Native
from qwen3tts.errors import KernelArgumentError


def skinny_product_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, dtype: torch.dtype | None = None
) -> Tensor:
    """x [..., k] times the transpose of weight [n, k], plus bias [n]; summed in float64, rounded once to `dtype` (None:
    that of x)."""
    total = x.double() @ weight.double().T
    if bias is not None:
        total = total + bias.double()
    return total.to(x.dtype if dtype is None else dtype)


def skinny_product(
    native: Native,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """x [..., k] with rows at equal distances, weight [n, k] (nn.Linear's), bias [n], one dtype -> y [..., n].

    dtype of y: that of x (None) or float32. out: where to write y, rows at equal distances, apart from the others.
    Raises KernelArgumentError."""
    check("x", x, native=native, dtype=FLOATS, contiguous=False)
    x_stride = row_stride("x", x)
    k = x.shape[-1]
    check("weight", weight, native=native, dtype=x.dtype, shape=(None, k))
    n = weight.shape[0]
    if bias is not None:
        check("bias", bias, native=native, dtype=x.dtype, shape=(n,))
    if k == 0:
        raise KernelArgumentError("x has no columns, expected at least one.")
    if out is not None:
        check("out", out, native=native, contiguous=False)
    wanted = dtype if dtype is not None else x.dtype if out is None else out.dtype
    if wanted not in (x.dtype, torch.float32):
        raise KernelArgumentError(f"The output's dtype is {wanted}, expected {x.dtype} or torch.float32.")
    shape = (*x.shape[:-1], n)
    y = torch.empty(shape, dtype=wanted, device=x.device) if out is None else out
    check("out", y, native=native, dtype=wanted, shape=shape, contiguous=False)
    y_stride = row_stride("out", y, written=True)
    if out is not None:
        check_apart({"out": out}, {"x": x, "weight": weight, "bias": bias})
    if y.numel() == 0:
        return y
    try:
        native.module.skinny_product(
            x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr(),
            x.numel() // k, n, k, x_stride, y_stride, DTYPE_CODES[x.dtype], DTYPE_CODES[wanted], native.stream(),
        )  # fmt: skip
    except ValueError as error:  # std::invalid_argument
        raise KernelArgumentError(f"{error}.") from error
    return y


MATRICES = ((1024, 1024), (2048, 1024), (6144, 1024), (4096, 1024), (1024, 3072))
"""n and k of the layers of a decoding step"""
LIBRARY_MATRICES = MATRICES[:3]
"""of the table that compares the library's product with this one, at one row"""
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""largest difference from the reference over the largest result; a library may round twice"""


def selftest_cases() -> list[Case]:
    """The layers of a decoding step at 1, 2, 4 and 8 rows; the vendor's and torch's product at one; small odd ones."""
    blas: dict[Native, Blas] = {}
    cases = [
        _case(blas, "own", rows, n, k, dtype, small=True)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for rows, n, k in ((1, 7, 129), (5, 33, 1024), (11, 9, 300))
    ]
    cases += [_case(blas, "library", 3, 9, 300, dtype, small=True) for dtype in (torch.float32, torch.bfloat16)]
    for dtype in (torch.bfloat16, torch.float32):
        for n, k in MATRICES:
            for who in ("own", "library", "torch") if (n, k) in LIBRARY_MATRICES else ("own",):
                cases.append(_case(blas, who, 1, n, k, dtype))
            cases += [_case(blas, "own", rows, n, k, dtype) for rows in (2, 4, 8)]
    cases.append(_case(blas, "own", 1, 2048, 1024, torch.float16))
    return cases


def _case(
    blas: dict[Native, Blas], who: str, rows: int, n: int, k: int, dtype: torch.dtype, small: bool = False
) -> Case:
    return Case(
        "skinny_product" if who == "own" else f"product by {'torch' if who == 'torch' else 'the library'}",
        f"{rows} x {n} x {k}",
        str(dtype).removeprefix("torch."),
        partial(_prepare_case, blas, who, (rows, n, k), dtype),
        largest_difference,
        "of the largest",
        BOUNDS[dtype],
        small,
    )


def _prepare_case(
    opened: dict[Native, Blas],
    who: str,
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
    native: Native,
    generator: torch.Generator,
) -> Call:
    rows, n, k = sizes
    x, weight = (torch.randn(size, k, generator=generator).to(native.device, dtype) for size in (rows, n))
    y = torch.empty(rows, n, dtype=dtype, device=native.device)
    if who == "library" and native not in opened:
        opened[native] = Blas(native)

    def run() -> None:
        if who == "own":
            skinny_product(native, x, weight, out=y)
        elif who == "library":
            opened[native].linear(x, weight, out=y)
        else:
            torch.mm(x, weight.T, out=y)

    return Call(
        run=run,
        outputs=lambda: (y,),
        reference=lambda: (skinny_product_reference(x, weight),),
        bytes_moved=(rows * k + n * k + rows * n) * x.element_size(),
    )
