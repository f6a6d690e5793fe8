"""Text in pieces: the same codes as the whole text, however it is cut and whoever pushes it."""

import gc
import random
import threading

import numpy as np
import pytest

import qwen3tts
from qwen3tts import AudioChunk, Finished, GenerateOptions, NeedMoreText, RuntimeOptions, TextStreamOptions, Voice
from qwen3tts.errors import CapacityError, OptionError, TextError

TEXTS = [
    "The voice speaks to the world, and to the user; and on and on.",
    "其实我真的有发现，我是一个特别善于观察别人情绪的人。你好。",
    "สวัสดีครับ ยินดีที่ได้รู้จัก",
    "Great job 🎉🔥 see 👩‍🚀 you e\u0301 a\u0315\u0301 한국어 \u1112\u1161\u11ab!",
    "Hi",
]


def chop(text, rng):
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(0, 9)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def speak(stream, pieces, rng):
    """Pushes the pieces in between random polls; returns the chunks."""
    chunks, waiting = [], list(pieces)
    while True:
        if waiting and rng.random() < 0.5:
            stream.push_text(waiting.pop(0))
            if not waiting:
                stream.finish()
            continue
        result = stream.poll()
        if isinstance(result, AudioChunk):
            chunks.append(result)
        elif isinstance(result, Finished):
            return chunks
        elif waiting:
            stream.push_text(waiting.pop(0))
            if not waiting:
                stream.finish()
        else:
            assert isinstance(result, NeedMoreText)
            raise AssertionError("the text is complete, but the stream wants more")


def codes_of(chunks):
    return np.concatenate([chunk.codes for chunk in chunks])


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_any_chopping_gives_the_codes_of_the_whole(ending_tts, text, flush, seed):
    rng = random.Random(f"{seed} {text} {flush}")
    for _ in range(4):
        options = GenerateOptions(seed=rng.randrange(2**64), max_frames=40)
        settings = TextStreamOptions(
            min_start_tokens=rng.randrange(1, 12),
            min_resume_tokens=rng.randrange(1, 4),
            flush_on_punctuation=flush,
            chunk_frames=(1, 3),
        )
        stream = ending_tts.open_text_stream("ryan", "english", options=options, stream_options=settings)
        chunks = speak(stream, chop(text, rng), rng)
        if not flush:
            assert stream.lookahead <= settings.min_start_tokens
        whole = ending_tts.generate(
            text,
            "ryan",
            "english",
            options=options.replace(text_mode="streamed", text_lookahead_tokens=stream.lookahead),
        )
        assert np.array_equal(codes_of(chunks), whole.codes)
        assert float(np.abs(np.concatenate([c.samples for c in chunks]) - whole.samples).max()) <= 1e-5
        assert stream.finish_reason == whole.finish_reason
        assert stream.exact


def test_default_limit_is_the_whole_texts_budget(tts, monkeypatch):
    monkeypatch.setattr("qwen3tts.runtime.length.EXTRA_FRAMES", 3)
    monkeypatch.setattr("qwen3tts.runtime.length.FRAMES_PER_TOKEN", 2)
    stream = tts.open_text_stream("ryan", stream_options=TextStreamOptions(min_start_tokens=1))
    stream.push_text("Hello world and ")
    chunks = [stream.poll()]
    stream.push_text("on.")
    stream.finish()
    chunks += list(stream)
    whole = tts.generate(
        "Hello world and on.", "ryan", options=GenerateOptions(text_mode="streamed", text_lookahead_tokens=1)
    )
    assert np.array_equal(codes_of(chunks), whole.codes)
    assert stream.finish_reason == whole.finish_reason == "length"


def test_a_starved_row_pauses_and_writes_nothing(tts):
    settings = TextStreamOptions(min_start_tokens=2, min_resume_tokens=2, chunk_frames=(4,))
    with tts.open_text_stream("ryan", options=GenerateOptions(max_frames=30), stream_options=settings) as stream:
        assert isinstance(stream.poll(), NeedMoreText)
        stream.push_text("Hello world ")
        assert isinstance(stream.poll(), NeedMoreText), "the prompt has run, but frame 0 needs the third token"
        assert stream.lookahead == 2
        row = next(reversed(tts.engine.runtime.frames._rows.values()))

        def state():
            return row.frames, row.cache.length, row.first_word, int(row.token), row.seen.sum().item()

        before, keys = state(), row.cache.keys[..., : row.cache.length, :].clone()
        for text in ("", "and", " "):  # "and" settles with the space: one token, two are asked for
            stream.push_text(text)
            assert isinstance(stream.poll(), NeedMoreText)
        assert state() == before
        assert np.array_equal(row.cache.keys[..., : row.cache.length, :].numpy(), keys.numpy())
        stream.push_text("on and ")
        chunk = stream.poll()
        assert chunk.frames == 4, "and, space, on, and"
        assert isinstance(stream.poll(), NeedMoreText)


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_a_row_that_runs_dry_waits_for_min_resume_tokens(tts, chunk):
    settings = TextStreamOptions(min_start_tokens=2, min_resume_tokens=4, chunk_frames=(chunk,))
    with tts.open_text_stream("ryan", options=GenerateOptions(max_frames=60), stream_options=settings) as stream:

        def push(tokens):  # a digit is a token, and settles with the next one
            stream.push_text("7" * tokens)

        push(3 + 2 * chunk)
        assert [stream.poll().frames for _ in range(2)] == [chunk, chunk]
        for _ in range(3):
            push(1)
            assert isinstance(stream.poll(), NeedMoreText), "dry at a chunk's very end: four tokens are asked for"
        push(1)
        assert sum(stream.poll().frames for _ in range(-(-4 // chunk))) == 4
        push(3)
        assert isinstance(stream.poll(), NeedMoreText), "dry within or at the end of a chunk"
        stream.finish()
        assert stream.poll().frames == chunk, "complete: nothing to wait for"


def test_punctuation_starts_a_short_clause(tts):
    options = GenerateOptions(max_frames=4)
    with tts.open_text_stream("ryan", options=options) as stream:
        stream.push_text("Hello world")
        assert isinstance(stream.poll(), NeedMoreText)
        assert stream.lookahead is None
        stream.push_text(".")
        assert isinstance(stream.poll(), NeedMoreText), "the full stop itself may still become an ellipsis"
        assert stream.lookahead == 2
        stream.push_text(" And")
        assert stream.poll().frames == 1
    patient = TextStreamOptions(flush_on_punctuation=False, min_start_tokens=50)
    with tts.open_text_stream("ryan", options=options, stream_options=patient) as stream:
        stream.push_text("Hello world. And")
        assert isinstance(stream.poll(), NeedMoreText)
        assert stream.lookahead is None
        stream.finish()
        assert isinstance(stream.poll(), AudioChunk)


def test_a_thread_pushes_while_another_one_listens(ending_tts, seed):
    rng = random.Random(seed)
    stream = ending_tts.open_text_stream("ryan", options=GenerateOptions(seed=9))
    pieces = chop(TEXTS[0], rng)

    def produce():
        for piece in pieces:
            stream.push_text(piece)
        stream.finish()

    thread = threading.Thread(target=produce)
    thread.start()
    chunks = list(stream)
    thread.join()
    whole = ending_tts.generate(
        TEXTS[0],
        "ryan",
        options=GenerateOptions(seed=9, text_mode="streamed", text_lookahead_tokens=stream.lookahead),
    )
    assert np.array_equal(codes_of(chunks), whole.codes)


def test_closing_wakes_a_waiting_reader(tts):
    stream = tts.open_text_stream("ryan")
    found = []
    thread = threading.Thread(target=lambda: found.append(list(stream)))
    thread.start()
    stream.close()
    thread.join(30)
    assert found == [[]]
    with pytest.raises(TextError, match="closed"):
        stream.push_text("x")


def test_a_blank_text_ends_the_stream(tts):
    stream = tts.open_text_stream("ryan")
    stream.push_text("  \n")
    with pytest.raises(TextError):
        stream.finish()
    assert list(stream) == []


@pytest.mark.parametrize("settle", ["safe", "eager"])
@pytest.mark.parametrize("text", ["\u200b\u200b \u200b" * 5, "\x08\x0c\x07", "\ufeff \u200e\n"])
def test_invisible_text_is_refused_as_by_generate(tts, text, settle):
    slots = tts.engine.runtime.frames.free_slots()
    settings = TextStreamOptions(min_start_tokens=1, settle=settle)
    stream = tts.open_text_stream("ryan", options=GenerateOptions(max_frames=4), stream_options=settings)
    for char in text:
        stream.push_text(char)
        assert isinstance(stream.poll(), NeedMoreText)
    with pytest.raises(TextError) as refused:
        stream.finish()
    with pytest.raises(TextError) as refused_whole:
        tts.generate(text, "ryan")
    assert str(refused.value) == str(refused_whole.value)
    assert isinstance(stream.poll(), Finished)
    assert tts.engine.runtime.frames.free_slots() == slots


def test_slots_are_freed(tts):
    slots = tts.engine.runtime.frames.free_slots()
    stream = tts.open_text_stream("ryan", stream_options=TextStreamOptions(min_start_tokens=1))
    stream.push_text("Hello world ")
    stream.poll()
    assert tts.engine.runtime.frames.free_slots() == slots - 1
    del stream
    gc.collect()
    assert tts.engine.runtime.frames.free_slots() == slots


def test_a_slot_is_taken_when_the_speech_starts(tiny_checkpoint):
    options = GenerateOptions(max_frames=12)
    with qwen3tts.load(tiny_checkpoint(), backend="cpu", runtime=RuntimeOptions(max_streams=1)) as tts:
        frames = tts.engine.runtime.frames
        streams = [tts.open_text_stream("ryan", options=options) for _ in range(3)]
        assert frames.free_slots() == 1, "nothing is taken before there is text"
        streams[0].push_text("Hello world and on ")
        assert isinstance(streams[0].poll(), NeedMoreText)
        assert frames.free_slots() == 1
        streams[0].push_text("and on and on and on ")
        assert isinstance(streams[0].poll(), AudioChunk)
        assert frames.free_slots() == 0
        for _ in range(2):
            for stream in streams[1:]:
                stream.push_text("The user and the world: ")
                with pytest.raises(CapacityError, match="text is kept"):
                    stream.poll()
                with pytest.raises(CapacityError, match="text is kept"):
                    next(stream)
                assert stream.lookahead is None
        streams[1].push_text("on.")
        streams[1].finish()
        with pytest.raises(CapacityError):
            streams[1].poll()
        streams[0].close()
        chunks = list(streams[1])
        whole = tts.generate(
            "The user and the world: The user and the world: on.",
            "ryan",
            options=options.replace(text_mode="streamed", text_lookahead_tokens=streams[1].lookahead),
        )
        assert np.array_equal(codes_of(chunks), whole.codes)
        assert isinstance(streams[2].poll(), AudioChunk), "the end of the other has made room"


def test_a_text_that_never_fits_closes_the_stream(tiny_checkpoint):
    with qwen3tts.load(tiny_checkpoint(), backend="cpu", runtime=RuntimeOptions(kv_bytes=1)) as tts:
        stream = tts.open_text_stream("ryan", options=GenerateOptions(max_frames=12))
        stream.push_text("Hello world.")
        stream.finish()
        with pytest.raises(CapacityError, match="kv_bytes=1"):
            stream.poll()
        assert isinstance(stream.poll(), Finished)


def test_x_vector_voices_and_eager_text(base_tts, seed):
    voice = Voice.from_x_vector(np.random.default_rng(seed).standard_normal(64))
    stream = base_tts.open_text_stream(
        voice, options=GenerateOptions(max_frames=6), stream_options=TextStreamOptions(settle="eager")
    )
    stream.push_text("Hello wor")
    stream.push_text("ld.")
    stream.finish()
    assert codes_of(list(stream)).shape == (6, 16)
    assert not stream.exact


def test_what_a_text_stream_refuses(tts):
    for options in (GenerateOptions(text_mode="whole"), GenerateOptions(text_lookahead_tokens=3, text_mode="streamed")):
        with pytest.raises(OptionError, match="min_start_tokens"):
            tts.open_text_stream("ryan", options=options)
    for name, value in (("min_start_tokens", 0), ("min_resume_tokens", 0), ("settle", "x"), ("chunk_frames", ())):
        with pytest.raises(OptionError, match=name):
            TextStreamOptions(**{name: value})


def icl_voice(rng, frames):
    codes = rng.integers(0, 64, (frames, 16)).astype(np.int16)
    return Voice.from_reference(rng.standard_normal(64), codes, "The user and the world.")


@pytest.mark.parametrize("frames", [1, 4, 9, 40])
def test_voices_with_a_reference(base_tts, frames, seed):
    rng, cuts = np.random.default_rng([seed, frames]), random.Random(seed)
    voice = icl_voice(rng, frames)
    options = GenerateOptions(seed=seed, max_frames=12)
    whole = base_tts.generate(TEXTS[0], voice, options=options)
    for _ in range(3):
        stream = base_tts.open_text_stream(voice, options=options)
        chunks = speak(stream, chop(TEXTS[0], cuts), cuts)
        assert stream.lookahead is None
        assert np.array_equal(codes_of(chunks), whole.codes)
        assert float(np.abs(np.concatenate([c.samples for c in chunks]) - whole.samples).max()) <= 1e-5
    streamed = list(base_tts.stream(TEXTS[0], voice, options=options))
    assert np.array_equal(codes_of(streamed), whole.codes)
    assert float(np.abs(np.concatenate([c.samples for c in streamed]) - whole.samples).max()) <= 1e-5


def test_a_reference_makes_the_text_wait(base_tts, seed):
    voice = icl_voice(np.random.default_rng(seed), 20)
    with base_tts.open_text_stream(voice, options=GenerateOptions(max_frames=3)) as stream:
        needed = base_tts.engine.reference_rows(stream._spec)
        assert needed > 1
        stream.push_text("Hello" + " and" * (needed - 2) + " ")
        assert isinstance(stream.poll(), NeedMoreText)
        assert stream.frames == 0
        stream.push_text("and and ")
        assert stream.poll().frames == 1, "R + 1 rows have their text, and frame 0 has its own"
