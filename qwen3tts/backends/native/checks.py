"""What a tensor must be like before its pointer goes to a kernel."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from qwen3tts.backends.native.module import Native
from qwen3tts.errors import KernelArgumentError

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""csrc/common/types.h"""

FLOATS = frozenset(DTYPE_CODES)


def check(
    name: str,
    tensor: Tensor,
    *,
    native: Native,
    dtype: torch.dtype | Collection[torch.dtype] | None = None,
    shape: Sequence[int | None] | None = None,
    contiguous: bool = True,
) -> Tensor:
    """Returns `tensor` or raises KernelArgumentError.

    dtype: the one or the several that are allowed; shape: None for a size that may be anything;
    contiguous=False: strides are the caller's business."""
    if not isinstance(tensor, Tensor):
        raise KernelArgumentError(f"{name} is {type(tensor).__name__}, expected a tensor.")
    if tensor.device != native.device:
        raise KernelArgumentError(
            f"{name} is on {tensor.device}, but these kernels run on {native.device}: use {name}.to('{native.device}')."
        )
    if dtype is not None:
        allowed = (dtype,) if isinstance(dtype, torch.dtype) else dtype
        if tensor.dtype not in allowed:
            names = " or ".join(sorted(str(one).removeprefix("torch.") for one in allowed))
            raise KernelArgumentError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}, expected {names}.")
    if shape is not None and tensor.shape != shape:
        fits = tensor.dim() == len(shape) and all(
            want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise KernelArgumentError(f"{name} has the shape {list(tensor.shape)}, expected [{wanted}].")
    if contiguous and not tensor.is_contiguous():
        raise KernelArgumentError(
            f"{name} has the strides {list(tensor.stride())} at shape {list(tensor.shape)}, expected a contiguous "
            f"tensor: use {name}.contiguous()."
        )
    return tensor


def row_stride(name: str, tensor: Tensor) -> int:
    """Elements from one row to the next where all but the last dimension count as rows.

    Raises KernelArgumentError if the last dimension is not dense or the rows are not evenly spaced."""
    if tensor.dim() == 0:
        raise KernelArgumentError(f"{name} has no dimension, expected rows [..., width].")
    if tensor.is_contiguous():
        return tensor.shape[-1]
    expected: int | None = None
    dims = [(n, s) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    if dims[-1][0] > 1 and dims[-1][1] != 1:
        raise KernelArgumentError(
            f"{name} has the stride {dims[-1][1]} in its last dimension, expected 1: use {name}.contiguous()."
        )
    stride = tensor.shape[-1]
    for size, step in reversed(dims[:-1]):
        if size == 1:
            continue
        if expected is None:
            stride, expected = step, step * size
        elif step == expected:
            expected *= size
        else:
            raise KernelArgumentError(
                f"{name} has the strides {list(tensor.stride())} at shape {list(tensor.shape)}, expected rows at equal "
                f"distances: use {name}.contiguous()."
            )
    return stride
