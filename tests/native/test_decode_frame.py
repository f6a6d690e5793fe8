"""The kernels around the layers of a frame, each against plain torch."""

import numpy as np
import pytest
import torch
from frame_state import CODES, DTYPES, EOS, LENGTH, POISON, RUNNING, State, draw, normal

from qwen3tts.backends.native.sampler import SamplerRow, pack_rows, sample_reference
from qwen3tts.model.sampling import SamplingParams


@pytest.fixture
def rng(seed, request):
    return np.random.default_rng([seed, len(request.node.name)])


def with_random_rows(rng, native, slots, groups, vocab, hidden, dtype):
    state = State(native, slots, groups, vocab, hidden, dtype)
    state.frame, state.limit = draw(rng, native, 0, 5, slots), draw(rng, native, 0, 7, slots)
    state.finished = draw(rng, native, -1, 3, slots).clamp(min=0)
    state.position, state.max_frames = draw(rng, native, 5, 900, slots), draw(rng, native, 1, 7, slots)
    state.codes = draw(rng, native, 0, vocab, slots, groups)
    state.hidden = normal(rng, native, dtype, slots, hidden)
    return state


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("projected", [False, True])
def test_begin_chooses_the_rows_and_lays_out_their_inputs(native, rng, dtype, projected):
    hidden, width, vocab, slots, rows = (40, 24, 30, 9, 7) if projected else (1048, 1048, 11, 5, 5)
    state = with_random_rows(rng, native, slots, 3, vocab, hidden, dtype)
    table = normal(rng, native, dtype, vocab, width)
    active, position, x = state.ints(2 * rows), state.ints(rows), state.values(2 * rows, width)
    before = state.snapshot()
    state.call("frame_begin", rows=rows, active=active, position=position, x=x, code_0_input=table, width=width,
               copy_hidden=not projected)  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(before, state.snapshot(), strict=True))
    want = state.values(2 * rows, width)
    for r in range(rows):
        runs = state.finished[r] == RUNNING and state.frame[r] < state.limit[r]
        assert active[r] == active[rows + r] == (r if runs else -1)
        assert position[r] == (state.position[r] if runs else 0)
        if runs:
            want[rows + r] = table[state.codes[r, 0]]
            if not projected:
                want[r] = state.hidden[r]
    assert torch.equal(x, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("groups", [2, 16, 32])
@pytest.mark.parametrize("hidden", [8, 1048])
def test_sum_rounds_the_embeddings_once_and_adds_the_text(native, rng, dtype, groups, hidden):
    slots, rows, vocab = 8, 6, 13
    state = with_random_rows(rng, native, slots, groups, vocab, hidden, dtype)
    tables = [normal(rng, native, dtype, vocab, hidden) for _ in range(groups)]
    texts = [normal(rng, native, dtype, int(rng.integers(0, 6)), hidden) for _ in range(slots)]
    padding = normal(rng, native, dtype, hidden)
    state.text = torch.tensor([t.data_ptr() for t in texts], device=native.device)
    state.text_rows = torch.tensor([t.shape[0] for t in texts], dtype=torch.int32, device=native.device)
    active = torch.tensor([0, -1, 2, 3, -1, 5], dtype=torch.int32, device=native.device)
    x, ring = state.values(rows, hidden), state.ints(rows + 1, groups)
    before = state.snapshot()
    state.call("frame_sum", rows=rows, active=active, tables=[t.data_ptr() for t in tables], padding=padding, x=x,
               ring=ring)  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(before, state.snapshot(), strict=True))
    want, codes = state.values(rows, hidden), torch.full_like(ring, -1)
    codes[rows] = POISON
    for r in (0, 2, 3, 5):
        total = torch.zeros(hidden, device=native.device)
        for table, code in zip(tables, state.codes[r], strict=True):
            total = total + table[code].float()
        frame = int(state.frame[r])
        want[r] = total.to(dtype) + (texts[r][frame] if frame < texts[r].shape[0] else padding)
        codes[r] = state.codes[r]
        parts = torch.stack([t[c] for t, c in zip(tables, state.codes[r], strict=True)])[None].cpu()
        if groups <= 16 and hidden > 1024:  # torch's order is this one up to 16, in columns that fill its vectors
            assert torch.equal(parts.sum(1)[0, :1024], total[:1024].to(dtype).cpu())
    assert torch.equal(x, want)
    assert torch.equal(ring, codes)


@pytest.mark.parametrize("step", [0, 1])
def test_end_counts_and_ends_as_the_torch_frame_decoder(native, rng, step):
    slots, rows, vocab, hidden, eos = 64, 64, 5, 16, 3
    state = with_random_rows(rng, native, slots, 2, vocab, hidden, torch.bfloat16)
    state.finished = torch.zeros_like(state.finished)
    normed = normal(rng, native, torch.bfloat16, rows, hidden)
    to = rng.permutation(slots)
    to[rng.random(rows) < 0.3] = -1
    where = torch.tensor(to, dtype=torch.int32, device=native.device)
    want = State.snapshot(state)
    names = [name for name, value in vars(state).items() if isinstance(value, torch.Tensor)]
    want = dict(zip(names, want, strict=True))
    for r, slot in enumerate(to):
        if slot < 0:
            continue
        want["hidden"][slot] = normed[r]
        want["frame"][slot] += step
        want["position"][slot] += step
        if state.codes[slot, 0] == eos:
            want["finished"][slot] = EOS
        elif want["frame"][slot] >= state.max_frames[slot]:
            want["finished"][slot] = LENGTH
    state.call("frame_end", rows=rows, slots=where, normed=normed, step=step, eos_id=eos)
    assert all(torch.equal(getattr(state, name), value) for name, value in want.items())


def test_admit_clears_slots_and_gathers_the_last_positions_of_some_columns(native, rng):
    state = with_random_rows(rng, native, 7, 2, 300, 16, torch.float16)
    slots = torch.tensor([5, 0, 3, 2], dtype=torch.int32, device=native.device)
    counts = torch.tensor([4, 1, 9, 1], dtype=torch.int32, device=native.device)
    last = (counts.cumsum(0) - 1).to(torch.int32)
    packed, x = normal(rng, native, torch.float16, 16, 16), state.values(5, 16)
    first, count = 4, 10  # the prompts of slots 0 and 3 end there, that of slot 2 right behind
    others = torch.tensor([1, 2, 4, 5, 6], device=native.device)
    before = [t[others] for t in state.snapshot()]
    state.call("frame_admit", rows=4, slots=slots, counts=counts, last=last, columns=packed[first:], first=first,
               count=count, x=x)  # fmt: skip
    assert all(torch.equal(a, b[others]) for a, b in zip(before, state.snapshot(), strict=True))
    assert torch.equal(x[1:3], packed[[4, 13]])
    assert (x[[0, 3, 4]] == POISON).all()
    chosen = slots[1:3].long()
    assert torch.equal(state.position[chosen], counts[1:3])
    assert not any(t[chosen].any() for t in (state.frame, state.finished, state.status, state.seen))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("count", "columns", "width"), [(5, 8, 1048), (3, 3, 8), (0, 2, 40)])
def test_positions_of_prompts_come_into_columns(native, rng, dtype, count, columns, width):
    state = State(native, 1, 2, 8, 8, dtype)
    packed, slot, position = normal(rng, native, dtype, 9, width), *(draw(rng, native, 0, 9, 9) for _ in range(2))
    x, slots, positions = state.values(columns + 1, width), state.ints(columns + 1), state.ints(columns + 1)
    tensors = dict(packed=packed, slot=slot, position=position, x=x, slots=slots, positions=positions)
    fields = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    fields |= {"columns": columns, "width": width, "dtype": CODES[dtype]}
    native.module.frame_prompt(fields | {"count": count}, native.stream())
    assert torch.equal(x[:count], packed[:count])
    assert (x[count:] == POISON).all()
    assert slots.tolist() == [*slot[:count].tolist(), *[-1] * (columns - count), POISON]
    assert positions.tolist() == [*position[:count].tolist(), *[0] * (columns - count), POISON]
    bad_places = [{"count": count, name: fields[name] + 8} for name in ("packed", "x")]
    for bad in ({"count": columns + 1}, {"count": -1}, {"count": count, "width": 3}, *bad_places):
        with pytest.raises(ValueError, match="expected|must begin at"):
            native.module.frame_prompt(fields | bad, native.stream())


def test_sampler_in_slots_gathers_and_leaves_idle_rows_alone(native, rng):
    vocab, rows, slots, width = 600, 6, 8, 24
    logits = normal(rng, native, torch.float32, rows, vocab)
    table = normal(rng, native, torch.bfloat16, vocab, width)
    params = [
        SamplerRow(SamplingParams(True, 0.9, 50, 0.95), int(rng.integers(2**62)), 1, 1.3, 0) for _ in range(slots)
    ]
    where = [7, -1, 0, 3, -1, 1]
    to = torch.tensor(where, dtype=torch.int32, device=native.device)
    frames = draw(rng, native, 0, 100, slots)
    seen = torch.from_numpy(rng.random((slots, vocab)) < 0.5).to(native.device)
    want_seen = seen.clone().cpu()
    codes = torch.full((slots, 5), POISON, dtype=torch.int32, device=native.device)
    picks = torch.full((slots,), POISON, dtype=torch.int64, device=native.device)
    gathered = torch.full((rows, width), POISON, dtype=torch.bfloat16, device=native.device)
    status = torch.zeros(slots, dtype=torch.int32, device=native.device)
    logits[1] = torch.nan  # an idle row's logits are nobody's
    native.module.sample(
        logits.data_ptr(), vocab, rows, vocab, pack_rows(params, native.device).data_ptr(), frames.data_ptr(), 2,
        seen.data_ptr(), 0, -1, picks.data_ptr(), status.data_ptr(), native.stream(), slots=to.data_ptr(),
        frame_offset=1, codes=codes[:, 2:].data_ptr(), code_stride=5, table=table.data_ptr(),
        gathered=gathered.data_ptr(), row_bytes=2 * width,
    )  # fmt: skip
    want_codes, want_picks, want_rows = torch.full_like(codes, POISON), torch.full_like(picks, POISON), gathered.clone()
    want_rows[:] = POISON
    for r, slot in enumerate(where):
        if slot < 0:
            continue
        pick = sample_reference(
            logits[r : r + 1].cpu(), [params[slot]], [int(frames[slot]) + 1], 2, seen=want_seen[slot : slot + 1]
        )
        want_picks[slot], want_codes[slot, 2], want_rows[r] = pick[0], pick[0], table[pick[0]]
    assert torch.equal(picks, want_picks)
    assert torch.equal(codes, want_codes)
    assert torch.equal(gathered, want_rows)
    assert torch.equal(seen.cpu(), want_seen)
    assert not status.any()
    with pytest.raises(ValueError, match="multiples of 16"):
        native.module.sample(
            logits.data_ptr(), vocab, rows, vocab, 0, 0, 2, 0, 0, -1, picks.data_ptr(), 0, native.stream(),
            table=table.data_ptr(), gathered=gathered.data_ptr(), row_bytes=24,
        )  # fmt: skip


# ---------------------------------------------------------------- graphs


def test_an_error_inside_leaves_no_capture_open_and_the_graph_as_it_was(native):
    x = torch.tensor([0.0, -1.0, -20.0], device=native.device)
    weights = torch.zeros(3, dtype=torch.int64, device=native.device)
    graph = native.module.Graph()
    with pytest.raises(RuntimeError, match="nothing was captured"):
        graph.launch(native.stream())

    def good(stream):
        native.module.sampler_weights(x.data_ptr(), weights.data_ptr(), 3, stream)

    def bad(stream):
        good(stream)
        native.module.sampler_weights(x.data_ptr(), weights.data_ptr(), -1, stream)

    graph.capture(good)
    for _ in range(3):
        with pytest.raises(ValueError, match="count -1"):
            graph.capture(bad)
    assert graph.nodes == 1
    assert not weights.any()
    graph.launch(native.stream())
    first = weights.clone()
    assert first[0] == 2**24
    x[0] = -1.0
    graph.launch(native.stream())
    assert weights[0] == first[1]
    graph.capture(lambda stream: (good(stream), good(stream)))
    assert graph.nodes == 2


def test_frame_kernels_refuse_what_does_not_fit(native):
    state = State(native, 4, 2, 10, 16, torch.float32)
    buffer = state.ints(64)
    end = {"rows": 1, "slots": buffer, "normed": buffer, "step": 1, "eos_id": 3}
    for problem, changed in (
        ("5 rows, expected 0 to the 4 slots", {"rows": 5}),
        ("there is no field steps", {"steps": 1}),
        ("step is 'a', expected a number", {"step": "a"}),
    ):
        with pytest.raises(ValueError, match=problem):
            state.call("frame_end", **(end | changed))
    del end["step"]
    with pytest.raises(ValueError, match="the field step is missing"):
        state.call("frame_end", **end)
    state.hidden_size = 6
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        state.call("frame_end", step=1, **end)
