"""The codec's transposed convolutions (kernel = stride or 2 * stride); kernels: csrc/common/transposed_conv.cpp."""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from qwen3tts.backends.native.blas import Blas
from qwen3tts.backends.native.checks import DTYPE_CODES, FLOATS, check
from qwen3tts.backends.native.module import Native
from qwen3tts.errors import KernelArgumentError

Method = Literal["gemm", "direct", "tiled"]
METHODS: tuple[Method, ...] = get_args(Method)


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
) -> Tensor:
    """x [batch, in, steps + kernel / stride - 1] -> [batch, out, steps * stride], contiguous.

    x is dense along time and, for kernel = 2 * stride, begins with the one sample before the first new one. weight
    [in, out, kernel] is nn.ConvTranspose1d's, bias [out]; all of one dtype, sums in fp32.
    method "gemm": two matrix products, needs `blas` and a packed weight (pack_weight); equal at any cutting of the
    stream up to the products' rounding. "direct" and "tiled": any strides, equal to each other bit for bit, at any cutting."""
    if method not in METHODS:
        raise KernelArgumentError(f"The method is {method!r}, expected one of {', '.join(map(repr, METHODS))}.")
    taps = _check(native, x, weight, bias, stride)
    batch, channels_in, columns = x.shape
    channels_out, steps = weight.shape[1], columns - (taps - 1)
    y = torch.empty(batch, channels_out, steps * stride, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    module = native.module
    arguments = module.TransposedConvArguments(
        x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr(),
        batch, channels_in, channels_out, steps, stride, taps, x.stride(0), x.stride(1), *weight.stride(),
        DTYPE_CODES[x.dtype],
    )  # fmt: skip
    if method == "direct":
        module.transposed_conv_direct(arguments, native.stream())
    elif method == "tiled":
        module.transposed_conv_tiled(arguments, native.stream())
    else:
        if blas is None or not is_packed(weight):
            missing = "a Blas object" if blas is None else "the weight packed: use pack_weight(weight) once"
            raise KernelArgumentError(f"The method 'gemm' needs {missing}.")
        products = torch.empty(batch * stride * channels_out * steps, dtype=torch.float32, device=x.device)
        module.transposed_conv_gemm(arguments, products.data_ptr(), blas.handle, native.stream())
    return y


def _check(native: Native, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> int:
    """Raises KernelArgumentError, or returns kernel / stride."""
    check("x", x, native=native, dtype=FLOATS, shape=(None, None, None), contiguous=False)
    check("weight", weight, native=native, dtype=x.dtype, shape=(x.shape[1], None, None), contiguous=False)
    if bias is not None:
        check("bias", bias, native=native, dtype=x.dtype, shape=(weight.shape[1],))
    kernel = weight.shape[2]
    if stride < 1 or kernel not in (stride, 2 * stride) or 0 in weight.shape:
        raise KernelArgumentError(
            f"weight has the shape {list(weight.shape)} at stride {stride}, expected [in, out, {stride} or {2 * stride}] "
            "without a zero."
        )
    taps = kernel // stride
    if x.shape[2] < taps - 1:
        raise KernelArgumentError("x has no sample, expected at least the one before the first new one.")
    if x.shape[2] > 1 and x.stride(2) != 1:
        raise KernelArgumentError(f"x has the stride {x.stride(2)} along time, expected 1: use x.contiguous().")
    return taps
