"""Streams of a whole text: joined they are the one-shot audio, and whatever happens to them frees everything."""

import asyncio
import gc
import inspect
import random
import threading

import numpy as np
import pytest

import qwen3tts
from qwen3tts import GenerateOptions, RuntimeOptions, StreamOptions, TextStreamOptions
from qwen3tts.errors import CapacityError, OptionError, Qwen3TTSError, TextError

TEXT = "The voice speaks to the world and to the user, and on and on."


def joined(chunks):
    chunks = list(chunks)
    return np.concatenate([c.samples for c in chunks]), np.concatenate([c.codes for c in chunks])


@pytest.mark.parametrize("fixture", ["tts", "ending_tts"])
def test_joined_chunks_equal_the_one_shot_audio(request, fixture, seed):
    tts, rng = request.getfixturevalue(fixture), random.Random(seed)
    for _ in range(4):
        ramp = tuple(rng.randrange(1, 9) for _ in range(rng.randrange(1, 5)))
        options = GenerateOptions(seed=rng.randrange(2**64), max_frames=rng.randrange(1, 40))
        stream = tts.stream(TEXT, "ryan", options=options, stream_options=StreamOptions(chunk_frames=ramp))
        chunks = list(stream)
        whole = tts.generate(TEXT, "ryan", options=options.replace(text_mode="streamed"))
        samples, codes = joined(chunks)
        assert np.array_equal(codes, whole.codes)
        assert float(np.abs(samples - whole.samples).max()) <= 1e-5
        assert stream.finish_reason == whole.finish_reason
        assert stream.seed == whole.seed
        sizes = [chunk.frames for chunk in chunks]
        expected = [ramp[min(i, len(ramp) - 1)] for i in range(len(sizes))]
        assert sizes[:-1] == expected[:-1]
        assert sizes[-1] <= expected[-1]
        assert [chunk.first_frame for chunk in chunks] == [sum(sizes[:i]) for i in range(len(sizes))]
        assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert [chunk.seconds for chunk in chunks] == sorted(chunk.seconds for chunk in chunks)


def test_default_ramp(tts):
    chunks = list(tts.stream(TEXT, "ryan", options=GenerateOptions(max_frames=30)))
    assert [chunk.frames for chunk in chunks] == [1, 2, 4, 8, 12, 3]


def test_whole_text_can_be_streamed_too(tts):
    options = GenerateOptions(max_frames=6, text_mode="whole")
    _, codes = joined(tts.stream(TEXT, "ryan", options=options))
    assert np.array_equal(codes, tts.generate(TEXT, "ryan", options=options).codes)


def test_window_decode_is_near_but_not_equal(tts):
    options = GenerateOptions(max_frames=40, seed=5)
    exact, codes = joined(tts.stream(TEXT, "ryan", options=options))
    windowed = StreamOptions(chunk_frames=(5,), left_context_frames=6)
    near, same = joined(tts.stream(TEXT, "ryan", options=options, stream_options=windowed))
    assert np.array_equal(codes, same)
    assert near.shape == exact.shape
    assert float(np.abs(near - exact)[: 6 * 1920].max()) <= 1e-5
    assert 1e-4 < float(np.abs(near - exact).max()) < 0.5
    wide = StreamOptions(chunk_frames=(5,), left_context_frames=60)
    full, _ = joined(tts.stream(TEXT, "ryan", options=options, stream_options=wide))
    assert float(np.abs(full - exact).max()) <= 1e-5


def test_interleaved_streams_and_calls_do_not_disturb_each_other(tts):
    options = [GenerateOptions(seed=i, max_frames=20) for i in range(3)]
    expected = [joined(tts.stream(TEXT, "ryan", options=option))[1] for option in options]
    streams = [iter(tts.stream(TEXT, "ryan", options=option)) for option in options]
    found = [[] for _ in options]
    for step in range(5):
        for i, stream in enumerate(streams):
            chunk = next(stream, None)
            if chunk is not None:
                found[i].append(chunk.codes)
        if step == 2:
            tts.generate("Hello.", "vivian", options=GenerateOptions(max_frames=3))
    for codes, rows in zip(expected, found, strict=True):
        assert np.array_equal(np.concatenate(rows), codes)


def free(tts):
    return tts.engine.runtime.frames.free_slots()


def test_everything_that_can_happen_to_a_stream_frees_its_slot(tts):
    slots = free(tts)
    stream = tts.stream(TEXT, "ryan")
    next(stream)
    assert free(tts) == slots - 1
    stream.close()
    stream.close()
    assert free(tts) == slots
    assert list(stream) == []
    with tts.stream(TEXT, "ryan") as stream:
        next(stream)
    assert free(tts) == slots
    stream = tts.stream(TEXT, "ryan")
    next(stream)
    del stream
    gc.collect()
    assert free(tts) == slots
    assert free(tts) == slots
    list(tts.stream("Hi", "ryan", options=GenerateOptions(max_frames=2)))
    assert free(tts) == slots


def test_a_stream_collected_in_the_middle_of_another_call(tts):
    slots = free(tts)
    holder = [tts.stream(TEXT, "ryan")]
    next(holder[0])

    def drop(_event):
        holder.clear()
        gc.collect()

    tts.generate("Hello.", "ryan", options=GenerateOptions(max_frames=3), progress=drop)
    assert free(tts) == slots


def test_an_error_while_streaming_frees_the_slot(tts, monkeypatch):
    slots = free(tts)
    stream = tts.stream(TEXT, "ryan")
    next(stream)

    def fail(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr(tts.engine.runtime.codec, "decode", fail)
    with pytest.raises(RuntimeError, match="planted"):
        next(stream)
    assert free(tts) == slots
    assert list(stream) == []


def test_no_slot_left_is_an_error_and_not_a_wait(tiny_checkpoint):
    with qwen3tts.load(tiny_checkpoint(), backend="cpu", runtime=qwen3tts.RuntimeOptions(max_streams=2)) as tts:
        held = [tts.stream(TEXT, "ryan") for _ in range(2)]
        with pytest.raises(CapacityError, match="0 of 2"):
            tts.stream(TEXT, "ryan")
        with pytest.raises(CapacityError, match="max_streams"):
            tts.generate(TEXT, "ryan")
        held[0].close()
        assert tts.generate("Hi", "ryan", options=GenerateOptions(max_frames=2)).frames == 2


def test_streams_from_threads(tts):
    options = [GenerateOptions(seed=i, max_frames=16) for i in range(4)]
    expected = [joined(tts.stream(TEXT, "ryan", options=option))[1] for option in options]
    found = [None] * 4

    def run(i):
        found[i] = joined(tts.stream(TEXT, "ryan", options=options[i]))[1]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


def test_all_ways_to_speak_take_the_same_arguments():
    """The lists are written out so that help() and editors show them; they must not drift apart."""

    def parameters(name, without=("self", "text", "stream_options", "max_tokens", "progress")):
        found = inspect.signature(getattr(qwen3tts.TTS, name)).parameters.values()
        return [(one.name, one.kind, one.default, one.annotation) for one in found if one.name not in without]

    expected = parameters("stream")
    assert [name for name, *_ in expected] == ["voice", "language", "instruct", "options"]
    for name in ("generate_long", "astream", "open_text_stream", "aopen_text_stream"):
        assert parameters(name) == expected, name
    for name in ("stream", "open_text_stream"):
        assert parameters(name, without=()) == parameters("a" + name, without=()), name


WAYS = ("stream", "astream", "open_text_stream", "aopen_text_stream")


def call(tts, way, **arguments):
    """Inside an event loop, which aopen_text_stream needs."""

    async def run():
        return getattr(tts, way)(*([] if "text" in way else [TEXT]), "ryan", **arguments)

    return asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
def test_options_of_another_class(tts, way):
    slots, kind = free(tts), "TextStreamOptions" if "text" in way else "StreamOptions"
    wrong = [{}, {"chunk_frames": (1,)}, 0, 5, False, "x", GenerateOptions(), RuntimeOptions(), StreamOptions]
    if "text" in way:
        wrong.append(StreamOptions())
    for value in wrong:
        match = rf"^stream_options is of type {type(value).__name__}; expected {kind}\("
        with pytest.raises(OptionError, match=match):
            call(tts, way, stream_options=value)
    for value in ({}, {"seed": 1}, 0, 5, False, StreamOptions(), TextStreamOptions(), GenerateOptions):
        with pytest.raises(OptionError, match=rf"^options is of type {type(value).__name__}; expected GenerateOptions"):
            call(tts, way, options=value)
    assert free(tts) == slots


@pytest.mark.parametrize("way", WAYS)
def test_official_chunks_are_for_whole_recordings(tts, way):
    slots = free(tts)
    with pytest.raises(OptionError, match="codec_chunking='official'.*generate.*a stream decodes exactly"):
        call(tts, way, options=GenerateOptions(codec_chunking="official"))
    assert free(tts) == slots
    call(tts, way, options=GenerateOptions(codec_chunking="exact"))


def test_bad_input(tts, tiny_checkpoint):
    for sizes in ((), (0,), (1.5,), [1, 2], None):
        with pytest.raises(OptionError, match="chunk_frames"):
            StreamOptions(chunk_frames=sizes)
    with pytest.raises(OptionError, match="left_context_frames"):
        StreamOptions(left_context_frames=-1)
    with pytest.raises(TextError):
        tts.stream("  ", "ryan")
    with qwen3tts.load(tiny_checkpoint(), backend="cpu") as closed:
        stream = closed.stream(TEXT, "ryan")
        next(stream)
    with pytest.raises(Qwen3TTSError, match="closed"):
        next(stream)
