"""Preallocated keys and values. Nothing grows while a row runs; a row's memory is known when it is admitted."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qwen3tts.model.config import TransformerConfig
from qwen3tts.model.layers import causal_attention


def kv_bytes_per_position(config: TransformerConfig, dtype: torch.dtype) -> int:
    """Bytes that one position of one row takes in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


class RowCache:
    """Keys and values of one row: [layers, kv_heads, capacity, head_dim] each, the first `length` positions valid."""

    def __init__(self, config: TransformerConfig, capacity: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (2, config.num_layers, config.num_kv_heads, capacity, config.head_dim)
        self.keys, self.values = torch.empty(shape, device=device, dtype=dtype)
        self.capacity, self.length = capacity, 0


def positions_after(rows: Sequence[RowCache], counts: Sequence[int]) -> int:
    """How many positions the longest of these rows has after a step that brings counts[r] of row r."""
    return max((row.length + count for row, count in zip(rows, counts, strict=True)), default=0)


class PackedRows:
    """One step over rows of different lengths: row r brings counts[r] new positions, packed in row order.

    Each row attends on its own, over exactly its own positions: no padding, no mask, and a result that does not depend
    on its neighbours."""

    def __init__(self, rows: Sequence[RowCache], counts: Sequence[int]) -> None:
        self.rows, self.counts = rows, counts
        for row, count in zip(rows, counts, strict=True):
            if row.length + count > row.capacity:
                raise ValueError(f"{count} positions do not fit: {row.length} of {row.capacity} are used")
        device = rows[0].keys.device
        self.positions = torch.tensor(
            [row.length + i for row, count in zip(rows, counts, strict=True) for i in range(count)], device=device
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See AttentionCache."""
        out, start = [], 0
        for row, count in zip(self.rows, self.counts, strict=True):
            part = slice(start, start + count)
            end = row.length + count
            row.keys[layer, :, row.length : end] = k[part].transpose(0, 1)
            row.values[layer, :, row.length : end] = v[part].transpose(0, 1)
            heads = causal_attention(
                q[part].transpose(0, 1)[None], row.keys[layer, None, :, :end], row.values[layer, None, :, :end]
            )
            out.append(heads[0].transpose(0, 1).flatten(1))
            start += count
        return out[0] if len(out) == 1 else torch.cat(out)

    def commit(self) -> None:
        """Call once after the last layer: the new positions become part of their rows."""
        for row, count in zip(self.rows, self.counts, strict=True):
            row.length += count


class EqualRows:
    """Rows that always have the same length (the code predictor's): [rows, kv_heads, capacity, head_dim] per layer."""

    def __init__(
        self, config: TransformerConfig, rows: int, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (2, config.num_layers, rows, config.num_kv_heads, capacity, config.head_dim)
        self.keys, self.values = torch.empty(shape, device=device, dtype=dtype)
        self.rows, self.length = rows, 0
        self._all = torch.arange(capacity, device=device).repeat(rows, 1)
        self.begin(1)

    def begin(self, count: int, *, restart: bool = False) -> None:
        """Prepares a step of `count` new positions per row; restart forgets all earlier ones."""
        if restart:
            self.length = 0
        self.count = count
        self.positions = self._all[:, self.length : self.length + count].reshape(-1)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See AttentionCache; packed row after row, `count` positions each."""
        q, k, v = (x.unflatten(0, (self.rows, self.count)).transpose(1, 2) for x in (q, k, v))
        end = self.length + self.count
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        out = causal_attention(q, self.keys[layer, :, :, :end], self.values[layer, :, :, :end])
        return out.transpose(1, 2).flatten(0, 1).flatten(1)

    def commit(self) -> None:
        """Call once after the last layer."""
        self.length += self.count
