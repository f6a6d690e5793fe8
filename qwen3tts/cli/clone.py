"""`qwen3tts clone` and `qwen3tts design`: make a voice, keep it as a file, and speak with it at once if asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qwen3tts.cli import parameters as p
from qwen3tts.cli.console import CUT_SHORT, exit_codes, progress_bar, set_up_logging, stderr, warn
from qwen3tts.errors import OptionError, VoiceError

if TYPE_CHECKING:
    from qwen3tts.api import TTS
    from qwen3tts.runtime.speech import Speech
    from qwen3tts.voice.voice import Voice

BaseModel = Annotated[str, typer.Option("--model", "-m", help="Folder or hub id of a base checkpoint.")]
VoiceFile = Annotated[Path, typer.Option("--output", "-o", help="The voice: .json or .safetensors.")]
Say = Annotated[str | None, typer.Option(help="Also speak this text with the voice; '-' reads stdin.")]
SpeechFile = Annotated[Path, typer.Option("--speech", help="Audio file of --say.")]
SayLanguage = Annotated[str, typer.Option("--language", help="Of --say; auto leaves it to the model.")]
SilentTail = Annotated[float, typer.Option(help="Seconds of silence put after the recording.")]


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What is made of a voice."""

    output: Path
    say: str | None
    speech: Path
    language: str
    options: dict[str, Any]
    """keyword arguments of GenerateOptions"""

    def check(self) -> None:
        """What is wrong with an output is said before the work."""
        from qwen3tts.audio.atomic import check_writable
        from qwen3tts.audio.files import check_audio_path
        from qwen3tts.text.tokenizer import clean_text
        from qwen3tts.voice.files import check_voice_path

        check_voice_path(self.output)
        check_writable(self.output)
        if self.say is not None:
            check_audio_path(self.speech)
            clean_text(self.say)

    def fulfil(self, tts: "TTS", voice: "Voice") -> int:
        """Writes the voice file, speaks; returns the exit code."""
        from qwen3tts.options import GenerateOptions

        voice.save(self.output)
        print(f"wrote {self.output}: {summary(voice)}")
        if self.say is None:
            return 0
        with progress_bar() as progress:
            speech = tts.generate(
                self.say, voice=voice, language=self.language, options=GenerateOptions(**self.options),
                progress=progress,
            )  # fmt: skip
        speech.save(self.speech)
        print(f"wrote {self.speech}: {speech.duration:.2f} s, seed {speech.seed}")
        if not speech.complete and "max_frames" not in self.options:
            warn("the speech did not end by itself and was cut at the default limit; another --seed may end")
            return CUT_SHORT
        return 0


def summary(voice: "Voice") -> str:
    """A cloned voice in a few words."""
    width = 0 if voice.x_vector is None else voice.x_vector.size
    what = f"x-vector of {width} values"
    return what if not voice.frames else f"{what}, recording of {voice.frames} frames ({voice.frames * 0.08:.2f} s)"


def clone(
    audio: Annotated[str, typer.Argument(help="A recording of the voice (WAV, FLAC, Ogg, MP3), 3 to 15 seconds.")],
    *,
    model: BaseModel,
    output: VoiceFile = Path("voice.json"),
    text: Annotated[str | None, typer.Option(help="Exactly what the recording says.", show_default=False)] = None,
    text_file: Annotated[Path | None, typer.Option(help="Read that from this UTF-8 file.")] = None,
    x_vector_only: Annotated[bool, typer.Option("--x-vector-only", help="Keep the sound of the voice alone.")] = False,
    silent_tail: SilentTail = 0.5,
    allow_url: Annotated[bool, typer.Option("--allow-url", help="AUDIO may be an http(s) URL.")] = False,
    say: Say = None,
    speech: SpeechFile = Path("speech.wav"),
    language: SayLanguage = "auto",
    max_frames: p.MaxFrames = None,
    seed: p.Seed = None,
    backend: p.Backend = "auto",
    device: p.Device = None,
    dtype: p.Dtype = None,
    revision: p.Revision = None,
    cache_dir: p.CacheDir = None,
    offline: p.Offline = False,
    verbose: p.Verbose = 0,
) -> None:
    """Make a voice file from a recording.

    With --text the speech goes on from the recording, which resembles it most; without, only the sound of the voice
    (its x-vector) is kept, which needs no transcript.
    """
    set_up_logging(verbose)
    with exit_codes():
        from qwen3tts.cli.text_input import read_text

        if x_vector_only and (text is not None or text_file is not None):
            raise VoiceError("--x-vector-only keeps no transcript; leave --text and --text-file out")
        transcript = read_text(text, text_file) if text is not None or text_file is not None else None
        wishes = Wishes(
            output=output, say=None if say is None else read_text(say, None), speech=speech, language=language,
            options=p.given(max_frames=max_frames, seed=seed),
        )  # fmt: skip
        wishes.check()
        load = {
            "backend": backend, "device": device, "dtype": dtype, "revision": revision, "cache_dir": cache_dir,
            "offline": offline,
        }  # fmt: skip
        with _load(model, load) as tts:
            voice = tts.clone(audio, transcript, silent_tail=silent_tail, allow_url=allow_url, name=output.stem)
            code = wishes.fulfil(tts, voice)
    raise typer.Exit(code)


def design(
    instruct: Annotated[str, typer.Argument(help="The voice in words, for instance: a low, calm voice.")],
    *,
    design_model: Annotated[str, typer.Option(help="Folder or hub id of a voice design checkpoint.")],
    model: BaseModel,
    sentence: Annotated[str, typer.Option(help="What the designed voice says as its recording; 5 to 10 seconds.")],
    output: VoiceFile = Path("voice.json"),
    recording: Annotated[Path | None, typer.Option(help="Keep the recording in this audio file too.")] = None,
    silent_tail: SilentTail = 0.5,
    say: Say = None,
    speech: SpeechFile = Path("speech.wav"),
    language: Annotated[str, typer.Option(help="Of --sentence and --say; auto leaves it to the model.")] = "auto",
    max_frames: p.MaxFrames = None,
    seed: p.Seed = None,
    backend: p.Backend = "auto",
    device: p.Device = None,
    dtype: p.Dtype = None,
    cache_dir: p.CacheDir = None,
    offline: p.Offline = False,
    verbose: p.Verbose = 0,
) -> None:
    """Describe a voice, keep it as a voice file, and speak with it.

    A voice design model speaks --sentence as described, and a base model clones that recording. Every later text is
    then spoken by the same voice, which a description alone does not give.
    """
    set_up_logging(verbose)
    with exit_codes():
        from qwen3tts.audio.files import check_audio_path
        from qwen3tts.cli.text_input import read_text
        from qwen3tts.text.tokenizer import clean_text

        wishes = Wishes(
            output=output, say=None if say is None else read_text(say, None), speech=speech, language=language,
            options=p.given(max_frames=max_frames, seed=seed),
        )  # fmt: skip
        wishes.check()
        if recording is not None:
            check_audio_path(recording)
        transcript = clean_text(sentence)
        load = {"backend": backend, "device": device, "dtype": dtype, "cache_dir": cache_dir, "offline": offline}
        with _load(design_model, load) as designer:
            made = _designed(designer, transcript, instruct, language, p.given(seed=seed))
        if recording is not None:
            made.save(recording)
            print(f"wrote {recording}: {made.duration:.2f} s")
        with _load(model, load) as tts:
            source = (made.samples, made.sample_rate)
            voice = tts.clone(source, transcript, silent_tail=silent_tail, name=output.stem)
            code = wishes.fulfil(tts, voice)
    raise typer.Exit(code)


def _load(model: str, arguments: dict[str, Any]) -> "TTS":
    import qwen3tts

    if stderr().is_terminal:
        stderr().print(f"loading {model}", markup=False)
    return qwen3tts.load(model, **arguments)


def _designed(designer: "TTS", sentence: str, instruct: str, language: str, options: dict[str, Any]) -> "Speech":
    """The sentence as described. A recording that was cut would not fit its transcript, so it must have ended."""
    from qwen3tts.options import GenerateOptions

    if designer.config.model_type != "voice_design":
        raise OptionError(f"--design-model is a {designer.config.model_type} model; expected voice_design")
    with progress_bar() as progress:
        made = designer.generate(
            sentence, instruct=instruct, language=language, options=GenerateOptions(**options), progress=progress
        )
    if not made.complete:
        raise VoiceError("the designed voice did not end the sentence by itself; try another --seed or --sentence")
    return made
