"""What `qwen3tts bench` measures, on a tiny model: counts and consistency, not times."""

import statistics

import pytest
import torch

import qwen3tts
from qwen3tts.benchmark import floor, speed
from qwen3tts.benchmark.floor import frame_bytes, read_bandwidth
from qwen3tts.benchmark.machine import describe
from qwen3tts.benchmark.speed import BenchSettings, batch_requests, bench_spec, measure, timed_frames
from qwen3tts.errors import CapacityError, OptionError


@pytest.fixture(scope="module", params=["custom_voice", "voice_design", "base"])
def tts(tiny_checkpoint, request):
    folder = tiny_checkpoint(request.param, preset="tiny-mtp")
    with qwen3tts.load(folder, backend="cpu", runtime=qwen3tts.RuntimeOptions(max_streams=3)) as loaded:
        yield loaded


def test_the_report(tts):
    settings = BenchSettings((1, 3), frames=3, context=0, warmup=1, iterations=2)
    lines = []
    found = measure(tts, settings, lines.append)
    assert lines == ["1 row", "3 rows"]
    one = found["one_row"]
    assert one["first_codes_ms"] == pytest.approx(statistics.median(one["first_codes_ms_runs"]), abs=1e-4)
    assert 0 < one["prefill_ms"] < one["first_codes_ms"]
    assert [row["rows"] for row in found["batches"]] == [1, 3]
    for row in found["batches"]:
        assert len(row["ms_per_frame_runs"]) == 2
        assert row["rows_that_ended_early"] == 0
        assert row["frames_per_second"] == pytest.approx(1e3 * row["rows"] / row["ms_per_frame"], rel=1e-2)
        assert row["rtf"] == pytest.approx(row["ms_per_frame"] / 80 / row["rows"], rel=1e-2)
        assert row["process_peak_bytes"] > 1e7
    assert set(found["definitions"]) >= {"ms_per_frame", "rtf", "first_codes_ms"}
    assert tts.engine.runtime.frames.free_slots() == 3
    machine = describe(tts)
    assert (machine["device"], machine["backend"], machine["model"]["dtype"]) == ("cpu", "torch", "float32")


def test_the_frames_that_are_timed(tts, monkeypatch):
    settings, asked = BenchSettings((2,), frames=5, context=0), []
    (request, other), before = batch_requests(tts, settings, 2)
    assert before == 0
    assert (request.max_frames, other.seed - request.seed) == (5, 1)
    longer = BenchSettings((1,), frames=5, context=len(request.prefill) + 4)
    ((request,), before) = batch_requests(tts, longer, 1)
    assert (before, request.max_frames) == (4, 9)

    decoder, advance = tts.engine.runtime.frames, tts.engine.runtime.frames.advance
    monkeypatch.setattr(decoder, "advance", lambda n, slots: (asked.append(n), advance(n, slots))[1])
    monkeypatch.setattr(decoder, "frames_per_call", 2)
    slots = decoder.admit([request])
    seconds, made = timed_frames(decoder, slots, 5)
    assert asked == [2, 2, 1]
    assert made == [5]
    assert seconds > 0
    assert timed_frames(decoder, slots, 100)[1] == [4]
    decoder.release(slots[0])


def test_more_rows_than_there_is_room_for(tts):
    with pytest.raises(CapacityError, match="streams for 3 of 4 texts"):
        measure(tts, BenchSettings((4,), frames=2, iterations=1))
    assert tts.engine.runtime.frames.free_slots() == 3


def test_a_context_that_does_not_fit_is_named(tts):
    too_long = r"a context of 1000000 and 7 frames .* needs \d{7} positions"
    with pytest.raises(CapacityError, match=too_long):
        measure(tts, BenchSettings((1,), frames=7, context=1_000_000, iterations=1))
    assert tts.engine.runtime.frames.free_slots() == 3


def test_rows_that_end_early_count_what_they_made(tts, monkeypatch):
    monkeypatch.setattr(speed, "timed_frames", lambda decoder, slots, frames: (0.5, [10, 4]))
    (batch,) = measure(tts, BenchSettings((2,), frames=100, iterations=2, warmup=0))["batches"]
    assert batch["ms_per_frame"] == 50.0
    assert batch["frames_per_second"] == 28.0
    assert batch["rtf"] == round(0.5 / (0.08 * 14), 5)
    assert batch["rows_that_ended_early"] == 2
    monkeypatch.setattr(speed, "timed_frames", lambda decoder, slots, frames: (0.5, [0, 0]))
    with pytest.raises(OptionError, match="ended before the frames that were to be timed"):
        measure(tts, BenchSettings((2,), frames=100, iterations=2, warmup=0))
    assert tts.engine.runtime.frames.free_slots() == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("batches", ()), ("batches", (1, 0)), ("frames", 0), ("context", -1), ("warmup", -1), ("iterations", 0)],
)
def test_settings_that_make_no_sense(name, value):
    with pytest.raises(OptionError, match="expected"):
        BenchSettings(**{name: value})


def test_a_row_as_generate_makes_it(tts):
    spec = bench_spec(tts, "Good morning.", 3, seed=9)
    alone = tts.engine.speak([spec])[0]
    assert (alone.frames, alone.seed) == (3, 9)


# ---------------------------------------------------------------- the floor


def test_bytes_of_a_frame(tts):
    talker = tts.engine.runtime.talker
    sizes = {name: p.numel() * p.element_size() for name, p in talker.named_parameters()}

    def of(*parts):
        return sum(size for name, size in sizes.items() if name.startswith(parts))

    predictor = "code_predictor."
    passes = of(predictor + "model.layers", predictor + "model.norm") * 15
    once = of(predictor + "lm_head", predictor + "small_to_mtp_projection")
    found = frame_bytes(talker, 4, 10)
    assert found.predictor == passes + once
    assert found.talker == of("model.layers", "model.norm", "codec_head")
    t = talker.config.transformer
    assert found.keys_and_values == 4 * 10 * 2 * t.num_layers * t.num_kv_heads * t.head_dim * 4
    assert found.total == found.predictor + found.talker + found.keys_and_values


def test_the_bandwidth_is_a_speed(monkeypatch):
    monkeypatch.setitem(floor.PROBE_BYTES, "cpu", 1 << 20)
    assert 1e6 < read_bandwidth(torch.device("cpu"), repeats=1) < 1e14
