"""Attention of a decoder layer, with norms, rotation and the caches; kernels: csrc/common/decode/attention*.cpp."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qwen3tts.backends.native.checks import (
    DTYPE_CODES,
    FLOATS,
    FP32_MAX,
    INT32_MAX,
    check,
    check_apart,
    flag,
    instance,
    number,
    whole,
)
from qwen3tts.backends.native.module import Native
from qwen3tts.backends.native.rms_norm import rms_norm_reference
from qwen3tts.errors import KernelArgumentError
from qwen3tts.model.layers import RotaryTable, rotate

PREDICTOR_POSITIONS = 16
"""csrc/common/decode/attention.h"""


@dataclass(frozen=True)
class HeadNorms:
    """RMSNorms of queries and keys: q and k [head_dim] of the activations' dtype."""

    q: Tensor
    k: Tensor
    eps: float


@dataclass(frozen=True)
class KvPages:
    """Keys and values of one layer in pages: [pages, kv_heads, page, head_dim] each.

    table int32 [slots, pages of a slot]: entry i is the page with the slot's positions page * i and up."""

    keys: Tensor
    values: Tensor
    table: Tensor

    def of_slot(self, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of positions 0..length - 1: [kv_heads, length, head_dim] each."""
        page = self.keys.shape[2]
        entries = self.table[slot, : -(-length // page)].long()
        keys, values = (t[entries].transpose(0, 1).flatten(1, 2)[:, :length] for t in (self.keys, self.values))
        return keys, values

    def store(self, slot: int, position: int, key: Tensor, value: Tensor) -> None:
        """key and value [kv_heads, head_dim]."""
        page, row = divmod(position, self.keys.shape[2])
        entry = int(self.table[slot, page])
        self.keys[entry, :, row], self.values[entry, :, row] = key, value


# ------------------------------------------------------------ plain torch


def split_heads(qkv: Tensor, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, (heads + 2 kv_heads) * head_dim] -> q, k, v [rows, heads or kv_heads, head_dim]."""
    heads = qkv.unflatten(-1, (-1, head_dim))
    q, k, v = heads.split((heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
    return q, k, v


def prepare_reference(x: Tensor, weight: Tensor, eps: float, rotary: RotaryTable, positions: Tensor) -> Tensor:
    """Norm and rotation: [rows, heads, head_dim] at positions int [rows]."""
    return rotate(rms_norm_reference(x, weight, eps), rotary.at(positions.long()))


def attend_reference(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q [heads, head_dim], keys and values [kv_heads, length, head_dim] -> [heads * head_dim]: fp64, rounded once."""
    grouped = q.double().unflatten(0, (keys.shape[0], -1))
    scores = grouped @ keys.double().transpose(1, 2) / q.shape[-1] ** 0.5
    out: Tensor = (scores.softmax(-1) @ values.double()).flatten().to(q.dtype)
    return out


def store_kv_reference(
    qkv: Tensor, norms: HeadNorms, rotary: RotaryTable, slot: Tensor, position: Tensor, pages: KvPages
) -> None:
    """See `store_kv`."""
    _, k, v = split_heads(qkv, pages.keys.shape[1], pages.keys.shape[3])
    k = prepare_reference(k, norms.k, norms.eps, rotary, position)
    for r, (where, at) in enumerate(zip(slot.tolist(), position.tolist(), strict=True)):
        if where >= 0:
            pages.store(where, at, k[r], v[r])


def talker_attention_reference(
    qkv: Tensor,
    norms: HeadNorms,
    rotary: RotaryTable,
    slot: Tensor,
    position: Tensor,
    pages: KvPages,
    *,
    stored: bool = False,
) -> Tensor:
    """See `talker_attention`. Idle rows of the result are zeros."""
    if not stored:
        store_kv_reference(qkv, norms, rotary, slot, position, pages)
    q, _, _ = split_heads(qkv, pages.keys.shape[1], pages.keys.shape[3])
    q = prepare_reference(q, norms.q, norms.eps, rotary, position)
    out = torch.zeros_like(q).flatten(1)
    for r, (where, at) in enumerate(zip(slot.tolist(), position.tolist(), strict=True)):
        if where >= 0:
            out[r] = attend_reference(q[r], *pages.of_slot(where, at + 1))
    return out


def predictor_attention_reference(
    qkv: Tensor, norms: HeadNorms, rotary: RotaryTable, slot: Tensor, keys: Tensor, values: Tensor, first: int
) -> Tensor:
    """See `predictor_attention`. Idle rows of the result are zeros."""
    q, k, v = split_heads(qkv, keys.shape[1], keys.shape[3])
    rows = len(slot)
    positions = torch.arange(len(qkv), device=qkv.device) // rows + first
    q = prepare_reference(q, norms.q, norms.eps, rotary, positions)
    k = prepare_reference(k, norms.k, norms.eps, rotary, positions)
    out = torch.zeros_like(q).flatten(1)
    for i, at in enumerate(positions.tolist()):
        where = int(slot[i % rows])
        if where >= 0:
            keys[where, :, at], values[where, :, at] = k[i], v[i]
            out[i] = attend_reference(q[i], keys[where, :, : at + 1], values[where, :, : at + 1])
    return out


# ------------------------------------------------------------ kernels


def store_kv(
    native: Native,
    qkv: Tensor,
    norms: HeadNorms,
    rotary: RotaryTable,
    slot: Tensor,
    position: Tensor,
    pages: KvPages,
) -> None:
    """Keys (normed, rotated) and values of qkv [rows, (heads + 2 kv_heads) * head_dim] into their slots' pages.

    slot int32 [rows], -1: nothing is stored; position int32 [rows]. Raises KernelArgumentError."""
    fields = _paged_fields(native, qkv, norms, rotary, slot, position, pages)
    inputs = {"slot": slot, "position": position, "pages.table": pages.table}
    _check_apart(qkv, norms, rotary, inputs, {"pages.keys": pages.keys, "pages.values": pages.values})
    if len(qkv):
        _call(native, "store_kv", fields)


def attention_workspace(
    native: Native, rows: int, heads: int, kv_heads: int, head_dim: int, *, blocks: int = 0
) -> Tensor:
    """What `talker_attention` needs for up to `rows` rows with these `blocks`: zeros, to be used again and again.

    Raises KernelArgumentError."""
    sizes = {"rows": rows, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "blocks": blocks}
    size = _workspace_bytes(native, *(whole(name, value, 0, INT32_MAX) for name, value in sizes.items()))
    return torch.zeros(size, dtype=torch.uint8, device=native.device)


def _workspace_bytes(native: Native, *sizes: int) -> int:
    try:
        size: int = native.module.attention_workspace_bytes(*sizes)
    except ValueError as error:  # std::invalid_argument
        raise KernelArgumentError(f"{error}.") from error
    return max(size, 16)


def talker_attention(
    native: Native,
    qkv: Tensor,
    norms: HeadNorms,
    rotary: RotaryTable,
    slot: Tensor,
    position: Tensor,
    pages: KvPages,
    *,
    stored: bool = False,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
    blocks: int = 0,
    settled: bool = False,
) -> Tensor:
    """qkv [rows, (heads + 2 kv_heads) * head_dim] -> [rows, heads * head_dim], over positions 0..position of each slot.

    stored=False: the rows' keys and values are stored first, each slot once at most; True: they lie in `pages`.
    Idle rows (slot -1) leave their part of `out` alone. workspace: from `attention_workspace`. blocks and settled: see
    csrc/common/decode/attention.h. Raises KernelArgumentError."""
    blocks, stored, settled = whole("blocks", blocks, 0, INT32_MAX), flag("stored", stored), flag("settled", settled)
    fields = _paged_fields(native, qkv, norms, rotary, slot, position, pages)
    heads, kv_heads, head_dim = fields["heads"], fields["kv_heads"], fields["head_dim"]
    y = _output(native, qkv, heads * head_dim, out)
    if not len(qkv):
        return y
    check("norms.q", norms.q, native=native, dtype=qkv.dtype, shape=(head_dim,))
    needed = _workspace_bytes(native, len(qkv), heads, kv_heads, head_dim, blocks)
    if workspace is None:
        workspace = torch.zeros(needed, dtype=torch.uint8, device=native.device)
    check("workspace", workspace, native=native, dtype=torch.uint8, shape=(None,))
    if len(workspace) < needed:
        raise KernelArgumentError(f"workspace has {len(workspace)} bytes, expected {needed}: see attention_workspace.")
    inputs = {"slot": slot, "position": position, "pages.table": pages.table}
    caches = {"pages.keys": pages.keys, "pages.values": pages.values}
    _check_apart(qkv, norms, rotary, inputs, caches | {"out": y, "workspace": workspace})
    fields |= {
        "q_norm": norms.q.data_ptr(), "out": y.data_ptr(), "workspace": workspace.data_ptr(),
        "blocks": blocks, "settled": settled,
    }  # fmt: skip
    _call(native, "talker_attention", fields, stored)
    return y


def predictor_attention(
    native: Native,
    qkv: Tensor,
    norms: HeadNorms,
    rotary: RotaryTable,
    slot: Tensor,
    keys: Tensor,
    values: Tensor,
    first: int,
    *,
    out: Tensor | None = None,
    in_order: bool = False,
) -> Tensor:
    """qkv [count * rows, (heads + 2 kv_heads) * head_dim] -> [count * rows, heads * head_dim].

    Row c * rows + r is position first + c of row r, count 1 or 2; slot int32 [rows], -1 for idle ones.
    keys and values [slots, kv_heads, 16, head_dim] get the new positions. in_order: slot[r] is r or -1, and there are
    at least as many slots as rows; no other result, but sooner. Raises KernelArgumentError."""
    first = whole("first", first, 0, PREDICTOR_POSITIONS - 1)
    check("keys", keys, native=native, dtype=FLOATS, shape=(None, None, PREDICTOR_POSITIONS, None))
    check("slot", slot, native=native, dtype=torch.int32, shape=(None,))
    rows = len(slot)
    fields = _fields(native, qkv, norms, rotary, keys, values)
    y = _output(native, qkv, fields["heads"] * fields["head_dim"], out)
    if rows == 0 and len(qkv) == 0:
        return y
    if rows == 0 or len(qkv) % rows != 0:
        raise KernelArgumentError(f"qkv has {len(qkv)} rows, expected one or two for each of the {rows} of slot.")
    if in_order and rows > len(keys):
        raise KernelArgumentError(f"keys have {len(keys)} slots, expected {rows}: the rows are in_order.")
    check("norms.q", norms.q, native=native, dtype=qkv.dtype, shape=(fields["head_dim"],))
    _check_apart(qkv, norms, rotary, {"slot": slot}, {"keys": keys, "values": values, "out": y})
    fields |= {
        "q_norm": norms.q.data_ptr(), "slot": slot.data_ptr(), "out": y.data_ptr(), "rows": rows,
        "first": first, "count": len(qkv) // rows, "in_order": in_order,
    }  # fmt: skip
    _call(native, "predictor_attention", fields)
    return y


def _fields(
    native: Native, qkv: Tensor, norms: HeadNorms, rotary: RotaryTable, keys: Tensor, values: Tensor
) -> dict[str, Any]:
    """What all three operations are told, after checks."""
    instance("norms", norms, HeadNorms)
    instance("rotary", rotary, RotaryTable)
    eps = number("norms.eps", norms.eps, 0.0, FP32_MAX)
    _, kv_heads, _, head_dim = keys.shape
    check("qkv", qkv, native=native, dtype=FLOATS, shape=(None, None))
    check("keys", keys, native=native, dtype=qkv.dtype, shape=(None, None, None, None))
    check("values", values, native=native, dtype=qkv.dtype, shape=keys.shape)
    check("norms.k", norms.k, native=native, dtype=qkv.dtype, shape=(head_dim,))
    check("rotary.cos", rotary.cos, native=native, dtype=qkv.dtype, shape=(None, head_dim))
    check("rotary.sin", rotary.sin, native=native, dtype=qkv.dtype, shape=rotary.cos.shape)
    width = qkv.shape[1]
    if head_dim == 0 or width % head_dim != 0 or width // head_dim <= 2 * kv_heads:
        raise KernelArgumentError(
            f"qkv has rows of {width}, expected (heads + 2 * {kv_heads}) * {head_dim}: the caches have {kv_heads} "
            f"heads of {head_dim}."
        )
    return {
        "qkv": qkv.data_ptr(), "k_norm": norms.k.data_ptr(), "eps": eps,
        "cos": rotary.cos.data_ptr(), "sin": rotary.sin.data_ptr(),
        "keys": keys.data_ptr(), "values": values.data_ptr(),
        "heads": width // head_dim - 2 * kv_heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "dtype": DTYPE_CODES[qkv.dtype],
    }  # fmt: skip


def _paged_fields(
    native: Native,
    qkv: Tensor,
    norms: HeadNorms,
    rotary: RotaryTable,
    slot: Tensor,
    position: Tensor,
    pages: KvPages,
) -> dict[str, Any]:
    instance("pages", pages, KvPages)
    check("pages.keys", pages.keys, native=native, dtype=FLOATS, shape=(None, None, None, None))
    fields = _fields(native, qkv, norms, rotary, pages.keys, pages.values)
    check("slot", slot, native=native, dtype=torch.int32, shape=(len(qkv),))
    check("position", position, native=native, dtype=torch.int32, shape=(len(qkv),))
    check("pages.table", pages.table, native=native, dtype=torch.int32, shape=(None, None))
    return fields | {
        "slot": slot.data_ptr(), "position": position.data_ptr(), "table": pages.table.data_ptr(),
        "table_stride": pages.table.shape[1], "page": pages.keys.shape[2], "rows": len(qkv),
    }  # fmt: skip


def _check_apart(
    qkv: Tensor,
    norms: HeadNorms,
    rotary: RotaryTable,
    inputs: dict[str, Tensor],
    written: dict[str, Tensor],
) -> None:
    """What is written lies apart, with `inputs` beside those of all three operations."""
    always = {"qkv": qkv, "norms.k": norms.k, "rotary.cos": rotary.cos, "rotary.sin": rotary.sin}
    check_apart(written, always | inputs | ({"norms.q": norms.q} if "out" in written else {}))


def _output(native: Native, qkv: Tensor, width: int, out: Tensor | None) -> Tensor:
    y = torch.empty(len(qkv), width, dtype=qkv.dtype, device=qkv.device) if out is None else out
    return check("out", y, native=native, dtype=qkv.dtype, shape=(len(qkv), width))


def _call(native: Native, operation: str, fields: dict[str, Any], *more: object) -> None:
    try:
        getattr(native.module, operation)(fields, *more, native.stream())
    except ValueError as error:  # std::invalid_argument
        raise KernelArgumentError(f"{error}.") from error
