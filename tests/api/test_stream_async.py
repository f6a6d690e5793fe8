"""Streams for asyncio: no step is lost, whoever is cancelled, and nothing hangs, leaks or complains."""

import asyncio
import contextlib
import gc
import logging
import random
import threading
import weakref

import numpy as np
import pytest

from qwen3tts import GenerateOptions, StreamOptions, TextStreamOptions
from qwen3tts.errors import CapacityError

TEXT = "The voice speaks to the world, and to the user; and on and on."
OPTIONS = GenerateOptions(seed=4, max_frames=14)
CHUNKS = (1, 2)


def codes_of(chunks):
    return np.concatenate([chunk.codes for chunk in chunks])


async def open_stream(tts, kind, options=OPTIONS):
    """A stream of the whole text, of either kind."""
    if kind == "speech":
        return tts.astream(TEXT, "ryan", options=options, stream_options=StreamOptions(chunk_frames=CHUNKS))
    settings = TextStreamOptions(chunk_frames=CHUNKS, min_start_tokens=1)
    stream = tts.aopen_text_stream("ryan", options=options, stream_options=settings)
    await stream.push_text(TEXT)
    await stream.finish()
    return stream


async def cut_off(tts, stream):
    """Begins a step that cannot end before it is cancelled."""
    with tts.turns:
        step = asyncio.create_task(anext(stream))
        for _ in range(5):
            await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step


def run_quietly(coroutine):
    """asyncio.run within 120 s, in which nothing may be reported as lost or never retrieved."""
    complaints = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        try:
            return await asyncio.wait_for(coroutine, 120)
        finally:
            gc.collect()
            await asyncio.sleep(0)

    result = asyncio.run(main())
    gc.collect()
    assert complaints == []
    return result


@pytest.fixture
def all_freed(tts, monkeypatch):
    """At the end of the test every slot is free again and every codec state is closed or gone."""
    slots, states, codec = tts.engine.runtime.frames.free_slots(), [], tts.engine.runtime.codec

    def opened(make):
        def call(*arguments):
            state = make(*arguments)
            states.append(weakref.ref(state))
            return state

        return call

    monkeypatch.setattr(codec, "open", opened(codec.open))
    monkeypatch.setattr(codec, "fork", opened(codec.fork))
    yield
    assert tts.engine.runtime.frames.free_slots() == slots
    gc.collect()
    alive = [state for state in (reference() for reference in states) if state is not None]
    assert all(not state.tails and not state.window for state in alive)


def failing(monkeypatch, tts):
    def fail(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr(tts.engine.runtime.frames, "advance", fail)


@pytest.mark.parametrize("kind", ["speech", "text"])
def test_cancelled_steps_lose_nothing(tts, all_freed, kind):
    async def run():
        stream, chunks = await open_stream(tts, kind), []
        while True:
            await cut_off(tts, stream)
            try:
                chunks.append(await anext(stream))
            except StopAsyncIteration:
                return chunks, stream

    chunks, stream = run_quietly(run())
    lookahead = {} if kind == "speech" else {"text_lookahead_tokens": stream.stream.lookahead}
    whole = tts.generate(TEXT, "ryan", options=OPTIONS.replace(text_mode="streamed", **lookahead))
    assert np.array_equal(codes_of(chunks), whole.codes)
    assert float(np.abs(np.concatenate([chunk.samples for chunk in chunks]) - whole.samples).max()) <= 1e-5
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.parametrize("kind", ["speech", "text"])
def test_timeouts_around_steps_lose_nothing(tts, all_freed, kind, seed):
    rng = random.Random(f"{seed} {kind}")

    async def run():
        stream, chunks = await open_stream(tts, kind), []
        while True:
            try:
                chunks.append(await asyncio.wait_for(anext(stream), rng.choice((0.0002, 0.001, 0.01))))
            except TimeoutError:
                continue
            except StopAsyncIteration:
                return chunks

    chunks = run_quietly(run())
    assert [chunk.first_frame for chunk in chunks] == [0, *range(1, 14, 2)]
    assert chunks[-1].final


def test_text_pushed_after_a_cancelled_step_is_noticed(tts):
    async def run():
        stream = tts.aopen_text_stream("ryan", options=OPTIONS)
        await cut_off(tts, stream)
        await asyncio.to_thread(stream._pending.result, 60)  # it has looked, and there was no text
        await stream.push_text(TEXT)
        await stream.finish()
        await asyncio.sleep(0.01)  # the news are out before anybody waits for them
        return [chunk async for chunk in stream]

    assert len(codes_of(run_quietly(run()))) == 14


@pytest.mark.parametrize("kind", ["speech", "text"])
@pytest.mark.parametrize("begun", [False, True])
def test_closing_while_a_step_is_pending(tts, all_freed, kind, begun):
    async def run():
        stream = await open_stream(tts, kind)
        if begun:
            await anext(stream)
        await cut_off(tts, stream)
        await stream.aclose()
        assert [chunk async for chunk in stream] == []
        await stream.aclose()

    run_quietly(run())


@pytest.mark.parametrize("kind", ["speech", "text"])
def test_closing_ends_a_reader_that_waits(tts, all_freed, kind):
    async def run():
        stream = await open_stream(tts, kind)
        with tts.turns:
            readers = [asyncio.create_task(anext(stream, None)) for _ in range(3)]
            await asyncio.sleep(0.001)
            closing = asyncio.create_task(stream.aclose())
            await asyncio.sleep(0.001)
        await closing
        return [await reader for reader in readers]

    assert run_quietly(run())[1:] == [None, None]


def test_closing_a_text_stream_that_waits_for_text(tts, all_freed):
    async def run():
        stream = tts.aopen_text_stream("ryan", options=OPTIONS)
        reader = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0.01)
        await stream.aclose()
        return await reader

    assert run_quietly(run()) is None


@pytest.mark.parametrize("kind", ["speech", "text"])
def test_the_error_of_a_cancelled_step_reaches_the_next_awaiter(tts, all_freed, monkeypatch, kind):
    async def run():
        stream = await open_stream(tts, kind)
        await anext(stream)
        failing(monkeypatch, tts)
        await cut_off(tts, stream)
        with pytest.raises(RuntimeError, match="planted"):
            await anext(stream)
        assert [chunk async for chunk in stream] == [], "raised once; it has closed the stream"
        await stream.aclose()

    run_quietly(run())


@pytest.mark.parametrize("kind", ["speech", "text"])
def test_the_error_of_a_cancelled_step_reaches_close(tts, all_freed, monkeypatch, kind):
    async def run():
        stream = await open_stream(tts, kind)
        await anext(stream)
        failing(monkeypatch, tts)
        await cut_off(tts, stream)
        await asyncio.to_thread(stream._pending.exception, 60)
        with pytest.raises(RuntimeError, match="planted"):
            await stream.aclose()
        await stream.aclose()

    run_quietly(run())


def test_a_block_that_ends_with_an_error_keeps_it(tts, all_freed, monkeypatch, caplog):
    async def run():
        async with await open_stream(tts, "speech") as stream:
            await anext(stream)
            failing(monkeypatch, tts)
            await cut_off(tts, stream)
            await asyncio.to_thread(stream._pending.exception, 60)
            raise KeyError("the block's own")

    with caplog.at_level(logging.WARNING), pytest.raises(KeyError, match="own"):
        run_quietly(run())
    assert "planted" in caplog.text


def test_an_error_that_nobody_waits_for_is_no_complaint(tts, all_freed, monkeypatch):
    async def run():
        stream = await open_stream(tts, "speech")
        await anext(stream)
        failing(monkeypatch, tts)
        await cut_off(tts, stream)

    run_quietly(run())


def test_a_first_step_that_finds_no_slot(tts, all_freed):
    async def run():
        held = [tts.stream(TEXT, "ryan", options=OPTIONS) for _ in range(tts.engine.runtime.frames.free_slots())]
        stream = await open_stream(tts, "speech")
        await cut_off(tts, stream)
        with pytest.raises(CapacityError):
            await anext(stream)
        held.pop().close()
        chunk = await anext(stream)
        for other in (*held, stream._stream):
            other.close()
        return chunk

    assert run_quietly(run()).frames == 1


def test_streams_cancelled_closed_and_abandoned_at_random(tts, all_freed, seed):
    rng, threads = random.Random(seed), threading.active_count()

    async def one(kind):
        stream = await open_stream(tts, kind, GenerateOptions(seed=rng.randrange(99), max_frames=3))
        end = rng.choice(("read", "close", "abandon"))
        expected = 0
        for _ in range(rng.randrange(1, 8)):
            timeout = rng.choice((0.0001, 0.002, 30))
            with contextlib.suppress(TimeoutError):
                chunk = await asyncio.wait_for(anext(stream, None), timeout)
                if chunk is not None:
                    assert chunk.first_frame == expected
                    expected += chunk.frames
        if end == "read":
            async for chunk in stream:
                assert chunk.first_frame == expected
                expected += chunk.frames
            assert expected == 3
        elif end == "close":
            await stream.aclose()

    async def run():
        for _ in range(12):
            await asyncio.gather(*(one(rng.choice(("speech", "text"))) for _ in range(4)))

    run_quietly(run())
    assert threading.active_count() == threads, "the workers have ended with the loop"


def test_asyncio_streams(ending_tts):
    options = GenerateOptions(seed=4)

    async def run():
        whole = [chunk async for chunk in ending_tts.astream(TEXT, "ryan", options=options)]
        streams = [ending_tts.aopen_text_stream("ryan", options=options) for _ in range(4)]
        readers = [asyncio.create_task(_collect(stream)) for stream in streams]
        for word in TEXT.split(" "):
            for stream in streams:
                await stream.push_text(word + " ")
            await asyncio.sleep(0)
        for stream in streams:
            await stream.finish()
        return whole, [await reader for reader in readers], streams

    async def _collect(stream):
        return [chunk async for chunk in stream]

    whole, found, streams = asyncio.run(asyncio.wait_for(run(), 120))
    assert all(stream.finish_reason in ("eos", "length") for stream in streams)
    for stream, chunks in zip(streams, found, strict=True):
        expected = ending_tts.generate(
            TEXT,
            "ryan",
            options=options.replace(text_mode="streamed", text_lookahead_tokens=stream.stream.lookahead),
        )
        assert np.array_equal(codes_of(chunks), expected.codes)
    assert np.array_equal(
        codes_of(whole), ending_tts.generate(TEXT, "ryan", options=options.replace(text_mode="streamed")).codes
    )


def test_closing_an_async_stream_early(tts):
    slots = tts.engine.runtime.frames.free_slots()

    async def run():
        async with tts.astream(TEXT, "ryan") as stream:
            async for chunk in stream:
                return chunk

    assert asyncio.run(run()).frames == 1
    assert tts.engine.runtime.frames.free_slots() == slots


def test_an_abandoned_async_stream_is_freed_without_a_cycle(tts):
    slots = tts.engine.runtime.frames.free_slots()

    async def run():
        stream = tts.aopen_text_stream("ryan", stream_options=TextStreamOptions(min_start_tokens=1))
        await stream.push_text("Hello world and ")
        await anext(stream)

    gc.disable()
    try:
        asyncio.run(run())
        assert tts.engine.runtime.frames.free_slots() == slots
    finally:
        gc.enable()


def test_closing_after_a_cancelled_first_step(tts):
    slots = tts.engine.runtime.frames.free_slots()

    async def run():
        stream = tts.astream(TEXT, "ryan")
        step = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.001)
        step.cancel()
        await stream.aclose()
        assert [chunk async for chunk in stream] == []

    asyncio.run(run())
    assert tts.engine.runtime.frames.free_slots() == slots


def test_steps_at_once_share_one_stream(tts):
    async def run():
        stream = tts.astream(TEXT, "ryan", options=GenerateOptions(max_frames=7))
        return await asyncio.gather(*(anext(stream) for _ in range(3)))

    assert sorted(chunk.first_frame for chunk in asyncio.run(run())) == [0, 1, 3]
