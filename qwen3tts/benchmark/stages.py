"""Where a frame's time goes: the stages of a frame, and within the code predictor those of its passes.

A model whose frames are made by the plain decoder is timed part by part, the device being waited for at every border,
which itself takes time. Frames of the decode core are one graph: there the kernels of replayed frames are told apart
(kernel_stages.py)."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from qwen3tts.benchmark.floor import frame_bytes, read_bandwidth
from qwen3tts.benchmark.kernel_stages import core_of, profile_core
from qwen3tts.benchmark.speed import (
    BenchSettings,
    batch_requests,
    bench_spec,
    release,
    synchronize,
    timed_frames,
)
from qwen3tts.runtime.protocols import RowRequest

STAGES = ("prefill", "prepare", "predictor", "step_input", "talker")
"""prefill: a prompt's positions and its first code; prepare: text to prompt rows; then once a frame: the 15 other
codes; the sum of embeddings and what stands around; the talker's step with the next code 0"""
PREDICTOR_STAGES = ("projection", "stack", "logits", "sampling")


class StageClock:
    """Time that is spent in nested stages, each second in the innermost one alone."""

    def __init__(self, wait: Callable[[], None], now: Callable[[], float] = time.perf_counter) -> None:
        """wait: returns once the device has done all that it was given."""
        self.seconds: dict[tuple[str, ...], float] = {}
        self._wait, self._now = wait, now
        self._inside: list[str] = []
        self._since = now()

    def _turn(self) -> None:
        self._wait()
        now = self._now()
        if self._inside:
            key = tuple(self._inside)
            self.seconds[key] = self.seconds.get(key, 0.0) + now - self._since
        self._since = now

    def enter(self, stage: str) -> None:
        """What follows belongs to a stage inside the present one."""
        self._turn()
        self._inside.append(stage)

    def leave(self) -> None:
        """Back to the stage around it."""
        self._turn()
        self._inside.pop()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage around a with block."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a stage."""

        def run(*arguments: Any, **options: Any) -> Any:
            with self.stage(name):
                return function(*arguments, **options)

        return run

    def total(self, *path: str) -> float:
        """Seconds in a stage and all inside it."""
        return sum(seconds for key, seconds in self.seconds.items() if key[: len(path)] == path)


@contextlib.contextmanager
def _timed_parts(talker: Any, decoder: Any, clock: StageClock) -> Iterator[None]:
    """Inside, the parts of a plain frame are stages of the clock."""
    predictor = talker.code_predictor
    modules: list[tuple[nn.Module, str]] = [(talker, "talker"), (talker.codec_head, "talker"), (predictor, "predictor")]
    modules += [(predictor.small_to_mtp_projection, "projection")]
    modules += [(block, "stack") for block in (*predictor.model.layers, predictor.model.norm)]
    modules += [(head, "logits") for head in predictor.lm_head]
    hooks = []
    for module, name in modules:
        hooks.append(module.register_forward_pre_hook(lambda module, args, name=name: clock.enter(name)))
        hooks.append(module.register_forward_hook(lambda module, args, out: clock.leave(), always_call=True))
    picker = decoder.picker
    vars(picker)["predictor"] = clock.wrapped("sampling", picker.predictor)
    vars(picker)["talker"] = clock.wrapped("talker", picker.talker)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for name in ("predictor", "talker"):
            vars(picker).pop(name)


def measure_stages(
    tts: Any,
    settings: BenchSettings,
    *,
    bandwidth: float | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Milliseconds of the stages for each batch, with bytes, the time that they take at `bandwidth` bytes a second
    (None: measured), and, where frames are a graph, launches. Raises CapacityError for a batch without room."""
    measured = bandwidth is None
    per_second = read_bandwidth(tts.device) if bandwidth is None else bandwidth
    found: dict[str, Any] = {
        "bytes_per_second": round(per_second), "bandwidth": "measured" if measured else "given", "batches": [],
    }  # fmt: skip
    with tts.turns:
        for rows in settings.batches:
            progress(f"stages of {rows} row{'s' if rows > 1 else ''}")
            found["batches"].append(_stages(tts, settings, rows, per_second))
    return found


def _stages(tts: Any, settings: BenchSettings, rows: int, bytes_per_second: float) -> dict[str, Any]:
    runtime, frames = tts.engine.runtime, settings.frames
    requests, before = batch_requests(tts, settings, rows)
    core = core_of(runtime.frames)
    for _ in range(settings.warmup):
        slots = runtime.frames.admit(requests)
        timed_frames(runtime.frames, slots, frames)
        release(runtime.frames, slots)
    entry = _plain(tts, requests, before, frames) if core is None else profile_core(core, requests, before, frames)
    positions = len(requests[0].prefill) + before + frames // 2
    needed = frame_bytes(runtime.talker, rows, positions)
    floor = {
        "predictor": 1e3 * needed.predictor / bytes_per_second,
        "talker": 1e3 * (needed.talker + needed.keys_and_values) / bytes_per_second,
    }
    ms = entry["ms_per_frame"]
    return {
        "rows": rows,
        "prepare_ms": round(_prepare(tts, settings), 4),
        **entry,
        "bytes_per_frame": needed.total,
        "floor_ms": {name: round(value, 4) for name, value in floor.items()},
        "time_over_floor": {
            "frame": round(ms["frame"] / sum(floor.values()), 2),
            **{name: round(ms[name] / value, 2) for name, value in floor.items()},
        },
    }


def _prepare(tts: Any, settings: BenchSettings) -> float:
    """Milliseconds from a text to its prompt's rows, the least of some."""
    best = float("inf")
    for _ in range(settings.warmup + settings.iterations):
        started = time.perf_counter()
        tts.engine.request(bench_spec(tts, settings.text, settings.frames))
        synchronize(tts.device)
        best = min(best, time.perf_counter() - started)
    return 1e3 * best


def _plain(tts: Any, requests: Sequence[RowRequest], before: int, frames: int) -> dict[str, Any]:
    """Stages of the plain decoder, and what the frame takes without borders to wait at."""
    runtime = tts.engine.runtime
    decoder = getattr(runtime.frames, "plain", runtime.frames)
    clock = StageClock(lambda: synchronize(tts.device))
    slots = decoder.admit(requests)
    try:
        timed_frames(decoder, slots, before)
        seconds, made = timed_frames(decoder, slots, frames)
    finally:
        release(decoder, slots)
    with _timed_parts(runtime.talker, decoder, clock):
        with clock.stage("prefill"):
            slots = decoder.admit(requests)
        try:
            with clock.stage("before"):
                timed_frames(decoder, slots, before)
            with clock.stage("step_input"):
                _, counts = timed_frames(decoder, slots, frames)
        finally:
            release(decoder, slots)
    count = max(1, *counts)
    each = {name: 1e3 * clock.total("step_input", name) / count for name in ("predictor", "talker")}
    whole = 1e3 * clock.total("step_input") / count
    inside = {name: 1e3 * clock.total("step_input", "predictor", name) / count for name in PREDICTOR_STAGES}
    inside["other"] = each["predictor"] - sum(inside.values())
    return {
        "how": "parts of the plain decoder, the device waited for at each border",
        "prefill_ms": round(1e3 * clock.total("prefill"), 4),
        "ms_per_frame": {
            "frame": round(1e3 * seconds / max(1, *made), 4),
            "with borders": round(whole, 4),
            "predictor": round(each["predictor"], 4),
            "step_input": round(whole - each["predictor"] - each["talker"], 4),
            "talker": round(each["talker"], 4),
        },
        "predictor_ms": {name: round(value, 4) for name, value in inside.items()},
    }


