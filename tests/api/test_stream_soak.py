"""A thousand streams, half of them abandoned somewhere: memory and open files stay flat. Hundreds more whose text is
pushed by a thread of its own, while the listener leaves at any moment."""

import gc
import os
import random
import threading
from pathlib import Path

import pytest

import qwen3tts
from qwen3tts import GenerateOptions, StreamOptions, TextStreamOptions
from qwen3tts.errors import TextError

TEXT = "The voice speaks to the world."
GROUPS = 3
FEW = {"num_hidden_layers": 1, "num_code_groups": GROUPS}
NARROW = {
    "config": {"talker_config": FEW | {"code_predictor_config": FEW | {"layer_types": ["full_attention"]}}},
    "speech_tokenizer": {"encoder_valid_num_quantizers": GROUPS, "decoder_config": {"num_quantizers": GROUPS}},
}
"""less work a frame: what is tested is how many streams come and go"""


@pytest.fixture(scope="module")
def tts(tiny_checkpoint):
    with qwen3tts.load(tiny_checkpoint(override=NARROW), backend="cpu") as loaded:
        yield loaded


def resources():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))


def run_one(tts, rng, i):
    options = GenerateOptions(seed=i, max_frames=3)
    if rng.random() < 0.3:
        settings = TextStreamOptions(chunk_frames=(1,), min_start_tokens=2)
        stream = tts.open_text_stream("ryan", options=options, stream_options=settings)
        stream.push_text(TEXT)
        if rng.random() < 0.5:
            stream.finish()
        for _ in range(rng.randrange(4)):
            stream.poll()
        return
    stream = tts.stream(TEXT, "ryan", options=options, stream_options=StreamOptions(chunk_frames=(1,)))
    abandon = rng.random() < 0.5
    for number, _ in enumerate(stream):
        if abandon and number == rng.randrange(3):
            if rng.random() < 0.5:
                stream.close()
            break


def test_a_thousand_streams(tts, seed):
    rng = random.Random(seed)
    slots = tts.engine.runtime.frames.free_slots()
    for i in range(100):
        run_one(tts, rng, i)
    memory, files = resources()
    for i in range(900):
        run_one(tts, rng, i)
    after, files_after = resources()
    assert tts.engine.runtime.frames.free_slots() == slots
    assert files_after == files
    assert after - memory < 16 * 2**20, f"{(after - memory) / 2**20:.1f} MB more after 900 streams"


def produce(stream, pieces, pauses, outcomes):
    """Pushes all pieces, whatever the listener does; pauses are in seconds."""
    try:
        for piece, pause in zip(pieces, pauses, strict=True):
            threading.Event().wait(pause)
            stream.push_text(piece)
        stream.finish()
    except TextError as error:  # the listener has closed the stream
        outcomes.append(str(error))
    except BaseException as error:
        outcomes.append(error)
        raise
    else:
        outcomes.append("finished")


def listen(stream, leave_after, how):
    """Takes chunks until it leaves; "drop" just lets go of the stream."""
    for number, chunk in enumerate(stream):
        assert chunk.first_frame == number
        if number == leave_after:
            if how == "close":
                stream.close()
            return


def run_with_producers(tts, rng, seeds):
    """A few streams at once, each with a producer and a listener of its own thread."""
    threads, outcomes = [], []
    for seed in seeds:
        settings = TextStreamOptions(chunk_frames=(1,), min_start_tokens=rng.randrange(1, 5))
        stream = tts.open_text_stream("ryan", options=GenerateOptions(seed=seed, max_frames=4), stream_options=settings)
        cuts = sorted(rng.sample(range(1, len(TEXT)), rng.randrange(1, 9)))
        pieces = [TEXT[a:b] for a, b in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
        pauses = [rng.choice((0, 0, 0.0005, 0.002)) for _ in pieces]
        leave_after, how = rng.choice((0, 1, 2, None)), rng.choice(("close", "drop"))
        threads.append(threading.Thread(target=produce, args=(stream, pieces, pauses, outcomes), daemon=True))
        if rng.random() < 0.1:
            if how == "close":  # before, while or after it is pushed to
                threads.append(threading.Thread(target=stream.close, daemon=True))
        else:
            threads.append(threading.Thread(target=listen, args=(stream, leave_after, how), daemon=True))
        del stream
    rng.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "hangs"
    assert len(outcomes) == len(seeds)
    for outcome in outcomes:
        assert outcome == "finished" or "closed" in outcome


def test_listeners_that_leave_while_text_is_pushed(tts, seed):
    rng = random.Random(seed)
    slots, running = tts.engine.runtime.frames.free_slots(), threading.active_count()
    for i in range(15):
        run_with_producers(tts, rng, range(4 * i, 4 * i + 4))
    memory, files = resources()
    for i in range(50):
        run_with_producers(tts, rng, range(4 * i, 4 * i + 4))
    after, files_after = resources()
    assert tts.engine.runtime.frames.free_slots() == slots
    assert threading.active_count() == running
    assert files_after == files
    assert after - memory < 16 * 2**20, f"{(after - memory) / 2**20:.1f} MB more after 200 streams"
