"""The frame decoder on the decode core: the codes of the torch frame decoder whatever comes, joins, pauses and goes,
and for every row the same bits alone and among others."""

import random
from dataclasses import replace

import pytest
import torch

import qwen3tts
from qwen3tts.backends.native.decode.capture import bucket_for, buckets
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.native.decode.mixed import MixedFrameDecoder
from qwen3tts.backends.native.decode.state import PAGE, PoolSize
from qwen3tts.backends.native.decode.weights import store_for_kernels
from qwen3tts.backends.torch.frame_decoder import TorchFrameDecoder, positions_needed
from qwen3tts.errors import CapacityError, NumericsError, OptionError
from qwen3tts.model.kv_cache import kv_bytes_per_position
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.runtime.protocols import RowRequest, Slot

WAVES = (64,)
POSITIONS = 96
GROUPS = 3


def narrow(predictor_hidden):
    """A model of few and narrow products: the emulation takes its time for each."""
    sizes = {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "num_code_groups": GROUPS}
    predictor = sizes | {"hidden_size": predictor_hidden, "num_hidden_layers": 1}
    return {
        "config": {"talker_config": sizes | {"hidden_size": 32, "code_predictor_config": predictor}},
        "speech_tokenizer": {"encoder_valid_num_quantizers": GROUPS, "decoder_config": {"num_quantizers": GROUPS}},
    }


PRESETS = {"plain": ("tiny", narrow(32)), "projected": ("tiny-mtp", narrow(16))}
FIXED_SEED = 5
"""of comparisons with torch: sums in another order may turn a draw about once in ten thousand, which a fresh seed would
meet now and then"""


@pytest.fixture(scope="module")
def models(tiny_checkpoint):
    """models(dtype, kind, device) -> the loaded runtime, whose weights are in the form for kernels."""
    opened = {}

    def make(dtype, kind="plain", device="cpu"):
        if (dtype, kind, device) not in opened:
            preset, override = PRESETS[kind]
            folder = tiny_checkpoint(preset=preset, eos_gain=2.0, override=override)
            tts = qwen3tts.load(folder, device=device, backend="torch", dtype=dtype)
            opened[dtype, kind, device] = tts, store_for_kernels(tts.engine.runtime.talker)
        return opened[dtype, kind, device][0].engine.runtime

    yield make
    for tts, form in opened.values():
        form.restore()
        tts.close()


def padding(runtime):
    with exact_arithmetic(runtime.device):
        return runtime.talker.embed_text(torch.tensor([runtime.config.tts_pad_id], device=runtime.device))[0]


def core_of(native, runtime, slots=5, frames_per_replay=3, max_positions=POSITIONS, kv_bytes=None, page=8, **others):
    return NativeFrameDecoder(
        native, runtime.talker, padding(runtime), slots=slots, max_positions=max_positions, kv_bytes=kv_bytes,
        frames_per_replay=frames_per_replay, page=page, **others,
    )  # fmt: skip


def plain_of(runtime, slots=5):
    return TorchFrameDecoder(
        runtime.talker, padding(runtime), slots=slots, max_positions=POSITIONS, kv_bytes=None
    )  # fmt: skip


def draw(runtime, generator, rows):
    width = runtime.talker.config.transformer.hidden_size
    return torch.randn(rows, width, generator=generator).to(runtime.device, runtime.dtype)


def sampling(rng):
    if rng.random() < 0.25:
        return SamplingParams(False, 1.0, 0, 1.0)
    return SamplingParams(
        True, rng.choice([0.3, 0.9, 1.0, 2.5]), rng.choice([0, 1, 3, 50, 5000]), rng.choice([1.0, 0.99, 0.8, 0.3])
    )


def request(runtime, rng, longest=12, **changes):
    """A row that differs from others in everything."""
    generator = torch.Generator().manual_seed(rng.randrange(2**40))
    row = RowRequest(
        prefill=draw(runtime, generator, rng.choice([1, 2, rng.randint(3, 15)])),
        trailing=draw(runtime, generator, rng.randint(0, 5)),
        talker=sampling(rng),
        predictor=sampling(rng),
        repetition_penalty=rng.choice([1.0, 1.05, 1.7]),
        seed=rng.randrange(2**64),
        part=rng.randrange(3),
        max_frames=rng.randint(1, longest),
        text_complete=rng.random() < 0.6,
    )
    return replace(row, **changes)


def listed(batch):
    """A FrameBatch in numbers that can be compared."""
    codes = [codes[:count].tolist() for codes, count in zip(batch.codes, batch.counts, strict=True)]
    return batch.slots, batch.counts, batch.finished, codes


def life(decoder, runtime, rng, steps):
    """Joins, pauses, texts, cancels and ends in a random order, which depends on what came out alone: all of that."""
    log, waiting, spoken = [], {}, set()
    for _ in range(steps):
        rows = [request(runtime, rng) for _ in range(rng.choice([0, 1, 1, 2]))]
        fit = decoder.room_for(rows)
        slots = decoder.admit(rows[:fit])
        waiting.update((slot, row) for slot, row in zip(slots, rows[:fit], strict=True))
        log.append((fit, slots, decoder.free_slots(), decoder.open_slots()))
        for slot, row in list(waiting.items()):
            if not row.text_complete and rng.random() < 0.5:
                more = draw(runtime, torch.Generator().manual_seed(rng.randrange(2**40)), rng.randint(0, 3))
                last = rng.random() < 0.4
                decoder.add_text(slot, more, last)
                waiting[slot] = replace(row, text_complete=last)
        asked = None if rng.random() < 0.6 else tuple(rng.sample(sorted(waiting), rng.randint(0, len(waiting))))
        batch = decoder.advance(rng.choice([0, 1, 1, 2, 3, 4, 7]), asked)
        log.append(listed(batch))
        for slot, reason in zip(batch.slots, batch.finished, strict=True):
            spoken.add(reason)
            if reason is not None or rng.random() < 0.05:
                decoder.release(slot)
                decoder.release(slot)
                del waiting[slot]
    for slot in waiting:
        decoder.release(slot)
    assert spoken == {None, "eos", "length"}
    assert decoder.open_slots() == frozenset()
    return log


@pytest.mark.parametrize("kind", ["plain", "projected"])
def test_codes_of_many_lives_equal_the_torch_decoder(native, models, kind):
    runtime = models("float32", kind, str(native.device))
    core = core_of(native, runtime)
    got = life(core, runtime, random.Random(FIXED_SEED), 18)
    want = life(plain_of(runtime), runtime, random.Random(FIXED_SEED), 18)
    for step, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a == b, f"step {step}"
    assert core.pages.used == 0
    assert core.free_slots() == core.slots


def whole_life(core, rows, step):
    """Each row's codes and end, all admitted at once."""
    slots = core.admit(rows)
    made = {slot: [] for slot in slots}
    ends = {}
    while len(ends) < len(rows):
        batch = core.advance(step, [slot for slot in slots if slot not in ends])
        for slot, _, reason, codes in zip(*listed(batch), strict=True):
            made[slot] += codes
            if reason is not None:
                ends[slot] = reason
                core.release(slot)
    return [(made[slot], ends[slot]) for slot in slots]


def test_a_row_is_the_same_alone_in_any_slot_in_batches_and_for_any_frames_per_replay(native, models, seed):
    runtime, rng = models("bfloat16", "plain", str(native.device)), random.Random(seed)
    eager = core_of(native, runtime, slots=3, frames_per_replay=1, graphs=False)
    replayed = core_of(native, runtime, slots=10, frames_per_replay=4)
    rows = [request(runtime, rng, longest=7, text_complete=True) for _ in range(9)]
    want = [whole_life(eager, [row], 1)[0] for row in rows]
    for size in (2, 3, 5, 9):
        chosen = rng.sample(range(9), size)
        others = replayed.admit([request(runtime, rng, longest=9) for _ in range(10 - size)])
        kept = rng.sample(others, rng.randint(0, len(others)))  # the batch takes the places between these
        for slot in others:
            if slot not in kept:
                replayed.release(slot)
        assert whole_life(replayed, [rows[i] for i in chosen], rng.choice([1, 4, 6])) == [want[i] for i in chosen]
        for slot in kept:
            replayed.release(slot)
    assert replayed.pages.used == eager.pages.used == 0


def test_a_row_pauses_for_text_and_goes_on_where_it_stopped(native, models, seed):
    runtime, rng = models("bfloat16", "projected", str(native.device)), random.Random(seed)
    core = core_of(native, runtime, frames_per_replay=4)
    text = draw(runtime, torch.Generator().manual_seed(seed), 9)
    never = SamplingParams(True, 1.0, 1, 1.0)
    row = request(runtime, rng, max_frames=12, talker=never, repetition_penalty=1.0, trailing=text, text_complete=True)
    (want, reason), = whole_life(core, [row], 12)  # fmt: skip
    (slot,) = core.admit([replace(row, trailing=text[:0], text_complete=False)])
    assert listed(core.advance(5))[1:3] == ((0,), (None,))
    made, given = [], 0
    while given < len(text):
        more = rng.randint(0, 3)
        core.add_text(slot, text[given : given + more], False)
        given += min(more, len(text) - given)
        before = core.hidden([slot])
        batch = core.advance(20)
        if not batch.slots:
            break
        made += listed(batch)[3][0]
        assert len(made) <= given
        if batch.finished[0] is None:
            assert len(made) == given
            assert torch.equal(core.hidden([slot]), before) == (batch.counts[0] == 0)
    core.add_text(slot, text[:0], True)
    batch = core.advance(20)
    made += [codes for all_codes in listed(batch)[3] for codes in all_codes]
    assert made == want
    assert reason == (batch.finished[0] if batch.slots else reason)
    with pytest.raises(ValueError, match="the text of this slot is complete"):
        core.add_text(slot, text, True)
    with pytest.raises(KeyError):
        core.advance(1, [Slot(slot + 1)])
    core.release(slot)


def test_rows_are_admitted_whole_or_not_at_all(native, models, seed):
    runtime, rng = models("float32", "plain", str(native.device)), random.Random(seed)
    each = kv_bytes_per_position(runtime.talker.config.transformer, runtime.dtype)
    core = core_of(native, runtime, slots=3, graphs=False, kv_bytes=4 * PAGE * each, max_positions=6 * PAGE, page=PAGE)
    assert core.pages.pages == 4

    def row(positions, **changes):
        prefill = draw(runtime, torch.Generator().manual_seed(seed), 5)
        return request(runtime, rng, prefill=prefill, max_frames=positions - 5, **changes)

    assert positions_needed(row(70)) == 70
    two, one = row(PAGE + 1), row(PAGE)
    for rows, room in (([two, two, two], 2), ([one] * 5, 3), ([two, one, one], 3), ([one, row(4 * PAGE)], 1), ([], 0)):
        assert core.room_for(rows) == room
        if room < len(rows):
            with pytest.raises(CapacityError, match=f"room for {room} of {len(rows)} texts: 3 of 3 slots are free"):
                core.admit(rows)
        assert (core.pages.used, core.free_slots()) == (0, 3)
    for positions, problem in ((6 * PAGE + 1, "384 are available"), (5 * PAGE, "5 pages .* there are 4 in all")):
        for call in (core.room_for, core.admit):
            with pytest.raises(CapacityError, match=problem):
                call([one, row(positions)])
    with pytest.raises(OptionError, match="profile='reference'"):
        core.admit([one, row(20, generator=torch.Generator())])
    with pytest.raises(NumericsError, match="not finite"):
        core.admit([one, replace(two, prefill=two.prefill * torch.nan)])
    assert (core.pages.used, core.free_slots(), core.open_slots()) == (0, 3, frozenset())
    slots = core.admit([two, two])
    assert len(set(slots)) == 2
    assert (core.pages.used, core.free_slots(), core.room_for([one])) == (4, 1, 0)
    core.release(slots[0])
    again = core.admit([one, one])
    assert not set(again) & set(slots)
    assert core.open_slots() == {slots[1], *again}
    for slot in (*slots, *again):
        core.release(slot)
    assert core.pages.used == 0


def test_an_error_or_an_interrupt_of_one_row_leaves_the_others_as_they_were(native, models, seed, monkeypatch):
    runtime, rng = models("bfloat16", "plain", str(native.device)), random.Random(seed)
    core = core_of(native, runtime, frames_per_replay=2)
    want = [([], "")]
    while len(want[0][0]) < 3:  # so that its end is told last
        rows = [request(runtime, rng, text_complete=True, max_frames=8) for _ in range(3)]
        want = whole_life(core, rows[:1], 1)
    broken = replace(rows[1], trailing=draw(runtime, torch.Generator().manual_seed(1), 3) * torch.nan)
    good, bad, stopped = core.admit([rows[0], broken, rows[2]])
    made = listed(core.advance(1, [good]))[3][0]
    with pytest.raises(NumericsError, match="not finite"):
        core.advance(3, [bad])
    core.release(bad)

    def interrupt(mirror):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(core.state, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            core.advance(2, [stopped])
        with pytest.raises(KeyboardInterrupt):
            core.admit(rows[2:])
    made += listed(core.advance(1, [good]))[3][0]
    later = core.advance(8)  # the interrupted row goes on behind what was lost, or its end is told at least
    assert later.slots == (good, stopped)
    assert None not in later.finished
    assert core.advance(8).slots == ()
    assert made + listed(later)[3][0] == want[0][0]
    assert later.counts[1] <= 6
    core.release(good)
    core.release(stopped)
    assert (core.pages.used, core.free_slots()) == (0, 5)


# ---------------------------------------------------------------- memory


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


# ---------------------------------------------------------------- buckets


def test_buckets_cover_all_slots():
    assert buckets(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    for slots in range(1, 65):
        chosen = buckets(slots)
        assert chosen[-1] == slots
        assert list(chosen) == sorted(set(chosen))
        for rows in range(1, slots + 1):
            assert rows <= bucket_for(rows, chosen) <= slots
            assert bucket_for(rows, chosen) < 2 * rows or bucket_for(rows, chosen) == 1


def test_every_bucket_has_its_graphs(native, models, caplog):
    runtime = models("float32", "plain", str(native.device))
    with caplog.at_level("INFO", logger="qwen3tts"):
        core = core_of(native, runtime, slots=6, frames_per_replay=2)
    assert {(graph.rows, graph.frames) for graph in core.captured} == {(r, f) for r in (1, 2, 4, 6) for f in (1, 2)}
    assert "captured 2 frames of 6 rows" in caplog.text
    launches = {graph.frames: graph.launches for graph in core.captured}
    assert launches[2] == 2 * launches[1]
    assert core.nbytes > core.state.pool.nbytes
    for slots, frames in ((0, 1), (65, 1), (1, 0), (1, 33)):
        with pytest.raises(ValueError, match="expected 1 to"):
            core_of(native, runtime, slots=slots, frames_per_replay=frames)


# ---------------------------------------------------------------- rows that draw from torch


def test_rows_with_a_torch_generator_are_spoken_by_the_plain_decoder(native, models):
    runtime, rng = models("float32", "plain", str(native.device)), random.Random(FIXED_SEED)
    rows = [request(runtime, rng, max_frames=6) for _ in range(5)]

    def speak(decoder):
        drawing = [torch.Generator(runtime.device).manual_seed(i) for i in range(5)]
        mixed = [replace(row, generator=drawing[i]) if i in (1, 2, 4) else row for i, row in enumerate(rows)]
        log = [decoder.room_for(mixed), slots := decoder.admit(mixed[:4]), decoder.free_slots()]
        log += [
            listed(decoder.advance(2)),
            listed(decoder.advance(1, slots[1:2])),
            listed(decoder.advance(2, slots[::-1])),
        ]
        for i, slot in enumerate(slots):
            if not rows[i].text_complete:
                decoder.add_text(slot, rows[0].prefill[:2], True)
        decoder.release(slots[2])
        late = decoder.admit(mixed[4:])
        log += [decoder.open_slots(), listed(decoder.advance(9)), listed(decoder.advance(9))]
        with pytest.raises(CapacityError, match="room for 1 of 2 texts: 1 of 5"):
            decoder.admit([mixed[0], mixed[1]])
        for slot in (*slots, *late):
            decoder.release(slot)
        assert decoder.free_slots() == 5
        return log

    core = core_of(native, runtime)
    assert speak(MixedFrameDecoder(core, plain_of(runtime))) == speak(plain_of(runtime))
    assert core.pages.used == 0
