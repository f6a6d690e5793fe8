"""torch.compile over the plain model: the blocks of talker, code predictor and codec transformer on both sides of their
attention, and the codec's activations and pointwise layers.

Attention stays outside: its shapes change with every frame, and compiling it would mean compiling without end. What is
compiled has the number of positions as its only changing size, and one compilation serves all layers of a part.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
import torch._inductor
from torch import Tensor, nn
from torch._dynamo.eval_frame import is_dynamo_supported
from torch.nn import functional as F

from qwen3tts.errors import OptimizationCompatibilityError, nearest
from qwen3tts.model.causal import SnakeBeta, StreamState
from qwen3tts.model.codec_decoder import ConvNeXtBlock
from qwen3tts.model.layers import Angles, AttentionCache, DecoderBlock, rotate
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.optimization.compiled_part import CompiledPart
from qwen3tts.optimization.passes import (
    Evidence,
    OptimizationPass,
    PassContext,
    PassResult,
    check_choice,
    check_flag,
    fail_option,
)
from qwen3tts.optimization.registry import register

MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


# ------------------------------------------------------------ what is compiled


def _linear(layer: Any, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight, layer.bias)


def before_attention(block: Any, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """DecoderBlock up to attention: [N, hidden] -> rotated q, k and v [N, heads, head_dim]."""
    attention = block.self_attn
    x = block.input_layernorm(x)
    q = attention.q_norm(_linear(attention.q_proj, x).unflatten(-1, (-1, attention.head_dim)))
    k = attention.k_norm(_linear(attention.k_proj, x).unflatten(-1, (-1, attention.head_dim)))
    v = _linear(attention.v_proj, x).unflatten(-1, (-1, attention.head_dim))
    return rotate(q, (cos, sin)), rotate(k, (cos, sin)), v


def after_attention(block: Any, x: Tensor, attended: Tensor) -> Tensor:
    """The rest of a DecoderBlock: [N, hidden] and [N, heads * head_dim] -> [N, hidden]."""
    x = x + block.self_attn_layer_scale(_linear(block.self_attn.o_proj, attended))
    mlp, y = block.mlp, block.post_attention_layernorm(x)
    y = _linear(mlp.down_proj, F.silu(_linear(mlp.gate_proj, y)) * _linear(mlp.up_proj, y))
    out: Tensor = x + block.mlp_layer_scale(y)
    return out


def snake(activation: Any, x: Tensor) -> Tensor:
    """SnakeBeta: [B, channels, T] -> the same."""
    wave = (x * activation.frequency).sin()
    return torch.addcmul(x, wave * wave, activation.gain)


def pointwise(block: Any, x: Tensor, y: Tensor) -> Tensor:
    """ConvNeXtBlock after its depthwise convolution y: [B, channels, T] -> the same."""
    y = block.norm(y.transpose(1, 2))
    y = block.gamma * _linear(block.pwconv2, F.gelu(_linear(block.pwconv1, y)))
    out: Tensor = x + y.transpose(1, 2)
    return out


# ------------------------------------------------------------ how modules come to use it


def _block_forward(block: DecoderBlock, before: CompiledPart, after: CompiledPart) -> Callable[..., Tensor]:
    layer = block.self_attn.layer

    def forward(x: Tensor, angles: Angles, cache: AttentionCache) -> Tensor:
        out: Tensor = after(block, x, cache.attend(layer, *before(block, x, *angles)))
        return out

    return forward


def _pointwise_forward(block: ConvNeXtBlock, part: CompiledPart) -> Callable[..., Tensor]:
    def forward(x: Tensor, state: StreamState) -> Tensor:
        out: Tensor = part(block, x, block.dwconv(x, state))
        return out

    return forward


def _snake_forward(activation: SnakeBeta, part: CompiledPart) -> Callable[..., Tensor]:
    def forward(x: Tensor) -> Tensor:
        out: Tensor = part(activation, x)
        return out

    return forward


@dataclass(frozen=True)
class _State:
    parts: dict[str, CompiledPart]
    patched: list[nn.Module]


@register("compile")
@dataclass(frozen=True, kw_only=True)
class TorchCompile(OptimizationPass):
    """See the top of this file. What cannot be compiled runs eagerly, which runtime_status tells.

    Nothing of a pass that was taken back stays, but torch itself keeps some hundred small objects of every
    compilation, also after torch.compiler.reset(): switching this pass on and off many times grows the process as
    calling torch.compile as often would."""

    pass_id = "torch.compile"
    optimization_kind = "compile"
    requires_architecture_support = True

    backend: str = "inductor"
    mode: str | None = None
    """of inductor; "reduce-overhead" records CUDA graphs"""
    fullgraph: bool = True
    """False: let the compiler split what it cannot take as a whole"""
    dynamic: bool | None = None
    """sizes: True = symbolic, False = each anew, None = as torch decides"""
    requirement: str = "auto"
    """required: what cannot be compiled is an error, tried once when the pass is applied; auto: it runs eagerly"""

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str) or not self.backend:
            fail_option("backend", self.backend, "the name of a torch.compile backend, for instance 'inductor'")
        check_choice("mode", self.mode, MODES)
        check_flag("fullgraph", self.fullgraph)
        if self.dynamic is not None:
            check_flag("dynamic", self.dynamic)
        check_choice("requirement", self.requirement, ("auto", "required"))
        if self.mode is not None and self.backend != "inductor":
            fail_option("mode", self.mode, f"None: modes belong to inductor, not to {self.backend!r}")

    def validate(self, model: Any, context: PassContext) -> None:
        """See OptimizationPass."""
        if not is_dynamo_supported():
            raise OptimizationCompatibilityError("torch.compile does not work with this Python or on this system.")
        known = torch._dynamo.list_backends(None)
        if self.backend not in known:
            raise OptimizationCompatibilityError(
                f"torch.compile has no backend {self.backend!r} here.{nearest(self.backend, known)} There are: "
                f"{', '.join(known)}."
            )

    def apply(self, model: Any, context: PassContext) -> PassResult:
        """See OptimizationPass."""
        parts = {name: self._part(name, function) for name, function in _functions()}
        state = _State(parts, [])
        for module, forward in _patches(model, parts):
            module.forward = forward
            state.patched.append(module)
        try:
            if self.requirement == "required":
                compare_parts(model, parts)
        except BaseException:
            self.restore(model, state, context)
            raise
        return PassResult(model, state)

    def _part(self, name: str, function: Callable[..., Any]) -> CompiledPart:
        arguments: dict[str, Any] = {"backend": self.backend, "fullgraph": self.fullgraph, "dynamic": self.dynamic}
        if self.backend == "inductor":
            options: dict[str, Any] = dict(torch._inductor.list_mode_options(self.mode) if self.mode else {})
            if hasattr(torch._inductor.config, "emulate_precision_casts"):
                options["emulate_precision_casts"] = True  # round to bf16 where the plain model rounds
            arguments["options"] = options
        return CompiledPart(name, function, arguments, required=self.requirement == "required")

    def restore(self, model: Any, state: Any, context: PassContext) -> Any:
        """Also forgets what torch has compiled in this process, other models' code included: they compile again."""
        for module in state.patched:
            vars(module).pop("forward", None)
        torch.compiler.reset()
        return model

    def runtime_manifest_status(self, result: PassResult) -> dict[str, Any]:
        """Per part: how many calls ran compiled, and the shapes that run eagerly, with the reason."""
        return {"parts": {name: part.status() for name, part in result.state.parts.items()}}

    def check(self, model: Any, state: Any, context: PassContext) -> Evidence:
        """One position through every part, compiled and not."""
        return compare_parts(model, state.parts)


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for owner in ("talker", "code-predictor", "codec-transformer"):
        yield f"{owner}.before-attention", before_attention
        yield f"{owner}.after-attention", after_attention
    yield "codec.snake", snake
    yield "codec.pointwise", pointwise


def _blocks(model: Any) -> dict[str, list[Any]]:
    return {
        "talker": list(model.talker.model.layers),
        "code-predictor": list(model.talker.code_predictor.model.layers),
        "codec-transformer": list(model.codec.model.pre_transformer.layers),
    }


def _patches(model: Any, parts: dict[str, CompiledPart]) -> Iterator[tuple[Any, Callable[..., Tensor]]]:
    for owner, blocks in _blocks(model).items():
        before, after = parts[f"{owner}.before-attention"], parts[f"{owner}.after-attention"]
        for block in blocks:
            yield block, _block_forward(block, before, after)
    for module in model.codec.model.modules():
        if isinstance(module, SnakeBeta):
            yield module, _snake_forward(module, parts["codec.snake"])
        elif isinstance(module, ConvNeXtBlock):
            yield module, _pointwise_forward(module, parts["codec.pointwise"])


def _examples(model: Any) -> Iterator[tuple[str, nn.Module, tuple[Tensor, ...]]]:
    """Random inputs of every part for one position: (part, module, tensors)."""
    for owner, blocks in _blocks(model).items():
        block, attention = blocks[0], blocks[0].self_attn
        norm = block.input_layernorm.weight

        def noise(*shape: int, like: Tensor = norm) -> Tensor:
            return torch.randn(shape, device=like.device, dtype=like.dtype)

        angle = noise(1, 1, attention.head_dim)
        yield f"{owner}.before-attention", block, (noise(1, norm.shape[0]), angle.cos(), angle.sin())
        yield f"{owner}.after-attention", block, (noise(1, norm.shape[0]), noise(1, attention.o_proj.in_features))
    modules = list(model.codec.model.modules())
    activation = next(module for module in modules if isinstance(module, SnakeBeta))
    yield "codec.snake", activation, (torch.randn(1, len(activation.alpha), 9, device=activation.alpha.device),)
    block = next(module for module in modules if isinstance(module, ConvNeXtBlock))
    x, y = torch.randn(2, 1, len(block.gamma), 9, device=block.gamma.device)
    yield "codec.pointwise", block, (x, y)


def compare_parts(model: Any, parts: dict[str, CompiledPart]) -> Evidence:
    """Every part on fresh random inputs, compiled and not: the largest difference relative to the largest value."""
    started, error = time.perf_counter(), 0.0
    with exact_arithmetic(model.device):
        for name, module, tensors in _examples(model):
            got, expected = parts[name](module, *tensors), parts[name].plain(module, *tensors)
            for a, b in zip(*((x,) if isinstance(x, Tensor) else x for x in (got, expected)), strict=True):
                error = max(error, float((a.float() - b.float()).abs().max() / b.float().abs().max()))
    bound = 1e-5 if model.dtype == torch.float32 else 0.02
    return Evidence(
        compared="the compiled functions on one position, largest difference over the largest value",
        reference="the same functions of the plain model, not compiled",
        error=error,
        bound=bound,
        passed=error <= bound,
        seconds=time.perf_counter() - started,
    )
