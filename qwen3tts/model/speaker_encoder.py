"""The speaker encoder of Base checkpoints: 24 kHz samples to an x-vector [enc_dim]. ECAPA-TDNN over a log-mel.

The log-mel is computed in fp32; from there on everything is in the dtype of the weights and rounds where the official
package rounds. All convolutions keep the length, mirroring their input at both ends.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qwen3tts.audio.mel import HOP
from qwen3tts.errors import AudioError
from qwen3tts.model.config import SpeakerEncoderConfig
from qwen3tts.model.mel import REFLECTED, LogMel

BLOCK = 2048
"""Frames whose pooling weights are computed at a time, for memory's sake; the result does not depend on it."""


def same_conv(channels_in: int, channels_out: int, kernel: int = 1, dilation: int = 1) -> nn.Conv1d:
    """[1, in, T] -> [1, out, T]. Needs T > ceil(dilation * (kernel - 1) / 2), or there is nothing to mirror."""
    return nn.Conv1d(
        channels_in,
        channels_out,
        kernel,
        dilation=dilation,
        padding="same",
        padding_mode="reflect" if kernel > 1 else "zeros",
    )


class TDNN(nn.Module):
    """relu(conv(x))."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = same_conv(channels_in, channels_out, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """The channels in `scale` equal groups: the first passes, each later one is convolved after the result of the one
    before it (from the third on) was added."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        size = channels // scale
        self.blocks = nn.ModuleList(TDNN(size, size, kernel, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *groups = x.chunk(len(self.blocks) + 1, 1)
        outputs = [first]
        for i, (block, group) in enumerate(zip(self.blocks, groups, strict=True)):
            outputs.append(block(group + outputs[-1] if i else group))
        return torch.cat(outputs, 1)


class SqueezeExcitation(nn.Module):
    """x * sigmoid(conv2(relu(conv1(mean of x over time))))."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = same_conv(channels, inner), same_conv(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(x.mean(2, keepdim=True)))))


class SERes2Net(nn.Module):
    """x + squeeze_excitation(tdnn2(res2net(tdnn1(x))))."""

    def __init__(self, config: SpeakerEncoderConfig, block: int) -> None:
        super().__init__()
        size = config.enc_channels[block]
        kernel, dilation = config.enc_kernel_sizes[block], config.enc_dilations[block]
        self.tdnn1 = TDNN(config.enc_channels[block - 1], size)
        self.res2net_block = Res2Net(size, config.enc_res2net_scale, kernel, dilation)
        self.tdnn2 = TDNN(size, size)
        self.se_block = SqueezeExcitation(size, config.enc_se_channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return out + x


def weighted_statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over time, [1, channels, 1] each; `weights` add up to 1 over time."""
    mean = (weights * x).sum(2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(2, keepdim=True)
    return mean, variance.clamp(min=1e-12).sqrt()


class AttentivePooling(nn.Module):
    """[1, channels, T] -> [1, 2 * channels, 1]: mean and deviation, weighted per channel by a softmax over time of
    conv(tanh(tdnn(x, mean, deviation)))."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.tdnn = TDNN(3 * channels, inner)
        self.conv = same_conv(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        uniform = torch.ones_like(x[:1, :1]) / torch.tensor(x.shape[2], dtype=x.dtype, device=x.device)
        mean, deviation = weighted_statistics(x, uniform)
        scores = []
        for part in x.split(BLOCK, 2):
            joined = torch.cat((part, mean.expand_as(part), deviation.expand_as(part)), 1)
            scores.append(self.conv(torch.tanh(self.tdnn(joined))))
        return torch.cat(weighted_statistics(x, F.softmax(torch.cat(scores, 2), 2)), 1)


class SpeakerEncoder(nn.Module):
    """Keys are those of the checkpoint without the prefix `speaker_encoder.`.

    min_samples: the shortest recording it can take, 1280 samples (5 mel frames, 53 ms) at the released sizes: the
    convolutions mirror up to 4 frames. At the released sizes a second of audio takes about 4 MB while it is encoded.
    """

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        channels, kernels, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        self.config = config
        self.mel = LogMel(config.sample_rate, config.mel_dim)
        self.blocks = nn.ModuleList(
            [
                TDNN(config.mel_dim, channels[0], kernels[0], dilations[0]),
                *(SERes2Net(config, block) for block in range(1, len(channels) - 1)),
            ]
        )
        self.mfa = TDNN(channels[-1], channels[-1], kernels[-1], dilations[-1])
        self.asp = AttentivePooling(channels[-1], config.enc_attention_channels)
        self.fc = same_conv(2 * channels[-1], config.enc_dim)
        mirrored = max(-(-dilation * (kernel - 1) // 2) for kernel, dilation in zip(kernels, dilations, strict=True))
        self.min_samples = max(HOP * (mirrored + 1), REFLECTED + 1)

    def forward(self, samples: Tensor) -> Tensor:
        """One recording, fp32 [n] at 24 kHz -> fp32 [enc_dim], not normalized. Raises AudioError if it is too short."""
        if samples.ndim != 1:
            raise AudioError(f"the speaker encoder got samples of shape {list(samples.shape)}, expected [n]")
        if samples.shape[0] < self.min_samples:
            rate = self.config.sample_rate
            raise AudioError(
                f"the recording is too short for a voice: {samples.shape[0]} samples at {rate} Hz "
                f"({samples.shape[0] / rate:.3f} s); the speaker encoder needs at least {self.min_samples} "
                f"({self.min_samples / rate:.3f} s), and a good voice some seconds of speech"
            )
        x = self.mel(samples).to(self.fc.weight.dtype)
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        x = self.asp(self.mfa(torch.cat(outputs[1:], 1)))
        embedding: Tensor = self.fc(x)[0, :, 0]
        return embedding.float()
