"""The stages of frames that the decode core replays, told by the kernels of the graph: their names and their order.

Kernels overlap (each starts before the one ahead has ended), so a kernel's own time is from the end of the one before
to its own end; the times of a frame then add up to the frame."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType

from qwen3tts.backends.native.decode.frame_decoder import NativeFrameDecoder
from qwen3tts.backends.native.decode.mixed import MixedFrameDecoder
from qwen3tts.errors import BackendError
from qwen3tts.runtime.protocols import RowRequest

BEGIN, SUM, END, SAMPLE, PRODUCT = "begin_kernel", "sum_kernel", "end_kernel", "sample_kernel", "linear"
PERSISTENT = "PersistentArguments"
"""parts of kernels' names (csrc/common/decode/frame.cpp, sampler.cpp, linear*.cpp, csrc/cuda/decode_persistent.cpp)"""


@dataclass(frozen=True)
class Kernel:
    """One launch on the device, in microseconds."""

    name: str
    start: float
    end: float


def core_of(decoder: Any) -> NativeFrameDecoder | None:
    """The decode core that makes a decoder's frames; None: the plain decoder does."""
    found = decoder.core if isinstance(decoder, MixedFrameDecoder) else decoder
    return found if isinstance(found, NativeFrameDecoder) else None


def own_times(kernels: Sequence[Kernel]) -> list[float]:
    """Of each kernel, in the order of their ends: from the end before to its own."""
    ends = [kernel.end for kernel in kernels]
    first = kernels[0].end - kernels[0].start if kernels else 0.0
    return [first if i == 0 else end - ends[i - 1] for i, end in enumerate(ends)]


def frames_of(kernels: Sequence[Kernel]) -> list[list[int]]:
    """Indices of each whole frame's kernels, from its begin kernel to its end kernel."""
    frames: list[list[int]] = []
    current: list[int] | None = None
    for i, kernel in enumerate(kernels):
        if BEGIN in kernel.name:
            current = []
        if current is not None:
            current.append(i)
            if END in kernel.name:
                frames.append(current)
                current = None
    return frames


def stages_of(names: Sequence[str], projected: bool) -> list[str]:
    """The stage of each kernel of one frame, as "predictor.stack". projected: the predictor has an input projection.

    A product right before a draw is a head. Between begin and sum lies the predictor; one kernel that does all of it
    has no stages inside."""
    sums = [i for i, name in enumerate(names) if SUM in name]
    if len(sums) != 1:
        raise BackendError(f"A frame of {len(names)} kernels has {len(sums)} of the kind {SUM!r}; expected one.")
    border, found = sums[0], []
    for i, name in enumerate(names):
        part = "predictor" if i < border else "step_input" if i == border else "talker"
        draws_next = i + 1 < len(names) and SAMPLE in names[i + 1]
        if BEGIN in name:
            inside = "begin"
        elif part == "step_input":
            inside = ""
        elif SAMPLE in name:
            inside = "sampling"
        elif END in name:
            inside = "end"
        elif PERSISTENT in name:
            inside = "one kernel"
        elif PRODUCT in name and draws_next:
            inside = "logits"
        elif projected and PRODUCT in name and i > 0 and BEGIN in names[i - 1]:
            inside = "projection"
        else:
            inside = "stack"
        found.append(f"{part}.{inside}" if inside else part)
    return found


def summed(kernels: Sequence[Kernel], projected: bool) -> dict[str, Any]:
    """Milliseconds a frame by stage, launches a frame, and the kernels' own times by name, over the whole frames."""
    times, frames = own_times(kernels), frames_of(kernels)
    if not frames:
        raise BackendError(f"No whole frame is among the {len(kernels)} kernels that were recorded.")
    stages: dict[str, float] = {}
    kinds: dict[str, list[float]] = {}
    for frame in frames:
        for i, stage in zip(frame, stages_of([kernels[i].name for i in frame], projected), strict=True):
            stages[stage] = stages.get(stage, 0.0) + times[i] / 1e3 / len(frames)
            kinds.setdefault(f"{stage}: {short_name(kernels[i].name)}", []).append(times[i])

    def of(part: str) -> float:
        return sum(value for stage, value in stages.items() if stage.split(".")[0] == part)

    return {
        "frames": len(frames),
        "launches_per_frame": round(sum(map(len, frames)) / len(frames), 2),
        "ms_per_frame": {
            "frame": round(sum(stages.values()), 4),
            **{part: round(of(part), 4) for part in ("predictor", "step_input", "talker")},
        },
        "predictor_ms": {
            stage.split(".")[1]: round(value, 4) for stage, value in stages.items() if stage.startswith("predictor.")
        },
        "talker_ms": {
            stage.split(".")[1]: round(value, 4) for stage, value in stages.items() if stage.startswith("talker.")
        },
        "kernels": [
            {
                "what": what, "launches_per_frame": round(len(values) / len(frames), 2),
                "own_us": round(sum(values) / len(values), 3),
                "ms_per_frame": round(sum(values) / 1e3 / len(frames), 4),
            }
            for what, values in sorted(kinds.items(), key=lambda item: -sum(item[1]))
        ],
    }  # fmt: skip


def short_name(name: str) -> str:
    """A kernel's name without namespaces, types of arguments and "void"."""
    plain = name.replace("(anonymous namespace)::", "").replace("qwen3tts::", "").removeprefix("void ")
    return plain.split("(")[0]


def profile_core(
    core: NativeFrameDecoder, requests: Sequence[RowRequest], before: int, frames: int
) -> dict[str, Any]:
    """Stages of replayed frames on a GPU, and the prompts' time. Raises BackendError where torch records no kernels."""
    if core.device.type != "cuda":
        raise BackendError("The stages of the decode core are told from its kernels on a GPU; here they run elsewhere.")
    kernels, prefill = _recorded(core, requests, before, frames)
    projected = bool(core.weights.fields["projection"])
    found = summed(kernels, projected)
    return {"how": "kernels of replayed frames, own times", "prefill_ms": round(prefill, 4)} | found


def _recorded(
    core: NativeFrameDecoder, requests: Sequence[RowRequest], before: int, frames: int
) -> tuple[list[Kernel], float]:
    """The kernels of so many frames in the order of their ends, and milliseconds of the prompts."""
    torch.cuda.synchronize(core.device)
    started = time.perf_counter()
    slots = core.admit(requests)
    prefill = 1e3 * (time.perf_counter() - started)
    try:
        core.advance(before, slots)
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            core.advance(frames, slots)
            torch.cuda.synchronize(core.device)
    finally:
        for slot in slots:
            core.release(slot)
    return kernels_of(profiler.events()), prefill


def kernels_of(events: Any) -> list[Kernel]:
    """Kernels among a profiler's events, copies and fills left out, in the order of their ends."""
    found = []
    for event in events or ():
        on_device = getattr(event, "device_type", None) == DeviceType.CUDA
        if on_device and not event.name.startswith(("Memcpy", "Memset")):
            found.append(Kernel(event.name, float(event.time_range.start), float(event.time_range.end)))
    return sorted(found, key=lambda kernel: kernel.end)
