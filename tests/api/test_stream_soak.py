"""A thousand streams, half of them abandoned somewhere: memory and open files stay flat."""

import gc
import os
import random
from pathlib import Path

from qwen3tts import GenerateOptions, StreamOptions, TextStreamOptions

TEXT = "The voice speaks to the world."


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
