"""`hip-custom-voice-generate`: the command line of an existing HIP runtime, served by this package.

Its text is streamed, as in that tool; --text-lookahead-tokens 1 is the official package's streamed mode.
"""

import math
import os
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Annotated

import typer

from qwen3tts.cli import parameters as p
from qwen3tts.cli.console import OptionNames, exit_codes, run, set_up_logging
from qwen3tts.errors import OptionError, VoiceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CODES_DIFFER = 1
NOTHING = ("none", "-")
MAX_CODES_BYTES = 64 << 20
"""of --ref-codes; an hour of speech takes under 6 MB"""
DEFAULT_SPEAKER = "Ryan"
NAMES = OptionNames("--voice-clone-prompt", "--wav-gain", "--instruct of `qwen3tts generate`")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def generate(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a checkpoint.")],
    text: Annotated[str, typer.Argument(help="What to say; '-' reads it from stdin.")],
    max_frames: p.MaxFrames = None,
    speaker: Annotated[str | None, typer.Option(help="A preset voice.", show_default=DEFAULT_SPEAKER)] = None,
    language: Annotated[str, typer.Option(help="A language of the checkpoint, or auto.")] = "English",
    output: Annotated[str, typer.Option(help="Audio file; 'none' or '-' makes codes only.")] = "output.wav",
    wav_gain: Annotated[float, typer.Option(help="Factor on the samples of the file.")] = 1.0,
    repetition_penalty: p.RepetitionPenalty = None,
    do_sample: p.DoSample = None,
    top_k: p.TopK = None,
    top_p: p.TopP = None,
    temperature: p.Temperature = None,
    subtalker_dosample: p.SubDoSample = None,
    subtalker_top_k: p.SubTopK = None,
    subtalker_top_p: p.SubTopP = None,
    subtalker_temperature: p.SubTemperature = None,
    seed: p.Seed = None,
    text_lookahead_tokens: p.Lookahead = None,
    voice_clone_prompt: Annotated[Path | None, typer.Option(help="A voice file, for base models.")] = None,
    ref_codes: Annotated[
        str, typer.Option(help=".npy file of shape (frames, 16) to compare the codes with; exit code 1 if they differ.")
    ] = "none",
    json: p.Json = None,
    verbose: p.Verbose = 0,
) -> None:
    """Speak a text with a custom voice, or with a voice file on a base model, and print the timings as key=value.

    The text is streamed. Exit codes: those of `qwen3tts generate`, and 1 if the codes differ from --ref-codes.
    """
    set_up_logging(verbose, NAMES)
    with exit_codes(NAMES):
        from qwen3tts.cli.report import print_lines
        from qwen3tts.cli.speak import Request, exit_code, speak
        from qwen3tts.cli.text_input import read_text

        if voice_clone_prompt is not None and speaker is not None:
            raise VoiceError("both --speaker and --voice-clone-prompt were given; give one of them")
        if speaker is not None and not speaker.strip():
            raise VoiceError(
                f"--speaker is blank; give the name of a preset voice, or leave it out for {DEFAULT_SPEAKER}"
            )
        codes_file = None if ref_codes.lower() in NOTHING else Path(ref_codes)
        request = Request(
            model=model, text=read_text(text, None), language=language, instruct=None,
            voice=(speaker or DEFAULT_SPEAKER) if voice_clone_prompt is None else None, voice_file=voice_clone_prompt,
            output=None if output.lower() in NOTHING else Path(output), gain=wav_gain, json=json,
            ref_codes=codes_file,
            options=p.given(
                max_frames=max_frames, text_mode="streamed", text_lookahead_tokens=text_lookahead_tokens, seed=seed,
                do_sample=do_sample, top_k=top_k, top_p=top_p, temperature=temperature,
                repetition_penalty=repetition_penalty, subtalker_dosample=subtalker_dosample,
                subtalker_top_k=subtalker_top_k, subtalker_top_p=subtalker_top_p,
                subtalker_temperature=subtalker_temperature,
            ),
            load={},
        )  # fmt: skip
        reference = None if codes_file is None else read_codes(codes_file)
        with speak(request) as (speech, report):
            difference = None if reference is None else first_difference(reference, speech.codes)
            print_lines(report)
            if reference is not None:
                print(f"codes_match={'true' if difference is None else 'false'}")
            if difference is not None:
                print(f"first_difference: {difference}")
        code = exit_code(request.options, speech)
        if difference is not None:
            code = CODES_DIFFER
    raise typer.Exit(code)


def read_codes(path: Path) -> "NDArray[np.int64]":
    """Reference codes [frames, 16] from a .npy file. Raises OptionError."""
    import numpy as np

    from qwen3tts.regular_file import open_regular

    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"it has version {version}, expected 1.0 or 2.0")
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            # The header is not believed: numpy would ask for the memory that it names.
            expected = math.prod(shape) * dtype.itemsize
            if len(shape) != 2 or dtype.kind not in "iu":
                raise ValueError(f"it holds {dtype} of shape {shape}, expected integers of shape [frames, 16]")
            if size - file.tell() != expected or size > MAX_CODES_BYTES or min(shape) < 0:
                raise ValueError(f"{dtype} of shape {shape} takes {expected} bytes, but it has {size - file.tell()}")
            file.seek(0)
            codes: NDArray[np.int64] = np.load(file, allow_pickle=False).astype(np.int64)
    except (OSError, ValueError, EOFError, SyntaxError, RecursionError, TokenError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"--ref-codes: {str(path)!r} cannot be read as a .npy file: {reason}") from error
    return codes


def first_difference(expected: "NDArray[np.int64]", got: "NDArray[np.int16]") -> str | None:
    """Where two code arrays [frames, codebooks] first differ, in words; None if they are equal."""
    import numpy as np

    if expected.shape[1] != got.shape[1]:
        return f"expected {expected.shape[1]} codebooks, got {got.shape[1]}"
    common = min(len(expected), len(got))
    places = np.argwhere(expected[:common] != got[:common])
    if len(places):
        frame, book = (int(index) for index in places[0])
        return f"frame={frame} codebook={book} expected={expected[frame, book]} got={got[frame, book]}"
    if len(expected) == len(got):
        return None
    return f"frame={common} expected_frames={len(expected)} got_frames={len(got)}"


def main() -> None:
    """Entry point of the console script."""
    run(app)


if __name__ == "__main__":
    main()
