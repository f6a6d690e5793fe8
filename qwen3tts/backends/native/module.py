"""Opens a native module on a device, after making sure that it shares torch's GPU runtime."""

import importlib
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

import torch

from qwen3tts.backends.native.build_info import build_record
from qwen3tts.errors import BackendError

NAMES = ("cuda", "hip")


@dataclass(frozen=True)
class Native:
    """One native module on one device."""

    name: str
    """"cuda" or "hip\""""
    platform: str
    """"nvidia", "amd", or "emulation": HIP run on the CPU, for tests"""
    module: Any = field(repr=False)
    device: torch.device
    """where tensors must be"""

    def stream(self) -> int:
        """The handle of torch's current stream on this device, for launches."""
        if self.device.type == "cpu":
            return 0
        handle: int = _current_stream(self.device)
        return handle


def _public_current_stream(device: torch.device) -> int:
    handle: int = torch.cuda.current_stream(device).cuda_stream
    return handle


def _raw_current_stream(device: torch.device) -> int:
    index = torch.cuda.current_device() if device.index is None else device.index
    handle: int = torch._C._cuda_getCurrentRawStream(index)
    return handle


_current_stream = _raw_current_stream if hasattr(torch._C, "_cuda_getCurrentRawStream") else _public_current_stream
"""torch's compiled code asks in the first way, which makes no object: an operation of 10 us should not wait 5 for it"""


def wrap_module(module: ModuleType | Any, platform: str = "emulation") -> Native:
    """A module that works on CPU tensors, for tests."""
    return Native("hip", platform, module, torch.device("cpu"))


def import_native(name: str) -> ModuleType:
    """The module qwen3tts._cuda or qwen3tts._hip. Raises BackendError with the reason and the remedy.

    torch comes first (it is imported above): a module that needs a runtime library then binds to the copy that torch
    has loaded."""
    try:
        return importlib.import_module(f"qwen3tts._{name}")
    except ModuleNotFoundError as error:
        if error.name != f"qwen3tts._{name}":
            raise
        reason = build_record(name).reason
        raise BackendError(
            f"this installation has no {name.upper()} kernels: {reason}. Build it with the toolkit installed, in "
            f"qwen3tts's source folder: pip install -C cmake.define.QWEN3TTS_{name.upper()}=ON ."
        ) from error
    except ImportError as error:
        toolkit = f"{'ROCm' if name == 'hip' else 'CUDA'} {build_record(name).toolkit}"
        raise BackendError(
            f"the module qwen3tts._{name} cannot be loaded: {error}. Install the libraries of {toolkit}, with which it "
            "was built, or build qwen3tts again on this machine."
        ) from error


def check_runtime(name: str, platform: str, runtime_major: int, toolkit: str) -> None:
    """Raises BackendError unless torch was built for the same GPU runtime.

    HIP's major version must be torch's (CUDA's, if HIP was built for NVIDIA): another one would be a second runtime in
    the process, to which torch's streams mean nothing. The CUDA module carries a runtime of its own above the driver,
    whose streams they all share, so there the driver decides."""
    on_amd = platform == "amd"
    vendor, theirs = ("ROCm", torch.version.hip) if on_amd else ("CUDA", torch.version.cuda)
    built = f"qwen3tts._{name} was built for {'HIP' if on_amd else 'CUDA'} {toolkit}"
    if theirs is None:
        other = torch.version.cuda if on_amd else torch.version.hip
        kind = f"for {'CUDA' if on_amd else 'ROCm'} {other}" if other else "for the CPU only"
        raise BackendError(f"{built}, but torch {torch.__version__} is {kind}. Install a torch for {vendor}.")
    if name == "hip" and int(theirs.split(".")[0]) != runtime_major:
        raise BackendError(
            f"{built}, but torch {torch.__version__} brings {vendor} {theirs}; the first number must be the same. "
            f"Install a torch for {vendor} {runtime_major}, or build qwen3tts with {vendor} {theirs.split('.')[0]}."
        )


def open_native(name: str, device: str | torch.device | None = None) -> Native:
    """The module `name` on a device, by default torch's current one. Raises BackendError with reason and remedy.

    Nothing of the GPU runtime is called before its version is known to be torch's."""
    if name not in NAMES:
        raise BackendError(f"There is no native backend {name!r}. There are: {', '.join(NAMES)}.")
    module: Any = import_native(name)
    check_runtime(name, module.platform, module.runtime_major, module.toolkit)
    if not torch.cuda.is_available():
        raise BackendError(
            f"The backend {name!r} needs a GPU, and torch {torch.__version__} sees none. Check the driver with "
            f"{'rocm-smi' if module.platform == 'amd' else 'nvidia-smi'}; backend='torch' runs anywhere."
        )
    wanted = torch.device("cuda" if device is None else device)
    if wanted.type != "cuda":
        raise BackendError(f"The backend {name!r} runs on a GPU ('cuda' in torch), not on {wanted}.")
    index = torch.cuda.current_device() if wanted.index is None else wanted.index
    if index >= torch.cuda.device_count():
        raise BackendError(f"There is no device {wanted}: torch sees {torch.cuda.device_count()}, counted from cuda:0.")
    return _opened(name, index)


@cache
def _opened(name: str, index: int) -> Native:
    module: Any = import_native(name)
    seen = len(module.devices())
    if seen != torch.cuda.device_count():
        versions = module.versions()
        raise BackendError(
            f"qwen3tts._{name} sees {seen} GPUs and torch sees {torch.cuda.device_count()}. The module's runtime is "
            f"{versions['runtime']}, the driver supports {versions['driver']}: update the driver if that is less, or "
            "build qwen3tts with the toolkit version of torch."
        )
    return Native(name, module.platform, module, torch.device("cuda", index))
