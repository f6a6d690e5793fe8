"""close(): whoever waits is told, and nothing is kept, whatever still refers to the model and its streams."""

import asyncio
import contextlib
import gc
import threading
import time

import numpy as np
import pytest
import torch

import qwen3tts
from qwen3tts import GenerateOptions, StreamOptions, TextStreamOptions, Voice
from qwen3tts.errors import Qwen3TTSError

TEXT = "The voice speaks to the world, and to the user; and on and on."
CLOSED = "This model was closed; load it again."


def waiting_reader(stream):
    """A thread that waits for the stream's text, and the list that gets its error."""
    errors = []

    def read():
        try:
            list(stream)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    while not stream._news._waiters:
        assert thread.is_alive()
        time.sleep(0.001)
    return thread, errors


@pytest.mark.parametrize("begun", [False, True])
def test_a_thread_that_waits_for_text_is_woken(tiny_checkpoint, begun):
    readers = []
    with contextlib.suppress(KeyError), qwen3tts.load(tiny_checkpoint(), backend="cpu") as tts:
        stream = tts.open_text_stream("ryan", stream_options=TextStreamOptions(min_start_tokens=1))
        if begun:
            stream.push_text("Hello world and ")
        readers = [waiting_reader(stream), waiting_reader(tts.open_text_stream("ryan"))]
        raise KeyError("planted")
    for thread, errors in readers:
        thread.join(30)
        assert not thread.is_alive()
        assert [(type(error), str(error)) for error in errors] == [(Qwen3TTSError, CLOSED)]
    calls = (stream.poll, lambda: next(stream), lambda: stream.push_text("on "), stream.finish, stream.poll)
    for call in calls:
        with pytest.raises(Qwen3TTSError) as refused:
            call()
        assert (type(refused.value), str(refused.value)) == (Qwen3TTSError, CLOSED)
    stream.close()
    assert list(stream) == []


def test_an_async_reader_that_waits_for_text_is_woken(tiny_checkpoint):
    async def run():
        with qwen3tts.load(tiny_checkpoint(), backend="cpu") as tts:
            stream = tts.aopen_text_stream("ryan")
            speech = tts.astream(TEXT, "ryan")
            await anext(speech)
            reader = asyncio.create_task(anext(stream))
            while not stream._turn.locked() or stream._pending is not None:
                await asyncio.sleep(0.001)  # until its step has found no text
        with pytest.raises(Qwen3TTSError, match=CLOSED):
            await reader
        with pytest.raises(Qwen3TTSError, match=CLOSED):
            await stream.push_text("Hello ")
        for _ in range(2):
            with pytest.raises(Qwen3TTSError, match=CLOSED):
                await anext(speech)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_stream_that_has_ended_before_stays_ended(tiny_checkpoint):
    with qwen3tts.load(tiny_checkpoint(), backend="cpu") as tts:
        spoken = tts.open_text_stream("ryan", options=GenerateOptions(max_frames=2))
        spoken.push_text(TEXT)
        list(spoken)
        closed = tts.stream(TEXT, "ryan")
        closed.close()
    spoken.push_text("more")
    spoken.finish()
    assert list(spoken) == list(closed) == []
    assert spoken.finish_reason == "length"


def live_bytes():
    gc.collect()
    tensors = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor) and not found.is_meta]
    storages = {found.untyped_storage().data_ptr(): found.untyped_storage().nbytes() for found in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("window", [None, 25])
def test_nothing_is_kept(tiny_checkpoint, window, seed):
    rng = np.random.default_rng(seed)
    before = live_bytes()
    tts = qwen3tts.load(tiny_checkpoint("base", seed=2), backend="cpu")
    codes = rng.integers(0, 64, (100, 16)).astype(np.int16)
    voice = Voice.from_reference(rng.standard_normal(64), codes, "The user and the world.")
    cutting = StreamOptions(left_context_frames=window)
    streams = [tts.stream(TEXT, voice, stream_options=cutting) for _ in range(2)]
    streams += [tts.open_text_stream(voice.without_reference()) for _ in range(2)]
    streams[2].push_text(TEXT)
    next(streams[0])
    next(streams[2])
    audio = (0.1 * rng.standard_normal(24000)).astype(np.float32)
    tts.clone((audio, 24000), "Hello world.")
    runtime, engine, players = tts.engine.runtime, tts.engine, [stream._player for stream in streams]
    held = live_bytes() - before
    assert held > 1_000_000
    tts.close()
    kept = live_bytes() - before
    assert kept < 8192, f"{kept} of {held} bytes"
    assert None not in (runtime, engine, players[0], tts)
