"""Causal convolutions that can be fed in pieces. Each keeps the inputs that later outputs still need in a StreamState,
so that any cutting of a stream gives what one call on the whole gives."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class StreamState:
    """What a codec stream carries from one call to the next; its size does not depend on how long the stream is.

    frames: code frames decoded so far. tails: last inputs per convolution. window: rotated keys and values of the last
    frames per transformer layer."""

    def __init__(self) -> None:
        self.frames = 0
        self.tails: dict[str, Tensor] = {}
        self.window: dict[int, tuple[Tensor, Tensor]] = {}


class Causal(nn.Module):
    """A layer with `span` past inputs; CodecDecoder gives it its `name`."""

    name = ""
    span = 0

    def extend(self, x: Tensor, state: StreamState) -> Tensor:
        """x [B, channels, T] with the last `span` inputs before it (zeros at the start of a stream)."""
        tail = state.tails.get(self.name)
        x = F.pad(x, (self.span, 0)) if tail is None else torch.cat((tail, x), -1)
        # a copy: a view would keep the whole chunk alive
        state.tails[self.name] = x[..., x.shape[-1] - self.span :].clone()
        return x


class CausalConv1d(Causal):
    """Output t sees inputs up to t: zeros on the left, (kernel - 1) * dilation of them."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels_in, channels_out, kernel, dilation=dilation, groups=groups)
        self.span = (kernel - 1) * dilation

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        out: Tensor = self.conv(self.extend(x, state) if self.span else x)
        return out


class CausalConvTranspose1d(Causal):
    """[B, in, T] -> [B, out, T * stride]; kernel = stride or 2 * stride, so output t * stride + p sees t and t - 1."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(channels_in, channels_out, kernel, stride=stride)
        self.stride = stride
        self.span = kernel // stride - 1

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        steps = x.shape[-1]
        out: Tensor = self.conv(self.extend(x, state) if self.span else x)
        return out.narrow(-1, self.span * self.stride, steps * self.stride)


class SnakeBeta(nn.Module):
    """x + sin²(x * exp(alpha)) / (exp(beta) + 1e-9) per channel; the exponentials are taken once, in fp32."""

    frequency: Tensor
    gain: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def prepare(self) -> None:
        """Call once after loading."""
        dtype = self.alpha.dtype
        self.frequency = self.alpha.float().exp()[:, None].to(dtype)
        self.gain = (1.0 / (self.beta.float().exp() + 1e-9))[:, None].to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        wave = (x * self.frequency).sin_()
        return torch.addcmul(x, wave.mul_(wave), self.gain)
