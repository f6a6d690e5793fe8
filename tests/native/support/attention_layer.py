"""One layer's attention with random rows, keys and values, for tests of the decode core's attention."""

from types import SimpleNamespace

import torch

from qwen3tts.backends.native.decode.attention import (
    HeadNorms,
    KvPages,
    predictor_attention,
    predictor_attention_reference,
    talker_attention,
    talker_attention_reference,
)
from qwen3tts.model.layers import RotaryTable

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# head_dim, heads per kv head, kv heads
HEADS = ((8, 4, 1), (16, 1, 3), (32, 2, 2), (64, 4, 1), (128, 2, 2), (128, 1, 1), (128, 4, 1))
NAN = float("nan")


class Layer:
    """Norms, tables and random rows of one shape."""

    def __init__(self, native, seed, dtype, heads, positions=1024):
        self.native, self.dtype = native, dtype
        self.head_dim, self.per_kv_head, self.kv_heads = heads
        self.generator = torch.Generator().manual_seed(seed)
        config = SimpleNamespace(head_dim=self.head_dim, rope_theta=1e6)
        self.rotary = RotaryTable(config, positions, native.device, dtype)
        self.norms = HeadNorms(self.draw(self.head_dim), self.draw(self.head_dim), 1e-6)

    @property
    def width(self):
        return self.per_kv_head * self.kv_heads * self.head_dim

    def draw(self, *shape):
        return torch.randn(shape, generator=self.generator).to(self.native.device, self.dtype)

    def rows(self, count):
        return self.draw(count, self.width + 2 * self.kv_heads * self.head_dim)

    def ints(self, values):
        return torch.tensor(values, dtype=torch.int32, device=self.native.device)

    def integer(self, low, high):
        return int(torch.randint(low, high, (), generator=self.generator))

    def pages(self, slots, length, page):
        """Pages in a random order, of which some are nobody's; all NaN."""
        per_slot = -(-length // page)
        count = slots * per_slot + 3
        table = torch.randperm(count, generator=self.generator)[: slots * per_slot].view(slots, per_slot)
        shape = (count, self.kv_heads, page, self.head_dim)
        nothing = torch.full(shape, NAN, dtype=self.dtype, device=self.native.device)
        return KvPages(nothing, nothing.clone(), table.to(self.native.device, torch.int32))

    def fill(self, pages, slot, length):
        """Random keys and values at positions 0 .. length - 1 of a slot."""
        history = self.draw(2, length, self.kv_heads, self.head_dim)
        for position in range(length):
            pages.store(slot, position, history[0, position], history[1, position])

    def attend(self, qkv, slot, position, pages, **options):
        out = torch.full((len(qkv), self.width), 77.0, dtype=self.dtype, device=self.native.device)
        return talker_attention(
            self.native, qkv, self.norms, self.rotary, slot, position, pages, out=out, **options
        )  # fmt: skip

    def reference(self, qkv, slot, position, pages, **options):
        return talker_attention_reference(qkv, self.norms, self.rotary, slot, position, pages, **options)


def copy_of(pages):
    return KvPages(pages.keys.clone(), pages.values.clone(), pages.table)


def step(x):
    """Distance to the next number of x's dtype."""
    return torch.finfo(x.dtype).eps * x.double().abs().clamp(min=torch.finfo(x.dtype).tiny)


def assert_close(got, want):
    """fp32: 1e-6 of the size of the values. Else one rounding, and what a last bit of a norm can do to a key."""
    size = want.double().abs().max().clamp(min=1.0)
    allowed = 2e-6 * size if got.dtype == torch.float32 else step(want) + size * torch.finfo(got.dtype).eps / 2
    error = (got.double() - want.double()).abs()
    assert (error <= allowed).all(), f"{float((error / allowed).max())} times the allowed error"


def assert_same_pages(got, want):
    """NaN stays NaN, keys are within the rounding of norm and rotation, values are copies."""
    assert torch.equal(got.values.view(torch.uint8), want.values.view(torch.uint8))
    assert torch.equal(got.keys.isnan(), want.keys.isnan())
    assert_close(got.keys.nan_to_num(), want.keys.nan_to_num())


def bits(x):
    return x.contiguous().view(torch.uint8)


class Caches:
    """The code predictor's keys and values of one layer; all NaN."""

    def __init__(self, layer, slots):
        shape = (slots, layer.kv_heads, 16, layer.head_dim)
        self.layer = layer
        self.keys = torch.full(shape, NAN, dtype=layer.dtype, device=layer.native.device)
        self.values = self.keys.clone()

    def copy(self):
        other = Caches(self.layer, 0)
        other.keys, other.values = self.keys.clone(), self.values.clone()
        return other

    def attend(self, qkv, slot, first, **options):
        layer = self.layer
        out = torch.full((len(qkv), layer.width), 77.0, dtype=layer.dtype, device=layer.native.device)
        return predictor_attention(
            layer.native, qkv, layer.norms, layer.rotary, slot, self.keys, self.values, first, out=out, **options
        )  # fmt: skip

    def reference(self, qkv, slot, first):
        layer = self.layer
        return predictor_attention_reference(qkv, layer.norms, layer.rotary, slot, self.keys, self.values, first)
