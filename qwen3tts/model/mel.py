"""The speaker encoder's log-mel front end, in torch: 24 kHz samples to [1, 128, frames]."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qwen3tts.audio.mel import FLOOR, HOP, N_FFT, N_MELS, mel_filters
from qwen3tts.errors import ConfigError

REFLECTED = (N_FFT - HOP) // 2
"""Samples mirrored at both ends; frames come from inside, so a recording of n samples has n // 256 of them."""


class LogMel(nn.Module):
    """ln(max(1e-5, mel)) of the magnitude spectrum: periodic Hann window of 1024, hop 256, 128 Slaney bands from 0 Hz
    to half the sample rate. Holds no weights and computes in fp32 on the device of its input."""

    def __init__(self, sample_rate: int, mel_dim: int) -> None:
        super().__init__()
        if mel_dim != N_MELS:
            raise ConfigError(f"speaker_encoder_config.mel_dim is {mel_dim}, expected {N_MELS}, the bands of the mel")
        self.sample_rate = sample_rate

    def forward(self, samples: Tensor) -> Tensor:
        """fp32 [n], n > 384 -> fp32 [1, 128, n // 256]."""
        filters = torch.from_numpy(mel_filters(self.sample_rate))
        padded = F.pad(samples[None], (REFLECTED, REFLECTED), mode="reflect")
        window = torch.hann_window(N_FFT, device=samples.device)
        spectrum = torch.stft(padded, N_FFT, HOP, window=window, center=False, return_complex=True)
        magnitude = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + 1e-9)
        return torch.log((filters.to(samples.device) @ magnitude).clamp(min=FLOOR))
