"""What all commands share: messages on stderr, exit codes, logging, progress."""

import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from qwen3tts.errors import Qwen3TTSError

if TYPE_CHECKING:
    from qwen3tts.runtime.generation import ProgressEvent

BAD_INPUT = 2
CUT_SHORT = 3
"""the audio was written, but the speech stopped at a limit that the caller did not set"""
INTERRUPTED = 130


def stderr() -> Console:
    """A console on the stderr of this moment."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def warn(message: str) -> None:
    """One warning on stderr."""
    stderr().print(f"[yellow]warning:[/] {escape(message)}")


@dataclass(frozen=True)
class OptionNames:
    """What a program calls the options that error messages speak of."""

    voice_file: str = "--voice-file"
    gain: str = "--gain"
    instruct: str = "--instruct"


QWEN3TTS = OptionNames()

_OPTIONS = (
    "max_frames|text_mode|text_lookahead_tokens|codec_chunking|seed|rng|repetition_penalty|dtype|silent_tail|"
    "(?:subtalker_)?(?:do_?sample|top_k|top_p|temperature)"
)
_CLONED = r"Voice\.from_(?:x_vector|reference)\(<float32.*?, name=(None|'.*?'|\".*?\")\)"


def on_the_command_line(message: str, names: OptionNames = QWEN3TTS) -> str:
    """A message of the library as a command says it: in one line, with options in place of Python's arguments."""
    message = " ".join(message.splitlines())
    for pattern, option in _python_to_options(names):
        message = re.sub(pattern, option, message)
    return re.sub(r"^(A|An|Base|Keys|The|There|This|Unknown)\b", lambda found: found[1].lower(), message)


def _python_to_options(names: OptionNames) -> Iterator[tuple[str, str | Callable[[re.Match[str]], str]]]:
    """Patterns of Python in messages, with what stands in their place."""
    clone = r"\((?:tts\.clone\(.*?\), )?Voice\.load\(file\) or Voice\.from_x_vector\(array\)\)"
    yield clone, f"({names.voice_file} FILE; `qwen3tts clone` makes one)"
    yield r"Voice\.load\('(.*?)'\)", rf"{names.voice_file} \1"
    yield r", or read all with Voice\.load_all\(\)", ""
    yield r"\bvoice\.without_reference\(\)", "its x-vector alone (`qwen3tts voice export --x-vector-only`)"
    yield r"Voice\.preset\((.*?)\)", r"the preset \1"
    yield _CLONED, lambda found: "the voice" if found[1] == "None" else f"the voice {found[1]}"
    yield r"\b(backend|rng|text_mode|max_frames)='?(\w+)'?", lambda found: f"{_option(found[1])} {found[2]}"
    yield r"^(A custom voice model needs a voice)\.", r"\1: --voice NAME."
    yield r"\ballow_url=True\b", "--allow-url"
    yield rf"^({_OPTIONS})(?= is | needs | means )", lambda found: _option(found[1])
    yield r"^gain(?= is )", names.gain
    yield r"(takes no|follow an|describe it in) instruct\b", rf"\1 {names.instruct}"
    yield r"(?<=leave )revision(?= out)", "--revision"
    yield r" or the torch dtype(?=\.)", ""
    yield r"<urlopen error (?:\[\w+ -?\d+\] )?(.*?)>", r"\1"


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _show(error: Qwen3TTSError, names: OptionNames = QWEN3TTS) -> None:
    stderr().print(f"[red]error:[/] {escape(on_the_command_line(str(error), names))}")


def flush_stdout() -> None:
    """Says now, not as Python exits, if what was printed could not be written. Raises Qwen3TTSError."""
    if sys.stdout is not None:  # closed by the caller: nobody wants the output
        sys.stdout.flush()


class _Stdout(io.TextIOWrapper):
    """A stdout whose failures are errors of this package. A reader that has left (`... | head -1`) is no failure."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        # What is still in the buffer goes nowhere, or Python would fail once more as it exits.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise Qwen3TTSError(f"stdout cannot be written: {error.strerror or error}") from error


@contextmanager
def exit_codes(names: OptionNames = QWEN3TTS) -> Iterator[None]:
    """Errors of this package become one message and exit code 2; Ctrl-C becomes 130. Others are bugs: traceback."""
    try:
        yield
        flush_stdout()
    except Qwen3TTSError as error:
        _show(error, names)
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        stderr().print("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def run(app: typer.Typer) -> None:
    """Runs a command line program; an interrupt outside its commands (imports, parsing) also exits with 130."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        old = sys.stdout
        # A terminal may lack characters that names and texts have: backslashreplace.
        sys.stdout = _Stdout(
            old.buffer, old.encoding, "backslashreplace", line_buffering=old.line_buffering,
            write_through=old.write_through,
        )  # fmt: skip
    code: int | str | None = None
    try:
        try:
            app()
        except SystemExit as end:  # held back until stdout is flushed
            code = end.code
        flush_stdout()
    except Qwen3TTSError as error:
        _show(error)
        code = BAD_INPUT
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


class _Handler(logging.Handler):
    """Log records in the style of the other messages; through rich, which keeps them apart from a progress bar."""

    def __init__(self, names: OptionNames) -> None:
        super().__init__()
        self.names = names

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record).strip()
            if record.levelno < logging.WARNING:
                stderr().print(message, markup=False)
            elif record.levelno < logging.ERROR:
                warn(on_the_command_line(message, self.names))
            else:
                stderr().print(f"[red]error:[/] {escape(message)}")
        except Exception:
            self.handleError(record)


def set_up_logging(verbosity: int, names: OptionNames = QWEN3TTS) -> None:
    """Log records and Python warnings to stderr: warnings only, with 1 also information, with 2 all."""
    level = [logging.WARNING, logging.INFO, logging.DEBUG][min(verbosity, 2)]
    logging.basicConfig(level=logging.WARNING, handlers=[_Handler(names)], format="%(message)s", force=True)
    logging.getLogger("qwen3tts").setLevel(level)
    logging.captureWarnings(True)


@contextmanager
def progress_bar() -> Iterator[Callable[["ProgressEvent"], None] | None]:
    """Yields a callback for generate() that draws a bar on stderr; None, and no bar, when stderr is no terminal."""
    console = stderr()
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        # The limit on frames is far above what a text usually needs, so a bar up to it would mislead: it only pulses.
        tasks = {
            "generate": bar.add_task("speaking (frames of 80 ms)", total=None),
            "decode": bar.add_task("decoding (frames)", total=None, visible=False),
        }

        def show(event: "ProgressEvent") -> None:
            total = event.frames_limit if event.stage == "decode" else None
            bar.update(tasks[event.stage], completed=event.frames_done, total=total, visible=True)

        yield show
