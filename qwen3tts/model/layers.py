"""What talker, code predictor and codec share: RMSNorm, rotary positions, attention, the gated MLP, the decoder block.

Activations are packed: [N, hidden], the new positions of all rows one after another. Only attention knows where a row
begins; it gets that from a KV cache object (see kv_cache.py).
"""

import contextlib
import contextvars
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qwen3tts.model.config import TransformerConfig


class AttentionCache(Protocol):
    """Keys and values of earlier positions, and which of the packed positions belongs to which row."""

    positions: Tensor
    """int64 [N]: position of each packed entry in its own row"""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N, heads, head_dim], k and v [N, kv_heads, head_dim], rotated already -> [N, heads * head_dim].

        Stores k and v, then attends causally within each row."""
        ...


_independent: contextvars.ContextVar[bool] = contextvars.ContextVar("independent_rows", default=False)


@contextlib.contextmanager
def independent_rows() -> Iterator[None]:
    """Inside, a product's rows belong to different texts: each is summed as if it were alone, so that a text's codes do
    not depend on its neighbours. (A matrix product sums in another order than a matrix-vector product.)

    On the CPU that is one matrix-vector product per row. GPUs choose their kernels by shape, and plain torch cannot
    bind them: there results are equal up to rounding."""
    token = _independent.set(True)
    try:
        yield
    finally:
        _independent.reset(token)


def rows_are_independent() -> bool:
    """Whether this runs inside `independent_rows`."""
    return _independent.get()


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, in] @ weight [out, in]ᵀ -> [N, out]."""
    if x.shape[0] == 1 or x.device.type != "cpu" or not _independent.get():
        return F.linear(x, weight)
    return torch.cat([F.linear(row[None], weight) for row in x])


class Linear(nn.Linear):
    """x @ weightᵀ (+ bias). At 6 to 32 rows in fp32 on the CPU the weight goes first: BLAS packs the tall operand in
    larger pieces then, and a prompt takes 0.7 to 0.9 of the time. Rows are still independent sums over the inputs."""

    def forward(self, x: Tensor) -> Tensor:
        if _independent.get():
            out = product(x, self.weight)
            return out if self.bias is None else out + self.bias
        if 6 <= x.shape[0] <= 32 and x.device.type == "cpu" and x.dtype == torch.float32:
            out = (self.weight @ x.T).T
            return out if self.bias is None else out + self.bias
        return F.linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps), computed in fp32, rounded to x's dtype, then times weight (rounded again)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class RotaryTable:
    """cos and sin of position * theta^(-2i / head_dim), in fp32, stored in `dtype`: `positions` of them from `start`.

    The talker's three-axis "interleaved mrope" has equal positions on all axes in speech, so it is this plain table."""

    def __init__(
        self, config: TransformerConfig, positions: int, device: torch.device, dtype: torch.dtype, start: int = 0
    ) -> None:
        self.positions, self._start, self._config = positions, start, config
        self.cos, self.sin = self._computed(device, dtype)

    def _computed(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        config, start = self._config, self._start
        with torch.inference_mode(False), torch.no_grad():  # ordinary tensors: their storage can be replaced
            half = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
            inverse = (1.0 / (config.rope_theta**half)).to(device)
            angle = torch.arange(start, start + self.positions, device=device, dtype=torch.float32)[:, None] * inverse
            cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
            return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def shorten(self, positions: int) -> None:
        """Gives up the memory of all but the first so many, until they are asked for. The tensors stay the same."""
        if positions < self.cos.shape[0]:
            with torch.inference_mode(False):
                self.cos.data, self.sin.data = self.cos[:positions].clone(), self.sin[:positions].clone()

    def cover(self, positions: int) -> None:
        """Has the first so many there; after shorten() that may mean to compute all of them again, to the same bits."""
        if self.cos.shape[0] < min(positions, self.positions):
            with torch.inference_mode(False):
                self.cos.data, self.sin.data = self._computed(self.cos.device, self.cos.dtype)

    def at(self, positions: Tensor) -> "Angles":
        """positions int64 [N] counted from `start` -> cos and signed sin, [N, 1, head_dim] each."""
        return self.cos[positions][:, None], self.sin[positions][:, None]


Angles = tuple[Tensor, Tensor]


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """x [N, heads, head_dim] -> [a cos - b sin, b cos + a sin] for its halves a and b."""
    a, b = x.chunk(2, -1)
    return x * angles[0] + torch.cat((b, a), -1) * angles[1]


def causal_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """q [B, heads, T, D], k and v [B, kv_heads, L, D] -> [B, heads, T, D]; the last query sees all L positions.

    mask: bool [T, L], True = seen; None = causal."""
    steps, length = q.shape[2], k.shape[2]
    if mask is None and 1 < steps < length:
        mask = torch.ones(steps, length, dtype=torch.bool, device=q.device).tril(length - steps)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None and steps > 1, enable_gqa=q.shape[1] != k.shape[1]
    )


class Attention(nn.Module):
    """Grouped-query attention with RMS-normed queries and keys (qk_norm) and rotary positions."""

    def __init__(self, config: TransformerConfig, layer: int, qk_norm: bool) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        inner, kv_inner = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, inner, bias=False)
        self.k_proj = Linear(config.hidden_size, kv_inner, bias=False)
        self.v_proj = Linear(config.hidden_size, kv_inner, bias=False)
        self.o_proj = Linear(inner, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if qk_norm else nn.Identity()

    def forward(self, x: Tensor, angles: Angles, cache: AttentionCache) -> Tensor:
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        k = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim)))
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        out: Tensor = self.o_proj(cache.attend(self.layer, rotate(q, angles), rotate(k, angles), v))
        return out


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class LayerScale(nn.Module):
    """x * scale, per channel."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class DecoderBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). The codec's blocks scale both branches and have no q/k norm."""

    def __init__(self, config: TransformerConfig, layer: int, *, qk_norm: bool = True, scaled: bool = False) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer, qk_norm)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size) if scaled else nn.Identity()
        self.mlp_layer_scale = LayerScale(config.hidden_size) if scaled else nn.Identity()

    def forward(self, x: Tensor, angles: Angles, cache: AttentionCache) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), angles, cache))
        out: Tensor = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return out


def run_blocks(
    blocks: Iterable[nn.Module], norm: nn.Module, x: Tensor, rotary: RotaryTable, cache: AttentionCache
) -> Tensor:
    """The blocks in order, then the final norm: [N, hidden] -> [N, hidden]."""
    angles = rotary.at(cache.positions)
    for block in blocks:
        x = block(x, angles, cache)
    out: Tensor = norm(x)
    return out


def lookup_table(size: int, width: int) -> nn.Embedding:
    """An embedding table to be loaded. Without an initialization, whose first call costs torch seconds of imports."""
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(size, width))
    return table


class Head(nn.Module):
    """Logits whose fp32 sums are never rounded: rounded to bf16, 40 % of draws would tie at the top-k edge.

    The weight is kept in fp32; a product of two bf16 numbers is exact in it."""

    def __init__(self, size: int, vocabulary: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, size))

    def forward(self, x: Tensor) -> Tensor:
        return product(x.float(), self.weight)
