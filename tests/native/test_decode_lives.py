"""Many frames of a model without layers, kernel by kernel, against the row-by-row rules of the torch frame decoder;
eager and as a graph."""

import numpy as np
import pytest
import torch
from frame_state import EOS, LENGTH, POISON, RUNNING, State

from qwen3tts.backends.native.sampler import SamplerRow, pack_rows, sample_reference
from qwen3tts.model.sampling import SamplingParams

WAVES = (64,)


@pytest.fixture
def rng(seed, request):
    return np.random.default_rng([seed, len(request.node.name)])


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
        s.call("frame_admit", rows=1, slots=to, counts=count, last=last, columns=prompt, first=0, count=len(prompt),
               x=self.talker_x)  # fmt: skip
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
