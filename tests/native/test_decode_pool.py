"""The decode core's pool of keys and values: how large it is, and how it grows."""

import random

import pytest
import torch
from decoder_rows import FIXED_SEED, core_of, draw, life, request, whole_life

from qwen3tts.backends.native.decode.state import PoolSize
from qwen3tts.errors import CapacityError
from qwen3tts.model.kv_cache import kv_bytes_per_position

WAVES = (64,)


def test_the_pool_of_keys_and_values_grows_without_a_trace(native, models, caplog):
    runtime = models("bfloat16", "plain", str(native.device))
    core = core_of(native, runtime, kv_positions=9)
    assert (core.pages.pages, core.most_pages) == (2, 60)
    with caplog.at_level("INFO", logger="qwen3tts"):
        got = life(core, runtime, random.Random(FIXED_SEED), 18)
    grown = [record.message for record in caplog.records if record.message.startswith("keys and values: ")]
    assert len(grown) >= 2
    assert core.pages.used == 0
    assert core.state.pool.shape[2] == core.pages.pages > 2
    whole = core_of(native, runtime, kv_positions=10_000, graphs=False)
    assert whole.pages.pages == whole.most_pages == 60
    assert got == life(whole, runtime, random.Random(FIXED_SEED), 18)


def test_a_pool_that_cannot_grow_stays_as_it_is(native, models, monkeypatch, seed, caplog):
    runtime, rng = models("bfloat16", "plain", str(native.device)), random.Random(seed)
    core = core_of(native, runtime, kv_positions=16, frames_per_replay=2)
    rows = [request(runtime, rng, text_complete=True, max_frames=4, prefill=draw(runtime, g, 4)) for g in [None] * 4]
    want = whole_life(core, rows[:1], 4)

    def full(pages):
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(core.state, "pool_of", full)
    pool, captured = core.state.pool, core.captured
    assert core.room_for(rows) == 2
    assert "keys and values stay at 2 pages: no memory for 4" in caplog.text
    assert core.state.pool is pool
    assert core.captured is captured
    assert core.room_for(rows) == 2
    assert whole_life(core, rows[:1], 4) == want
    # Not even one text: the refusal says so, each time.
    long = [request(runtime, rng, text_complete=True, max_frames=40, prefill=draw(runtime, None, 4))]
    for _ in range(2):
        with pytest.raises(CapacityError, match="there are 2, and the device has no memory for more"):
            core.room_for(long)
    # Memory has come back: what failed is tried again.
    monkeypatch.undo()
    assert core.room_for(long) == 1


def test_a_pool_grows_by_as_little_as_fits(native, models, monkeypatch, seed):
    """Twice as much does not fit, in the graphs; what is needed does."""
    runtime, rng = models("bfloat16", "plain", str(native.device)), random.Random(seed)
    core = core_of(native, runtime, kv_positions=40, frames_per_replay=2)
    new_core, pages = core._new_core, core.pages.pages

    def full():
        if core.state.pool.shape[2] > pages + 1:
            raise RuntimeError("graph: out of memory")
        return new_core()

    monkeypatch.setattr(core, "_new_core", full)
    row = request(runtime, rng, text_complete=True, max_frames=8 * (pages + 1) - 6, prefill=draw(runtime, None, 4))
    assert core.room_for([row]) == 1
    assert core.pages.pages == pages + 1

    def broken():
        raise RuntimeError("something else")

    monkeypatch.setattr(core, "_new_core", broken)
    pool = core.state.pool
    with pytest.raises(RuntimeError, match="something else"):
        core.room_for([row, row])
    assert core.state.pool is pool


def test_how_large_the_pool_is(models):
    talker = models("float32").talker
    each = 8 * kv_bytes_per_position(talker.config.transformer, talker.dtype)
    for slots, kv_bytes, kv_positions, expected in (
        (1, None, None, (160, 400)),
        (2, None, None, (320, 800)),
        (16, None, None, (640, 6400)),
        (16, None, 100_000, (6400, 6400)),
        (1, None, 9, (2, 400)),
        (4, 100 * each - 1, None, (99, 99)),
        (4, 1, 5000, (1, 1)),
        (1, 10**12, None, (400, 400)),
    ):
        size = PoolSize.of(talker, slots, 3200, kv_bytes, kv_positions, 8)
        assert (size.first, size.most) == expected
