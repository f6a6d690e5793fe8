"""The stages of the plain decoder's frames: each second in one stage, and nothing left behind."""

import numpy as np
import pytest

import qwen3tts
from qwen3tts import GenerateOptions
from qwen3tts.benchmark.speed import BenchSettings
from qwen3tts.benchmark.stages import PREDICTOR_STAGES, StageClock, measure_stages

OPTIONS = GenerateOptions(max_frames=4)


@pytest.fixture(scope="module", params=["tiny", "tiny-mtp"])
def tts(tiny_checkpoint, request):
    with qwen3tts.load(tiny_checkpoint(preset=request.param), backend="cpu") as loaded:
        yield loaded


def test_time_belongs_to_the_innermost_stage():
    now, waits = [0.0], []
    clock = StageClock(lambda: waits.append(now[0]), lambda: now[0])

    def spend(seconds):
        now[0] += seconds

    spend(100)  # outside of all stages
    with clock.stage("a"):
        spend(1)
        with clock.stage("b"):
            spend(2)
            clock.wrapped("c", spend)(4)
        spend(8)
        with pytest.raises(KeyError):
            clock.wrapped("b", lambda: (spend(16), {}["missing"]))()
    spend(100)
    assert clock.seconds == {("a",): 9, ("a", "b"): 18, ("a", "b", "c"): 4}
    assert (clock.total("a"), clock.total("a", "b"), clock.total("x")) == (31, 22, 0)
    assert len(waits) == 8


def test_the_report_and_that_the_model_is_left_as_it_was(tts):
    before = tts.generate("Good morning.", "ryan", options=OPTIONS)
    parts = [*tts.engine.runtime.talker.modules()]
    hooks = [(len(part._forward_pre_hooks), len(part._forward_hooks)) for part in parts]
    found = measure_stages(tts, BenchSettings((1, 2), frames=3, iterations=1), bandwidth=1e9)
    assert (found["bytes_per_second"], found["bandwidth"]) == (10**9, "given")
    for rows, row in zip((1, 2), found["batches"], strict=True):
        ms, inside = row["ms_per_frame"], row["predictor_ms"]
        assert row["rows"] == rows
        assert ms["with borders"] == pytest.approx(ms["predictor"] + ms["step_input"] + ms["talker"], abs=1e-3)
        assert sum(inside.values()) == pytest.approx(ms["predictor"], abs=1e-3)
        assert set(inside) == {*PREDICTOR_STAGES, "other"}
        assert min(*inside.values(), ms["step_input"], row["prefill_ms"], row["prepare_ms"]) > 0
        assert inside["stack"] > inside["logits"]
        whole = 1e3 * row["bytes_per_frame"] / 1e9
        assert sum(row["floor_ms"].values()) == pytest.approx(whole, abs=1e-3)
        assert row["time_over_floor"]["frame"] == pytest.approx(ms["frame"] / whole, rel=0.02)
    assert [(len(part._forward_pre_hooks), len(part._forward_hooks)) for part in parts] == hooks
    picker = tts.engine.runtime.frames.picker
    assert not {"predictor", "talker"} & set(vars(picker))
    assert np.array_equal(tts.generate("Good morning.", "ryan", options=OPTIONS).codes, before.codes)
