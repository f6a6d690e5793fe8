"""The HIP backend: the plain torch model with HIP kernels at hand, which optimization passes switch on."""

from functools import partial

from qwen3tts.backends.native.loading import load_native_runtime

__all__ = ["load_runtime"]

load_runtime = partial(load_native_runtime, "hip")
