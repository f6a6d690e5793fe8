"""Time per frame, first codes, prefill and memory, for batches of some sizes."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qwen3tts.benchmark.floor import frame_bytes
from qwen3tts.benchmark.machine import peak_bytes, reset_peak
from qwen3tts.errors import CapacityError, OptionError
from qwen3tts.options import GenerateOptions
from qwen3tts.runtime.engine import RowSpec
from qwen3tts.runtime.protocols import RowRequest, Slot
from qwen3tts.voice.voice import Voice

TEXT = (
    "The morning train was late again, so she sat down by the window, opened her notebook, and wrote about the harbour,"
    " the grey ships, the smell of rope and salt, and the old man who had once repaired every clock in the town."
)
"""long enough that speech of it does not end by itself within the frames that are timed"""
DEFINITIONS = {
    "ms_per_frame": "one frame of all rows of a batch: talker, code predictor, sampling, codes on the host; no audio",
    "frames_per_second": "frames of all rows together",
    "rtf": "seconds of work per second of speech of all rows together, without the codec; a frame is 0.08 s",
    "rtf_with_audio": "the same for generate() of the batch: prompts, frames and audio",
    "prefill_ms": "admitting one row: its prompt, and code 0 of its first frame",
    "first_codes_ms": "text in to the first frame's 16 codes on the host, one row: tokens, prompt, prefill, frame",
}
FRAME_MS = 80.0


@dataclass(frozen=True)
class BenchSettings:
    """What to measure. Raises OptionError for sizes that make no sense."""

    batches: tuple[int, ...] = (1,)
    frames: int = 100
    """timed in each iteration"""
    context: int = 0
    """positions that a row has when its timed frames begin; frames up to there are not timed"""
    warmup: int = 1
    iterations: int = 5
    text: str = TEXT

    def __post_init__(self) -> None:
        for name, values, least in (
            ("batch", self.batches, 1), ("frames", (self.frames,), 1), ("warmup", (self.warmup,), 0),
            ("context", (self.context,), 0), ("iterations", (self.iterations,), 1),
        ):  # fmt: skip
            if not values or min(values) < least:
                raise OptionError(f"{name} is {', '.join(map(str, values)) or 'empty'}; expected {least} or more.")


def bench_spec(tts: Any, text: str, frames: int, seed: int = 0) -> RowSpec:
    """A row as generate() would make it, in a voice that the model has."""
    voice = None
    if tts.config.model_type == "custom_voice":
        voice = tts.voices[0]
    elif tts.config.model_type == "base":
        voice = Voice.from_x_vector([0.01] * tts.config.talker.transformer.hidden_size, name="bench")
    instruct = "A calm voice." if tts.config.model_type == "voice_design" else None
    spec: RowSpec = tts._spec(text, voice, "auto", instruct, GenerateOptions(max_frames=frames, seed=seed), batch=1)
    return spec


def measure(tts: Any, settings: BenchSettings, progress: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """All batches in order. Raises CapacityError for a batch that the model has no room for."""
    with tts.turns:
        found: dict[str, Any] = {"definitions": DEFINITIONS, "frames": settings.frames, "text": settings.text}
        found["one_row"] = _one_row(tts, settings)
        found["batches"] = []
        for rows in settings.batches:
            progress(f"{rows} row{'s' if rows > 1 else ''}")
            found["batches"].append(_batch(tts, settings, rows))
    return found


def _one_row(tts: Any, settings: BenchSettings) -> dict[str, Any]:
    """Prefill by itself; first codes as a stream asks for them."""
    decoder, clock = tts.engine.runtime.frames, time.perf_counter
    prefill, first = [], []
    spec = bench_spec(tts, settings.text, 2)
    for i in range(settings.warmup + settings.iterations):
        started = clock()
        request = tts.engine.request(spec)
        (slot,) = decoder.admit([request], wait=False)
        decoder.advance(1, (slot,))
        done = clock()
        decoder.release(slot)
        synchronize(tts.device)
        before = clock()
        (slot,) = decoder.admit([request])
        admitted = clock()
        decoder.release(slot)
        if i >= settings.warmup:
            first.append(1e3 * (done - started))
            prefill.append(1e3 * (admitted - before))
    figures = _figures("prefill_ms", prefill) | _figures("first_codes_ms", first)
    return {"prompt_positions": len(request.prefill)} | figures


def _batch(tts: Any, settings: BenchSettings, rows: int) -> dict[str, Any]:
    decoder, device = tts.engine.runtime.frames, tts.device
    requests, before = batch_requests(tts, settings, rows)
    reset_peak(device)
    times, took, made = [], [], []
    for i in range(settings.warmup + settings.iterations):
        slots = decoder.admit(requests)
        try:
            timed_frames(decoder, slots, before)
            seconds, frames = timed_frames(decoder, slots, settings.frames)
        finally:
            release(decoder, slots)
        total = check_made(frames)
        if i >= settings.warmup:
            times.append(1e3 * seconds / max(frames))
            took.append(seconds)
            made.append(total)
    specs = [bench_spec(tts, settings.text, settings.frames, seed) for seed in range(rows)]
    started = time.perf_counter()
    speeches = tts.engine.speak(specs)
    audio = (time.perf_counter() - started) / sum(speech.frames for speech in speeches)
    per_second = statistics.median(made) / statistics.median(took)
    positions = len(requests[0].prefill) + before + settings.frames // 2
    return {
        "rows": rows,
        "positions": positions,
        **_figures("ms_per_frame", times),
        "frames_per_second": round(per_second, 2),
        "rtf": round(1e3 / (FRAME_MS * per_second), 5),
        "rtf_with_audio": round(1e3 * audio / FRAME_MS, 5),
        "rows_that_ended_early": sum(count < settings.frames for count in frames),
        "bytes_per_frame": frame_bytes(tts.engine.runtime.talker, rows, positions).total,
        **peak_bytes(device),
    }


def batch_requests(tts: Any, settings: BenchSettings, rows: int) -> tuple[list[RowRequest], int]:
    """Rows that differ in their seeds alone, and how many frames of theirs come before the timed ones. Raises
    CapacityError where there is no room for all."""
    decoder = tts.engine.runtime.frames
    free = decoder.free_slots()
    if rows > free:
        raise CapacityError(
            f"There are streams for {free} of {rows} texts. Load with more max_streams, or measure less."
        )
    request = tts.engine.request(bench_spec(tts, settings.text, 1))
    before = max(0, settings.context - len(request.prefill))
    request = dataclasses.replace(request, max_frames=before + settings.frames)
    made = [dataclasses.replace(request, seed=request.seed + i) for i in range(rows)]
    try:
        room = decoder.room_for(made)
    except CapacityError as error:
        raise CapacityError(
            f"No text of a context of {settings.context} and {settings.frames} frames after it can be measured; "
            f"ask for less of them. {error}"
        ) from error
    if room < rows:
        raise CapacityError(f"There is room for {room} of {rows} texts. Load with more kv_bytes, or measure less.")
    return made, before


def check_made(frames: Sequence[int]) -> int:
    """How many frames all rows made together. Raises OptionError if it is none."""
    if sum(frames) == 0:
        raise OptionError(
            "All texts ended before the frames that were to be timed: ask for a shorter context, or take a model that "
            "speaks on (python -m qwen3tts.synthetic --eos-gain 0)."
        )
    return sum(frames)


def timed_frames(decoder: Any, slots: Sequence[Slot], frames: int) -> tuple[float, list[int]]:
    """Seconds for so many frames, asked for as generate() does, and how many each row made."""
    made = dict.fromkeys(slots, 0)
    started = time.perf_counter()
    left = frames
    while left > 0:
        asked = min(left, decoder.frames_per_call)
        batch = decoder.advance(asked, tuple(slots))
        if not batch.slots:
            break
        for slot, count in zip(batch.slots, batch.counts, strict=True):
            made[slot] += count
        left -= asked
    return time.perf_counter() - started, list(made.values())


def release(decoder: Any, slots: Sequence[Slot]) -> None:
    """Frees all of them."""
    for slot in slots:
        decoder.release(slot)


def synchronize(device: torch.device) -> None:
    """Waits for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _figures(name: str, values: Sequence[float]) -> dict[str, Any]:
    """The median, and all of them."""
    return {name: round(statistics.median(values), 4), f"{name}_runs": [round(value, 4) for value in values]}
