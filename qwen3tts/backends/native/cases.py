"""What `qwen3tts selftest` runs: a case is one kernel at one size, with its reference and the bytes it must move.

The file of every operation has a function `selftest_cases() -> list[Case]`; OPERATIONS in selftest.py lists them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qwen3tts.backends.native.module import Native


@dataclass(frozen=True)
class Call:
    """A kernel with its inputs and outputs allocated: `run` only launches, so that it can be captured in a graph."""

    run: Callable[[], object]
    outputs: Callable[[], Sequence[Tensor]]
    """what `run` wrote, or copies of it"""
    reference: Callable[[], Sequence[Tensor]]
    """the same from the plain torch reference"""
    bytes_moved: int
    """what has to be read and written once at least"""


@dataclass(frozen=True)
class Case:
    """One line of the report."""

    kernel: str
    variant: str
    """sizes and options, for instance "1 x 2048, with residual" """
    dtype: str
    prepare: Callable[[Native, torch.Generator], Call]
    """fresh random inputs on the native device, drawn from a CPU generator"""
    error: Callable[[Sequence[Tensor], Sequence[Tensor]], float]
    """of outputs against reference, in `unit`"""
    unit: str
    bound: float
    """largest error that passes"""
    small: bool = False
    """also for the emulation, which is some ten thousand times slower"""


def units_in_last_place(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """Largest number of representable numbers between two results of one dtype; NaN where only one is NaN."""
    return max((_apart(a, b) for a, b in zip(got, want, strict=True)), default=0.0)


def _apart(got: Tensor, want: Tensor) -> float:
    if got.dtype != want.dtype or got.shape != want.shape or bool((got.isnan() != want.isnan()).any()):
        return float("nan")
    if got.numel() == 0:
        return 0.0
    width, kind = (31, torch.int32) if got.dtype == torch.float32 else (15, torch.int16)

    def ordered(x: Tensor) -> Tensor:
        bits = x.contiguous().view(kind).long()
        return torch.where(bits < 0, -(2**width) - bits, bits)

    return float((ordered(got) - ordered(want)).abs().max())


def largest_difference(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """max |got - want| over the largest |want|, so that 1e-6 means six digits of the result's scale."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            return float("nan")
        if a.numel():
            scale = float(b.double().abs().max()) or 1.0
            worst = max(worst, float((a.double() - b.double()).abs().max()) / scale)
    return worst


def different_elements(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """How many elements are not equal."""
    if any(a.shape != b.shape for a, b in zip(got, want, strict=True)):
        return float("nan")
    return float(sum(int((a != b).sum()) for a, b in zip(got, want, strict=True)))
