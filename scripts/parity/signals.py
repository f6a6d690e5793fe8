"""Deterministic inputs of the parity cases, so that files need not store them. Numpy only."""

import numpy as np

SAMPLE_RATE = 24000


def signal(kind, samples, seed=0):
    """Test audio, float32 [samples] at 24 kHz on the 16-bit grid (exact as a PCM16 file).

    voice: gliding harmonics with syllable-like loudness, over noise; noise: white noise; chirp: a sweep over noise.
    All have noise in every band: log-mel values of a pure tone would sit at rounding level and differ between FFTs."""
    rng = np.random.default_rng([seed, samples])
    t = np.arange(samples) / SAMPLE_RATE
    noise = rng.standard_normal(samples)
    f0 = 110 + 17 * (seed % 8)
    if kind == "voice":
        phase = 2 * np.pi * (f0 * t + 6 * np.sin(2 * np.pi * 0.7 * t))
        tone = sum(np.sin(k * phase + k * k) / k for k in range(1, 9))
        x = 0.2 * (0.55 + 0.45 * np.sin(2 * np.pi * 3.3 * t)) * tone + 0.03 * noise
    elif kind == "noise":
        x = 0.2 * noise
    elif kind == "chirp":
        x = 0.4 * np.sin(2 * np.pi * (f0 * t + 900 * t * t)) + 0.03 * noise
    else:
        raise ValueError(f"unknown signal {kind!r}; there are voice, noise and chirp")
    return (np.round(np.clip(x, -1, 1 - 2**-15) * 32768) / 32768).astype(np.float32)


def random_codes(frames, codebook_size, seed=0):
    """Codec codes, int64 [frames, 16]."""
    return np.random.default_rng(seed).integers(0, codebook_size, (frames, 16))
