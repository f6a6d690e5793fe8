"""What was measured, on what: the head of every report."""

import resource
from typing import Any

import torch

from qwen3tts._version import __version__
from qwen3tts.backends.native.build_info import build_record
from qwen3tts.optimization.evidence_store import driver_version


def describe(tts: Any) -> dict[str, Any]:
    """Model, device and versions as plain values."""
    config, device = tts.config, tts.device
    native = getattr(tts.engine.runtime, "native", None)
    on_gpu = device.type == "cuda"
    return {
        "model": {"type": config.model_type, "size": config.model_size, "dtype": str(tts.dtype).removeprefix("torch.")},
        "backend": tts.backend_name,
        "profile": {"name": tts.profile.name, "hash": tts.profile.hash},
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "driver": driver_version() if on_gpu else "",
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "qwen3tts": __version__,
        "commit": "" if native is None else build_record(native.name).commit,
        "load_seconds": round(tts.load_seconds, 3),
    }


def reset_peak(device: torch.device) -> None:
    """Forgets the largest memory so far, where that can be done."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> dict[str, int]:
    """The largest memory since reset_peak: on a GPU torch's own there, and what all programs take of it now; on the
    CPU that of the process since its start."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return {"torch_peak_bytes": torch.cuda.max_memory_reserved(device), "device_used_bytes": total - free}
    return {"process_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
