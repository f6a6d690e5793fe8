"""The figures of a run: one record for the screen and for --json."""

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from qwen3tts._version import __version__
from qwen3tts.audio.atomic import Batch, replacing

if TYPE_CHECKING:
    from qwen3tts.api import TTS
    from qwen3tts.runtime.speech import Speech


@dataclass(frozen=True)
class Report:
    """One utterance. Seconds are wall clock; an RTF is seconds of work per second of audio, None without audio.

    `decode_seconds` and `write_seconds` are None if that was not done.
    """

    frames: int
    ended_by_eos: bool
    finish_reason: str
    seed: int
    audio_seconds: float
    model_load_seconds: float
    generation_seconds: float
    decode_seconds: float | None
    write_seconds: float | None
    inference_seconds: float
    generation_rtf: float | None
    decode_rtf: float | None
    inference_rtf: float | None
    model: str
    backend: str
    device: str
    dtype: str
    version: str
    output: str | None

    def save(self, path: str | os.PathLike[str], batch: Batch | None = None) -> None:
        """Writes the record as JSON, to appear when `batch` ends. Raises AudioError if it cannot."""
        with replacing(path, batch) as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=2, allow_nan=False) + "\n")


def make_report(
    speech: "Speech", tts: "TTS", model: str, *, decoded: bool, write_seconds: float | None, output: str | None
) -> Report:
    """The report of one utterance of `tts`."""
    generation = speech.timings.generation_seconds
    decode = speech.timings.decode_seconds if decoded else None
    inference = generation + (decode or 0.0)

    def rtf(seconds: float | None) -> float | None:
        return seconds / speech.duration if seconds is not None and speech.duration > 0 else None

    return Report(
        frames=speech.frames,
        ended_by_eos=speech.complete,
        finish_reason=speech.finish_reason,
        seed=speech.seed,
        audio_seconds=speech.duration,
        model_load_seconds=tts.load_seconds,
        generation_seconds=generation,
        decode_seconds=decode,
        write_seconds=write_seconds,
        inference_seconds=inference,
        generation_rtf=rtf(generation),
        decode_rtf=rtf(decode),
        inference_rtf=rtf(inference),
        model=model,
        backend=tts.backend_name,
        device=str(tts.device),
        dtype=str(tts.dtype).removeprefix("torch."),
        version=__version__,
        output=output,
    )


def print_lines(report: Report) -> None:
    """One `key=value` a line on stdout, for scripts; what was not done is left out."""
    for key, value in asdict(report).items():
        if value is None:
            continue
        name = "output_wav" if key == "output" else key
        if isinstance(value, bool):
            value = str(value).lower()
        print(f"{name}={value:.6f}" if isinstance(value, float) else f"{name}={value}")


def print_table(report: Report) -> None:
    """A table for people on stdout."""
    from rich.console import Console
    from rich.table import Table

    ended = "ended by itself" if report.ended_by_eos else "cut at the limit"
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{report.frames} frames, {report.audio_seconds:.2f} s of audio, {ended}, seed {report.seed}")
    console.print(f"{report.model}: {report.backend} on {report.device}, {report.dtype}", markup=False)
    table = Table(caption="RTF: seconds of work per second of audio", caption_justify="left")
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    table.add_column("RTF", justify="right")
    rows = [
        ("load the model", report.model_load_seconds, None),
        ("generate codes", report.generation_seconds, report.generation_rtf),
        ("decode to audio", report.decode_seconds, report.decode_rtf),
        ("generate + decode", report.inference_seconds, report.inference_rtf),
        ("write the file", report.write_seconds, None),
    ]
    for stage, seconds, factor in rows:
        if seconds is not None:
            table.add_row(stage, f"{seconds:.3f}", "" if factor is None else f"{factor:.3f}")
    console.print(table)
