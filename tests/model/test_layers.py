"""The transformer against a slow reference: full attention without a cache, in float64."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from qwen3tts.model.config import TransformerConfig
from qwen3tts.model.kv_cache import EqualRows, PackedRows, RowCache
from qwen3tts.model.layers import DecoderBlock, RMSNorm, RotaryTable, independent_rows, product, run_blocks

CONFIG = TransformerConfig(
    hidden_size=48,
    intermediate_size=80,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=10,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_positions=64,
)
CPU = torch.device("cpu")


def slow_norm(x, norm):
    return norm.weight.double() * x / torch.sqrt((x * x).mean(-1, keepdim=True) + norm.eps)


def slow_stack(blocks, norm, x, config):
    """x float64 [T, hidden]: every position from scratch, heads one by one."""
    steps, d = x.shape[0], config.head_dim
    angle = torch.arange(steps).double()[:, None] / config.rope_theta ** (torch.arange(0, d, 2).double() / d)

    def rotate(v):
        a, b = v[:, : d // 2], v[:, d // 2 :]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), 1)

    for block in blocks:
        a, w = block.self_attn, {name: p.double() for name, p in block.named_parameters()}
        y = slow_norm(x, block.input_layernorm)
        q, k, v = (y @ w[f"self_attn.{name}_proj.weight"].T for name in "qkv")
        heads = []
        for head in range(config.num_heads):
            group = head * config.num_kv_heads // config.num_heads
            one = slice(head * d, (head + 1) * d)
            kv = slice(group * d, (group + 1) * d)
            scores = rotate(slow_norm(q[:, one], a.q_norm)) @ rotate(slow_norm(k[:, kv], a.k_norm)).T / d**0.5
            scores = scores.masked_fill(torch.ones(steps, steps).triu(1).bool(), -torch.inf)
            heads.append(scores.softmax(-1) @ v[:, kv])
        x = x + torch.cat(heads, 1) @ w["self_attn.o_proj.weight"].T
        y = slow_norm(x, block.post_attention_layernorm)
        gate, up = y @ w["mlp.gate_proj.weight"].T, y @ w["mlp.up_proj.weight"].T
        x = x + (F.silu(gate) * up) @ w["mlp.down_proj.weight"].T
    return slow_norm(x, norm)


@pytest.fixture
def stack(seed):
    torch.manual_seed(seed)
    blocks = torch.nn.ModuleList(DecoderBlock(CONFIG, i) for i in range(CONFIG.num_layers))
    norm = RMSNorm(CONFIG.hidden_size, CONFIG.rms_norm_eps)
    for name, parameter in (*blocks.named_parameters(), *norm.named_parameters()):
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name or name == "weight" else 0.0, 0.2)
    return blocks, norm, RotaryTable(CONFIG, CONFIG.max_positions, CPU, torch.float32)


@torch.no_grad()
def test_packed_rows_of_different_lengths_in_uneven_steps(stack, seed):
    blocks, norm, rotary = stack
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(length, CONFIG.hidden_size, generator=generator) for length in (23, 7, 15)]
    rows = [RowCache(CONFIG, len(x), CPU, torch.float32) for x in inputs]
    outputs = [[] for _ in inputs]
    plan = [(5, 0, 3), (1, 6, 1), (1, 1, 1), (9, 0, 9), (7, 0, 1)]
    for step in plan:
        active = [i for i, count in enumerate(step) if count]
        counts = [step[i] for i in active]
        packed = torch.cat([inputs[i][rows[i].length : rows[i].length + step[i]] for i in active])
        cache = PackedRows([rows[i] for i in active], counts)
        out = run_blocks(blocks, norm, packed, rotary, cache)
        cache.commit()
        for i, piece in zip(active, out.split(counts), strict=True):
            outputs[i].append(piece)
    for x, out in zip(inputs, outputs, strict=True):
        expected = slow_stack(blocks, norm, x.double(), CONFIG)
        assert torch.allclose(torch.cat(out).double(), expected, atol=2e-5, rtol=1e-5)


@torch.no_grad()
def test_equal_rows_restart(stack, seed):
    blocks, norm, rotary = stack
    generator = torch.Generator().manual_seed(seed + 1)
    cache = EqualRows(CONFIG, 3, 8, CPU, torch.float32)
    for _ in range(2):
        x = torch.randn(3, 8, CONFIG.hidden_size, generator=generator)
        out = []
        for i, (start, count) in enumerate(((0, 2), (2, 1), (3, 5))):
            cache.begin(count, restart=i == 0)
            piece = x[:, start : start + count].flatten(0, 1)
            out.append(run_blocks(blocks, norm, piece, rotary, cache).unflatten(0, (3, count)))
            cache.commit()
        for row in range(3):
            expected = slow_stack(blocks, norm, x[row].double(), CONFIG)
            assert torch.allclose(torch.cat(out, 1)[row].double(), expected, atol=2e-5, rtol=1e-5)


def test_a_full_row_refuses_more(stack):
    row = RowCache(CONFIG, 4, CPU, torch.float32)
    row.length = 3
    with pytest.raises(ValueError, match="2 positions do not fit: 3 of 4"):
        PackedRows([row], [2])


def test_norm_rounds_before_the_weight():
    norm = RMSNorm(4, 1e-6).to(torch.bfloat16)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 1.5, 0.75, 2.0]))
    x = torch.tensor([[1.01, -2.03, 0.37, 5.5]], dtype=torch.bfloat16)
    wide = x.float()
    scaled = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16)
    assert torch.equal(norm(x), (scaled.float() * norm.weight.float()).to(torch.bfloat16))


def test_rotary_table_with_a_start_is_a_part_of_the_whole():
    config = dataclasses.replace(CONFIG, head_dim=12)
    whole = RotaryTable(config, 50, CPU, torch.float32)
    part = RotaryTable(config, 10, CPU, torch.float32, start=31)
    assert torch.equal(whole.cos[31:41], part.cos)
    assert torch.equal(whole.sin[31:41], part.sin)


@pytest.mark.parametrize(("inputs", "outputs"), [(1024, 3072), (3072, 1024), (64, 1088), (517, 1023), (1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_independent_rows_are_bit_equal_to_rows_alone(inputs, outputs, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    x = torch.randn(9, inputs, generator=generator).to(dtype)
    with independent_rows():
        together = product(x, weight)
        for rows in (x[:1], x[3:4], x[2:5]):
            start = int((x == rows[0]).all(1).nonzero()[0])
            assert torch.equal(product(rows, weight), together[start : start + len(rows)])
    exact = x.double() @ weight.double().T
    assert float((together.double() - exact).abs().max()) < (1e-3 if dtype == torch.float32 else 2.0)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rotary_table_that_was_shortened_comes_back_as_it_was(dtype, inference):
    with torch.inference_mode(inference):
        table = RotaryTable(CONFIG, 75, torch.device("cpu"), dtype, start=3)
        cos, sin, want = table.cos, table.sin, [table.cos.clone(), table.sin.clone()]
        table.shorten(80)
        assert len(table.cos) == 75
        table.shorten(20)
    assert [x.untyped_storage().nbytes() for x in (cos, sin)] == [20 * CONFIG.head_dim * dtype.itemsize] * 2
    assert torch.equal(cos, want[0][:20])
    assert torch.equal(sin, want[1][:20])
    with torch.inference_mode(inference):
        table.cover(20)
        assert len(table.cos) == 20
        angles = table.at(torch.tensor([0, 19]))
        table.cover(21)
        assert torch.equal(table.at(torch.tensor([0, 19]))[0], angles[0])
        assert torch.equal(table.at(torch.tensor([74]))[1][:, 0], want[1][74:])
    table.cover(1000)
    assert table.cos is cos
    assert table.sin is sin
    assert torch.equal(cos, want[0])
    assert torch.equal(sin, want[1])
