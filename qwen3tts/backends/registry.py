"""Backends by name. `auto` takes the best one that is present; a named one that is missing says why."""

import importlib
import logging
from dataclasses import dataclass
from typing import Any

import torch

from qwen3tts.backends.native import open_native
from qwen3tts.checkpoint import Checkpoint
from qwen3tts.errors import BackendError, nearest
from qwen3tts.runtime.protocols import Runtime
from qwen3tts.voice.clone import Encoders

logger = logging.getLogger(__name__)

NATIVE = ("cuda", "hip")
NAMES = ("auto", "torch", "cpu", *NATIVE)


@dataclass(frozen=True)
class BackendStatus:
    """One line of `qwen3tts doctor`."""

    name: str
    available: bool
    reason: str
    """why it is not available, or what it would run on"""
    device: str
    """torch device it would use, "" when not available"""


def _native_status(name: str) -> BackendStatus:
    try:
        native = open_native(name)
    except BackendError as error:
        return BackendStatus(name, False, str(error), "")
    module = native.module
    kernels = f"{'HIP' if name == 'hip' else 'CUDA'} {module.toolkit} kernels for {module.architectures}"
    return BackendStatus(name, True, f"{kernels} on {torch.cuda.get_device_name(native.device)}", str(native.device))


def best_device() -> torch.device:
    """The fastest device that torch itself can use."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    mps: Any = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def probe() -> list[BackendStatus]:
    """Every backend: whether it can be used here, and why not."""
    device = best_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return [
        *(_native_status(native) for native in NATIVE),
        BackendStatus("torch", True, f"plain torch {torch.__version__} on {name}", str(device)),
        BackendStatus("cpu", True, f"plain torch {torch.__version__} on the CPU", "cpu"),
    ]


def choose(backend: str, device: str | torch.device | None) -> tuple[str, torch.device]:
    """(backend name, device) for load(); raises BackendError if it is not there."""
    if backend not in NAMES:
        raise BackendError(f"There is no backend {backend!r}.{nearest(backend, NAMES)} There are: {', '.join(NAMES)}.")
    if backend in NATIVE:
        try:
            return backend, open_native(backend, device).device
        except BackendError as error:
            raise BackendError(
                f"The backend {backend!r} cannot be used: {error} backend='torch' runs anywhere."
            ) from error
    if backend == "cpu":
        if device is not None and torch.device(device).type != "cpu":
            raise BackendError(f"backend='cpu' runs on the CPU, not on {device}; use backend='torch' for that device.")
        return "torch", torch.device("cpu")
    where = best_device() if device is None else _checked_device(device)
    if backend == "auto" and where.type == "cuda":
        return _fastest(where), where
    return "torch", where


def _fastest(device: torch.device) -> str:
    """The native backend of torch's GPU, or "torch" where it cannot be opened."""
    name = "hip" if torch.version.hip else "cuda"
    try:
        open_native(name, device)
    except BackendError as error:
        logger.warning("The backend 'auto' runs on plain torch, without the %s kernels: %s", name.upper(), error)
        return "torch"
    return name


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        wanted = torch.device(device)
        if wanted.type == "cuda" and wanted.index is None and torch.cuda.is_available():
            wanted = torch.device("cuda", torch.cuda.current_device())
        torch.empty(1, device=wanted)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise BackendError(
            f"The device {str(device)!r} cannot be used: {first}. `qwen3tts doctor` lists devices."
        ) from error
    return wanted


def open_encoders(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> Encoders:
    """Codec encoder and speaker encoder, plain torch on every backend. Nothing is read before their first use."""
    from qwen3tts.backends.torch.encoders import TorchEncoders

    return TorchEncoders(checkpoint, device, dtype)


def open_runtime(name: str, **arguments: Any) -> Runtime:
    """Loads the backend's module and builds its runtime; see backends.torch.load_runtime for the arguments."""
    runtime: Runtime = importlib.import_module(f"qwen3tts.backends.{name}").load_runtime(**arguments)
    return runtime
