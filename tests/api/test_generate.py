"""generate(): rows do not depend on each other, seeds decide, limits are kept."""

import pickle
import random
import threading

import numpy as np
import pytest
import torch

import qwen3tts
from qwen3tts import GenerateOptions, RuntimeOptions, Voice

TEXTS = [
    "Hello.",
    "The voice speaks to the world and to the user, and on and on.",
    "今日は晴れ",
    "Größe: 12 Stück?",
    "A",
]
GREEDY = {"do_sample": False, "subtalker_dosample": False}


def same(a, b):
    return np.array_equal(a.codes, b.codes) and a.finish_reason == b.finish_reason


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("fixture", ["tts", "ending_tts"])
def test_batch_of_five_equals_five_single_runs(request, fixture, sampled, seed):
    tts = request.getfixturevalue(fixture)
    pick = random.Random(seed)
    languages = [pick.choice(tts.languages) for _ in TEXTS]
    voices = [pick.choice(tts.voices) for _ in TEXTS]
    modes = [pick.choice(["whole", "streamed"]) for _ in TEXTS]
    options = [
        GenerateOptions(
            seed=pick.randrange(2**64), max_frames=pick.randrange(3, 24), text_mode=mode, **({} if sampled else GREEDY)
        )
        for mode in modes
    ]
    batch = tts.generate(TEXTS, voices, languages, options=options)
    singles = [tts.generate(*row[:3], options=row[3]) for row in zip(TEXTS, voices, languages, options, strict=True)]
    assert len({speech.frames for speech in batch}) > 1, "rows should end at different times"
    for row, single in zip(batch, singles, strict=True):
        assert same(row, single)
        assert float(np.abs(row.samples - single.samples).max()) <= 1e-5


@pytest.mark.parametrize(("preset", "dtype"), [("tiny", "float32"), ("tiny-mtp", "float32"), ("tiny", "bfloat16")])
def test_logits_of_a_row_are_bit_equal_alone_and_in_a_batch(tiny_checkpoint, preset, dtype, seed):
    options = [GenerateOptions(seed=seed + i, max_frames=5, subtalker_top_k=0) for i in range(len(TEXTS))]
    with qwen3tts.load(tiny_checkpoint(preset=preset), backend="cpu", dtype=dtype) as tts:
        talker, seen = tts.engine.runtime.talker, []
        original = talker.logits
        talker.logits = lambda hidden: seen.append(original(hidden)) or seen[-1]
        tts.generate(TEXTS, "ryan", options=options, decode=False)
        batch = seen[len(TEXTS) :]  # after one prompt each
        assert [len(step) for step in batch] == [len(TEXTS)] * 5
        for i, text in enumerate(TEXTS):
            seen.clear()
            tts.generate(text, "ryan", options=options[i], decode=False)
            assert all(torch.equal(alone[0], together[i]) for alone, together in zip(seen[1:], batch, strict=True))


def test_rows_with_different_sampling_settings(tts, seed):
    options = [
        GenerateOptions(seed=seed, max_frames=9, top_k=0, top_p=0.7),
        GenerateOptions(seed=seed, max_frames=9, do_sample=False),
        GenerateOptions(seed=seed + 1, max_frames=4, subtalker_temperature=0.3, repetition_penalty=1.7),
    ]
    batch = tts.generate(TEXTS[:3], "ryan", options=options)
    for text, option, row in zip(TEXTS, options, batch, strict=False):
        assert same(row, tts.generate(text, "ryan", options=option))


def test_more_texts_than_streams(tiny_checkpoint, seed):
    options = [GenerateOptions(seed=seed + i, max_frames=3 + 5 * (i % 2)) for i in range(7)]
    with qwen3tts.load(tiny_checkpoint(eos_gain=0), backend="cpu", runtime=RuntimeOptions(max_streams=2)) as narrow:
        queued = narrow.generate(["Hello."] * 7, "ryan", options=options)
        assert [speech.frames for speech in queued] == [3, 8, 3, 8, 3, 8, 3]
        assert all(
            same(row, narrow.generate("Hello.", "ryan", options=o)) for row, o in zip(queued, options, strict=True)
        )


def test_seeds(tts):
    def codes(seed):
        return tts.generate("Hello.", "ryan", options=GenerateOptions(seed=seed, max_frames=6))

    assert same(codes(7), codes(7))
    assert not same(codes(7), codes(8))
    assert not same(codes(7), codes(7 + 2**32)), "the upper half of the seed counts too"
    drawn = tts.generate(["Hello."] * 2, "ryan", options=GenerateOptions(seed=None, max_frames=6))
    assert drawn[0].seed != drawn[1].seed
    assert all(same(row, codes(row.seed)) for row in drawn)


def test_finish_reasons_and_limits(ending_tts, tts):
    whole = ending_tts.generate("Hello world.", "vivian", options=GenerateOptions(seed=3))
    assert (whole.finish_reason, whole.complete) == ("eos", True)
    assert 2 <= whole.frames < 60
    exact = ending_tts.generate("Hello world.", "vivian", options=GenerateOptions(seed=3, max_frames=whole.frames))
    assert exact.finish_reason == "eos", "one more token is drawn after the last frame, and it is the end"
    assert np.array_equal(exact.codes, whole.codes)
    cut = ending_tts.generate("Hello world.", "vivian", options=GenerateOptions(seed=3, max_frames=whole.frames - 1))
    assert (cut.finish_reason, cut.complete) == ("length", False)
    assert np.array_equal(cut.codes, whole.codes[:-1])
    assert tts.generate("Hi", "ryan", options=GenerateOptions(max_frames=1)).frames == 1


def test_default_limit_is_a_budget_for_the_text(tts, monkeypatch):
    monkeypatch.setattr("qwen3tts.runtime.length.EXTRA_FRAMES", 3)
    monkeypatch.setattr("qwen3tts.runtime.length.FRAMES_PER_TOKEN", 2)
    assert tts.generate("Hi", "ryan", decode=False).frames == 3 + 2 * 2
    monkeypatch.setattr("qwen3tts.runtime.length.EXTRA_FRAMES", 10_000)
    monkeypatch.setitem(tts.engine.__dict__, "max_new_tokens", 9)
    assert tts.generate("Hi", "ryan", decode=False).frames == 8


def test_text_modes_give_different_prompts_and_lookahead_counts(tts):
    def codes(**options):
        return tts.generate(TEXTS[1], "ryan", options=GenerateOptions(max_frames=5, **GREEDY, **options)).codes

    assert np.array_equal(codes(), codes(text_mode="whole"))
    streamed = codes(text_mode="streamed")
    assert np.array_equal(streamed, codes(text_mode="streamed", text_lookahead_tokens=8))
    assert not np.array_equal(streamed, codes(text_mode="streamed", text_lookahead_tokens=1))
    assert not np.array_equal(streamed, codes())


def test_x_vector_voices(base_tts, seed):
    rng = np.random.default_rng(seed)
    a, b = (Voice.from_x_vector(rng.standard_normal(64).astype(np.float32)) for _ in range(2))
    options = GenerateOptions(max_frames=5)
    spoken = base_tts.generate(["Hello."] * 2, [a, b], options=options)
    assert not np.array_equal(spoken[0].codes, spoken[1].codes)
    assert same(spoken[1], base_tts.generate("Hello.", b, options=options))
    streamed = base_tts.generate("Hello.", b, options=options.replace(text_mode="streamed", text_lookahead_tokens=8))
    assert same(spoken[1], streamed), "clones stream their text by default"


def test_design_and_instruct(design_tts, instructable_tts):
    options = GenerateOptions(max_frames=4, **GREEDY)
    low = design_tts.generate("Hello.", instruct="A low voice.", options=options)
    high = design_tts.generate("Hello.", instruct="A high voice.", options=options)
    assert not np.array_equal(low.codes, high.codes)
    plain = instructable_tts.generate("Hello.", "ryan", options=options)
    told = instructable_tts.generate("Hello.", "ryan", instruct="Whisper.", options=options)
    assert not np.array_equal(plain.codes, told.codes)


def test_decode_options(tts):
    options = GenerateOptions(max_frames=4)
    speech = tts.generate("Hello.", "ryan", options=options)
    assert speech.samples.dtype == np.float32
    assert speech.samples.shape == (speech.frames * 1920,)
    assert speech.codes.dtype == np.int16
    assert speech.duration == speech.frames * 0.08
    assert tts.generate("Hello.", "ryan", options=options, decode=False).samples.size == 0
    official = tts.generate("Hello.", "ryan", options=options.replace(codec_chunking="official"))
    assert float(np.abs(official.samples - speech.samples).max()) <= 1e-5


def test_progress_is_told_between_frames(tts):
    events = []
    tts.generate(["Hello.", "Hi"], "ryan", options=GenerateOptions(max_frames=5), progress=events.append)
    generated = [event.frames_done for event in events if event.stage == "generate"]
    assert generated == [2, 4, 6, 8, 10]
    assert [(e.frames_done, e.frames_limit) for e in events if e.stage == "decode"] == [(5, 10), (10, 10)]


def test_an_interrupted_call_leaves_nothing_behind(tts):
    def stop(event):
        if event.frames_done == 3:
            raise KeyboardInterrupt

    before = tts.engine.runtime.frames.free_slots()
    reference = tts.generate("Hello.", "ryan", options=GenerateOptions(max_frames=5))
    with pytest.raises(KeyboardInterrupt):
        tts.generate("Hello.", "ryan", options=GenerateOptions(max_frames=50), progress=stop)
    assert tts.engine.runtime.frames.free_slots() == before
    assert same(reference, tts.generate("Hello.", "ryan", options=GenerateOptions(max_frames=5)))


def test_threads_queue(tts):
    options = [GenerateOptions(seed=i, max_frames=6) for i in range(6)]
    expected = [tts.generate("Hello.", "ryan", options=option) for option in options]
    found = [None] * 6

    def run(i):
        found[i] = tts.generate("Hello.", "ryan", options=options[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))


def test_closing(tiny_checkpoint):
    tts = qwen3tts.load(tiny_checkpoint(), backend="torch", device="cpu")
    tts.warmup()
    with tts:
        pass
    tts.close()
    with pytest.raises(qwen3tts.Qwen3TTSError, match="closed"):
        tts.generate("Hello.", "ryan")


def test_one_line(tiny_checkpoint, tmp_path):
    speech = qwen3tts.generate(
        "Hello.", model=tiny_checkpoint(), voice="ryan", options=GenerateOptions(max_frames=2), backend="cpu"
    )
    speech.save(tmp_path / "x.wav")
    assert (tmp_path / "x.wav").stat().st_size == 44 + 2 * 2 * 1920
    assert "data:audio/wav;base64," in speech._repr_html_()
    again = pickle.loads(pickle.dumps(speech))
    assert same(again, speech)
    assert np.array_equal(again.samples, speech.samples)
    assert again.timings == speech.timings


def test_official_draws(tts, seed):
    options = GenerateOptions(rng="torch", seed=seed, max_frames=5)
    first = tts.generate("Hello.", "ryan", options=options)
    assert same(first, tts.generate("Hello.", "ryan", options=options))
    assert not np.array_equal(first.codes, tts.generate("Hello.", "ryan", options=options.replace(rng="philox")).codes)
    with pytest.raises(qwen3tts.OptionError, match="one text at a time"):
        tts.generate(["Hello.", "Hi"], "ryan", options=options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes_run_and_stay_near(tiny_checkpoint, tts, dtype):
    options = GenerateOptions(max_frames=3, **GREEDY)
    with qwen3tts.load(tiny_checkpoint(), backend="cpu", dtype=dtype) as narrow:
        assert narrow.engine.runtime.talker.codec_head.weight.dtype.is_floating_point
        assert str(narrow.engine.runtime.talker.codec_head.weight.dtype) == "torch.float32"
        wide, short = (model.generate("Hello.", "ryan", options=options) for model in (tts, narrow))
    assert wide.codes[0, 0] == short.codes[0, 0], "the first greedy code has a wide margin here"


def test_calls_inside_a_progress_callback(tts):
    option, inner, closed = GenerateOptions(max_frames=4), [], []

    def nested(event):
        if event.stage == "generate" and not inner:
            inner.append(tts.generate("Hi", "vivian", options=option))
            with pytest.raises(qwen3tts.Qwen3TTSError, match="progress callback"):
                tts.close()
            closed.append(True)

    outer = tts.generate(["Hello.", "Good."], "ryan", options=option, progress=nested)
    assert closed
    assert same(inner[0], tts.generate("Hi", "vivian", options=option))
    assert same(outer[1], tts.generate("Good.", "ryan", options=option))


def test_rows_wait_for_memory_and_impossible_ones_are_refused_first(tiny_checkpoint):
    per_position = 2 * 2 * 2 * 16 * 4  # keys and values, 2 layers, 2 heads of 16, float32
    limits = RuntimeOptions(kv_bytes=40 * per_position)
    option = GenerateOptions(max_frames=5)
    with qwen3tts.load(tiny_checkpoint(), backend="cpu", runtime=limits) as small:
        together = small.generate(["Hello."] * 4, "ryan", options=option)
        assert all(same(row, small.generate("Hello.", "ryan", options=option)) for row in together)
        events = []
        with pytest.raises(qwen3tts.CapacityError, match="kv_bytes"):
            small.generate(["Hello.", "Hello. " * 9], "ryan", options=option, progress=events.append)
        assert not events


def test_an_interrupt_between_admission_and_record_leaks_nothing(tts, monkeypatch):
    decoder = tts.engine.runtime.frames
    admit, free = decoder.admit, decoder.free_slots()

    def interrupted(rows):
        admit(rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder, "admit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tts.generate(["Hello.", "Hi"], "ryan", options=GenerateOptions(max_frames=4))
    assert decoder.free_slots() == free
