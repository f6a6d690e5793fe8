"""A linear layer on a few rows, each with the same bits at any number of rows; kernel: csrc/common/skinny_product.cpp."""

import torch
from torch import Tensor

from qwen3tts.backends.native.checks import DTYPE_CODES, FLOATS, check, row_stride
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
    """x [..., k] with rows at equal distances, weight [n, k] (nn.Linear's), bias [n], one dtype -> y [..., n], contiguous.

    dtype of y: that of x (None) or float32. out: where to write y, rows at equal distances."""
    check("x", x, native=native, dtype=FLOATS, contiguous=False)
    x_stride = row_stride("x", x)
    k = x.shape[-1]
    check("weight", weight, native=native, dtype=x.dtype, shape=(None, k))
    n = weight.shape[0]
    if bias is not None:
        check("bias", bias, native=native, dtype=x.dtype, shape=(n,))
    if k == 0:
        raise KernelArgumentError("x has no columns, expected at least one.")
    wanted = dtype if dtype is not None else x.dtype if out is None else out.dtype
    if wanted not in (x.dtype, torch.float32):
        raise KernelArgumentError(f"The output's dtype is {wanted}, expected {x.dtype} or torch.float32.")
    shape = (*x.shape[:-1], n)
    y = torch.empty(shape, dtype=wanted, device=x.device) if out is None else out
    check("out", y, native=native, dtype=wanted, shape=shape, contiguous=False)
    y_stride = row_stride("out", y)
    if y.numel() == 0:
        return y
    native.module.skinny_product(
        x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr(),
        x.numel() // k, n, k, x_stride, y_stride, DTYPE_CODES[x.dtype], DTYPE_CODES[wanted], native.stream(),
    )  # fmt: skip
    return y
