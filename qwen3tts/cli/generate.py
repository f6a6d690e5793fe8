"""`qwen3tts generate`."""

from pathlib import Path
from typing import Annotated

import typer

from qwen3tts.cli import parameters as p
from qwen3tts.cli.console import exit_codes, set_up_logging
from qwen3tts.errors import VoiceError


def generate(
    text: Annotated[str | None, typer.Argument(help="What to say; '-' reads stdin.", show_default=False)] = None,
    *,
    model: Annotated[str, typer.Option("--model", "-m", help="Folder or hub id of a checkpoint.")],
    text_file: Annotated[
        Path | None, typer.Option(help="Read the text from this UTF-8 file; a named pipe is waited for.")
    ] = None,
    voice: Annotated[str | None, typer.Option(help="A preset of the checkpoint; see `qwen3tts voices`.")] = None,
    voice_file: Annotated[Path | None, typer.Option(help="A voice file, for base models; see qwen3tts clone.")] = None,
    language: Annotated[str, typer.Option(help="For instance english; auto leaves it to the model.")] = "auto",
    instruct: Annotated[str | None, typer.Option(help="How to speak, or, for voice design, who.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help=".wav, .flac or .ogg")] = Path("speech.wav"),
    gain: Annotated[float, typer.Option(help="Factor on the samples of the file.")] = 1.0,
    plot: Annotated[Path | None, typer.Option(help="Also draw waveform and mel spectrogram (.png).")] = None,
    json: p.Json = None,
    max_frames: p.MaxFrames = None,
    text_mode: Annotated[str | None, typer.Option(help="whole or streamed.", show_default=False)] = None,
    text_lookahead_tokens: p.Lookahead = None,
    split: Annotated[
        bool,
        typer.Option(
            "--split", help="Speak a long text in parts, split at sentences; --max-frames bounds each.", metavar=p.FLAG
        ),
    ] = False,
    codec_chunking: Annotated[str | None, typer.Option(help="exact or official.", show_default="exact")] = None,
    seed: p.Seed = None,
    do_sample: p.DoSample = None,
    top_k: p.TopK = None,
    top_p: p.TopP = None,
    temperature: p.Temperature = None,
    repetition_penalty: p.RepetitionPenalty = None,
    subtalker_dosample: p.SubDoSample = None,
    subtalker_top_k: p.SubTopK = None,
    subtalker_top_p: p.SubTopP = None,
    subtalker_temperature: p.SubTemperature = None,
    rng: Annotated[
        str | None, typer.Option(help="philox or torch.", show_default="philox", rich_help_panel=p.SAMPLING)
    ] = None,
    backend: p.Backend = "auto",
    device: p.Device = None,
    dtype: p.Dtype = None,
    profile: p.Profile = None,
    verify: p.Verify = True,
    revision: p.Revision = None,
    cache_dir: p.CacheDir = None,
    offline: p.Offline = False,
    verbose: p.Verbose = 0,
) -> None:
    """Speak a text into an audio file.

    Exit codes: 0 done, 2 bad input (nothing written), 3 written but cut at a default limit, 130 interrupted.
    """
    set_up_logging(verbose)
    with exit_codes():
        from qwen3tts.cli.report import print_table
        from qwen3tts.cli.speak import Request, exit_code, speak
        from qwen3tts.cli.text_input import read_text

        if voice is not None and voice_file is not None:
            raise VoiceError("both --voice and --voice-file were given; give one of them")
        request = Request(
            model=model, text=read_text(text, text_file), voice=voice, voice_file=voice_file, language=language,
            instruct=instruct, output=output, gain=gain, plot=plot, json=json, split=split, text_file=text_file,
            options=p.given(
                max_frames=max_frames, text_mode=text_mode, text_lookahead_tokens=text_lookahead_tokens,
                codec_chunking=codec_chunking, seed=seed, do_sample=do_sample, top_k=top_k, top_p=top_p,
                temperature=temperature, repetition_penalty=repetition_penalty, subtalker_dosample=subtalker_dosample,
                subtalker_top_k=subtalker_top_k, subtalker_top_p=subtalker_top_p,
                subtalker_temperature=subtalker_temperature, rng=rng,
            ),
            load={
                "backend": backend, "device": device, "dtype": dtype, "revision": revision, "cache_dir": cache_dir,
                "offline": offline, "profile": profile, "verify": verify,
            },
        )  # fmt: skip
        with speak(request) as (speech, report):
            print_table(report)
            print("wrote " + ", ".join(str(path) for path in (output, plot, json) if path is not None))
        code = exit_code(request.options, speech, split=split)
    raise typer.Exit(code)
