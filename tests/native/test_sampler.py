"""The sampler kernel against the definition in model/sampling.py: every pick, weight and mask equal."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from qwen3tts.backends.native.sampler import (
    NO_PICK,
    NOT_FINITE,
    SamplerRow,
    exp_weights,
    pack_rows,
    sample,
    sample_reference,
)
from qwen3tts.errors import KernelArgumentError
from qwen3tts.model.philox import MAX_SEED, random_words
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.model.sampling import exp_weights as defined_weights

VECTORS = json.loads((Path(__file__).parents[1] / "model" / "sampling_vectors.json").read_text())
VOCABULARIES = (1, 2, 5, 31, 64, 255, 256, 257, 1088, 2047, 2048, 3072, 4097, 8192)
TOP_K = (0, 1, 2, 7, 8, 9, 50, 63, 64, 65, 255, 256, 257, 1000, 2**40)
TOP_P = (1.0, 1.0, 1 - 2**-25, 1 - 2**-24, 0.999, 0.8, 0.5, 0.25, 1e-6, 1e-9)
TEMPERATURES = (1e-4, 0.05, 0.7, 0.9, 1.0, 1.7, 30.0, 1e4)


def random_logits(rng, vocab):
    """fp32 [vocab] of one of the shapes that sampling must stand: smooth, with ties, flat, steep, with -inf, tiny."""
    x = rng.standard_normal(vocab) * rng.choice([1e-2, 1.0, 4.0, 40.0])
    kind = rng.integers(8)
    if kind == 1:
        x = np.round(x * 4) / 4
    elif kind == 2:
        x = rng.integers(0, 2, vocab) * rng.choice([1.0, 20.0])
    elif kind == 3:
        x = np.full(vocab, rng.standard_normal())
    elif kind == 4:
        x[rng.random(vocab) < 0.7] = -np.inf
        x[rng.integers(vocab)] = 1.0
    elif kind == 5:
        x = np.where(rng.random(vocab) < 0.5, 0.0, -0.0)
    elif kind == 6:
        x = rng.integers(-3, 4, vocab) * 2.0**-149
    elif kind == 7:
        x = np.sort(x)[:: rng.choice([-1, 1])] * rng.choice([1.0, 1e30])
    return x.astype(np.float32)


def random_row(rng):
    params = SamplingParams(
        do_sample=rng.random() < 0.9,
        temperature=float(rng.choice(TEMPERATURES)),
        top_k=TOP_K[rng.integers(len(TOP_K))],
        top_p=float(rng.choice(TOP_P)),
    )
    seed = [0, MAX_SEED, 2**32 - 1, 2**32, *rng.integers(2**63, size=6).tolist()][rng.integers(10)]
    penalty = float(rng.choice([1.0, 1.05, 0.5, 1e4]))
    return SamplerRow(params, seed, int(rng.integers(4)) * (2**31 - 1) // 2, penalty, int(rng.integers(4)))


def on(native, *tensors):
    return [None if tensor is None else tensor.to(native.device) for tensor in tensors]


def compare(native, logits, rows, frames, codebook, seen=None, suppressed=None, eos_id=None):
    """The same call to both; picks and masks must be equal."""
    x, marked, never = on(native, logits, seen, suppressed)
    marked = None if marked is None else marked.clone()
    status = torch.zeros(len(rows), dtype=torch.int32, device=native.device)
    got = sample(
        native, x, pack_rows(rows, native.device), torch.tensor(frames, dtype=torch.int32, device=native.device),
        codebook, seen=marked, suppressed=never, eos_id=eos_id, status=status,
    )  # fmt: skip
    want = sample_reference(logits, rows, frames, codebook, seen=seen, suppressed=suppressed, eos_id=eos_id)
    for i in (got.cpu() != want).nonzero().flatten().tolist():
        pytest.fail(f"row {i}: {int(got[i])} for {int(want[i])} with {rows[i]}, frame {frames[i]}, {logits[i]}")
    assert torch.equal(torch.isfinite(logits).all(1), status.cpu() == 0)
    assert seen is None or torch.equal(marked.cpu(), seen)
    return want


@pytest.fixture
def rng(seed, request):
    return np.random.default_rng([seed, len(request.node.name)])


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_predictor_picks_equal_the_definition(native, rng, vocab):
    count = 100 if vocab <= 2048 else 40
    logits = torch.from_numpy(np.stack([random_logits(rng, vocab) for _ in range(count)]))
    rows = [random_row(rng) for _ in range(count)]
    compare(native, logits, rows, rng.integers(0, 2**31 - 1, count).tolist(), int(rng.integers(1, 16)))


@pytest.mark.parametrize("vocab", [1088, 3072])
def test_talker_picks_and_masks_equal_the_definition(native, rng, vocab):
    count = 100
    logits = torch.from_numpy(np.stack([random_logits(rng, vocab) for _ in range(count)]))
    rows = [random_row(rng) for _ in range(count)]
    seen = torch.from_numpy(rng.random((count, vocab)) < 0.3)
    suppressed = torch.arange(vocab) >= vocab - 1024
    eos_id = vocab - 1000
    suppressed[eos_id] = False
    logits[::3, eos_id] = 60.0
    logits[:, 0] = logits[:, 0].clamp(min=-1e30)  # something that is never suppressed
    compare(native, logits, rows, rng.integers(0, 4, count).tolist(), 0, seen, suppressed, eos_id)


def test_every_top_k_from_1_to_300(native, rng):
    logits = np.round(rng.standard_normal((300, 700)) * 8) / 8
    rows = [SamplerRow(SamplingParams(True, 1.3, k, 1.0), int(rng.integers(2**63))) for k in range(1, 301)]
    compare(native, torch.from_numpy(logits.astype(np.float32)), rows, [k % 7 for k in range(300)], 5)


def test_small_top_k_reaches_every_rank(native, rng):
    """Among 2048 equals only the first k can be drawn, and all of them are."""
    rows = [SamplerRow(SamplingParams(True, 0.9, 5, 1.0), int(rng.integers(2**63))) for _ in range(200)]
    picks = compare(native, torch.zeros(200, 2048), rows, [0] * 200, 1)
    assert set(picks.tolist()) == set(range(5))


def test_top_p_stops_at_equality(native, rng):
    """Half of 8 equals are 4 of them, and a little more than half are 5."""
    for top_p, size in ((0.5, 4), (0.5 + 2**-24, 5)):
        rows = [SamplerRow(SamplingParams(True, 1.0, 0, top_p), int(rng.integers(2**63))) for _ in range(150)]
        picks = compare(native, torch.zeros(150, 8), rows, [0] * 150, 1)
        assert set(picks.tolist()) == set(range(size))


def test_the_least_weight_can_be_drawn(native, seed):
    """Weights of 1 beside one of 2^24: the largest random words reach them."""
    words = random_words(seed, 0, 40_000, 3)[:, 2]
    frames = np.argsort(words)[-40:].tolist()
    logits = torch.full((40, 8192), -16.2)
    logits[:, 4000] = 0.0
    rows = [SamplerRow(SamplingParams(True, 1.0, 0, 1.0), seed)] * 40
    picks = compare(native, logits, rows, frames, 2)
    assert (picks != 4000).any()


def test_known_answers(native):
    for case in VECTORS["picks"]:
        generator = np.random.default_rng(case["logits_seed"])
        logits = (np.round(generator.standard_normal(case["size"]) * 3 * 4) / 4).astype(np.float32)
        params = SamplingParams(True, case["temperature"], case["top_k"], case["top_p"])
        count = len(case["picked"])
        (x,) = on(native, torch.from_numpy(logits).expand(count, -1))
        rows = pack_rows([SamplerRow(params, case["seed"])] * count, native.device)
        frames = torch.arange(count, dtype=torch.int32, device=native.device)
        assert sample(native, x, rows, frames, case["codebook"]).tolist() == case["picked"]


def test_weights_equal_the_definition(native, rng):
    """Three million values: all magnitudes, and every float near a border of the formula."""
    every = torch.arange(-(2**31), -(2**31) + 0x7F800001, 750, dtype=torch.int64).to(torch.int32).view(torch.float32)
    borders = torch.tensor([-17.0, -0.0, *(-(n + 0.5) / np.log2(np.e) for n in range(25))]).view(torch.int32)
    near = (borders[:, None] + torch.arange(-300, 301, dtype=torch.int32)).view(torch.float32).flatten()
    some = torch.from_numpy(-rng.uniform(0, 17.5, 100_000).astype(np.float32))
    x = torch.cat((every, near[near <= 0], some, torch.tensor([0.0, -torch.inf, -(2.0**-149), -3.4e38])))
    got = exp_weights(native, x.to(native.device)).cpu()
    assert x.numel() > 2_900_000
    assert torch.equal(got, defined_weights(x))


def test_what_is_not_finite_is_reported_and_harms_no_other_row(native, rng):
    logits = torch.from_numpy(rng.standard_normal((8, 2048)).astype(np.float32))
    logits[1, 7], logits[2, 2047], logits[3, 100], logits[4] = torch.nan, torch.inf, -torch.inf, -torch.inf
    logits[5, 9] = -torch.nan
    sampled, greedy = SamplingParams(True, 0.9, 50, 1.0), SamplingParams(False, 0.9, 50, 1.0)
    frames = [3] * 8
    for params, wanted in ((sampled, [0, 3, 3, 1, 3, 3, 0, 0]), (greedy, [0, 3, 1, 1, 1, 3, 0, 0])):
        rows = [SamplerRow(params, 11 + i) for i in range(8)]
        status = torch.zeros(8, dtype=torch.int32, device=native.device)
        seen = torch.zeros(8, 2048, dtype=torch.bool, device=native.device)
        got = sample(
            native, logits.to(native.device), pack_rows(rows, native.device),
            torch.tensor(frames, dtype=torch.int32, device=native.device), 2, seen=seen, status=status,
        )  # fmt: skip
        assert status.tolist() == wanted
        assert NOT_FINITE | NO_PICK == 3
        picked = [i for i in range(8) if not wanted[i] & NO_PICK]
        want = sample_reference(logits[picked], [rows[i] for i in picked], [3] * len(picked), 2)
        assert got[picked].tolist() == want.tolist()
        assert all(got[i] == 0 and not seen[i].any() for i in range(8) if i not in picked)
        assert all(seen[i].nonzero().flatten().tolist() == [int(got[i])] for i in picked)


def test_rows_may_lie_apart_and_results_go_where_asked(native, rng):
    wide = torch.from_numpy(rng.standard_normal((6, 500)).astype(np.float32))
    rows = [SamplerRow(SamplingParams(True, 1.0, 20, 0.9), i) for i in range(6)]
    (x,) = on(native, wide)
    out = torch.full((6,), -1, dtype=torch.int64, device=native.device)
    frames = torch.arange(6, dtype=torch.int32, device=native.device)
    result = sample(native, x[:, 3:300], pack_rows(rows, native.device), frames, 4, out=out)
    assert result is out
    assert torch.equal(out.cpu(), sample_reference(wide[:, 3:300], rows, list(range(6)), 4))
    nothing = sample(native, x[:0], pack_rows([], native.device), frames[:0], 4)
    assert nothing.shape == (0,)


def test_wrong_arguments_are_refused(native):
    rows = pack_rows([SamplerRow(SamplingParams(True, 1.0, 5, 1.0), 1)] * 2, native.device)
    frames = torch.zeros(2, dtype=torch.int32, device=native.device)
    x = torch.zeros(2, 100, device=native.device)
    mask = torch.zeros(2, 100, dtype=torch.bool, device=native.device)
    for problem, arguments, settings in (
        ("logits is float64", (x.double(), rows, frames, 0), {}),
        ("rows of 8193, expected 1 to 8192", (torch.zeros(2, 8193, device=native.device), rows, frames, 0), {}),
        ("rows has the shape", (x, rows[:1], frames, 0), {}),
        ("frames is int64", (x, rows, frames.long(), 0), {}),
        ("stride 2", (x[:, ::2], rows, frames, 0), {}),
        ("seen has the shape", (x, rows, frames, 0), {"seen": mask[:1]}),
        ("suppressed is float32", (x, rows, frames, 0), {"suppressed": x[0]}),
        ("eos_id is 100", (x, rows, frames, 0), {"eos_id": 100}),
        ("out is int32", (x, rows, frames, 0), {"out": frames}),
        ("status shares memory with frames", (x, rows, frames, 0), {"status": frames}),
        ("codebook is 1.5", (x, rows, frames, 1.5), {}),
    ):
        with pytest.raises(KernelArgumentError, match=problem):
            sample(native, *arguments, **settings)
