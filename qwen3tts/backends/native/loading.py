"""The runtime of a backend with kernels: the plain torch model, and the module that optimization passes call."""

import torch

from qwen3tts.backends.native.module import open_native
from qwen3tts.backends.torch import TorchRuntime
from qwen3tts.backends.torch import load_runtime as load_torch_runtime
from qwen3tts.checkpoint import Checkpoint
from qwen3tts.options import RuntimeOptions


def load_native_runtime(
    name: str, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, options: RuntimeOptions
) -> TorchRuntime:
    """backends.torch.load_runtime on a GPU, with `native` set. Raises BackendError, CheckpointError or OptionError."""
    native = open_native(name, device)
    runtime = load_torch_runtime(checkpoint, device, dtype, options)
    runtime.native = native
    return runtime
