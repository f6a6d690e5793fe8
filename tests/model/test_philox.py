"""Philox4x32-10 against the published known answers and a scalar implementation."""

import numpy as np
import pytest

from qwen3tts.model.philox import MAX_SEED, philox, random_words

KNOWN = [  # counter, key, output: Random123's kat_vectors for philox 4x32, 10 rounds
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def scalar_philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return tuple(c)


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(counter, key, output):
    assert tuple(int(word) for word in philox(np.array(counter, np.uint64), key)) == output
    assert scalar_philox(counter, key) == output


def test_words_are_the_scalar_generators_first_words(seed):
    rng = np.random.default_rng(seed)
    for case in range(20):
        row_seed = int(rng.integers(0, 2**63)) * 2 + case % 2
        first, part = int(rng.integers(0, 2**20)), int(rng.integers(0, 100))
        words = random_words(row_seed, first, 5, 16, part)
        assert words.shape == (5, 16)
        frame, book = int(rng.integers(5)), int(rng.integers(16))
        key = (row_seed % 2**32, row_seed // 2**32)
        assert words[frame, book] == scalar_philox((first + frame, book, part, 0), key)[0]


def test_words_do_not_depend_on_how_many_are_asked_for(seed):
    whole = random_words(seed, 0, 100, 16)
    pieces = [random_words(seed, start, 7, 16) for start in range(0, 98, 7)]
    assert np.array_equal(np.concatenate(pieces), whole[:98])


def test_every_part_of_the_key_matters():
    reference = random_words(5, 3, 1, 2, 0)
    for other in (random_words(6, 3, 1, 2, 0), random_words(5 + 2**32, 3, 1, 2, 0), random_words(5, 3, 1, 2, 1)):
        assert not np.array_equal(reference, other)
    assert random_words(MAX_SEED, 0, 1, 1).max() < 2**32
