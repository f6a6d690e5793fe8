"""Device memory of this process: what it takes, and giving back what nothing holds."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes at one moment."""

    used: int
    """of the whole device, by all processes"""
    reserved: int
    """by torch's allocator"""
    allocated: int
    """of those, in tensors and workspaces; the others are gaps"""


def device_memory(device: torch.device) -> DeviceMemory:
    """Of a GPU, as it is now."""
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total - free, torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device))


def give_back_unused(device: torch.device) -> None:
    """Gives the driver back what torch keeps for later and nothing holds."""
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
