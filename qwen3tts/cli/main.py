"""The program `qwen3tts`."""

from typing import Annotated

import typer

from qwen3tts._version import __version__
from qwen3tts.cli import optimize, voice
from qwen3tts.cli.bench import bench
from qwen3tts.cli.clone import clone, design
from qwen3tts.cli.console import run
from qwen3tts.cli.doctor import doctor
from qwen3tts.cli.generate import generate
from qwen3tts.cli.inspect import inspect, voices
from qwen3tts.cli.selftest import selftest

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    help="Speak with Qwen3-TTS checkpoints.",
)  # fmt: skip
app.command()(generate)
app.command()(clone)
app.command()(design)
app.add_typer(voice.app, name="voice")
app.add_typer(optimize.app, name="optimize")
app.command()(inspect)
app.command()(voices)
app.command()(doctor)
app.command()(selftest)
app.command()(bench)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"qwen3tts {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Entry point of the console script."""
    run(app)


if __name__ == "__main__":
    main()
