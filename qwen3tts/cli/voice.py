"""`qwen3tts voice`: look at voice files and turn one form into another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qwen3tts.cli import parameters as p
from qwen3tts.cli.console import exit_codes
from qwen3tts.errors import OptionError, VoiceError

if TYPE_CHECKING:
    from qwen3tts.voice.voice import Voice

app = typer.Typer(no_args_is_help=True, help="Show, convert and export voice files.")

Source = Annotated[Path, typer.Argument(help="A voice file: JSON, safetensors, or a saved official prompt (.pt).")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The same as TARGET.", metavar="TARGET", show_default=False)
]
Index = Annotated[
    int | None, typer.Option(help="Which voice of an official prompt with several, from 0.", show_default=False)
]


@app.command()
def show(file: Source) -> None:
    """Print what a voice file holds, one key=value a line."""
    with exit_codes():
        import numpy as np

        from qwen3tts.voice.voice import Voice

        for index, voice in enumerate(Voice.load_all(file)):
            assert voice.x_vector is not None
            print(f"voice={index}")
            print(f"kind={voice.kind}")
            print(f"x_vector_values={voice.x_vector.size}")
            print(f"x_vector_rms={float(np.sqrt(np.mean(voice.x_vector.astype(np.float64) ** 2))):.6f}")
            print(f"fingerprint={voice.fingerprint or 'none'}")
            if voice.ref_text is not None:
                print(f"ref_frames={voice.frames}")
                print(f"ref_seconds={voice.frames * 0.08:.2f}")
                print(f"ref_text={' '.join(voice.ref_text.split())}")


@app.command()
def convert(
    source: Source,
    target: Annotated[Path | None, typer.Argument(help=".json or .safetensors", show_default=False)] = None,
    output: Output = None,
    index: Index = None,
) -> None:
    """Write a voice in another form; nothing of it is lost."""
    with exit_codes():
        path = _target(target, output)
        _load(source, index).save(path)
        print(f"wrote {path}")


@app.command()
def export(
    source: Source,
    target: Annotated[Path | None, typer.Argument(help="A .json file.", show_default=False)] = None,
    *,
    output: Output = None,
    x_vector_only: Annotated[
        bool, typer.Option("--x-vector-only", metavar=p.FLAG, help="Leave the recording out.")
    ] = False,
    index: Index = None,
) -> None:
    """Write a voice for other runtimes: JSON with the five keys they know and no others."""
    with exit_codes():
        from qwen3tts.cli.outputs import check_different

        path = _target(target, output)
        if path.suffix.lower() != ".json":
            raise VoiceError(
                f"cannot write {str(path)!r}: an export is JSON and ends in .json; `qwen3tts voice convert` writes "
                ".safetensors"
            )
        check_different({"the export": path}, {"the voice file": source})
        voice = _load(source, index)
        (voice.without_reference() if x_vector_only else voice).save(path, plain=True)
        print(f"wrote {path}")


def _target(target: Path | None, output: Path | None) -> Path:
    if target is not None and output is not None:
        raise OptionError(f"both TARGET {str(target)!r} and --output {str(output)!r} were given; give one")
    path = output if target is None else target
    if path is None:
        raise OptionError("no file to write was given: name it after the source, or with -o")
    return path


def _load(source: Path, index: int | None) -> "Voice":
    from qwen3tts.voice.voice import Voice

    voices = Voice.load_all(source)
    if index is None and len(voices) > 1:
        raise VoiceError(f"{source} holds {len(voices)} voices; choose one with --index")
    if index is not None and not 0 <= index < len(voices):
        raise VoiceError(f"--index is {index}; {source} holds {len(voices)} voices, from 0")
    return voices[index or 0]
