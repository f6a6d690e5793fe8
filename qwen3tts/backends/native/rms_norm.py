"""RMSNorm, with or without a residual added first; kernel: csrc/common/rms_norm.cpp."""

import torch
from torch import Tensor

from qwen3tts.backends.native.cases import Call, Case, units_in_last_place
from qwen3tts.backends.native.checks import DTYPE_CODES, FLOATS, FP32_MAX, check, check_apart, number, row_stride
from qwen3tts.backends.native.module import Native
from qwen3tts.errors import KernelArgumentError

FP32_UNITS = 8
"""units in the last place that another order of the sum and another root may make in fp32"""
NARROW_UNITS = 2
"""and in bf16 and fp16, where the last bit of the scale can tip the first rounding, and that the second one"""


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight * round(x / sqrt(mean(x²) + eps)), as model.layers.RMSNorm. x [..., width], weight [width]."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x + residual, its norm)."""
    total = x + residual
    return total, rms_norm_reference(total, weight, eps)


def rms_norm(native: Native, x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """x [..., width] with rows at equal distances, weight [width] of the same dtype -> y, shaped as x and contiguous.

    out: where to write y; may be x itself. Raises KernelArgumentError."""
    x_stride = _check_inputs(native, x, weight)
    y_stride = x.shape[-1]
    if out is None:
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    else:
        y = check("out", out, native=native, dtype=x.dtype, shape=x.shape, contiguous=False)
        y_stride = row_stride("out", y, written=True)
        check_apart({"out": y}, {"x": x, "weight": weight}, in_place=("x",))
    _launch(native, x, x_stride, None, 0, weight, None, 0, y, y_stride, eps)
    return y


def add_rms_norm(
    native: Native,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    total_out: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x and residual [..., width], weight [width], one dtype -> (x + residual, its norm).

    total_out: where to write the sum; may be x or residual itself. out: where to write the norm; may be x or
    residual, too, but not total_out. Raises KernelArgumentError."""
    x_stride = _check_inputs(native, x, weight)
    check("residual", residual, native=native, dtype=x.dtype, shape=x.shape, contiguous=False)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device) if total_out is None else total_out
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    check("total_out", total, native=native, dtype=x.dtype, shape=x.shape, contiguous=False)
    check("out", y, native=native, dtype=x.dtype, shape=x.shape, contiguous=False)
    total_stride, y_stride = row_stride("total_out", total, written=True), row_stride("out", y, written=True)
    if total_out is not None or out is not None:
        inputs = {"x": x, "residual": residual, "weight": weight}
        check_apart({"total_out": total, "out": y}, inputs, in_place=("x", "residual"))
    _launch(
        native, x, x_stride, residual, row_stride("residual", residual), weight, total, total_stride, y, y_stride, eps
    )  # fmt: skip
    return total, y


def _check_inputs(native: Native, x: Tensor, weight: Tensor) -> int:
    """The distance of x's rows."""
    check("x", x, native=native, dtype=FLOATS, contiguous=False)
    stride = row_stride("x", x)
    check("weight", weight, native=native, dtype=x.dtype, shape=(x.shape[-1],))
    return stride


def _launch(
    native: Native,
    x: Tensor,
    x_stride: int,
    residual: Tensor | None,
    residual_stride: int,
    weight: Tensor,
    total: Tensor | None,
    total_stride: int,
    y: Tensor,
    y_stride: int,
    eps: float,
) -> None:
    eps = number("eps", eps, 0.0, FP32_MAX)
    count, width = x.numel(), x.shape[-1]
    if count == 0:
        return
    try:
        native.module.rms_norm(
            x.data_ptr(), 0 if residual is None else residual.data_ptr(), weight.data_ptr(),
            0 if total is None else total.data_ptr(), y.data_ptr(), count // width, width,
            x_stride, residual_stride, total_stride, y_stride, eps, DTYPE_CODES[x.dtype], native.stream(),
        )  # fmt: skip
    except ValueError as error:  # std::invalid_argument
        raise KernelArgumentError(f"{error}.") from error


def selftest_cases() -> list[Case]:
    """Norms of the released models: hidden sizes 1024 and 2048 at 1, 8 and 64 rows, and the heads' queries."""
    sizes = [(1, 1024), (8, 1024), (1, 2048), (8, 2048), (64, 2048), (16, 128), (1024, 128), (4096, 2048), (3, 1537)]
    return [
        _case(rows, width, dtype, residual)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for residual in (False, True)
        for rows, width in sizes
    ]


def _case(rows: int, width: int, dtype: torch.dtype, residual: bool) -> Case:
    def prepare(native: Native, generator: torch.Generator) -> Call:
        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(native.device, dtype)

        x, other, weight = draw(rows, width), draw(rows, width), draw(width)
        y, total = torch.empty_like(x), torch.empty_like(x)
        size = x.element_size()
        if residual:
            return Call(
                lambda: add_rms_norm(native, x, other, weight, 1e-6, total_out=total, out=y),
                lambda: (total, y),
                lambda: add_rms_norm_reference(x, other, weight, 1e-6),
                (4 * rows + 1) * width * size,
            )
        return Call(
            lambda: rms_norm(native, x, weight, 1e-6, out=y),
            lambda: (y,),
            lambda: (rms_norm_reference(x, weight, 1e-6),),
            (2 * rows + 1) * width * size,
        )

    return Case(
        "rms_norm",
        f"{rows} x {width}{', with residual' if residual else ''}",
        str(dtype).removeprefix("torch."),
        prepare,
        units_in_last_place,
        "units in the last place",
        FP32_UNITS if dtype == torch.float32 else NARROW_UNITS,
        small=rows * width < 10_000,
    )
