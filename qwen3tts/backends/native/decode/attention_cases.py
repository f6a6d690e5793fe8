"""What `qwen3tts selftest` runs of attention.py: the released models' heads at the sizes at which they speak."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from qwen3tts.backends.native.cases import Call, Case, largest_difference
from qwen3tts.backends.native.decode.attention import (
    PREDICTOR_POSITIONS,
    HeadNorms,
    KvPages,
    attention_workspace,
    predictor_attention,
    predictor_attention_reference,
    talker_attention,
    talker_attention_reference,
)
from qwen3tts.backends.native.module import Native
from qwen3tts.model.config import TransformerConfig
from qwen3tts.model.layers import RotaryTable

_RELEASED = (16, 8, 128)
_SMALL = (4, 2, 16)
_PAGE = 32
_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


class _Inputs:
    """Random heads (heads, kv heads, head_dim) on a device, drawn from a CPU generator."""

    def __init__(
        self,
        native: Native,
        generator: torch.Generator,
        shape: tuple[int, int, int],
        dtype: torch.dtype,
        positions: int,
    ) -> None:
        self.native, self.generator, self.dtype = native, generator, dtype
        self.heads, self.kv_heads, self.head_dim = shape
        config = cast(TransformerConfig, SimpleNamespace(head_dim=self.head_dim, rope_theta=1e6))
        self.rotary = RotaryTable(config, positions, native.device, dtype)
        self.norms = HeadNorms(self.draw(self.head_dim), self.draw(self.head_dim), 1e-6)

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.native.device, self.dtype)

    def qkv(self, rows: int) -> Tensor:
        return self.draw(rows, (self.heads + 2 * self.kv_heads) * self.head_dim)

    def ints(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.native.device)


def selftest_cases() -> list[Case]:
    """Talker at 1 to 64 rows and several positions, by blocks at one row; predictor at its first and last pass."""
    bf16 = torch.bfloat16
    cases = [_talker(_RELEASED, rows, 500, bf16) for rows in (1, 2, 4, 8, 16, 32, 64)]
    cases += [_talker(_RELEASED, rows, at, bf16) for rows in (1, 8) for at in (60, 2000)]
    cases += [
        _talker(_RELEASED, rows, 410, bf16, blocks=blocks, settled=True)
        for rows in (1, 2, 4, 8, 16, 32)
        for blocks in (1, 2, 4, 8, 16)
    ]
    cases += [_talker(_RELEASED, 1, 410, bf16, blocks=blocks) for blocks in (1, 8)]
    cases += [_predictor(_RELEASED, rows, first, bf16) for rows in (1, 8, 64) for first in (0, 8, 15)]
    cases += [_predictor(_RELEASED, 1, first, bf16, in_order=False) for first in (8, 15)]
    for dtype in (torch.float32, torch.float16):
        cases += [_talker(_RELEASED, 1, 500, dtype), _predictor(_RELEASED, 1, 15, dtype)]
    for dtype in _BOUNDS:
        cases += [_talker(_SMALL, 2, 40, dtype, small=True), _predictor(_SMALL, 2, 0, dtype, small=True)]
    return cases


def _talker(
    shape: tuple[int, int, int], rows: int, position: int, dtype: torch.dtype, *, small: bool = False, **options: Any
) -> Case:
    def prepare(native: Native, generator: torch.Generator) -> Call:
        layer = _Inputs(native, generator, shape, dtype, position + 1)
        per_slot = position // _PAGE + 1
        pool = (rows * per_slot, layer.kv_heads, _PAGE, layer.head_dim)
        table = torch.randperm(rows * per_slot, generator=generator).view(rows, per_slot)
        pages = KvPages(layer.draw(*pool), layer.draw(*pool), table.to(native.device, torch.int32))
        arguments = (layer.qkv(rows), layer.norms, layer.rotary, layer.ints(range(rows)), layer.ints([position] * rows))
        out = layer.draw(rows, layer.heads * layer.head_dim)
        blocks = options.get("blocks", 0)
        room = attention_workspace(native, rows, layer.heads, layer.kv_heads, layer.head_dim, blocks=blocks)
        cached = rows * (position + 1) * 2 * layer.kv_heads * layer.head_dim * dtype.itemsize
        return Call(
            lambda: talker_attention(native, *arguments, pages, out=out, workspace=room, **options),
            lambda: (out,),
            lambda: (
                talker_attention_reference(
                    *arguments, KvPages(pages.keys.clone(), pages.values.clone(), pages.table)
                ),
            ),
            cached + arguments[0].nbytes + out.nbytes,
        )  # fmt: skip

    notes = "".join(f", {name} {value}" for name, value in options.items())
    return _case("talker_attention", f"{rows} x {shape}, position {position}{notes}", dtype, prepare, small)


def _predictor(
    shape: tuple[int, int, int],
    rows: int,
    first: int,
    dtype: torch.dtype,
    *,
    small: bool = False,
    in_order: bool = True,
) -> Case:
    def prepare(native: Native, generator: torch.Generator) -> Call:
        layer = _Inputs(native, generator, shape, dtype, PREDICTOR_POSITIONS)
        count = 2 if first == 0 else 1
        cache = (rows, layer.kv_heads, PREDICTOR_POSITIONS, layer.head_dim)
        keys, values, qkv = layer.draw(*cache), layer.draw(*cache), layer.qkv(count * rows)
        slot, out = layer.ints(range(rows)), layer.draw(count * rows, layer.heads * layer.head_dim)
        cached = rows * (first + count) * 2 * layer.kv_heads * layer.head_dim * dtype.itemsize
        return Call(
            lambda: predictor_attention(
                native, qkv, layer.norms, layer.rotary, slot, keys, values, first, out=out, in_order=in_order
            ),
            lambda: (out,),
            lambda: (
                predictor_attention_reference(
                    qkv, layer.norms, layer.rotary, slot, keys.clone(), values.clone(), first
                ),
            ),
            cached + qkv.nbytes + out.nbytes,
        )  # fmt: skip

    notes = "" if in_order else ", any slots"
    return _case("predictor_attention", f"{rows} x {shape}, position {first}{notes}", dtype, prepare, small)


def _case(kernel: str, variant: str, dtype: torch.dtype, prepare: Any, small: bool) -> Case:
    name = str(dtype).removeprefix("torch.")
    return Case(kernel, variant, name, prepare, largest_difference, "of the largest output", _BOUNDS[dtype], small)
