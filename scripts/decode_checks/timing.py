"""Clocks for the decode core: CUDA events on a GPU, the host's clock elsewhere."""

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

import qwen3tts
from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.runtime.protocols import Slot

Result = TypeVar("Result")


def timed(device: torch.device, call: Callable[[], Result]) -> tuple[float, Result]:
    """Milliseconds of a call on the device, from what is queued before it to its last launch, and what it returns."""
    if device.type != "cuda":
        started = time.perf_counter()
        result = call()
        return 1e3 * (time.perf_counter() - started), result
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    result = call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end), result


def frame_milliseconds(core: NativeFrameDecoder, slots: Sequence[Slot], frames: int) -> float:
    """Of one frame of all these rows, mean of so many. Raises SystemExit if a row makes fewer."""
    ms, made = timed(core.device, lambda: core.advance(frames, slots))
    if made.counts != (frames,) * len(slots):
        raise SystemExit(f"{made.counts} frames were made, expected {frames} of each of {len(slots)} rows")
    return ms / frames


class Rewind:
    """Takes rows back to where they were, for one run after another on the same contexts. What they have said since
    stays in their penalties, and the code and state that they go on from is another one: nothing that takes time."""

    def __init__(self, core: NativeFrameDecoder) -> None:
        """core: nothing is running."""
        self._core, self._counters = core, core.state.counters.clone()

    def __call__(self) -> None:
        self._core.state.counters.copy_(self._counters)
        self._core.launches.unread = True  # so that the host reads them before it goes on


def free_bytes(device: torch.device) -> int:
    """Of the device's memory; 0 where nobody counts it."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def machine(commit: str | None) -> dict[str, Any]:
    """Card, driver and versions."""
    smi = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
    try:
        facts = subprocess.run(smi, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:  # another maker's card
        facts = ""
    return {
        "card": facts or torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "qwen3tts": qwen3tts.__version__, "commit": commit,
    }  # fmt: skip
