"""The pass `codec-kernels`: the codec's transposed convolutions as kernels of the CUDA or HIP backend.

With method "gemm" each weight is stored in the order that the matrix products read: the Parameter's own storage is
replaced by the packed one, of which the Parameter is a strided view with the same shape and values. So there is one
copy on the device, state_dict is what it was, and restoring is the copy in the other direction, bit for bit."""

import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qwen3tts.backends.native.blas import Blas
from qwen3tts.backends.native.cases import largest_difference
from qwen3tts.backends.native.checks import FLOATS
from qwen3tts.backends.native.custom_kernels import native_of
from qwen3tts.backends.native.module import Native
from qwen3tts.backends.native.transposed_conv import BOUNDS, METHODS, Method, is_packed, transposed_conv
from qwen3tts.checkpoint.loading import joined
from qwen3tts.errors import BackendError, OptimizationCompatibilityError
from qwen3tts.model.causal import CausalConvTranspose1d, StreamState
from qwen3tts.model.numerics import exact_arithmetic
from qwen3tts.optimization.passes import Evidence, OptimizationPass, PassContext, PassResult, check_choice
from qwen3tts.optimization.registry import register

logger = logging.getLogger(__name__)

CHECKED_STEPS = 5


def _layers(model: Any) -> list[CausalConvTranspose1d]:
    """Layers that no other pass runs in its own way."""
    modules = model.codec.model.modules()
    return [m for m in modules if isinstance(m, CausalConvTranspose1d) and "forward" not in vars(m)]


def _problem(layer: CausalConvTranspose1d) -> str | None:
    """Why the kernels cannot stand for a layer."""
    conv = layer.conv
    kernel, plain = conv.kernel_size[0], (conv.padding, conv.output_padding, conv.dilation, conv.groups)
    if kernel not in (layer.stride, 2 * layer.stride) or plain != ((0,), (0,), (1,), 1):
        return f"{layer.name} has the kernel {kernel} at stride {layer.stride}: {conv}"
    if conv.weight.dtype not in FLOATS:
        return f"{layer.name} is in {conv.weight.dtype}"
    return None


def _forward(
    layer: CausalConvTranspose1d, native: Native, method: Method, blas: Blas | None
) -> Callable[[Tensor, StreamState], Tensor]:
    def forward(x: Tensor, state: StreamState) -> Tensor:
        x = layer.extend(x, state) if layer.span else x
        if x.stride(-1) != 1:  # the transformer's output is time-major
            x = x.contiguous()
        conv = layer.conv
        return transposed_conv(native, x, conv.weight, conv.bias, layer.stride, method=method, blas=blas)

    return forward


def _packed(layers: Sequence[CausalConvTranspose1d]) -> list[Tensor | None]:
    """The layers' weights as the products read them (pack_weight), in one allocation without gaps. The old ones lie in
    one, too, which is free once the last of them is given up."""
    old = [layer.conv.weight.detach() for layer in layers]
    new = joined([weight.permute(2, 1, 0) for weight in old], old[0].device)
    return [target.permute(2, 1, 0).copy_(source) for source, target in zip(old, new, strict=True)]


def _set_storage(weight: Tensor, data: Tensor) -> None:
    with torch.inference_mode(False):
        weight.data = data


@dataclass
class _State:
    native: Native
    blas: Blas | None
    patched: list[CausalConvTranspose1d] = field(default_factory=list)


@register("codec-kernels")
@dataclass(frozen=True, kw_only=True)
class CodecKernels(OptimizationPass):
    """See the top of this file."""

    pass_id = "qwen3tts.codec-kernels"
    optimization_kind = "codec-kernels"

    method: Method = "gemm"
    """"gemm": matrix products by the vendor's library; "direct": a thread per output; "tiled": through shared memory"""

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)

    def validate(self, model: Any, context: PassContext) -> None:
        """Raises OptimizationCompatibilityError without kernels for the device or this codec, or without a library."""
        native = native_of(model)
        problems = [problem for layer in _layers(model) if (problem := _problem(layer)) is not None]
        if problems:
            raise OptimizationCompatibilityError(f"There is no kernel for a layer of this codec: {problems[0]}.")
        if self.method == "gemm":
            try:
                Blas(native, workspace_bytes=1)
                logger.debug("tried the codec's BLAS")
            except BackendError as error:
                raise OptimizationCompatibilityError(
                    f'{error}\nThe methods "direct" and "tiled" need no library.'
                ) from error

    def apply(self, model: Any, context: PassContext) -> PassResult:
        """Sets the layers' forward and, for the products, packs their weights."""
        layers = _layers(model)
        if not layers:
            return self.not_applicable_result(model, "another pass runs the transposed convolutions already")
        native = native_of(model)
        state = _State(native, Blas(native) if self.method == "gemm" else None)
        logger.debug("opened the codec's BLAS")
        try:
            packed = _packed(layers) if state.blas is not None else [None] * len(layers)
            for layer, weight in zip(layers, packed, strict=True):
                state.patched.append(layer)
                if weight is not None:
                    _set_storage(layer.conv.weight, weight)
                vars(layer)["forward"] = _forward(layer, native, self.method, state.blas)
        except BaseException:
            self.restore(model, state, context)
            raise
        logger.debug("packed the codec's weights")
        library = {} if state.blas is None else {"library": state.blas.library}
        return PassResult(model, state, {"backend": native.name, "platform": native.platform, **library})

    def restore(self, model: Any, state: _State, context: PassContext) -> Any:
        """Takes away what apply has set and gives the weights their first storage order."""
        for layer in state.patched:
            vars(layer).pop("forward", None)
            weight = layer.conv.weight
            if state.blas is not None and is_packed(weight):
                _set_storage(weight, weight.detach().contiguous())
        return model

    def runtime_manifest_status(self, result: PassResult) -> dict[str, Any]:
        """How many layers run on kernels."""
        return {"layers": len(result.state.patched)} if isinstance(result.state, _State) else {}

    def check(self, model: Any, state: _State, context: PassContext) -> Evidence:
        """Every layer on a few random samples with a random history, against torch's convolution."""
        started = time.perf_counter()
        seed = secrets.randbits(32)
        generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode(), exact_arithmetic(model.device):
            errors = [_layer_error(layer, generator) for layer in state.patched]
        worst = max(errors, default=0.0) if all(map(math.isfinite, errors)) else math.nan
        bound = max(BOUNDS[layer.conv.weight.dtype] for layer in state.patched)
        return Evidence(
            compared=f"{len(errors)} transposed convolutions by {self.method}, {CHECKED_STEPS} random steps of the "
            f"seed {seed}, as a part of the largest output",
            reference="torch.nn.ConvTranspose1d",
            error=worst,
            bound=bound,
            passed=worst <= bound,
            seconds=time.perf_counter() - started,
        )


def _layer_error(layer: CausalConvTranspose1d, generator: torch.Generator) -> float:
    weight = layer.conv.weight

    def draw(steps: int) -> Tensor:
        return torch.randn(1, weight.shape[0], steps, generator=generator).to(weight.device, weight.dtype)

    x, history = draw(CHECKED_STEPS), draw(layer.span)

    def run(forward: Callable[[Tensor, StreamState], Tensor]) -> Tensor:
        state = StreamState()
        state.tails[layer.name] = history
        return forward(x, state)

    return largest_difference([run(layer.forward)], [run(partial(CausalConvTranspose1d.forward, layer))])
