"""Attention of the decode core against plain torch: any slot, any pages, any number of blocks, alone or not."""

import ctypes

import pytest
import torch
from attention_layer import (
    DTYPES,
    HEADS,
    NAN,
    Caches,
    Layer,
    assert_close,
    assert_same_pages,
    bits,
    copy_of,
)

from qwen3tts.backends.native.decode.attention import (
    attention_workspace,
    store_kv,
    store_kv_reference,
)
from qwen3tts.backends.native.decode.attention_cases import selftest_cases
from qwen3tts.errors import KernelArgumentError

# ---------------------------------------------------------------- talker


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_talker_attention_and_what_it_stores(native, seed, dtype, heads):
    layer = Layer(native, seed, dtype, heads)
    positions = [0, layer.integer(1, 40), layer.integer(100, 180), 63]
    pages = layer.pages(4, 192, 16)
    for slot, position in enumerate(positions):
        layer.fill(pages, slot, position)
    order = torch.randperm(4, generator=layer.generator).tolist()
    slot, position = layer.ints(order), layer.ints([positions[s] for s in order])
    qkv, expected = layer.rows(4), copy_of(pages)
    want = layer.reference(qkv, slot, position, expected)
    assert_close(layer.attend(qkv, slot, position, pages, blocks=layer.integer(0, 2)), want)
    assert_same_pages(pages, expected)


@pytest.mark.parametrize(("dtype", "heads"), [(torch.float32, (16, 2, 1)), (torch.bfloat16, (128, 2, 1))], ids=str)
def test_every_position_as_a_row_grows(native, seed, dtype, heads):
    """Edges of pages and runs: a row of 0..70 positions, its pages NaN where it has not been."""
    layer = Layer(native, seed, dtype, heads)
    pages = layer.pages(2, 80, 8)
    expected, slot = copy_of(pages), layer.ints([1])
    for at in range(71):
        qkv, position = layer.rows(1), layer.ints([at])
        want = layer.reference(qkv, slot, position, expected)
        assert_close(layer.attend(qkv, slot, position, pages, blocks=(1, 8, 16)[at % 3], settled=at % 2 == 0), want)
    assert_same_pages(pages, expected)


@pytest.mark.parametrize(
    ("dtype", "heads", "longest"),
    [(torch.bfloat16, (128, 2, 1), 640), (torch.float32, (8, 1, 1), 640), (torch.float16, (16, 2, 1), 8190)],
    ids=str,
)
def test_long_rows(native, seed, dtype, heads, longest):
    layer = Layer(native, seed, dtype, heads, longest + 1)
    for position in (longest, layer.integer(300, longest), 511):
        pages = layer.pages(1, longest + 1, 64)
        history = layer.draw(2, position, layer.kv_heads, layer.head_dim)
        for first in range(0, position, 64):
            entry, part = int(pages.table[0, first // 64]), history[:, first : first + 64].transpose(1, 2)
            pages.keys[entry, :, : part.shape[2]], pages.values[entry, :, : part.shape[2]] = part
        qkv, slot, at = layer.rows(1), layer.ints([0]), layer.ints([position])
        want = layer.reference(qkv, slot, at, copy_of(pages))
        assert_close(layer.attend(qkv, slot, at, pages), want)


@pytest.mark.parametrize(("dtype", "heads"), [(torch.float32, (32, 1, 2)), (torch.bfloat16, (128, 2, 2))], ids=str)
def test_bits_of_a_row_depend_on_the_row_alone(native, seed, dtype, heads):
    """Another slot, another page size and order, other neighbours, any number of blocks, one workspace for all."""
    layer = Layer(native, seed, dtype, heads)
    position = layer.integer(120, 250)
    own, history = layer.rows(1), layer.draw(2, position, layer.kv_heads, layer.head_dim)
    workspace = attention_workspace(
        native, 5, layer.per_kv_head * layer.kv_heads, layer.kv_heads, layer.head_dim, blocks=16
    )
    results = []
    for rows, blocks, page in ((1, 1, 8), (1, 16, 32), (5, 1, 64), (5, 2, 16), (3, 8, 8), (2, 0, 256), (4, 4, 128)):
        pages = layer.pages(rows, 256, page)
        slots = torch.randperm(rows, generator=layer.generator).tolist()
        place = layer.integer(0, rows)
        positions = [position if r == place else layer.integer(0, 30) for r in range(rows)]
        for r, slot in enumerate(slots):
            if r != place:
                layer.fill(pages, slot, positions[r])
        for at in range(position):
            pages.store(slots[place], at, history[0, at], history[1, at])
        qkv = layer.rows(rows)
        qkv[place] = own[0]
        out = layer.attend(qkv, layer.ints(slots), layer.ints(positions), pages, blocks=blocks, workspace=workspace)
        again = layer.attend(
            qkv, layer.ints(slots), layer.ints(positions), pages, blocks=blocks, workspace=workspace, stored=True
        )
        assert torch.equal(out, again)
        results.append(out[place])
    assert not results[0].isnan().any()
    assert all(torch.equal(bits(results[0]), bits(other)) for other in results[1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_bits_of_long_rows_with_several_chunks_a_run(native, seed, dtype):
    """Runs of one, two and three chunks, in turns of one group or side by side; pages smaller than a chunk."""
    layer = Layer(native, seed, dtype, (128, 2, 1), 1100)
    for position in (511, 512, layer.integer(513, 1024), layer.integer(1024, 1099)):
        own, history = layer.rows(1), layer.draw(2, position, layer.kv_heads, layer.head_dim)
        results = []
        for blocks, page in ((1, 64), (2, 16), (8, 256), (16, 32)):
            pages = layer.pages(1, 1100, page)
            for first in range(0, position, page):
                entry, part = int(pages.table[0, first // page]), history[:, first : first + page].transpose(1, 2)
                pages.keys[entry, :, : part.shape[2]], pages.values[entry, :, : part.shape[2]] = part
            results.append(layer.attend(own, layer.ints([0]), layer.ints([position]), pages, blocks=blocks))
        assert all(torch.equal(bits(results[0]), bits(other)) for other in results[1:])


@pytest.mark.parametrize(("dtype", "heads"), [(torch.float32, (16, 2, 2)), (torch.bfloat16, (128, 2, 1))], ids=str)
def test_a_prompt_side_by_side_equals_one_position_at_a_time(native, seed, dtype, heads):
    layer = Layer(native, seed, dtype, heads)
    lengths = [37, 1, 12]
    slot = [s for s, length in enumerate(lengths) for _ in range(length)]
    position = [p for length in lengths for p in range(length)]
    qkv, count = layer.rows(len(slot)), len(slot)
    side, single = layer.pages(3, 40, 8), layer.pages(3, 40, 16)
    expected, want_all = copy_of(side), torch.empty(count, layer.width, dtype=dtype, device=native.device)
    slots, positions = layer.ints(slot), layer.ints(position)
    store_kv(native, qkv, layer.norms, layer.rotary, slots, positions, side)
    store_kv_reference(qkv, layer.norms, layer.rotary, slots, positions, expected)
    assert_same_pages(side, expected)
    got = layer.attend(qkv, slots, positions, side, stored=True)
    want_all = layer.reference(qkv, slots, positions, expected, stored=True)
    assert_close(got, want_all)
    for i in range(count):
        row = slice(i, i + 1)
        assert torch.equal(bits(layer.attend(qkv[row], slots[row], positions[row], single)), bits(got[row]))
    for s, length in enumerate(lengths):
        for mine, others in zip(side.of_slot(s, length), single.of_slot(s, length), strict=True):
            assert torch.equal(bits(mine), bits(others))


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("settled", [False, True])
def test_idle_rows_are_left_alone(native, seed, blocks, settled):
    layer = Layer(native, seed, torch.bfloat16, (16, 2, 1))
    pages = layer.pages(3, 32, 8)
    layer.fill(pages, 2, 9)
    qkv, slot, position = layer.rows(3), layer.ints([-1, 2, -1]), layer.ints([5, 9, 1 << 30])
    qkv[0] = qkv[2] = NAN
    expected = copy_of(pages)
    want = layer.reference(qkv[1:2], slot[1:2], position[1:2], expected)
    idle = [t[::2].contiguous() for t in (qkv, slot, position)]
    store_kv(native, idle[0], layer.norms, layer.rotary, *idle[1:], pages)
    out = layer.attend(qkv, slot, position, pages, blocks=blocks, settled=settled)
    assert (out[[0, 2]] == 77).all()
    assert_close(out[1:2], want)
    assert_same_pages(pages, expected)


@pytest.mark.parametrize("wave", [32, 64])
def test_what_the_kernel_ahead_writes_is_used_only_after_the_wait(emulated, wave, seed):
    """Unsettled: rows, slots and positions come with the wait. Settled: the rows do."""
    native = emulated(wave)
    library = ctypes.CDLL(native.module.__file__)
    library.emulation_arrive_at_wait.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    library.emulation_pending_arrivals.restype = ctypes.c_size_t

    def arrives(*late):
        for tensor in late:
            value = tensor.clone()
            kept.append(value)
            tensor.view(torch.uint8).fill_(0xFF)  # NaN, or an idle row
            library.emulation_arrive_at_wait(tensor.data_ptr(), value.data_ptr(), value.nbytes)

    kept = []
    layer = Layer(native, seed, torch.float32, (16, 2, 1))
    for settled in (False, True):
        pages = layer.pages(2, 64, 8)
        layer.fill(pages, 1, 50)
        qkv, slot, position = layer.rows(1), layer.ints([1]), layer.ints([50])
        want = layer.attend(qkv, slot, position, copy_of(pages))
        arrives(qkv, *(() if settled else (slot, position, pages.keys, pages.values)))
        assert torch.equal(layer.attend(qkv, slot, position, pages, settled=settled), want)
        assert library.emulation_pending_arrivals() == 0
    pages = layer.pages(1, 8, 8)
    qkv, slot, position = layer.rows(1), layer.ints([0]), layer.ints([3])
    want = copy_of(pages)
    store_kv(native, qkv, layer.norms, layer.rotary, slot, position, want)
    arrives(qkv, slot, position)
    store_kv(native, qkv, layer.norms, layer.rotary, slot, position, pages)
    assert library.emulation_pending_arrivals() == 0
    assert torch.equal(bits(pages.keys), bits(want.keys))
    caches = Caches(layer, 1)
    want = caches.copy().attend(qkv, slot, 0)
    arrives(qkv, slot)
    assert torch.equal(caches.attend(qkv, slot, 0), want)
    assert library.emulation_pending_arrivals() == 0


# ---------------------------------------------------------------- selftest, refusals


def test_the_selftest_cases_pass(native, seed):
    cases = [case for case in selftest_cases() if case.small or native.device.type == "cuda"]
    assert {case.kernel for case in cases} == {"talker_attention", "predictor_attention"}
    for case in cases:
        call = case.prepare(native, torch.Generator().manual_seed(seed))
        call.run()
        assert case.error(call.outputs(), call.reference()) <= case.bound, case


@pytest.mark.parametrize(
    ("problem", "heads", "page", "options"),
    [
        ("head_dim is 24", (24, 1, 1), 8, {}),
        ("3 heads and 1 kv heads", (16, 3, 1), 8, {}),
        ("a page has 12 positions", (16, 1, 1), 12, {}),
        ("a page has 4 positions", (16, 1, 1), 4, {}),
        ("3 blocks for a kv head", (16, 1, 1), 8, {"blocks": 3}),
        ("not settled", (16, 1, 1), 8, {"stored": True, "settled": True}),
        ("workspace has 16 bytes", (16, 1, 1), 8, {"blocks": 2, "workspace": torch.zeros(16, dtype=torch.uint8)}),
    ],
)
def test_talker_attention_refuses(native, seed, problem, heads, page, options):
    layer = Layer(native, seed, torch.float32, heads)
    pages = layer.pages(1, 24, page)
    options = {name: v.to(native.device) if isinstance(v, torch.Tensor) else v for name, v in options.items()}
    with pytest.raises(KernelArgumentError, match=problem):
        layer.attend(layer.rows(1), layer.ints([0]), layer.ints([0]), pages, **options)


def test_shapes_and_ranges_are_checked(native, seed):
    layer = Layer(native, seed, torch.float32, (16, 2, 2))
    caches = Caches(layer, 1)
    with pytest.raises(KernelArgumentError, match="3 new positions from 0 on"):
        caches.attend(layer.rows(3), layer.ints([0]), 0)
    with pytest.raises(KernelArgumentError, match="2 new positions from 15 on"):
        caches.attend(layer.rows(2), layer.ints([0]), 15)
    with pytest.raises(KernelArgumentError, match="expected one or two for each of the 2"):
        caches.attend(layer.rows(3), layer.ints([0, 0]), 0)
    pages = layer.pages(1, 8, 8)
    with pytest.raises(KernelArgumentError, match="qkv has rows of 60"):
        layer.attend(layer.draw(1, 60), layer.ints([0]), layer.ints([0]), pages)
    with pytest.raises(KernelArgumentError, match="position has the shape"):
        layer.attend(layer.rows(1), layer.ints([0]), layer.ints([0, 1]), pages)
    assert layer.attend(layer.rows(0), layer.ints([]), layer.ints([]), pages).shape == (0, layer.width)
