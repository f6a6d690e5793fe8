"""The pass `custom-kernels`: RMSNorm, the sampler and whole frames as kernels of the CUDA or HIP backend.

Norms read the parameters' own storage and round where the model rounds; where a block adds its attention to the
residual and norms the sum, one kernel does both. The sampler picks the same codes, bit for bit. The decode core makes
whole frames on the device (docs/decode.md); what it does not make goes on as it was, with norms and sampler."""

import functools
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qwen3tts.backends.native.cases import units_in_last_place
from qwen3tts.backends.native.checks import FLOATS
from qwen3tts.backends.native.decode.frame_decoder import MAX_FRAMES_PER_REPLAY
from qwen3tts.backends.native.decode.part import InstalledDecode, decode_problem, install
from qwen3tts.backends.native.decode.projections import linear_layers, projection_problem
from qwen3tts.backends.native.module import Native, open_native
from qwen3tts.backends.native.picker import NativePicker
from qwen3tts.backends.native.rms_norm import FP32_UNITS, NARROW_UNITS, add_rms_norm, rms_norm
from qwen3tts.backends.native.sampler import SamplerRow, pack_rows, sample, sample_reference
from qwen3tts.errors import BackendError, KernelArgumentError, OptimizationCompatibilityError
from qwen3tts.markers import marked
from qwen3tts.model.layers import Angles, AttentionCache, DecoderBlock, RMSNorm
from qwen3tts.model.sampling import SamplingParams
from qwen3tts.optimization.passes import Evidence, OptimizationPass, PassContext, PassResult, check_flag, fail_option
from qwen3tts.optimization.registry import register

logger = logging.getLogger(__name__)

CHECKED_PICKS = 8


def native_of(model: Any) -> Native:
    """The kernels for a loaded model's device. Raises OptimizationCompatibilityError with reason and remedy."""
    native: Native | None = getattr(model, "native", None)
    if native is None:
        if model.device.type != "cuda":
            raise OptimizationCompatibilityError(
                f"There are no native kernels for the device {str(model.device)!r}: they run on GPUs."
            )
        try:
            native = open_native("hip" if torch.version.hip else "cuda", model.device)
        except BackendError as error:
            raise OptimizationCompatibilityError(f"There are no native kernels here: {error}") from error
    if native.device != model.device:
        raise OptimizationCompatibilityError(f"The model is on {model.device}, its kernels run on {native.device}.")
    return native


# ------------------------------------------------------------ norms


def _norm_forward(norm: RMSNorm, native: Native) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        return rms_norm(native, x.contiguous(), norm.weight, norm.eps)  # on the CPU a product may be transposed

    return forward


def _block_forward(block: DecoderBlock, native: Native) -> Callable[..., Tensor]:
    """DecoderBlock.forward with the first addition and the norm of its sum in one kernel."""
    norm = block.post_attention_layernorm

    def forward(x: Tensor, angles: Angles, cache: AttentionCache) -> Tensor:
        attended = block.self_attn_layer_scale(block.self_attn(block.input_layernorm(x), angles, cache))
        total, normed = add_rms_norm(native, attended.contiguous(), x.contiguous(), norm.weight, norm.eps)
        out: Tensor = total + block.mlp_layer_scale(block.mlp(normed))
        return out

    return forward


def _patches(model: Any, native: Native) -> Iterator[tuple[nn.Module, Callable[..., Tensor]]]:
    """Modules and their new forward. Blocks that another pass runs in its own way are left to it, norms included."""
    for part in (model.talker, model.codec.model):
        taken: set[nn.Module] = set()
        for module in part.modules():
            if isinstance(module, DecoderBlock):
                if "forward" in vars(module):
                    taken.update(module.modules())
                else:
                    yield module, _block_forward(module, native)
            elif isinstance(module, RMSNorm) and module not in taken and "forward" not in vars(module):
                yield module, _norm_forward(module, native)


# ------------------------------------------------------------ the pass


@dataclass
class _State:
    native: Native
    patched: list[nn.Module] = field(default_factory=list)
    picker: Any = None
    """the one that was replaced"""
    decode: InstalledDecode | None = None
    decode_problem: str | None = None
    """why decode="auto" has left it off"""
    marked: list[tuple[Any, str]] = field(default_factory=list)


@register("custom-kernels")
@dataclass(frozen=True, kw_only=True)
class CustomKernels(OptimizationPass):
    """See the top of this file."""

    pass_id = "qwen3tts.custom-kernels"
    optimization_kind = "kernels"

    norms: bool = True
    """RMSNorm of talker, code predictor and codec transformer"""
    sampler: bool = True
    """the draw of every code"""
    decode: bool | str = False
    """whole frames as one replayed graph of fused kernels; "auto": where the decode core fits the model"""
    frames_per_replay: int = 4
    """of the decode core: frames in one graph, 1 to 32; a row that may make fewer idles for the rest"""
    kv_positions: int | None = None
    """of the decode core: positions of keys and values at first, for all rows together, where kv_bytes sets none; None:
    a few streams of 1,000 frames"""
    persistent_predictor: bool = True
    """of the decode core: the code predictor of a row alone as one kernel, where the model and the card allow it"""
    projections: bool = False
    """of the decode core: text rows and the code predictor's input tables by its own products, whose bits do not depend
    on how many rows there are; torch's library is not needed then"""
    markers: bool = False
    """ranges named after the stages for NVIDIA's (NVTX) and AMD's (ROCTX) profilers"""

    def __post_init__(self) -> None:
        for name in ("norms", "sampler", "persistent_predictor", "projections", "markers"):
            check_flag(name, getattr(self, name))
        if not isinstance(self.decode, bool) and self.decode != "auto":
            fail_option("decode", self.decode, "True, False or 'auto'")
        frames = self.frames_per_replay
        if isinstance(frames, bool) or not isinstance(frames, int) or not 1 <= frames <= MAX_FRAMES_PER_REPLAY:
            fail_option("frames_per_replay", frames, f"a whole number from 1 to {MAX_FRAMES_PER_REPLAY}")
        positions = self.kv_positions
        if positions is not None and (isinstance(positions, bool) or not isinstance(positions, int) or positions < 1):
            fail_option("kv_positions", positions, "a whole number from 1 up, or None")

    def validate(self, model: Any, context: PassContext) -> None:
        """Raises OptimizationCompatibilityError without kernels for the model's device, dtype and vocabulary."""
        native = native_of(model)
        if model.dtype not in FLOATS:
            raise OptimizationCompatibilityError(f"The norms have no kernel for {model.dtype}.")
        if self.sampler:
            try:
                NativePicker(native, model.talker)
            except KernelArgumentError as error:
                raise OptimizationCompatibilityError(str(error)) from error
        problem = decode_problem(model, native) if self.decode is True else None
        if problem is None and self.decode is True and self.projections:
            problem = projection_problem(linear_layers(model.talker))
        if problem is not None:
            raise OptimizationCompatibilityError(problem)
        if self.markers and torch.version.cuda is None and torch.version.hip is None:
            raise OptimizationCompatibilityError("markers=True needs a torch that was built for CUDA or ROCm.")

    def apply(self, model: Any, context: PassContext) -> PassResult:
        """Sets the forward of norms and blocks, the frame decoder's picker, the frame decoder, and the markers."""
        if not (self.norms or self.sampler or self.decode or self.markers):
            return self.not_applicable_result(model, "all its options are off")
        state = _State(native_of(model))
        if self.decode == "auto":
            state.decode_problem = decode_problem(model, state.native)
            if state.decode_problem is not None:
                logger.info("frames stay with the plain decoder: %s", state.decode_problem)
        if self.norms:
            for module, forward in list(_patches(model, state.native)):
                vars(module)["forward"] = forward
                state.patched.append(module)
        if self.sampler:
            state.picker = model.frames.picker
            model.frames.picker = NativePicker(state.native, model.talker)
        if self.decode and state.decode_problem is None:
            problem = projection_problem(linear_layers(model.talker)) if self.projections else None
            if problem is not None:  # with "auto"; for True, validate() has looked
                logger.info("text rows stay with torch's products: %s", problem)
            state.decode = install(
                model, state.native, self.frames_per_replay, self.kv_positions, self.persistent_predictor,
                self.projections and problem is None,
            )  # fmt: skip
        if self.markers:
            stages = [(model.frames, "admit", "prefill"), (model.frames, "advance", "advance")]
            if state.decode is not None:
                stages.append((state.decode.core.launches, "launch", "replay"))
            for owner, method, name in (*stages, (model.codec, "decode", "codec")):
                vars(owner)[method] = marked(name, getattr(owner, method))
                state.marked.append((owner, method))
        return PassResult(model, state, {"backend": state.native.name, "platform": state.native.platform})

    def restore(self, model: Any, state: _State, context: PassContext) -> Any:
        """Takes away what apply has set."""
        for owner, method in state.marked:
            vars(owner).pop(method, None)
        if state.decode is not None:
            state.decode.restore(model)
        if state.picker is not None:
            model.frames.picker = state.picker
        for module in state.patched:
            vars(module).pop("forward", None)
        return model

    def runtime_manifest_status(self, result: PassResult) -> dict[str, Any]:
        """How many modules run on kernels."""
        if not isinstance(result.state, _State):
            return {}
        patched = result.state.patched
        return {
            "norms": sum(isinstance(module, RMSNorm) for module in patched),
            "blocks": sum(isinstance(module, DecoderBlock) for module in patched),
            "sampler": result.state.picker is not None,
            "decode": result.state.decode_problem if result.state.decode is None else result.state.decode.status(),
        }

    def check(self, model: Any, state: _State, context: PassContext) -> Evidence:
        """Every width and dtype of the norms that were replaced, 8 rows of picks and, where the decode core makes them,
        a few frames of 4 prompts, on fresh random inputs."""
        started = time.perf_counter()
        seed = secrets.randbits(32)
        generator = torch.Generator().manual_seed(seed)
        norms = {(n.weight.dtype, n.weight.numel()): n for n in state.patched if isinstance(n, RMSNorm)}
        with torch.inference_mode():
            errors = [_norm_error(norm, state.native, generator) for norm in norms.values()]
            if state.picker is not None:
                errors.append(_sampler_error(model, state.native, generator))
            if state.decode is not None:
                errors.append(state.decode.error(model, generator))
        worst = max(errors, default=0.0) if all(map(math.isfinite, errors)) else math.nan
        return Evidence(
            compared=f"{len(norms)} norms, {0 if state.picker is None else CHECKED_PICKS} picks and "
            f"{0 if state.decode is None else state.decode.checked_frames} frames on random inputs of the seed {seed}, "
            "as a part of what rounding allows",
            reference="model.layers.RMSNorm, model.sampling and the frame decoder in plain torch",
            error=worst,
            bound=1.0,
            passed=worst <= 1.0,
            seconds=time.perf_counter() - started,
        )


def _norm_error(norm: RMSNorm, native: Native, generator: torch.Generator) -> float:
    """Units in the last place over those that another order of the sum may make, with and without residual."""
    weight = norm.weight
    x, other = (torch.randn(5, weight.numel(), generator=generator).to(weight.device, weight.dtype) for _ in range(2))
    plain = functools.partial(RMSNorm.forward, norm)
    total, normed = add_rms_norm(native, x, other, weight, norm.eps)
    units = units_in_last_place([rms_norm(native, x, weight, norm.eps), normed], [plain(x), plain(x + other)])
    if not torch.equal(total, x + other):
        return math.inf
    return units / (FP32_UNITS if weight.dtype == torch.float32 else NARROW_UNITS)


def _sampler_error(model: Any, native: Native, generator: torch.Generator) -> float:
    """0 if some picks of the talker's size are the same, infinite if not."""
    settings = (
        SamplingParams(True, 0.9, 50, 1.0),
        SamplingParams(True, 1.1, 20, 0.9),
        SamplingParams(False, 1.0, 0, 1.0),
    )
    rows = [SamplerRow(settings[i % 3], seed=i, repetition_penalty=1.05) for i in range(CHECKED_PICKS)]
    vocabulary = model.talker.config.vocab_size
    logits = 3 * torch.randn(len(rows), vocabulary, generator=generator)
    logits = logits.to(native.device)
    seen = (torch.rand(len(rows), vocabulary, generator=generator) < 0.05).to(native.device)
    frames = torch.arange(len(rows), dtype=torch.int32, device=native.device)
    got = sample(native, logits, pack_rows(rows, native.device), frames, 0, seen=seen.clone())
    want = sample_reference(logits, rows, range(len(rows)), 0, seen=seen.clone())
    return 0.0 if torch.equal(got, want) else math.inf
