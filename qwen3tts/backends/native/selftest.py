"""Every kernel against its reference, and its time over what the card's own measured bandwidth allows."""

import importlib
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from qwen3tts._version import __version__
from qwen3tts.backends.native.build_info import build_record
from qwen3tts.backends.native.cases import Call, Case
from qwen3tts.backends.native.module import Native
from qwen3tts.model.numerics import on_device

OPERATIONS = (
    "rms_norm", "sampler", "transposed_conv", "skinny_product", "decode.linear", "decode.attention_cases",
)  # fmt: skip
"""modules beside this one with a function selftest_cases()"""

REPEATS = 15
MAX_COPIES = 64
MAX_COPY_BYTES = 2 << 30


@dataclass(frozen=True)
class CaseResult:
    """One line of the report. Times are None where there is no card to measure."""

    kernel: str
    variant: str
    dtype: str
    error: float | None
    """None: not a number, or the kernel raised"""
    bound: float
    unit: str
    passed: bool
    message: str
    """what was raised, if anything"""
    bytes_moved: int | None
    microseconds: float | None
    """median of one launch in a graph of many, over buffers that together exceed the L2 cache where `cold`"""
    floor_microseconds: float | None
    """bytes_moved at the copy bandwidth"""
    time_over_floor: float | None
    cold: bool | None


def all_cases(native: Native) -> list[Case]:
    """The cases of every operation that the module is built with."""
    cases: list[Case] = []
    for name in OPERATIONS:
        if not name.startswith("decode.") or hasattr(native.module, "Decoder"):
            cases += importlib.import_module(f"qwen3tts.backends.native.{name}").selftest_cases()
    return cases


def run_selftest(
    native: Native,
    cases: Sequence[Case],
    *,
    seed: int = 0,
    report: Callable[[CaseResult], None] = lambda result: None,
) -> dict[str, Any]:
    """Runs the cases in order and returns the whole report as JSON; `report` hears of each result at once.

    On the emulation only small cases are run and nothing is timed."""
    on_card = native.device.type == "cuda"
    started = time.perf_counter()
    machine = describe(native)
    bandwidth = copy_bandwidth(native) if on_card else None
    results = []
    for case in cases:
        if on_card or case.small:
            with on_device(native.device):
                result = run_case(native, case, seed, bandwidth)
            results.append(result)
            report(result)
    return {
        "format": 1,
        "machine": machine,
        "seed": seed,
        "copy_gigabytes_per_second": None if bandwidth is None else bandwidth / 1e9,
        "passed": all(result.passed for result in results),
        "cases": [asdict(result) for result in results],
        "seconds": time.perf_counter() - started,
    }


def describe(native: Native) -> dict[str, Any]:
    """Card, driver, versions and commit."""
    module = native.module
    at = native.device.index or 0
    return {
        "backend": native.name,
        "platform": native.platform,
        "toolkit": module.toolkit,
        "architectures": module.architectures,
        "device": module.devices()[at],
        "versions": module.versions(),
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "torch_hip": torch.version.hip,
        "python": platform.python_version(),
        "qwen3tts": __version__,
        "commit": build_record(native.name).commit or None,
    }


def run_case(native: Native, case: Case, seed: int, bandwidth: float | None) -> CaseResult:
    """Checks one case and, given the card's bandwidth in bytes per second, times it."""
    error: float | None = None
    message, moved, seconds, cold = "", None, None, None
    try:
        call = case.prepare(native, torch.Generator().manual_seed(seed))
        moved = call.bytes_moved
        call.run()
        got = [output.clone() for output in call.outputs()]
        error = case.error(got, list(call.reference()))
        error = error if math.isfinite(error) else None
        if bandwidth is not None:
            seconds, cold = _time(native, case, seed, call)
    except Exception as failure:  # a report of what fails is the purpose
        message = f"{type(failure).__name__}: {failure}"
    floor = None if bandwidth is None or moved is None else moved / bandwidth
    return CaseResult(
        kernel=case.kernel,
        variant=case.variant,
        dtype=case.dtype,
        error=error,
        bound=case.bound,
        unit=case.unit,
        passed=not message and error is not None and error <= case.bound,
        message=message,
        bytes_moved=moved,
        microseconds=None if seconds is None else seconds * 1e6,
        floor_microseconds=None if floor is None else floor * 1e6,
        time_over_floor=None if seconds is None or floor is None else seconds / floor,
        cold=cold,
    )


def _time(native: Native, case: Case, seed: int, first: Call) -> tuple[float, bool]:
    """(median seconds of one launch, whether its data came from memory and not from the L2 cache)."""
    l2 = native.module.devices()[native.device.index or 0]["l2_bytes"]
    wanted = math.ceil(2 * l2 / max(1, first.bytes_moved))
    copies = max(1, min(wanted, MAX_COPIES, MAX_COPY_BYTES // max(1, first.bytes_moved)))
    generator = torch.Generator().manual_seed(seed)
    calls = [first, *(case.prepare(native, generator) for _ in range(copies - 1))]
    for call in calls:  # before the capture: what a first call sets up
        call.run()
    torch.cuda.synchronize(native.device)
    rounds = max(1, 20 // copies)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(rounds):
            for call in calls:
                call.run()
    seconds = _median_seconds(native, graph.replay) / (rounds * copies)
    return seconds, copies * first.bytes_moved >= 2 * l2


def copy_bandwidth(native: Native) -> float:
    """Bytes per second, read and written, of a large copy on this card."""
    size = 1 << 29
    source = torch.zeros(size, dtype=torch.uint8, device=native.device)
    target = torch.empty_like(source)
    return 2 * size / _median_seconds(native, lambda: target.copy_(source))


def _median_seconds(native: Native, work: Callable[[], object]) -> float:
    """By GPU events, after three runs that do not count."""
    with torch.cuda.device(native.device):
        for _ in range(3):
            work()
        times: list[float] = []
        for _ in range(REPEATS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)
