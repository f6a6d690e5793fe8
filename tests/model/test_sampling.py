"""The sampling definition against a slow reference in Python integers and single numpy operations."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from qwen3tts.model.philox import random_words
from qwen3tts.model.sampling import (
    ONE,
    SamplingParams,
    exp_weights,
    pick_greedy,
    pick_philox,
    pick_torch,
    process_talker_logits,
    suppressed_tokens,
)

VECTORS = json.loads((Path(__file__).parent / "sampling_vectors.json").read_text())
f32 = np.float32


def slow_weight(x):
    """One weight by single, separately rounded float32 operations."""
    if x <= f32(-17.0):
        return 0
    n = np.floor(f32(f32(x * f32(1.44269504088896341)) + f32(0.5)))
    r = f32(f32(x - f32(n * f32(0.693359375))) - f32(n * f32(-2.12194440054690583e-4)))
    p = f32(1.0 / 720.0)
    for c in (1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0):
        p = f32(f32(p * r) + f32(c))
    return int(float(p) * 2**24) >> int(-n)


def slow_pick(logits, params, word):
    """Steps 1 to 5 of the definition, literally."""
    scores = [f32(value) / f32(params.temperature) for value in logits]
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if params.top_k:
        order = order[: params.top_k]
    weights = [slow_weight(f32(scores[i] - scores[order[0]])) for i in order]
    total = sum(weights)
    if params.top_p < 1.0:
        length = 1
        while sum(weights[:length]) * 2**24 < round(params.top_p * 2**24) * total:
            length += 1
        weights = weights[:length]
        total = sum(weights)
    threshold = ((word >> 8) * total) >> 24
    cumulative = 0
    for i, weight in zip(order, weights, strict=False):
        cumulative += weight
        if cumulative > threshold:
            return i
    raise AssertionError("no candidate")


def logits_with_ties(rng, size):
    return (np.round(rng.standard_normal(size) * 3 * 4) / 4).astype(np.float32)


def test_weights_equal_the_slow_reference(seed):
    rng = np.random.default_rng(seed)
    x = np.concatenate([-rng.uniform(0, 18, 3000), -(10.0 ** rng.uniform(-9, 1, 1000)), [0.0, -17.0, -16.999, -np.inf]])
    x = x.astype(np.float32)
    assert exp_weights(torch.from_numpy(x)).tolist() == [slow_weight(value) for value in x]


def test_weights_are_near_the_exponential(seed):
    x = -torch.rand(200_000, generator=torch.Generator().manual_seed(seed)) * 17
    error = exp_weights(x) - ONE * torch.exp(x.double())
    assert float(error.abs().max()) < 4
    assert exp_weights(torch.zeros(1)).item() == ONE


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1088, 3072])
def test_picks_equal_the_slow_reference(seed, size):
    rng = np.random.default_rng([seed, size])
    for _ in range(12):
        params = SamplingParams(
            True,
            float(rng.choice([0.1, 0.7, 0.9, 1.0, 1.7])),
            int(rng.choice([0, 1, 2, 5, 50, 256, 5000])),
            float(rng.choice([1.0, 0.999, 0.8, 0.3, 1e-6])),
        )
        logits = logits_with_ties(rng, size) if rng.random() < 0.5 else rng.standard_normal(size).astype(np.float32) * 4
        if size > 2 and rng.random() < 0.3:
            logits[rng.integers(0, size, size // 2)] = -np.inf
            logits[rng.integers(size)] = 1.0
        word = int(rng.choice([0, 2**32 - 1, rng.integers(2**32)]))
        assert int(pick_philox(torch.from_numpy(logits), params, torch.tensor(word))) == slow_pick(logits, params, word)


def test_known_answers():
    for case in VECTORS["weights"]:
        x = torch.tensor([int(case["x"], 16)], dtype=torch.int64).to(torch.int32).view(torch.float32)
        assert exp_weights(x).item() == case["weight"]
    for case in VECTORS["picks"]:
        rng = np.random.default_rng(case["logits_seed"])
        logits = torch.from_numpy(logits_with_ties(rng, case["size"]))
        params = SamplingParams(True, case["temperature"], case["top_k"], case["top_p"])
        words = random_words(case["seed"], 0, len(case["picked"]), 16)[:, case["codebook"]]
        assert [int(pick_philox(logits, params, torch.tensor(int(w)))) for w in words] == case["picked"]


def test_draws_follow_the_softmax(seed):
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    words = torch.from_numpy(random_words(seed, 0, 4000, 4)).flatten()
    counts = np.bincount([int(pick_philox(logits, SamplingParams(True, 1.0, 0, 1.0), w)) for w in words], minlength=6)
    expected = torch.softmax(logits.double(), 0).numpy() * len(words)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 30.0, f"{counts} for {expected}"  # 5 degrees of freedom: once in 70,000 runs


def test_top_k_keeps_exactly_k_of_equals_and_the_lowest_index_first():
    logits = torch.zeros(10)
    words = torch.from_numpy(random_words(1, 0, 100, 4)).flatten()
    picked = {int(pick_philox(logits, SamplingParams(True, 0.9, 3, 1.0), word)) for word in words}
    assert picked == {0, 1, 2}
    assert int(pick_greedy(logits)) == 0
    assert int(pick_greedy(torch.tensor([1.0, 5.0, 5.0, 2.0]))) == 1


def test_official_pick_keeps_all_ties_at_the_edge():
    logits = torch.tensor([3.0, 1.0, 1.0, 1.0, 0.0])
    generator = torch.Generator().manual_seed(0)
    picked = {int(pick_torch(logits, SamplingParams(True, 1.0, 2, 1.0), generator)) for _ in range(300)}
    assert picked == {0, 1, 2, 3}


def test_talker_processing_order():
    logits = torch.tensor([2.0, -2.0, 4.0, 1.0, 8.0, 9.0])
    seen = torch.tensor([True, True, False, False, True, False])
    suppressed = torch.tensor([False, False, False, False, True, False])
    out = process_talker_logits(logits, seen, 2.0, suppressed, eos_id=5)
    assert out.tolist() == [1.0, -4.0, 4.0, 1.0, -np.inf, -np.inf]
    assert process_talker_logits(logits, seen, 1.0, suppressed, None).tolist() == [2.0, -2.0, 4.0, 1.0, -np.inf, 9.0]
    assert logits.tolist() == [2.0, -2.0, 4.0, 1.0, 8.0, 9.0], "the input is left as it was"


def test_only_codes_and_the_end_can_be_picked():
    mask = suppressed_tokens(3072, 2150, torch.device("cpu"))
    assert mask.nonzero()[:, 0].tolist() == [i for i in range(2048, 3072) if i != 2150]
