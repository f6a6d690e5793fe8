"""The kernels of the CUDA and the HIP backend: one wrapper per operation, the same for both.

Each operation has a file with its reference in plain torch, the wrapper that checks arguments and launches, and the
cases that `qwen3tts selftest` runs."""

from qwen3tts.backends.native.module import Native, open_native, wrap_module

__all__ = ["Native", "open_native", "wrap_module"]
