"""The plain torch backend: the specification itself, on any device torch has."""

from qwen3tts.backends.torch.runtime import TorchRuntime, load_runtime

__all__ = ["TorchRuntime", "load_runtime"]
