"""The decode core on tiny models: codes of the torch frame decoder, and bits that depend on nothing but the row."""

import numpy as np
import pytest
import torch

import qwen3tts
from qwen3tts.backends.native.sampler import SamplerRow, pack_rows
from qwen3tts.backends.torch.picking import MIN_TOKENS
from qwen3tts.model.sampling import SamplingParams, suppressed_tokens
from qwen3tts.runtime.protocols import RowRequest

WAVES = (64,)
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
PAGE = 8
POISON = 77


@pytest.fixture
def load(native, tiny_checkpoint):
    """load(dtype, preset) -> a torch frame decoder on the module's device."""
    opened = []

    def make(dtype, preset="tiny"):
        tts = qwen3tts.load(
            tiny_checkpoint(preset=preset, eos_gain=1.0), device=native.device, backend="torch",
            dtype=str(dtype).removeprefix("torch."),
        )  # fmt: skip
        opened.append(tts)
        return tts.engine.runtime.frames

    yield make
    for tts in opened:
        tts.close()


class Core:
    """A Decoder over the talker's own parameters, and the tensors it works in."""

    def __init__(self, native, frames, slots, *, ring_frames=4, pages=64):
        talker = frames.talker
        config, device, self.dtype = talker.config, talker.device, talker.dtype
        self.native, self.talker, self.kept, self.slots = native, talker, [], slots
        groups, vocab, hidden = config.num_code_groups, config.vocab_size, config.transformer.hidden_size
        self.groups, self.hidden_size, self.vocab = groups, hidden, vocab

        def ints(*shape, value=0):
            return torch.full(shape, value, dtype=torch.int32, device=device)

        for name in ("frame", "position", "status", "limit", "max_frames", "text_rows"):
            setattr(self, name, ints(slots))
        self.finished, self.codes = ints(slots, value=1), ints(slots, groups)  # every slot is free
        self.seen = torch.zeros(slots, vocab, dtype=torch.bool, device=device)
        self.hidden = torch.zeros(slots, hidden, dtype=self.dtype, device=device)
        self.text = torch.zeros(slots, dtype=torch.int64, device=device)
        self.rows = [pack_rows([SamplerRow(SamplingParams(False, 1.0, 0, 1.0), 0)] * slots, device) for _ in range(2)]
        self.ring = ints(ring_frames, slots, groups, value=POISON)
        p = config.code_predictor.transformer
        t = config.transformer
        self.pages = self.keep(
            torch.zeros(t.num_layers, 2, pages, t.num_kv_heads, PAGE, t.head_dim, dtype=self.dtype, device=device)
        )
        own = self.keep(
            torch.zeros(p.num_layers, 2, slots, p.num_kv_heads, 16, p.head_dim, dtype=self.dtype, device=device)
        )
        self.table = ints(slots, pages // slots)
        self.table[:] = torch.randperm(slots * (pages // slots), device=device).view(slots, -1)
        predictor = talker.code_predictor
        tables = [
            self.keep(e.weight.to(self.dtype)) for e in (talker.model.codec_embedding, *predictor.model.codec_embedding)
        ]
        projection = predictor.small_to_mtp_projection
        projected = isinstance(projection, torch.nn.Linear)
        inputs = [self.keep(projection(e)) for e in tables[:-1]] if projected else tables[:-1]
        self.padding = self.keep(frames._pad if isinstance(frames._pad, torch.Tensor) else frames._pad())
        state = {
            "frame": self.frame, "position": self.position, "finished": self.finished, "codes": self.codes,
            "status": self.status, "seen": self.seen, "hidden": self.hidden, "limit": self.limit,
            "max_frames": self.max_frames, "text": self.text, "text_rows": self.text_rows, "talker": self.rows[0],
            "predictor": self.rows[1],
        }  # fmt: skip
        sizes = {"slots": slots, "groups": groups, "vocab": vocab, "hidden_size": hidden}
        self.fields = {
            "dtype": CODES[self.dtype], "eos_id": config.codec_eos_id,
            "state": {name: tensor.data_ptr() for name, tensor in state.items()} | sizes,
            "talker": self.stack(t, talker.model, talker.rotary, self.pages, self.table),
            "predictor": self.stack(p, predictor.model, predictor.rotary, own, None),
            "codec_head": self.head(talker.codec_head), "heads": [self.head(head) for head in predictor.lm_head],
            "projection": projection.weight.data_ptr() if projected else 0,
            "projection_bias": projection.bias.data_ptr() if projected else 0,
            "tables": [e.data_ptr() for e in tables], "inputs": [e.data_ptr() for e in inputs],
            "padding": self.padding.data_ptr(),
            "suppressed": self.keep(suppressed_tokens(vocab, config.codec_eos_id, device)).data_ptr(),
            "ring": self.ring.data_ptr(), "ring_frames": ring_frames, "persistent_predictor": False, "workspace": 0,
            "workspace_size": 0,
        }  # fmt: skip
        size = native.module.Decoder.workspace_bytes(self.fields)
        workspace = self.keep(torch.zeros(size, dtype=torch.uint8, device=device))
        self.fields |= {"workspace": workspace.data_ptr(), "workspace_size": size}
        self.decoder = native.module.Decoder(self.fields)

    def keep(self, tensor):
        self.kept.append(tensor)
        return tensor

    def stack(self, config, model, rotary, pool, table):
        layers = []
        for block in model.layers:
            attention, mlp = block.self_attn, block.mlp
            weights = {
                "input_norm": block.input_layernorm, "q": attention.q_proj, "k": attention.k_proj,
                "v": attention.v_proj, "q_norm": attention.q_norm, "k_norm": attention.k_norm, "o": attention.o_proj,
                "post_norm": block.post_attention_layernorm, "gate": mlp.gate_proj, "up": mlp.up_proj,
                "down": mlp.down_proj,
            }  # fmt: skip
            layers.append({name: module.weight.data_ptr() for name, module in weights.items()})
        geometry = {
            "hidden": config.hidden_size, "layers": config.num_layers, "heads": config.num_heads,
            "kv_heads": config.num_kv_heads, "head_dim": config.head_dim, "intermediate": config.intermediate_size,
            "eps": config.rms_norm_eps,
        }  # fmt: skip
        return {
            "geometry": geometry, "layers": layers, "norm": model.norm.weight.data_ptr(),
            "cos": rotary.cos.data_ptr(), "sin": rotary.sin.data_ptr(), "positions": rotary.cos.shape[0],
            "pool": {
                "base": pool.data_ptr(), "table": 0 if table is None else table.data_ptr(),
                "table_stride": 0 if table is None else table.shape[1], "page": pool.shape[4], "pages": pool.shape[2],
            },
        }  # fmt: skip

    def head(self, head):
        return {"weight": head.weight.data_ptr(), "vocab": head.weight.shape[0], "dtype": CODES[head.weight.dtype]}

    def admit(self, slots, requests):
        """Runs the prompts of some requests in their slots; they may then make all their frames."""
        device = self.hidden.device
        for slot, r in zip(slots, requests, strict=True):
            talker = SamplerRow(r.talker, r.seed, r.part, r.repetition_penalty, MIN_TOKENS)
            packed = pack_rows([talker, SamplerRow(r.predictor, r.seed, r.part)], device)
            self.rows[0][slot], self.rows[1][slot] = packed
            self.max_frames[slot] = self.limit[slot] = r.max_frames
            trailing = self.keep(r.trailing.to(self.dtype).contiguous())
            self.text[slot], self.text_rows[slot] = trailing.data_ptr(), len(trailing)
        counts = [len(r.prefill) for r in requests]
        x = torch.cat([r.prefill for r in requests]).to(self.dtype)
        tensors = {
            "slot": [slot for slot, count in zip(slots, counts, strict=True) for _ in range(count)],
            "position": [i for count in counts for i in range(count)],
            "slots": slots, "counts": counts, "last": np.cumsum(counts) - 1,
        }  # fmt: skip
        ints = {name: torch.tensor(v, dtype=torch.int32, device=device) for name, v in tensors.items()}
        fields = {name: tensor.data_ptr() for name, tensor in ints.items()}
        self.decoder.prefill(
            fields | {"x": x.data_ptr(), "positions": len(x), "prompts": len(counts)}, self.native.stream()
        )

    def advance(self, rows, count, replay=False):
        """-> per row the codes of the frames it made."""
        if replay:
            self.decoder.capture(rows, count)
        (self.decoder.replay if replay else self.decoder.frames)(rows, count, self.native.stream())
        return [[c for c in self.ring[:count, r].tolist() if c[0] >= 0] for r in range(rows)]

    def run(self, rows, replay, counts=(1, 3)):
        """All frames of slots 0 .. rows - 1."""
        made = [[] for _ in range(rows)]
        while not self.finished[:rows].all():
            for count in counts:
                for all_codes, codes in zip(made, self.advance(rows, count, replay), strict=True):
                    all_codes += codes
        return made


SAMPLING = (
    SamplingParams(True, 0.9, 50, 1.0),
    SamplingParams(True, 1.4, 0, 0.9),
    SamplingParams(False, 1.0, 0, 1.0),
    SamplingParams(True, 0.5, 3, 0.99),
)


def requests(decoder, generator, count, longest=4):
    talker = decoder.talker

    def draw(rows):
        return torch.randn(rows, talker.config.transformer.hidden_size, generator=generator).to(
            talker.device, talker.dtype
        )

    return [
        RowRequest(
            prefill=draw(1 + (13 * i + 2) % 40), trailing=draw(i % 4), talker=SAMPLING[i % 4],
            predictor=SAMPLING[(i + 1) % 4], repetition_penalty=(1.05, 1.0, 2.0)[i % 3], seed=2**40 * i + 5,
            part=i % 2, max_frames=1 + (5 * i + 3) % longest,
        )
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("preset", ["tiny", "tiny-mtp"])
def test_fp32_codes_equal_the_torch_frame_decoder(native, load, preset):
    frames = load(torch.float32, preset)
    rows = requests(
        frames, torch.Generator().manual_seed(20), 6, longest=4
    )  # a draw may turn on the order of a sum: fixed
    core = Core(native, frames, 6)
    core.admit([3, 0, 5], rows[:3])
    core.admit([1, 2, 4], rows[3:])
    made = core.run(6, replay=False)
    slots = frames.admit(rows)
    batch = frames.advance(100)
    want = [codes[:count].tolist() for codes, count in zip(batch.codes, batch.counts, strict=True)]
    for slot in slots:
        frames.release(slot)
    assert [made[slot] for slot in (3, 0, 5, 1, 2, 4)] == want
    ends = ["", "eos", "length"]
    assert tuple(ends[core.finished[slot]] for slot in (3, 0, 5, 1, 2, 4)) == batch.finished
    assert not core.status.any()


def test_a_row_has_the_same_bits_alone_in_any_slot_and_replayed(native, load, seed):
    """Prompts of more than one pass of columns, too: what a row shares a launch with does not show. In fp16; bf16 has
    its test in test_decode_decoder.py."""
    frames = load(torch.float16)
    rows = requests(frames, torch.Generator().manual_seed(seed), 5)
    together = Core(native, frames, 5)
    together.admit([4, 2, 0, 1, 3], rows)
    made = together.run(5, replay=True)
    for i, slot in ((2, 0), (3, 1)):
        alone = Core(native, frames, 3)
        alone.admit([1], [rows[i]])
        assert alone.run(2, replay=False, counts=(1,))[1] == made[slot]
        for name in ("hidden", "seen", "frame", "position", "finished", "codes"):
            assert torch.equal(getattr(alone, name)[1], getattr(together, name)[slot])


def test_idle_rows_write_nothing(native, load, seed):
    frames = load(torch.bfloat16)
    core = Core(native, frames, 4)
    rows = requests(frames, torch.Generator().manual_seed(seed), 3)
    core.admit([0, 1, 2], rows)
    core.limit[:3] = torch.tensor([0, 100, 1])  # slot 0 may make none, slot 2 one, slot 3 is free
    core.max_frames[:3], core.finished[:] = 100, 0
    core.advance(4, 1)
    names = ("hidden", "seen", "frame", "position", "finished", "codes", "status")
    before = {name: getattr(core, name).clone() for name in names}
    pages, idle = core.pages.clone(), [0, 2, 3]
    core.advance(4, 3)
    assert (core.ring[:3, idle] == -1).all()
    assert core.frame[:3].tolist()[0] == 0
    for name, value in before.items():
        assert torch.equal(getattr(core, name)[idle], value[idle])
    theirs = core.table[idle].flatten().long()
    assert torch.equal(core.pages[:, :, theirs], pages[:, :, theirs])


def test_what_does_not_fit_is_refused(native, load):
    frames = load(torch.float32)
    core = Core(native, frames, 2, ring_frames=2)
    for problem, call in (
        ("3 rows, expected 1 to the 2 slots", lambda: core.decoder.frames(3, 1, 0)),
        ("3 frames at once", lambda: core.decoder.capture(1, 3)),
        ("there is no field tabels", lambda: native.module.Decoder(core.fields | {"tabels": []})),
        ("1 embedding tables", lambda: native.module.Decoder(core.fields | {"tables": [1]})),
        ("the workspace has 100 bytes", lambda: native.module.Decoder(core.fields | {"workspace_size": 100})),
    ):
        with pytest.raises(ValueError, match=problem):
            call()
    with pytest.raises(RuntimeError, match="were not captured"):
        core.decoder.replay(2, 2, native.stream())
    launches = core.decoder.capture(2, 2)
    assert launches == core.decoder.capture(2, 2)
    assert launches == 2 * core.decoder.capture(1, 1)
