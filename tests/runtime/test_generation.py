"""How many frames are asked for at once, and that results do not depend on it."""

import random

import numpy as np
import pytest
import torch

from qwen3tts.model.sampling import SamplingParams
from qwen3tts.options import GenerateOptions, StreamOptions, TextStreamOptions
from qwen3tts.runtime.generation import FRAMES_WHILE_WAITING, generate_codes
from qwen3tts.runtime.protocols import FrameBatch, RowRequest, Slot

GROUPS = 4
TEXT = "Hello, world. Good morning."


def request(seed, frames):
    """A row whose speech ends by itself after `seed % 40` frames, or at the limit of `frames`."""
    greedy = SamplingParams(False, 1.0, 0, 1.0)
    empty = torch.zeros(0, 1)
    return RowRequest(empty, empty, greedy, greedy, 1.0, seed, 0, frames)


class CountingDecoder:
    """A FrameDecoder whose codes are a function of row and frame; keeps what it was asked for."""

    def __init__(self, slots, frames_per_call):
        self.slots, self.frames_per_call = slots, frames_per_call
        self.rows, self.made, self.asked, self.next = {}, {}, [], 0

    def admit(self, rows):
        slots = [Slot(self.next + i) for i in range(len(rows))]
        self.next += len(rows)
        self.rows.update(zip(slots, rows, strict=True))
        self.made.update(dict.fromkeys(slots, 0))
        return slots

    def advance(self, frames, slots=None):
        slots = tuple(self.rows) if slots is None else slots
        self.asked.append((frames, len(slots)))
        counts, reasons = [], []
        codes = torch.full((len(slots), frames, GROUPS), -1)
        for i, slot in enumerate(slots):
            row, start = self.rows[slot], self.made[slot]
            end = min(row.seed % 40, row.max_frames)
            count = min(frames, end - start)
            for frame in range(start, start + count):
                codes[i, frame - start] = torch.arange(GROUPS) + row.seed + 10 * frame
            self.made[slot] += count
            counts.append(count)
            done = self.made[slot] == end
            reasons.append(None if not done else "eos" if end < row.max_frames else "length")
        return FrameBatch(tuple(slots), codes, tuple(counts), tuple(reasons))

    def release(self, slot):
        self.rows.pop(slot, None)

    def open_slots(self):
        return frozenset(self.rows)

    def room_for(self, rows):
        return min(len(rows), self.slots - len(self.rows))


def run(decoder, requests, progress=None):
    results = generate_codes(decoder, requests, on_prefill=lambda s: None, clock=lambda: 0.0, progress=progress)
    return [(result.codes(GROUPS).tolist(), result.finish_reason) for result in results]


def test_the_decoder_says_how_many_frames_are_asked_for():
    for each, expected in ((1, [(1, 1)] * 39), (32, [(32, 1)] * 2), (39, [(39, 1)])):
        decoder = CountingDecoder(2, each)
        ((codes, reason),) = run(decoder, [request(39, 100)])
        assert decoder.asked == expected
        assert (len(codes), reason) == (39, "eos")


def test_results_do_not_depend_on_it(seed):
    rng = random.Random(seed)
    for _ in range(20):
        requests = [request(rng.randrange(1, 40), rng.randint(1, 50)) for _ in range(rng.randint(1, 9))]
        want = run(CountingDecoder(9, 1), requests)
        for slots in (1, 2, 9):
            decoder = CountingDecoder(slots, rng.choice([2, 7, 32]))
            assert run(decoder, requests) == want
            assert not decoder.rows


def test_while_texts_wait_a_place_is_free_soon():
    decoder = CountingDecoder(1, 32)
    run(decoder, [request(39, 100), request(12, 100), request(30, 100)])
    waiting = -(-39 // FRAMES_WHILE_WAITING) + -(-12 // FRAMES_WHILE_WAITING)
    assert decoder.asked == [(FRAMES_WHILE_WAITING, 1)] * waiting + [(32, 1)]


def test_progress_may_end_the_call_between_two_requests_for_frames():
    decoder, seen = CountingDecoder(2, 8), []

    def stop(event):
        seen.append(event.frames_done)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(decoder, [request(39, 100), request(38, 100)], stop)
    assert seen == [16, 32]
    assert decoder.asked == [(8, 2)] * 2
    assert not decoder.rows


# ---------------------------------------------------------------- on a model


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    import qwen3tts

    with qwen3tts.load(tiny_checkpoint(), backend="cpu") as loaded:
        yield loaded


@pytest.fixture
def asked(model, monkeypatch):
    """What the model's decoder is asked for from now on."""
    decoder, calls = model.engine.runtime.frames, []
    advance = decoder.advance

    def counting(frames, slots=None):
        calls.append(frames)
        return advance(frames, slots)

    monkeypatch.setattr(decoder, "advance", counting)
    return calls


def test_generate_asks_for_many_and_says_the_same(model, asked, monkeypatch):
    options = GenerateOptions(max_frames=20)
    single = model.generate(TEXT, "ryan", options=options)
    assert asked == [1] * 20
    asked.clear()
    monkeypatch.setattr(model.engine.runtime.frames, "frames_per_call", 9)
    events = []
    several = model.generate(TEXT, "ryan", options=options, progress=events.append)
    assert asked == [9] * 3
    assert [event.frames_done for event in events if event.stage == "generate"] == [9, 18, 20]
    assert np.array_equal(single.codes, several.codes)
    assert np.array_equal(single.samples, several.samples)


def test_a_stream_asks_for_its_chunks_alone(model, asked, monkeypatch):
    monkeypatch.setattr(model.engine.runtime.frames, "frames_per_call", 32)
    cut = StreamOptions(chunk_frames=(1, 2, 5))
    chunks = list(model.stream(TEXT, "ryan", options=GenerateOptions(max_frames=14), stream_options=cut))
    assert asked == [1, 2, 5, 5, 5]
    assert [chunk.frames for chunk in chunks] == [1, 2, 5, 5, 1]


def test_a_text_stream_asks_for_its_chunks_alone(model, asked, monkeypatch):
    monkeypatch.setattr(model.engine.runtime.frames, "frames_per_call", 32)
    cut = TextStreamOptions(chunk_frames=(2, 3), min_start_tokens=2)
    with model.open_text_stream("ryan", options=GenerateOptions(max_frames=9), stream_options=cut) as stream:
        stream.push_text(TEXT)
        stream.finish()
        chunks = list(stream)
    assert asked == [2, 3, 3, 3]
    assert [chunk.frames for chunk in chunks] == [2, 3, 3, 1]
    options = GenerateOptions(max_frames=9, text_mode="streamed", text_lookahead_tokens=stream.lookahead)
    whole = model.generate(TEXT, "ryan", options=options)
    assert np.array_equal(whole.codes, np.concatenate([chunk.codes for chunk in chunks]))


def test_the_row_is_still_alone_in_its_result(model, asked, monkeypatch):
    """Rows of other lengths beside it, several frames at once: the codes are those of the row alone."""
    options = [GenerateOptions(max_frames=n, seed=n) for n in (3, 11, 7)]
    alone = [model.generate(TEXT, "ryan", options=option).codes for option in options]
    monkeypatch.setattr(model.engine.runtime.frames, "frames_per_call", 4)
    asked.clear()
    together = model.generate([TEXT] * 3, "ryan", options=options)
    assert asked == [4] * 3
    for a, b in zip(alone, together, strict=True):
        assert np.array_equal(a, b.codes)

