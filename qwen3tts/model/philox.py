"""Philox4x32-10 (Salmon et al. 2011): random words as a pure function of (seed, part, frame, codebook).

key = (seed mod 2^32, seed div 2^32), counter = (frame, codebook, part, 0); the first of the four output words is used.
Counter 0 and key 0 give 6627e8d5. A draw depends on no other draw, so a row's codes do not depend on its neighbours.
"""

import numpy as np
from numpy.typing import NDArray

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = 0x9E3779B9, 0xBB67AE85
MASK = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
MAX_SEED = 2**64 - 1


def philox(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """counter uint64 [..., 4] of 32-bit words -> the four output words, uint64 [..., 4]."""
    c0, c1, c2, c3 = (counter[..., i] for i in range(4))
    for i in range(10):
        k0, k1 = np.uint64((key[0] + i * W0) & 0xFFFFFFFF), np.uint64((key[1] + i * W1) & 0xFFFFFFFF)
        p0, p1 = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (p1 >> SHIFT) ^ c1 ^ k0, p1 & MASK, (p0 >> SHIFT) ^ c3 ^ k1, p0 & MASK
    return np.stack((c0, c1, c2, c3), -1)


def random_words(seed: int, first_frame: int, frames: int, codebooks: int, part: int = 0) -> NDArray[np.int64]:
    """The words of `frames` frames from `first_frame` on: int64 [frames, codebooks] in [0, 2^32)."""
    counter = np.zeros((frames, codebooks, 4), np.uint64)
    counter[..., 0] = np.arange(first_frame, first_frame + frames, dtype=np.uint64)[:, None]
    counter[..., 1] = np.arange(codebooks, dtype=np.uint64)
    counter[..., 2] = np.uint64(part)
    return philox(counter, (seed & 0xFFFFFFFF, seed >> 32))[..., 0].astype(np.int64)
