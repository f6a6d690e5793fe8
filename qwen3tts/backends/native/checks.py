"""What a tensor or a number must be like before it goes to a kernel."""

import numbers
from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn, TypeVar, cast

import torch
from torch import Tensor

from qwen3tts.backends.native.module import Native
from qwen3tts.errors import KernelArgumentError, shortened

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""csrc/common/types.h"""

FLOATS = frozenset(DTYPE_CODES)

Kind = TypeVar("Kind")

INT32_MAX = 2**31 - 1
FP32_MAX = torch.finfo(torch.float32).max
FP32_MIN = torch.finfo(torch.float32).tiny
"""the least that no GPU takes for zero"""


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
    if tensor.layout is not torch.strided:
        raise KernelArgumentError(f"{name} has the layout {tensor.layout}, expected a dense tensor: use to_dense().")
    if tensor.is_neg():  # a conjugated view is complex, and no dtype here is
        raise KernelArgumentError(
            f"{name} is a negated view, whose memory holds the numbers with the other sign: use {name}.resolve_neg()."
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


def row_stride(name: str, tensor: Tensor, *, written: bool = False) -> int:
    """Elements from one row to the next where all but the last dimension count as rows.

    Raises KernelArgumentError if the last dimension is not dense or the rows are not evenly spaced; written=True: also
    if rows overlap."""
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
    if written and stride < tensor.shape[-1] and tensor.numel():
        raise KernelArgumentError(
            f"{name} has the strides {list(tensor.stride())} at shape {list(tensor.shape)}: its rows overlap, and each "
            "is written. Expected rows of their own, as torch.empty makes them."
        )
    return stride


def check_apart(
    written: Mapping[str, Tensor | None], read: Mapping[str, Tensor | None], *, in_place: Collection[str] = ()
) -> None:
    """Raises KernelArgumentError if a written tensor shares memory with another written or a read one.

    in_place: names among `read` whose very place (same address and rows) may be written. Tensors that `check` has
    passed; the rows of strided ones are told apart where their distances are equal, and else count as one block."""
    end = 0
    for start, stop in sorted([_extent(t) for t in (*written.values(), *read.values()) if t is not None]):
        if start < end:
            break
        end = stop
    else:
        return  # nothing touches anything: nearly always
    outputs = [(name, t) for name, t in written.items() if t is not None and t.numel()]
    inputs = [(name, t) for name, t in read.items() if t is not None and t.numel()]
    for i, (name, tensor) in enumerate(outputs):
        start, end = _extent(tensor)
        for other_name, other in (*outputs[i + 1 :], *inputs):
            other_start, other_end = _extent(other)
            if start >= other_end or other_start >= end or _interleaved(tensor, other):
                continue
            if other_name not in in_place:
                raise KernelArgumentError(
                    f"{name} shares memory with {other_name}: write to a tensor of its own, as torch.empty makes it."
                )
            if start != other_start or row_stride(name, tensor) != row_stride(other_name, other):
                raise KernelArgumentError(
                    f"{name} overlaps {other_name}: write to the very place of {other_name}, or to a tensor of its own."
                )


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Addresses of the first byte and of the one after the last."""
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def _interleaved(a: Tensor, b: Tensor) -> bool:
    """Whether two matrices are different columns of a wider one, as the parts of a fused projection are."""
    if a.dim() < 2 or b.dim() < 2:
        return False
    try:
        distance = row_stride("", a) * a.element_size()
        if distance == 0 or distance != row_stride("", b) * b.element_size():
            return False
    except KernelArgumentError:  # no rows at equal distances
        return False
    offset = (b.data_ptr() - a.data_ptr()) % distance
    return a.shape[-1] * a.element_size() <= offset and offset + b.shape[-1] * b.element_size() <= distance


def whole(name: str, value: object, low: int, high: int) -> int:
    """`value` if it is a whole number from `low` to `high`. Raises KernelArgumentError."""
    if type(value) is int and low <= value <= high:
        return value
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and low <= cast(int, value) <= high:
        return int(value)
    _refuse(name, value, f"a whole number from {low} to {high}")


def number(name: str, value: object, low: float, high: float) -> float:
    """`value` if it is a number from `low` to `high`. Raises KernelArgumentError."""
    if type(value) is float and low <= value <= high:
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and low <= cast(float, value) <= high:
        return float(value)
    _refuse(name, value, f"a number from {low:.6g} to {high:.6g}")


def flag(name: str, value: object) -> bool:
    """`value` if it is True or False. Raises KernelArgumentError."""
    if isinstance(value, bool):
        return value
    _refuse(name, value, "True or False")


def instance(name: str, value: object, kind: type[Kind]) -> Kind:
    """`value` if it is a `kind`. Raises KernelArgumentError."""
    if isinstance(value, kind):
        return value
    _refuse(name, value, f"a {kind.__name__}")


def length(name: str, value: object) -> int:
    """How long a list or another sequence is. Raises KernelArgumentError."""
    if isinstance(value, Sequence):
        return len(value)
    _refuse(name, value, "a list or a tuple")


def _refuse(name: str, value: object, expected: str) -> NoReturn:
    try:
        got = shortened(repr(value))
    except ValueError:  # Python writes out whole numbers only up to a few thousand digits
        got = "a very large number"
    raise KernelArgumentError(f"{name} is {got}, expected {expected}.")
