"""FlashAttention 4 for the talker: prompts and frames attend through the package flash-attn-4 instead of torch.

The code predictor (16 positions) and the codec (fp32) keep torch's attention. The package compiles its kernels when
they are first used, and sums in another order than torch: results agree within rounding."""

import importlib
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qwen3tts.errors import OptimizationCompatibilityError
from qwen3tts.model.kv_cache import PackedRows, RowCache, positions_after
from qwen3tts.model.layers import causal_attention, run_blocks
from qwen3tts.model.talker import Talker
from qwen3tts.optimization.passes import (
    Capabilities,
    Evidence,
    OptimizationPass,
    PassContext,
    PassResult,
    check_choice,
)
from qwen3tts.optimization.registry import register

DISTRIBUTION, MODULE = "flash-attn-4", "flash_attn.cute"
MIN_COMPUTE_CAPABILITY = (9, 0)
"""Hopper; the package is made for Hopper and Blackwell"""
MAX_HEAD_DIM = 128

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q [1, T, heads, D], k and v [1, L, kv_heads, D] -> [1, T, heads, D]; causal, the last query sees all L positions"""


class FlashRows(PackedRows):
    """PackedRows whose rows attend through `attend_rows`."""

    def __init__(self, rows: Sequence[RowCache], counts: Sequence[int], attend_rows: Attend) -> None:
        super().__init__(rows, counts)
        self.attend_rows = attend_rows

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See AttentionCache."""
        out, start = [], 0
        for row, count in zip(self.rows, self.counts, strict=True):
            part, end = slice(start, start + count), row.length + count
            row.keys[layer, :, row.length : end] = k[part].transpose(0, 1)
            row.values[layer, :, row.length : end] = v[part].transpose(0, 1)
            keys, values = row.keys[layer, None, :, :end], row.values[layer, None, :, :end]
            out.append(self.attend_rows(q[part][None], keys.transpose(1, 2), values.transpose(1, 2))[0].flatten(1))
            start += count
        return out[0] if len(out) == 1 else torch.cat(out)


def _forward(talker: Talker, attend: Attend) -> Callable[..., Tensor]:
    def forward(x: Tensor, rows: Sequence[RowCache], counts: Sequence[int]) -> Tensor:
        cache = FlashRows(rows, counts, attend)
        talker.rotary.cover(positions_after(rows, counts))
        hidden = run_blocks(talker.model.layers, talker.model.norm, x, talker.rotary, cache)
        cache.commit()
        return hidden

    return forward


def open_package() -> Attend:
    """The package's attention. Raises OptimizationCompatibilityError without one that can be imported."""
    try:
        function = importlib.import_module(MODULE).flash_attn_func
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise OptimizationCompatibilityError(
            f"The package {DISTRIBUTION} cannot be used ({type(error).__name__}: {error}). "
            f"Try: pip install {DISTRIBUTION}"
        ) from error

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = function(q, k, v, causal=True)
        tensor: Tensor = out[0] if isinstance(out, tuple) else out
        return tensor

    return attend


@register("flash-attention-4")
@dataclass(frozen=True, kw_only=True)
class FlashAttention4(OptimizationPass):
    """See the top of this file."""

    pass_id = "flash-attention-4"
    optimization_kind = "attention-backend"
    requires_architecture_support = True
    capabilities = Capabilities(devices=("cuda",), dtypes=("bfloat16", "float16"))

    policy: str = "required"
    """required: an error where it cannot be used; auto: torch's attention stays there, and the manifest says why"""

    def __post_init__(self) -> None:
        check_choice("policy", self.policy, ("auto", "required"))

    @property
    def optional(self) -> bool:
        """See OptimizationPass."""
        return self.policy == "auto"

    def validate(self, model: Any, context: PassContext) -> None:
        """See OptimizationPass."""
        if torch.version.hip is not None:
            raise OptimizationCompatibilityError("FlashAttention 4 runs on NVIDIA cards; this torch is built for ROCm.")
        found, name = torch.cuda.get_device_capability(model.device), torch.cuda.get_device_name(model.device)
        if found < MIN_COMPUTE_CAPABILITY:
            raise OptimizationCompatibilityError(
                f"FlashAttention 4 needs compute capability {MIN_COMPUTE_CAPABILITY[0]}.{MIN_COMPUTE_CAPABILITY[1]} "
                f"(Hopper) or later; {name} has {found[0]}.{found[1]}."
            )
        head_dim = model.talker.config.transformer.head_dim
        if head_dim % 8 or head_dim > MAX_HEAD_DIM:
            raise OptimizationCompatibilityError(
                f"FlashAttention 4 needs heads of a multiple of 8 up to {MAX_HEAD_DIM}; this model has {head_dim}."
            )
        open_package()

    def apply(self, model: Any, context: PassContext) -> PassResult:
        """See OptimizationPass."""
        attend = open_package()
        talker: Talker = model.talker
        talker.forward = _forward(talker, attend)  # type: ignore[method-assign]
        return PassResult(model, attend, {"package": f"{DISTRIBUTION} {_version()}"})

    def restore(self, model: Any, state: Any, context: PassContext) -> Any:
        """See OptimizationPass."""
        vars(model.talker).pop("forward", None)
        return model

    def runtime_manifest_status(self, result: PassResult) -> dict[str, Any]:
        """See OptimizationPass."""
        return {"replaced": ["talker"], "kept": ["code predictor", "codec"]}

    def check(self, model: Any, state: Any, context: PassContext) -> Evidence:
        """Random queries, keys and values: a prompt, a frame, and a prompt after earlier positions."""
        started, error = time.perf_counter(), 0.0
        t = model.talker.config.transformer
        with torch.inference_mode():
            for steps, length in ((37, 37), (1, 129), (5, 70)):
                shape = [(1, heads, n, t.head_dim) for heads, n in ((t.num_heads, steps), (t.num_kv_heads, length))]
                q, k, v = (torch.randn(shape[i], device=model.device, dtype=model.dtype) for i in (0, 1, 1))
                expected = causal_attention(q.float(), k.float(), v.float())
                got = state(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).float()
                error = max(error, float((got - expected).abs().max()))
        return Evidence(
            compared="causal attention of 1 to 37 queries over up to 129 positions, largest difference",
            reference="torch's attention in float32",
            error=error,
            bound=0.03,
            passed=error <= 0.03,
            seconds=time.perf_counter() - started,
        )


def _version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
