"""The kernels around the layers of a frame: each against plain torch, and many frames of a model without layers against
the row-by-row rules of the torch frame decoder; eager and as a graph."""

import numpy as np
import pytest
import torch

from qwen3tts.backends.native.sampler import SamplerRow, pack_rows, sample_reference
from qwen3tts.model.sampling import SamplingParams

POISON = 77
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
RUNNING, EOS, LENGTH = 0, 1, 2


class State:
    """FrameState of csrc/common/decode/frame.h in tensors, with values that no kernel would leave."""

    def __init__(self, native, slots, groups, vocab, hidden, dtype):
        self.native, self.slots, self.groups, self.vocab, self.hidden_size = native, slots, groups, vocab, hidden
        self.dtype = dtype
        for name in ("frame", "position", "finished", "status", "limit", "max_frames", "text_rows"):
            setattr(self, name, self.ints(slots))
        self.codes = self.ints(slots, groups)
        self.seen = torch.full((slots, vocab), True, device=native.device)
        self.hidden = self.values(slots, hidden)
        self.text = torch.zeros(slots, dtype=torch.int64, device=native.device)
        default = SamplerRow(SamplingParams(False, 1.0, 0, 1.0), 0)
        self.talker = pack_rows([default] * slots, native.device)
        self.predictor = self.talker.clone()

    def ints(self, *shape):
        return torch.full(shape, POISON, dtype=torch.int32, device=self.native.device)

    def values(self, *shape):
        return torch.full(shape, POISON, dtype=self.dtype, device=self.native.device)

    def fields(self):
        names = (
            "frame", "position", "finished", "codes", "status", "seen", "hidden", "limit", "max_frames", "text",
            "text_rows", "talker", "predictor",
        )  # fmt: skip
        pointers = {name: getattr(self, name).data_ptr() for name in names}
        return pointers | {name: getattr(self, name) for name in ("slots", "groups", "vocab", "hidden_size")}

    def call(self, operation, stream=None, **arguments):
        fields = {name: v.data_ptr() if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
        fields |= {"state": self.fields(), "dtype": CODES[self.dtype]}
        getattr(self.native.module, operation)(fields, self.native.stream() if stream is None else stream)

    def snapshot(self):
        return [t.clone() for t in vars(self).values() if isinstance(t, torch.Tensor)]


@pytest.fixture
def rng(seed, request):
    return np.random.default_rng([seed, len(request.node.name)])


def normal(rng, native, dtype, *shape):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(native.device, dtype)


def draw(rng, native, low, high, *shape):
    return torch.from_numpy(rng.integers(low, high, shape).astype(np.int32)).to(native.device)


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


def test_admit_clears_a_slot_and_gathers_the_last_positions(native, rng):
    state = with_random_rows(rng, native, 7, 2, 300, 16, torch.float16)
    slots = torch.tensor([5, 0, 3], dtype=torch.int32, device=native.device)
    counts = torch.tensor([4, 1, 9], dtype=torch.int32, device=native.device)
    last = (counts.cumsum(0) - 1).to(torch.int32)
    packed, x = normal(rng, native, torch.float16, 14, 16), state.values(4, 16)
    others = torch.tensor([1, 2, 4, 6], device=native.device)
    before = [t[others] for t in state.snapshot()]
    state.call("frame_admit", rows=3, slots=slots, counts=counts, last=last, packed=packed, x=x)
    assert all(torch.equal(a, b[others]) for a, b in zip(before, state.snapshot(), strict=True))
    assert torch.equal(x[:3], packed[[3, 4, 13]])
    assert (x[3] == POISON).all()
    chosen = slots.long()
    assert torch.equal(state.position[chosen], counts)
    assert not any(t[chosen].any() for t in (state.frame, state.finished, state.status, state.seen))


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


# ---------------------------------------------------------------- frames of a model without layers


class Layerless:
    """A model whose layers do nothing, in whole numbers small enough that every sum is exact: hidden = input, logits =
    hidden @ head. What is left of a frame is what this file tests."""

    groups, vocab, code_vocab, width, eos = 4, 48, 20, 16, 5

    def __init__(self, rng, native):
        def whole(*shape):
            return torch.from_numpy(rng.integers(-2, 3, shape).astype(np.float32)).to(native.device)

        self.tables = [whole(self.vocab, self.width), *(whole(self.code_vocab, self.width) for _ in range(3))]
        self.heads = [whole(self.vocab, self.width) / 8, *(whole(self.code_vocab, self.width) / 8 for _ in range(3))]
        self.padding = whole(self.width)
        self.suppressed = torch.arange(self.vocab, device=native.device) >= 40


class Kernels:
    """Frames of the first `rows` slots, through the kernels."""

    def __init__(self, native, model, slots, ring_frames):
        self.native, self.model = native, model
        self.state = State(native, slots, model.groups, model.vocab, model.width, torch.float32)
        s = self.state
        for field in (s.limit, s.frame, s.status):
            field.zero_()
        self.active, self.position = s.ints(2 * slots), s.ints(slots)
        self.x, self.talker_x = s.values(2 * slots, model.width), s.values(slots, model.width)
        self.logits = torch.full((slots, model.vocab), float(POISON), device=native.device)
        self.ring = s.ints(ring_frames, slots, model.groups)

    def head(self, i, x, rows, stream):
        weight = self.model.heads[i]
        self.native.module.skinny_product(x.data_ptr(), weight.data_ptr(), 0, self.logits.data_ptr(), rows,
                                          *weight.shape, weight.shape[1], weight.shape[0], 0, 0, stream)  # fmt: skip

    def pick(self, i, rows, slots, offset, stream):
        s, model = self.state, self.model
        first, last = i == 0, i == model.groups - 1
        vocab = model.heads[i].shape[0]
        self.native.module.sample(
            self.logits.data_ptr(), vocab, rows, vocab, (s.talker if first else s.predictor).data_ptr(),
            s.frame.data_ptr(), i, s.seen.data_ptr() if first else 0, model.suppressed.data_ptr() if first else 0,
            model.eos if first else -1, 0, s.status.data_ptr(), stream, slots=slots.data_ptr(), frame_offset=offset,
            codes=s.codes.data_ptr() + 4 * i, code_stride=model.groups,
            table=0 if first or last else model.tables[i].data_ptr(),
            gathered=0 if first or last else self.x.data_ptr(), row_bytes=4 * model.width,
        )  # fmt: skip

    def frames(self, rows, count, stream):
        s, model = self.state, self.model
        for k in range(count):
            s.call("frame_begin", stream, rows=rows, active=self.active, position=self.position, x=self.x,
                   code_0_input=model.tables[0], width=model.width, copy_hidden=True)  # fmt: skip
            for i in range(1, model.groups):
                self.head(i, self.x[rows:] if i == 1 else self.x, rows, stream)
                self.pick(i, rows, self.active, 0, stream)
            s.call("frame_sum", stream, rows=rows, active=self.active, tables=[t.data_ptr() for t in model.tables],
                   padding=model.padding, x=self.talker_x, ring=self.ring[k])  # fmt: skip
            self.head(0, self.talker_x, rows, stream)
            self.pick(0, rows, self.active, 1, stream)
            s.call("frame_end", stream, rows=rows, slots=self.active, normed=self.talker_x, step=1, eos_id=model.eos)

    def admit(self, slot, prompt, talker, predictor, max_frames):
        s, device, stream = self.state, self.native.device, self.native.stream()
        s.talker[slot], s.predictor[slot] = pack_rows([talker, predictor], device)
        s.max_frames[slot] = max_frames
        to, count, last = (
            torch.tensor([v], dtype=torch.int32, device=device) for v in (slot, len(prompt), len(prompt) - 1)
        )
        s.call("frame_admit", rows=1, slots=to, counts=count, last=last, packed=prompt, x=self.talker_x)
        self.head(0, self.talker_x, 1, stream)
        self.pick(0, 1, to, 0, stream)
        s.call("frame_end", rows=1, slots=to, normed=self.talker_x, step=0, eos_id=self.model.eos)


class Life:
    """One row by the rules of the torch frame decoder, slowly."""

    def __init__(self, model, prompt, talker, predictor, max_frames):
        self.model, self.talker, self.predictor, self.max_frames = model, talker, predictor, max_frames
        self.positions, self.frames, self.finished, self.codes = len(prompt), 0, RUNNING, []
        self.seen = torch.zeros(1, model.vocab, dtype=torch.bool, device=prompt.device)
        self.text, self.limit = prompt[:0], 0
        self.step_to(prompt[-1])

    def step_to(self, hidden):
        model, self.hidden = self.model, hidden
        self.token = int(sample_reference((hidden @ model.heads[0].T)[None], [self.talker], [self.frames], 0,
                                          seen=self.seen, suppressed=model.suppressed, eos_id=model.eos))  # fmt: skip
        if self.token == model.eos:
            self.finished = EOS
        elif self.frames >= self.max_frames:
            self.finished = LENGTH

    def advance(self, frames):
        for _ in range(frames):
            if self.finished != RUNNING or self.frames >= self.limit:
                return
            model, codes = self.model, [self.token]
            total = x = model.tables[0][self.token]
            for i in range(1, model.groups):
                logits = (x @ model.heads[i].T)[None]
                codes.append(int(sample_reference(logits, [self.predictor], [self.frames], i)))
                x = model.tables[i][codes[-1]]
                total = total + x
            self.codes.append(codes)
            text = self.text[self.frames] if self.frames < len(self.text) else model.padding
            self.frames, self.positions = self.frames + 1, self.positions + 1
            self.step_to(total + text)


def sampling(rng, **settings):
    params = SamplingParams(bool(rng.random() < 0.8), float(rng.choice([0.3, 1.0, 4.0])), int(rng.integers(0, 30)), 0.9)
    return SamplerRow(params, int(rng.integers(2**62)), int(rng.integers(3)), **settings)


@pytest.mark.parametrize("as_graph", [False, True])
def test_lives_of_many_rows_equal_the_slow_rules(native, rng, as_graph):
    model, slots, depth = Layerless(rng, native), 6, 3
    kernels = Kernels(native, model, slots, depth)
    graphs = {}
    lives, made, ended, texts = {}, {}, set(), {}

    def whole(count):
        return torch.from_numpy(rng.integers(-2, 3, (count, model.width)).astype(np.float32)).to(native.device)

    def advance(rows, count):
        if not as_graph:
            return kernels.frames(rows, count, native.stream())
        if (rows, count) not in graphs:
            before = kernels.state.snapshot()
            graphs[rows, count] = native.module.Graph()
            graphs[rows, count].capture(lambda stream: kernels.frames(rows, count, stream))
            assert graphs[rows, count].nodes == count * (2 * model.groups + 3)
            assert all(torch.equal(a, b) for a, b in zip(before, kernels.state.snapshot(), strict=True))
        return graphs[rows, count].launch(native.stream())

    for _ in range(60):
        slot = int(rng.integers(slots))
        if slot not in lives:  # a new row
            talker, predictor = sampling(rng, repetition_penalty=1.2, min_frames=2), sampling(rng)
            prompt, longest = whole(int(rng.integers(1, 9))), int(rng.integers(1, 12))
            lives[slot], made[slot] = Life(model, prompt, talker, predictor, longest), []
            kernels.admit(slot, prompt, talker, predictor, longest)
        elif rng.random() < 0.2:  # cancelled, or over: the slot is free
            ended.add(lives.pop(slot).finished)
            kernels.state.limit[slot] = 0
        for slot, life in lives.items():  # text arrives; frames are allowed
            life.text = torch.cat((life.text, whole(int(rng.integers(0, 3)))))
            life.limit = max(life.limit, int(rng.integers(0, life.frames + 4)))
            texts[slot] = life.text
            kernels.state.text[slot], kernels.state.text_rows[slot] = life.text.data_ptr(), len(life.text)
            kernels.state.limit[slot] = life.limit
        rows, count = int(rng.integers(1, slots + 1)), int(rng.integers(1, depth + 1))
        kernels.ring[:] = POISON
        advance(rows, count)
        assert (kernels.ring[:, rows:] == POISON).all()
        for slot, life in lives.items():
            if slot < rows:
                life.advance(count)
                made[slot] += [codes for codes in kernels.ring[:count, slot].tolist() if codes[0] >= 0]
            state = kernels.state
            assert made[slot] == life.codes
            assert (int(state.frame[slot]), int(state.position[slot])) == (life.frames, life.positions)
            assert int(state.finished[slot]) == life.finished
            assert int(state.codes[slot, 0]) == life.token
            assert torch.equal(state.hidden[slot], life.hidden)
            assert torch.equal(state.seen[slot], life.seen[0])
        for slot in set(range(rows)) - set(lives):
            assert (kernels.ring[:count, slot] == -1).all()
    assert not kernels.state.status.any()
    assert len(ended | {life.finished for life in lives.values()}) > 1


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
