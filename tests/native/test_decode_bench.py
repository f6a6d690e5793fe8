"""scripts/bench_decode.py and bench_decode_sizes.py on a small model: what is asked for is timed, on the same work."""

from dataclasses import replace
from types import SimpleNamespace

import bench_decode
import bench_decode_sizes
import pytest
import torch
from decode_checks.drawing import talker_config
from decode_checks.timing import Rewind, frame_milliseconds

from qwen3tts.backends.native.decode.capture import PROMPT_COLUMNS, Captured
from qwen3tts.backends.native.decode.weights import store_for_kernels

WAVES = (64,)
PROMPTS = {f"prompts of {columns}" for columns in PROMPT_COLUMNS}
SLOTS, GROUPS, CONTEXTS = 4, 3, (2, 8)


@pytest.fixture(scope="module")
def config():
    config = talker_config("tiny-mtp")
    thin = replace(config.transformer, num_layers=1)
    inner = replace(config.code_predictor, transformer=replace(config.code_predictor.transformer, num_layers=1))
    return replace(config, transformer=thin, code_predictor=inner, num_code_groups=GROUPS)


@pytest.fixture
def sizes(native, config):
    return bench_decode_sizes.Sizes(native, config, slots=SLOTS, contexts=CONTEXTS)


def test_page_sizes(sizes):
    found = sizes.pages([8, 32], [1, 4, 64], frames=2, runs=2)
    assert [entry["page"] for entry in found] == [8, 32]
    needed = found[0]["positions_needed"]
    assert SLOTS * (CONTEXTS[0] + 3) <= needed <= SLOTS * (CONTEXTS[1] + 3)
    for entry in found:
        assert set(entry["ms_per_frame"]) == {"1", "4"}
        assert min(entry["ms_per_frame"].values()) > 0
        assert [len(runs) for runs in entry["ms_per_frame_runs"].values()] == [2, 2]
        assert 0 <= entry["positions_wasted"] < SLOTS * entry["page"]
        assert (needed + entry["positions_wasted"]) % entry["page"] == 0
    assert found[0]["positions_wasted"] < found[1]["positions_wasted"]


def test_row_buckets(sizes):
    found = sizes.buckets({"two": (2,), "all": (1, 2, 3)}, frames=1, runs=1)
    assert list(found["ms_per_frame"]) == ["1", "2", "3", "4"]
    assert set(found["in_a_bucket"]) == {"1 in 1", "1 in 2", "2 in 2", "3 in 3", "3 in 4", "4 in 4"}
    two, every = found["sets"]["two"], found["sets"]["all"]
    assert (two["buckets"], two["graphs"]) == ([2, 4], 4)
    assert (every["buckets"], every["graphs"]) == ([1, 2, 3, 4], 8)
    graphs = [Captured(rows, frames, 1, 1.0, 0) for rows, frames in ((16, 1), (16, 4), (16, 0), (4, 1))]
    times = {(bucket, rows): 1.0 for rows in range(1, SLOTS + 1) for bucket in (rows, 16)}
    assert sizes._cost(SimpleNamespace(captured=graphs), (16,), times)["graphs"] == 2
    assert 0 < two["capture_seconds"] <= every["capture_seconds"]
    assert every["mean_over_alone"] == every["worst_over_alone"][1] == 1


def test_rows_are_taken_back_to_their_contexts(sizes):
    rows = sizes.rows(3)
    core = sizes.core(8, (2,), [20] * SLOTS)
    slots = core.admit(rows)
    before, rewind = core.state.counters.clone(), Rewind(core)
    for count in (SLOTS, 2):
        frame_milliseconds(core, slots[:count], 2)
        assert not torch.equal(core.state.counters, before)
        rewind()
        assert torch.equal(core.state.counters, before)
    with pytest.raises(SystemExit, match="expected 4 of each of 1 rows"):
        frame_milliseconds(core, slots[:1], 4)
    core.close()


def test_speed_with_prefill(native, config, monkeypatch):
    for name, value in (("CONTEXT", 6), ("RUN", 2), ("RUNS", 2), ("PROMPT", 4), ("PROMPT_RUNS", 1)):
        monkeypatch.setattr(bench_decode, name, value)
    bench = bench_decode.Bench(native, config)
    talker = bench_decode.draw_talker(config, torch.bfloat16, native.device)
    store_for_kernels(talker)
    one, launched, two = (
        bench.speed(talker, rows, 2, launched=off) for rows, off in ((1, False), (1, True), (2, False))
    )
    assert set(one["prefill"]) == {"events_ms", "host_ms", "first_codes_ms"}
    assert launched["launches"].keys() == one["launches"].keys() == {"1 x 1", "1 x 2", *PROMPTS}
    assert launched["persistent_predictor"] != "in use"
    assert (two["prefill"], len(two["ms_per_frame_runs"])) == (None, 2)
