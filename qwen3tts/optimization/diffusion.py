"""Passes for models with a diffusion stage. The 12 Hz models have none: their codec decodes in one forward pass. The
passes take their options, so that plans written for several models can be applied, and report that nothing applies."""

from dataclasses import dataclass
from typing import Any

from qwen3tts.errors import OptimizationCompatibilityError
from qwen3tts.optimization.passes import (
    Capabilities,
    OptimizationPass,
    PassContext,
    PassResult,
    check_choice,
    fail_option,
)
from qwen3tts.optimization.registry import register

REASON = "this model has no diffusion stage"
POLICIES = ("auto", "required")
MAX_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class _DiffusionPass(OptimizationPass):
    policy: str = "auto"
    """required: refuse a model without a diffusion stage"""

    def __post_init__(self) -> None:
        check_choice("policy", self.policy, POLICIES)

    @property
    def optional(self) -> bool:
        """See OptimizationPass."""
        return self.policy == "auto"

    def validate(self, model: Any, context: PassContext) -> None:
        """See OptimizationPass."""
        if self.policy == "required":
            raise OptimizationCompatibilityError(f"The pass {self.qualified_id!r} is not applicable: {REASON}.")

    def apply(self, model: Any, context: PassContext) -> PassResult:
        """See OptimizationPass."""
        return self.not_applicable_result(model, REASON)

    def restore(self, model: Any, state: Any, context: PassContext) -> Any:
        """See OptimizationPass."""
        return model


@register("diffusion-cache")
@dataclass(frozen=True, kw_only=True)
class DiffusionCache(_DiffusionPass):
    """Reuses the output of a diffusion block while its input changes little between steps."""

    pass_id = "qwen3tts.diffusion-block-cache"
    optimization_kind = "diffusion-cache"
    capabilities = Capabilities(streaming_safe=True)

    threshold: float = 0.1
    """relative change of a block's input below which its last output is taken"""
    warmup_steps: int = 1
    """steps that are always computed"""

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.threshold, int | float) and not isinstance(self.threshold, bool)
        if not number or not 0 <= self.threshold <= 1:
            fail_option("threshold", self.threshold, "a number from 0 to 1")
        _check_steps("warmup_steps", self.warmup_steps, 0)


@register("diffusion-sampling")
@dataclass(frozen=True, kw_only=True)
class DiffusionSampling(_DiffusionPass):
    """Another solver or number of steps for the diffusion stage."""

    pass_id = "qwen3tts.diffusion-sampling"
    optimization_kind = "diffusion-sampling"
    capabilities = Capabilities(streaming_safe=True)

    solver: str = "model"
    """model: what the checkpoint asks for"""
    steps: int | None = None
    """None: what the checkpoint asks for"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("solver", self.solver, ("model", "euler", "midpoint", "heun"))
        if self.steps is not None:
            _check_steps("steps", self.steps, 1)


def _check_steps(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_STEPS:
        fail_option(name, value, f"a whole number from {low} to {MAX_STEPS}")
