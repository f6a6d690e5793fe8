"""The way from a request to files and figures, common to both speaking commands."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen3tts.audio.atomic import Batch
from qwen3tts.cli.console import CUT_SHORT, flush_stdout, progress_bar, stderr, warn
from qwen3tts.cli.outputs import check_outputs, write_outputs
from qwen3tts.cli.report import Report, make_report

if TYPE_CHECKING:
    from qwen3tts.runtime.generation import Progress, ProgressEvent
    from qwen3tts.runtime.speech import Speech

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to speak and what to leave behind. `voice_file` stands for a cloned voice and excludes `voice`."""

    model: str
    text: str
    voice: str | None
    voice_file: Path | None
    language: str
    instruct: str | None
    options: dict[str, Any]
    """keyword arguments of GenerateOptions that the user gave"""
    load: dict[str, Any]
    """keyword arguments of qwen3tts.load"""
    output: Path | None
    """None: codes only, no audio is decoded"""
    gain: float = 1.0
    plot: Path | None = None
    json: Path | None = None
    split: bool = False
    """speak a long text in parts"""
    text_file: Path | None = None
    """where `text` was read, and below what codes are compared with: not to be overwritten"""
    ref_codes: Path | None = None


@contextmanager
def speak(request: Request) -> Iterator[tuple["Speech", Report]]:
    """Loads, speaks and writes; yields the results, to be printed. The files appear as the `with` block ends.

    Everything that can be refused without the model is refused before it is loaded.

    Raises:
        Qwen3TTSError: bad input of any kind, or stdout cannot be written; then no file was written.
    """
    check_outputs(request)
    import qwen3tts
    from qwen3tts.options import GenerateOptions
    from qwen3tts.voice.voice import Voice

    options = GenerateOptions(**request.options)
    voice = request.voice if request.voice_file is None else Voice.load(request.voice_file)
    if stderr().is_terminal or logger.isEnabledFor(logging.INFO):
        stderr().print(f"loading {request.model}", markup=False)
    with qwen3tts.load(request.model, **request.load) as tts:
        logger.info("loaded in %.2f s: %s on %s, %s", tts.load_seconds, tts.backend_name, tts.device, tts.dtype)
        with progress_bar() as bar:
            how: dict[str, Any] = {
                "voice": voice, "language": request.language, "instruct": request.instruct, "options": options,
                "progress": _logged(bar),
            }  # fmt: skip
            if request.split:
                parts = tts.generate_long(request.text, **how)
                speech = parts.joined()
            else:
                decode = request.output is not None or request.plot is not None
                speech = tts.generate(request.text, **how, decode=decode)
        for i in parts.cut if request.split else ():
            warn(f"part {i + 1} of {len(parts.parts)} was cut at its limit: {parts.texts[i][:60]!r}")
        _log_timings(speech)
    with Batch() as batch:
        write_seconds = write_outputs(request, speech, batch)
        report = make_report(
            speech, tts, request.model, decoded=bool(speech.samples.size),
            write_seconds=write_seconds, output=None if request.output is None else os.fspath(request.output),
        )  # fmt: skip
        if request.json is not None:
            report.save(request.json, batch)
        yield speech, report
        flush_stdout()


def exit_code(options: Mapping[str, Any], speech: "Speech", *, split: bool = False) -> int:
    """0, or CUT_SHORT if the speech hit a limit that is not in `options`, which the user gave; warns either way."""
    if speech.complete:
        return 0
    asked = options.get("max_frames")
    seconds = f"{speech.frames} frames ({speech.duration:.2f} s)"
    if asked is not None:
        where = f"--max-frames {asked}{' of a part' if split else ''}"
        warn(f"finish_reason=length: the speech was cut at {where}, after {seconds}")
        return 0
    warn(
        f"finish_reason=length: the speech did not end by itself and was cut at the default limit, after {seconds}; "
        "another --seed may end, or set --max-frames"
    )
    return CUT_SHORT


def _logged(bar: "Progress | None") -> "Progress | None":
    """`bar`, or with -v a progress callback that first logs the limit on the frames."""
    if not logger.isEnabledFor(logging.INFO):
        return bar
    begun = False

    def show(event: "ProgressEvent") -> None:
        nonlocal begun
        if not begun:
            begun = True
            logger.info("speaking: at most %d frames of 80 ms", event.frames_limit)
        if bar is not None:
            bar(event)

    return show


def _log_timings(speech: "Speech") -> None:
    spent = speech.timings
    steps = spent.generation_seconds - spent.prompt_seconds - spent.prefill_seconds
    logger.info("prompt %.3f s, prefill %.3f s", spent.prompt_seconds, spent.prefill_seconds)
    logger.info("%d frames in %.2f s, %.1f ms each", speech.frames, steps, 1e3 * steps / max(speech.frames, 1))
    if speech.samples.size:
        logger.info("decoded to audio in %.2f s", spent.decode_seconds)
