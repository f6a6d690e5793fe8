"""Synthetic checkpoints: the real on-disk layout with seeded random weights.

They make sound, not words. Tests, parity scripts and benchmarks run on them, as no released weights are needed.
"""

from qwen3tts.synthetic.configs import PRESETS, TYPES
from qwen3tts.synthetic.generator import (
    ListedCheckpoint,
    listed_checkpoints,
    make_checkpoint,
    make_listed_checkpoint,
    weights_sha256,
)

__all__ = [
    "PRESETS",
    "TYPES",
    "ListedCheckpoint",
    "listed_checkpoints",
    "make_checkpoint",
    "make_listed_checkpoint",
    "weights_sha256",
]
