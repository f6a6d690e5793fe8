"""The files that a run leaves behind: checked before the work, written together after it."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qwen3tts.audio.atomic import Batch, check_writable
from qwen3tts.audio.files import check_audio_path, check_gain, write_audio
from qwen3tts.errors import AudioError

if TYPE_CHECKING:
    from qwen3tts.cli.speak import Request
    from qwen3tts.runtime.speech import Speech


def check_outputs(request: "Request") -> None:
    """What is wrong with an output is said now, not after minutes of work. Raises AudioError."""
    check_gain(request.gain)
    for option, path in _outputs(request).items():
        if os.fspath(path) == "-":
            raise AudioError(f"{option} -: stdout is not supported; give the name of a file")
    if request.output is not None:
        check_audio_path(request.output)
    if request.plot is not None:
        from qwen3tts.audio.plot import check_plot_path

        check_plot_path(request.plot)
    if request.json is not None:
        check_writable(request.json)
    check_different(_outputs(request), _inputs(request))


def write_outputs(request: "Request", speech: "Speech", batch: Batch) -> float | None:
    """Writes audio and picture, to appear when `batch` ends; returns the seconds for the audio file."""
    seconds = None
    if request.output is not None:
        started = time.perf_counter()
        write_audio(request.output, speech.samples, speech.sample_rate, gain=request.gain, batch=batch)
        seconds = time.perf_counter() - started
    if request.plot is not None:
        from qwen3tts.audio.plot import plot_speech

        plot_speech(request.plot, speech.samples, speech.sample_rate, request.text, gain=request.gain, batch=batch)
    return seconds


def _outputs(request: "Request") -> dict[str, Path]:
    named = {"--output": request.output, "--plot": request.plot, "--json": request.json}
    return {option: path for option, path in named.items() if path is not None}


def _inputs(request: "Request") -> dict[str, Path]:
    """What is read."""
    named = {"the voice file": request.voice_file, "the text file": request.text_file, "--ref-codes": request.ref_codes}
    return {what: path for what, path in named.items() if path is not None} | checkpoint_files(request.model)


def checkpoint_files(model: str) -> dict[str, Path]:
    """All that a checkpoint in a local folder may have; empty for a hub id."""
    from qwen3tts.checkpoint.hub import FILES

    folder = Path(os.path.expanduser(model))
    if not os.path.isdir(folder):
        return {}
    patterns = (*FILES, "*.safetensors", "speech_tokenizer/*.safetensors")
    return {
        f"the checkpoint's {path.relative_to(folder)}": path
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
    }


def check_different(outputs: Mapping[str, Path], inputs: Mapping[str, Path]) -> None:
    """Raises AudioError if an output is an input, or another output; the keys name them."""
    taken = dict(inputs)
    for option, path in outputs.items():
        for what, other in taken.items():
            if _same_file(path, other):
                raise AudioError(f"{option} {str(path)!r} is the same file as {what}; give it another name")
        taken[option] = path


def _same_file(one: Path, other: Path) -> bool:
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)  # a hard link, or another spelling where case is ignored
    except (OSError, ValueError):  # one of them is not there
        return False
