"""The codec's transposed convolutions (kernel = stride or 2 * stride); kernels: csrc/common/transposed_conv.cpp."""

from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from qwen3tts.backends.native.blas import Blas
from qwen3tts.backends.native.cases import Call, Case, largest_difference
from qwen3tts.backends.native.checks import DTYPE_CODES, FLOATS, INT32_MAX, check, check_apart, instance, whole
from qwen3tts.backends.native.module import Native
from qwen3tts.errors import KernelArgumentError

Method = Literal["gemm", "direct", "tiled"]
METHODS: tuple[Method, ...] = get_args(Method)

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""largest difference from the reference over the largest result: order of the sums, or one rounding"""


def transposed_conv_reference(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """As transposed_conv; summed in float64 and rounded once."""
    history = weight.shape[2] // stride - 1
    wide = F.conv_transpose1d(x.double(), weight.double(), None if bias is None else bias.double(), stride=stride)
    return wide.narrow(-1, history * stride, (x.shape[-1] - history) * stride).to(x.dtype)


def pack_weight(weight: Tensor) -> Tensor:
    """[in, out, kernel] -> the same values and shape over a new storage in the order [kernel, out, in], as the products
    need it. `weight.contiguous()` is the way back, bit for bit."""
    return weight.permute(2, 1, 0).contiguous().permute(2, 1, 0)


def is_packed(weight: Tensor) -> bool:
    """Whether the storage has the order of pack_weight."""
    channels_in, channels_out, _ = weight.shape
    return weight.stride() == (1, channels_in, channels_in * channels_out)


def transposed_conv(
    native: Native,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    *,
    method: Method = "gemm",
    blas: Blas | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """x [batch, in, steps + kernel / stride - 1] -> [batch, out, steps * stride], contiguous.

    x is dense along time and, for kernel = 2 * stride, begins with the one sample before the first new one. weight
    [in, out, kernel] is nn.ConvTranspose1d's, bias [out]; all of one dtype, sums in fp32.
    method "gemm": two matrix products, needs `blas` and a packed weight (pack_weight); equal at any cutting of the
    stream up to the products' rounding. "direct" and "tiled": any strides, equal to each other bit for bit, at any
    cutting. out: where to write y, contiguous and apart from the others. Raises KernelArgumentError."""
    if method not in METHODS:
        raise KernelArgumentError(f"The method is {method!r}, expected one of {', '.join(map(repr, METHODS))}.")
    if blas is not None:
        instance("blas", blas, Blas)
    taps = _check(native, x, weight, bias, stride)
    batch, channels_in, columns = x.shape
    channels_out, steps = weight.shape[1], columns - (taps - 1)
    shape = (batch, channels_out, steps * stride)
    y = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    check("out", y, native=native, dtype=x.dtype, shape=shape)
    if out is not None:
        check_apart({"out": out}, {"x": x, "weight": weight, "bias": bias})
    if y.numel() == 0:
        return y
    handle: Any = None
    if method == "gemm":
        if blas is None or not is_packed(weight):
            missing = "a Blas object" if blas is None else "the weight packed: use pack_weight(weight) once"
            raise KernelArgumentError(f"The method 'gemm' needs {missing}.")
        handle = blas.handle
    module = native.module
    arguments = module.TransposedConvArguments(
        x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr(),
        batch, channels_in, channels_out, steps, stride, taps, x.stride(0), x.stride(1), *weight.stride(),
        DTYPE_CODES[x.dtype],
    )  # fmt: skip
    try:
        if method == "direct":
            module.transposed_conv_direct(arguments, native.stream())
        elif method == "tiled":
            module.transposed_conv_tiled(arguments, native.stream())
        else:
            products = torch.empty(batch * stride * channels_out * steps, dtype=torch.float32, device=x.device)
            module.transposed_conv_gemm(arguments, products.data_ptr(), handle, native.stream())
    except ValueError as error:  # std::invalid_argument
        raise KernelArgumentError(f"{error}.") from error
    return y


def _check(native: Native, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> int:
    """Raises KernelArgumentError, or returns kernel / stride."""
    check("x", x, native=native, dtype=FLOATS, shape=(None, None, None), contiguous=False)
    check("weight", weight, native=native, dtype=x.dtype, shape=(x.shape[1], None, None), contiguous=False)
    if bias is not None:
        check("bias", bias, native=native, dtype=x.dtype, shape=(weight.shape[1],))
    stride = whole("stride", stride, 1, INT32_MAX)
    kernel = weight.shape[2]
    if kernel not in (stride, 2 * stride) or 0 in weight.shape:
        raise KernelArgumentError(
            f"weight has the shape {list(weight.shape)} at stride {stride}, expected [in, out, {stride} or "
            f"{2 * stride}] without a zero."
        )
    taps = kernel // stride
    if x.shape[2] < taps - 1:
        raise KernelArgumentError("x has no sample, expected at least the one before the first new one.")
    if x.shape[2] > 1 and x.stride(2) != 1:
        raise KernelArgumentError(f"x has the stride {x.stride(2)} along time, expected 1: use x.contiguous().")
    return taps


CODEC_LAYERS = ((1024, 1024, 2, 1, 1), (1024, 1024, 2, 1, 2), (1536, 768, 8, 2, 4), (768, 384, 5, 2, 32),
                (384, 192, 4, 2, 160), (192, 96, 3, 2, 640))  # fmt: skip
"""channels in and out, stride, kernel / stride, steps per frame"""


def selftest_cases() -> list[Case]:
    """The codec's layers for one frame and, by products, for a chunk of 48; small odd ones in every dtype."""
    blas: dict[Native, Blas] = {}
    cases = [
        _case(blas, (in_, out, stride, taps, steps), method, dtype, small=True)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for method in METHODS
        for in_, out, stride, taps, steps in ((17, 33, 3, 2, 5), (31, 7, 2, 1, 67))
    ]
    for in_, out, stride, taps, steps in CODEC_LAYERS:
        for method in METHODS:
            cases.append(_case(blas, (in_, out, stride, taps, steps), method, torch.float32))
        cases.append(_case(blas, (in_, out, stride, taps, 48 * steps), "gemm", torch.float32))
        cases.append(_case(blas, (in_, out, stride, taps, steps), "gemm", torch.bfloat16))
    return cases


Sizes = tuple[int, int, int, int, int]


def _case(blas: dict[Native, Blas], sizes: Sizes, method: Method, dtype: torch.dtype, small: bool = False) -> Case:
    channels_in, channels_out, stride, taps, steps = sizes
    return Case(
        "transposed_conv",
        f"{channels_in} to {channels_out}, kernel {taps * stride}, stride {stride}, {steps} steps, {method}",
        str(dtype).removeprefix("torch."),
        partial(_prepare_case, blas, sizes, method, dtype),
        largest_difference,
        "of the largest",
        BOUNDS[dtype],
        small,
    )


def _prepare_case(
    opened: dict[Native, Blas],
    sizes: Sizes,
    method: Method,
    dtype: torch.dtype,
    native: Native,
    generator: torch.Generator,
) -> Call:
    channels_in, channels_out, stride, taps, steps = sizes

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(native.device, dtype)

    x, weight = draw(1, channels_in, steps + taps - 1), draw(channels_in, channels_out, taps * stride)
    bias = draw(channels_out)
    y = torch.empty(1, channels_out, steps * stride, dtype=dtype, device=native.device)
    blas = None
    if method == "gemm":
        if native not in opened:
            opened[native] = Blas(native)
        blas, weight = opened[native], pack_weight(weight)
    return Call(
        run=lambda: transposed_conv(native, x, weight, bias, stride, method=method, blas=blas, out=y),
        outputs=lambda: (y,),
        reference=lambda: (transposed_conv_reference(x, weight, bias, stride),),
        bytes_moved=sum(t.numel() for t in (x, weight, bias, y)) * x.element_size(),
    )
