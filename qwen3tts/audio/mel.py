"""Log-mel spectrogram in NumPy, with the parameters of the model family's own mel front end (24 kHz)."""

import numpy as np
import numpy.typing as npt

N_FFT = 1024
HOP = 256
N_MELS = 128
FLOOR = 1e-5
_PAD = (N_FFT - HOP) // 2


def log_mel(samples: npt.NDArray[np.float32], sample_rate: int) -> npt.NDArray[np.float32]:
    """Natural logarithm of the Slaney-mel magnitude spectrum.

    Args:
        samples: float [n], n >= 1.
        sample_rate: in Hz; the mel bands cover 0 to half of it.

    Returns:
        float32 [frames, 128], one frame per 256 samples, values floored at ln 1e-5.
    """
    signal = np.asarray(samples, dtype=np.float32)
    mode = "reflect" if signal.size > _PAD else "constant"
    tail = max(0, N_FFT - signal.size - 2 * _PAD)
    padded = np.pad(np.pad(signal, (0, tail)), _PAD, mode=mode)  # type: ignore[call-overload]
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)  # periodic Hann
    spectrum = np.fft.rfft(frames * window)
    magnitude = np.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9)
    mel = magnitude @ mel_filters(sample_rate).T
    return np.log(np.maximum(mel, FLOOR)).astype(np.float32)


def mel_filters(sample_rate: int) -> npt.NDArray[np.float32]:
    """Triangular filters with equal area (Slaney), [128, 513], spaced evenly on the Slaney mel scale.

    Rounded twice, before and after the area: the official front end does, and in bf16 a last bit of the mel is seen in
    the x-vector."""
    edges = mel_to_hz(np.linspace(0.0, hz_to_mel(sample_rate / 2), N_MELS + 2))
    bins = np.linspace(0.0, sample_rate / 2, N_FFT // 2 + 1)
    width = np.diff(edges)
    rising = (bins[None, :] - edges[:-2, None]) / width[:-1, None]
    falling = (edges[2:, None] - bins[None, :]) / width[1:, None]
    area = 2.0 / (edges[2:] - edges[:-2])
    triangles = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    return (triangles * area[:, None]).astype(np.float32)


# Slaney's scale: linear below 1 kHz (15 mel), logarithmic above with 27 mel per factor of 6.4.
_LINEAR = 200.0 / 3
_KNEE_HZ, _KNEE_MEL = 1000.0, 15.0
_LOG_STEP = np.log(6.4) / 27


def hz_to_mel(hz: float) -> float:
    """Frequency in Hz on the Slaney mel scale."""
    return hz / _LINEAR if hz < _KNEE_HZ else float(_KNEE_MEL + np.log(hz / _KNEE_HZ) / _LOG_STEP)


def mel_to_hz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Inverse of `hz_to_mel`, elementwise."""
    above = _KNEE_HZ * np.exp(_LOG_STEP * (np.maximum(mel, _KNEE_MEL) - _KNEE_MEL))
    return np.where(mel < _KNEE_MEL, mel * _LINEAR, above)
