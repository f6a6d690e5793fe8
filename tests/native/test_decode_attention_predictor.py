"""The code predictor's attention of the decode core against plain torch, over the passes of a frame."""

import pytest
import torch
from attention_layer import DTYPES, HEADS, NAN, Caches, Layer, assert_close, assert_same_pages, bits

from qwen3tts.errors import KernelArgumentError


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_predictor_attention_over_a_frame(native, seed, dtype, heads):
    """All 15 passes of three rows in four slots, one of them idle; a row alone has the same bits, in order or not."""
    layer = Layer(native, seed, dtype, heads)
    caches = Caches(layer, 4)
    expected, alone = caches.copy(), Caches(layer, 1)
    slots = [3, -1, 0]
    slot = layer.ints(slots)
    for first, count in ((0, 2), *((p, 1) for p in range(2, 16))):
        qkv = layer.rows(3 * count)
        qkv[1::3] = NAN
        out, want = caches.attend(qkv, slot, first), expected.reference(qkv, slot, first)
        assert (out[1::3] == 77).all()
        out[1::3] = want[1::3] = 0
        assert_close(out, want)
        in_order = bool(layer.integer(0, 2))
        one = alone.attend(qkv[2::3].contiguous(), layer.ints([0]), first, in_order=in_order)
        assert torch.equal(bits(one), bits(out[2::3]))
    assert_same_pages(caches, expected)
    assert caches.keys[1:3].isnan().all()


def test_rows_in_order_have_the_same_bits(native, seed):
    layer = Layer(native, seed, torch.bfloat16, (128, 2, 1))
    caches = Caches(layer, 3)
    other, slot = caches.copy(), layer.ints([0, -1, 2])
    for first, count in ((0, 2), (2, 1), (3, 1)):
        qkv = layer.rows(3 * count)
        assert torch.equal(caches.attend(qkv, slot, first), other.attend(qkv, slot, first, in_order=True))
    assert torch.equal(bits(caches.keys), bits(other.keys))
    assert torch.equal(bits(caches.values), bits(other.values))
    with pytest.raises(KernelArgumentError, match="keys have 3 slots, expected 4"):
        caches.attend(layer.rows(4), layer.ints([0, 1, 2, 3]), 4, in_order=True)


def test_the_next_frame_overwrites_the_last_one(native, seed):
    layer = Layer(native, seed, torch.float32, (32, 2, 1))
    caches, slot = Caches(layer, 2), layer.ints([1])
    caches.keys[1], caches.values[1] = layer.draw(2, *caches.keys.shape[1:])
    qkv = layer.rows(2)
    assert torch.equal(caches.attend(qkv, slot, 0), Caches(layer, 2).attend(qkv, slot, 0))
