"""The frame decoder on the decode core: the codes of the torch frame decoder whatever comes, joins, pauses and goes,
and for every row the same bits alone and among others."""

import random
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from decoder_rows import FIXED_SEED, core_of, draw, life, listed, plain_of, request, to_the_end, whole_life

from qwen3tts.backends.native.decode.capture import PROMPT_COLUMNS, bucket_for, buckets
from qwen3tts.backends.native.decode.mixed import MixedFrameDecoder
from qwen3tts.backends.native.decode.state import PAGE
from qwen3tts.backends.torch.frame_decoder import positions_needed
from qwen3tts.errors import CapacityError, NumericsError, OptionError
from qwen3tts.model.kv_cache import kv_bytes_per_position
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.runtime.protocols import Slot

WAVES = (64,)


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


def test_prompts_have_the_same_bits_alone_and_packed_and_from_every_graph(native, models, seed):
    runtime, rng = models("bfloat16", "plain", str(native.device)), random.Random(seed)
    eager, replayed = core_of(native, runtime, graphs=False), core_of(native, runtime, row_buckets=())
    assert {graph.rows for graph in replayed.captured if graph.frames == 0} == set(PROMPT_COLUMNS)
    between = [[rng.randint(low, high - 1)] for low, high in ((1, 16), (17, 32), (33, 48))]
    for lengths in (*between, [31, 1], [47, 1], [rng.randint(49, 63), 70, 2]):
        generator = torch.Generator().manual_seed(rng.randrange(2**40))
        rows = [request(runtime, rng, prefill=draw(runtime, generator, length)) for length in lengths]
        rows = [replace(row, trailing=row.trailing[:0], text_complete=True) for row in rows]
        spoken = []
        for core, batches in ((eager, [[row] for row in rows]), (replayed, [rows])):
            before = core.launches.core.replays
            slots = [slot for batch in batches for slot in core.admit(batch)]
            assert core.launches.core.replays - before == (-(-sum(lengths) // 64) if core is replayed else 0)
            hidden = core.hidden(slots)
            spoken.append((hidden.tolist(), [listed(core.advance(1, [slot]))[1:] for slot in slots]))
            for slot in slots:
                core.release(slot)
        assert spoken[0] == spoken[1], lengths


def test_prompts_that_nobody_waits_for(native, models, seed, monkeypatch, caplog):
    runtime, rng = models("bfloat16", "plain", str(native.device)), random.Random(seed)
    core, cuda = core_of(native, runtime, slots=4), native.device.type == "cuda"
    rows = [request(runtime, rng, longest=5, text_complete=True) for _ in range(4)]
    want = [whole_life(core, [row], 2)[0] for row in rows]
    if cuda:
        busy = torch.randn(4096, 4096, device=native.device)
        elsewhere = torch.cuda.Stream(native.device)
    for step in (1, 4):
        if cuda:  # the device is behind the host by some 20 ms
            for _ in range(40):
                busy = (busy @ busy).clamp(-1, 1)
        kept, dropped = core.admit(rows[:2], wait=False)
        core.release(dropped)  # its place and pages are the next one's
        third, last = core.admit([rows[2]], wait=False)[0], core.admit([rows[3]], wait=False)[0]
        with torch.cuda.stream(elsewhere) if cuda else nullcontext():
            got = to_the_end(core, [last], step) + to_the_end(core, [kept, third], step)
        assert got == [want[3], want[0], want[2]]
    assert (core.pages.used, core.free_slots()) == (0, 4)
    bad = replace(rows[0], prefill=rows[0].prefill * torch.nan)
    slots = core.admit([bad, rows[1]], wait=False)
    assert to_the_end(core, slots[1:], 3) == [want[1]]
    with pytest.raises(NumericsError, match="not finite"):
        core.advance(1, slots[:1])
    core.release(slots[0])
    core.admit(rows[:1], wait=False)
    settled, settle = [], core.launches.settle
    monkeypatch.setattr(core.launches, "settle", lambda: (settled.append(True), settle()))
    core.__del__()
    core.__del__()
    assert settled == [True]

    def broken():
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(core.launches, "settle", broken)
    core.close()
    assert "after an error of its device: an illegal address" in caplog.text
    assert (core.launches.core, core.state.nbytes) == (None, 0)


def test_prompts_may_lie_in_memory_anyhow(native, models, seed):
    runtime, rng = models("bfloat16", "plain", str(native.device)), random.Random(seed)
    core = core_of(native, runtime, graphs=False)
    plain = draw(runtime, torch.Generator().manual_seed(seed), 9)
    row = request(runtime, rng, prefill=plain, trailing=plain[:4].clone(), max_frames=3, text_complete=True)
    want = whole_life(core, [row], 3)
    wider, odd = plain.new_empty(9, 3 * plain.shape[1]), plain.new_empty(plain.numel() + 1)
    forms = [wider[:, ::3], odd[1:].view_as(plain), plain.t().contiguous().t(), plain.double()]
    for form in forms:
        form.copy_(plain)
        for changes in ({"prefill": form}, {"trailing": form[:4]}):
            assert whole_life(core, [replace(row, **changes)], 3) == want
        assert torch.equal(form.to(plain), plain)
    for changes, problem in (
        ({"prefill": plain[:0]}, "a prompt of 0 positions, expected 1 or more"),
        ({"prefill": plain[:, 1:]}, "expected .any number, 32"),
        ({"trailing": plain[0]}, "expected .any number, 32"),
    ):
        with pytest.raises(ValueError, match=problem):
            core.admit([row, replace(row, **changes)])
        assert core.pages.used == 0
    core.close()
    with pytest.raises(RuntimeError, match="closed"):
        core.admit([row])


def test_idle_columns_of_prompts_change_nothing(native, models, seed):
    runtime, rng = models("float32", "plain", str(native.device)), random.Random(seed)
    core = core_of(native, runtime, row_buckets=())
    (slot,) = core.admit([request(runtime, rng)])
    core.state.pool.nan_to_num_()  # what was allocated may hold anything
    before = [core.state.pool.clone(), core.state.counters.clone(), core.hidden([slot])]
    for columns in (*PROMPT_COLUMNS, 5):
        replays = core.launches.core.replays
        core.launches.core.idle_prompt(columns, native.stream())
        assert core.launches.core.replays - replays == (columns in PROMPT_COLUMNS)
    for was, now in zip(before, (core.state.pool, core.state.counters, core.hidden([slot])), strict=True):
        assert torch.equal(was, now)
    for columns in (0, 65):
        for call in (core.launches.core.capture_prompt, lambda n: core.launches.core.idle_prompt(n, native.stream())):
            with pytest.raises(ValueError, match=f"{columns} columns of prompts, expected 1 to 64"):
                call(columns)


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
    problems = ((6 * PAGE + 1, f"{6 * PAGE} are available"), (5 * PAGE, "5 pages .* there are 4 in all"))
    for positions, problem in problems:
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
    assert buckets(6, (9, 3, 6, 1, 3)) == (1, 3, 6)
    assert buckets(6, ()) == (6,)
    with pytest.raises(ValueError, match="buckets of 2, 0 rows, expected 1 or more"):
        buckets(6, (2, 0))


def test_every_bucket_has_its_graphs(native, models, caplog):
    runtime = models("float32", "plain", str(native.device))
    with caplog.at_level("INFO", logger="qwen3tts"):
        core = core_of(native, runtime, slots=6, frames_per_replay=2)
    prompts = {(columns, 0) for columns in PROMPT_COLUMNS}
    frames = {(r, f) for r in (1, 2, 4, 6) for f in (1, 2)}
    assert {(graph.rows, graph.frames) for graph in core.captured} == prompts | frames
    assert "captured 2 frames of 6 rows" in caplog.text
    assert "captured prompts of up to 48 positions" in caplog.text
    launches = {graph.frames: graph.launches for graph in core.captured}
    assert launches[2] == 2 * launches[1]
    assert core.nbytes > core.state.pool.nbytes
    fewer = core_of(native, runtime, slots=6, frames_per_replay=2, row_buckets=(3,))
    assert {graph.rows for graph in fewer.captured if graph.frames} == {3, 6}
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
