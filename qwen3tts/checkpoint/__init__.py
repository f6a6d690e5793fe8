"""Checkpoints: found or downloaded, their configs read strictly, their weights mapped into memory."""

from qwen3tts.checkpoint.describe import describe
from qwen3tts.checkpoint.layout import codec_keys, model_keys
from qwen3tts.checkpoint.loading import load_module
from qwen3tts.checkpoint.locate import locate
from qwen3tts.checkpoint.opening import Checkpoint, open_checkpoint
from qwen3tts.checkpoint.weights import TensorReader, check_layout

__all__ = [
    "Checkpoint",
    "TensorReader",
    "check_layout",
    "codec_keys",
    "describe",
    "load_module",
    "locate",
    "model_keys",
    "open_checkpoint",
]
