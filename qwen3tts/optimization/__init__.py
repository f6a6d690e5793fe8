"""Optimization passes: what they are, where they are found, how a loaded model takes them on and gives them back."""

from qwen3tts.optimization.passes import (
    Capabilities,
    Evidence,
    Gain,
    OptimizationPass,
    PassContext,
    PassResult,
)
from qwen3tts.optimization.registry import PassRegistry, default_registry, register

__all__ = [
    "Capabilities",
    "Evidence",
    "Gain",
    "OptimizationPass",
    "PassContext",
    "PassRegistry",
    "PassResult",
    "default_registry",
    "register",
]
