"""`qwen3tts clone` and `qwen3tts design`: make a voice, keep it as a file, and speak with it at once if asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qwen3tts.cli import parameters as p
from qwen3tts.cli.console import exit_codes, flush_stdout, on_the_command_line, progress_bar, set_up_logging, stderr
from qwen3tts.errors import OptionError, TextError, VoiceError

if TYPE_CHECKING:
    from qwen3tts.api import TTS
    from qwen3tts.audio.reading import AudioSource
    from qwen3tts.model.config import ModelConfig
    from qwen3tts.runtime.speech import Speech
    from qwen3tts.voice.voice import Voice

SPEECH = Path("speech.wav")

BaseModel = Annotated[str, typer.Option("--model", "-m", help="Folder or hub id of a base checkpoint.")]
VoiceFile = Annotated[Path, typer.Option("--output", "-o", help="The voice: .json or .safetensors.")]
Say = Annotated[str | None, typer.Option(help="Also speak this text with the voice; '-' reads stdin.")]
SpeechFile = Annotated[Path | None, typer.Option("--speech", help="Audio file of --say.", show_default=str(SPEECH))]
SayFrames = Annotated[
    int | None,
    typer.Option("--max-frames", help="Stop --say after so many frames of 80 ms. Default: a generous budget for it."),
]
SilentTail = Annotated[float, typer.Option(help="Seconds of silence put after the recording.")]


@dataclass(frozen=True, kw_only=True)
class Order:
    """A voice that is to be made, and what is to be made of it."""

    transcript: str | None
    silent_tail: float
    output: Path
    say: str | None
    speech: Path
    language: str
    options: dict[str, Any]
    """keyword arguments of GenerateOptions"""
    recording: Path | None = None
    """where the recording of a designed voice is kept"""
    allow_url: bool = False

    def check(self, inputs: Mapping[str, Path]) -> None:
        """What is wrong is said before the work. inputs: files that are not to be overwritten, by what they are."""
        from qwen3tts.audio.atomic import check_writable
        from qwen3tts.audio.files import check_audio_path
        from qwen3tts.cli.outputs import check_different
        from qwen3tts.options import GenerateOptions
        from qwen3tts.voice.clone import check_silent_tail
        from qwen3tts.voice.files import check_voice_path
        from qwen3tts.voice.record import check_ref_text

        check_silent_tail(self.silent_tail)
        if self.transcript is not None:
            check_ref_text(self.transcript)
        GenerateOptions(**self.options)
        check_voice_path(self.output)
        check_writable(self.output)
        outputs = {"--output": self.output}
        if self.recording is not None:
            check_audio_path(self.recording)
            outputs["--recording"] = self.recording
        if self.say is not None:
            check_text(self.say, "--say")
            check_audio_path(self.speech)
            outputs["--speech"] = self.speech
        check_different(outputs, inputs)

    def check_model(self, config: "ModelConfig") -> None:
        """The same, as far as it depends on the base model."""
        from qwen3tts.voice.resolve import resolve_language

        if config.model_type != "base":
            raise VoiceError(f"--model is a {config.model_type} model, which cannot clone a voice; expected base")
        if self.say is None:
            return
        resolve_language(config, self.language)
        positions = config.talker.transformer.max_positions
        if self.options.get("max_frames", 0) >= positions:
            raise OptionError(f"--max-frames is {self.options['max_frames']}; expected less than {positions}")

    def carry_out(self, tts: "TTS", audio: "AudioSource", made: "Speech | None" = None) -> int:
        """Clones `audio`, speaks, then writes all files; returns the exit code. made: the recording to be kept."""
        from qwen3tts.audio.atomic import Batch
        from qwen3tts.audio.files import write_audio
        from qwen3tts.cli.speak import exit_code

        name = self.output.stem.strip() or None
        voice = tts.clone(audio, self.transcript, silent_tail=self.silent_tail, allow_url=self.allow_url, name=name)
        spoken = None if self.say is None else self._speak(tts, voice, self.say)
        files = [(self.recording, made), (self.speech, spoken)]
        sounds = [(path, sound) for path, sound in files if path is not None and sound is not None]
        with Batch() as batch:
            for path, sound in sounds:
                write_audio(path, sound.samples, sound.sample_rate, batch=batch)
            print(f"wrote {self.output}: {summary(voice)}")
            for path, sound in sounds:
                print(f"wrote {path}: {sound.duration:.2f} s, seed {sound.seed}")
            flush_stdout()
            voice.save(self.output)  # the last, as it does not wait for the end of the batch
        return 0 if spoken is None else exit_code(self.options, spoken)

    def _speak(self, tts: "TTS", voice: "Voice", text: str) -> "Speech":
        from qwen3tts.options import GenerateOptions

        options = GenerateOptions(**self.options)
        with progress_bar() as progress:
            return tts.generate(text, voice=voice, language=self.language, options=options, progress=progress)


def summary(voice: "Voice") -> str:
    """A cloned voice in a few words."""
    width = 0 if voice.x_vector is None else voice.x_vector.size
    what = f"x-vector of {width} values"
    return what if not voice.frames else f"{what}, recording of {voice.frames} frames ({voice.frames * 0.08:.2f} s)"


def check_text(text: str, option: str) -> str:
    """The text as it is spoken. TextError names the option: a command may have several texts."""
    from qwen3tts.text.tokenizer import clean_text

    try:
        return clean_text(text)
    except TextError as error:
        raise TextError(f"{option}: {on_the_command_line(str(error))}") from None


def needs_say(say: str | None, **given: object) -> None:
    """Raises OptionError if an option of the speech was given without a text to speak."""
    for name, value in given.items():
        if say is None and value is not None:
            raise OptionError(f"--{name.replace('_', '-')} needs --say TEXT; without it nothing is spoken")


def clone(
    audio: Annotated[str, typer.Argument(help="A recording of the voice (WAV, FLAC, Ogg, MP3), 3 to 15 seconds.")],
    *,
    model: BaseModel,
    output: VoiceFile = Path("voice.json"),
    text: Annotated[str | None, typer.Option(help="Exactly what the recording says.", show_default=False)] = None,
    text_file: Annotated[Path | None, typer.Option(help="Read that from this UTF-8 file.")] = None,
    x_vector_only: Annotated[
        bool, typer.Option("--x-vector-only", metavar=p.FLAG, help="Keep the sound of the voice alone.")
    ] = False,
    silent_tail: SilentTail = 0.5,
    allow_url: Annotated[
        bool, typer.Option("--allow-url", metavar=p.FLAG, help="AUDIO may be an http(s) URL.")
    ] = False,
    say: Say = None,
    speech: SpeechFile = None,
    language: Annotated[str | None, typer.Option(help="Of --say.", show_default="auto")] = None,
    max_frames: SayFrames = None,
    seed: p.Seed = None,
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
    """Make a voice file from a recording.

    With --text the speech goes on from the recording, which resembles it most; without, only the sound of the voice
    (its x-vector) is kept, which needs no transcript.

    Exit codes: 0 done, 2 bad input (nothing written), 3 written but --say cut at a default limit, 130 interrupted.
    """
    set_up_logging(verbose)
    with exit_codes():
        from qwen3tts.cli.outputs import checkpoint_files
        from qwen3tts.cli.text_input import read_text

        if x_vector_only and (text is not None or text_file is not None):
            raise VoiceError("--x-vector-only keeps no transcript; leave --text and --text-file out")
        if text == say == "-":
            raise TextError("--text - and --say - would both read stdin; give one of them another way")
        options = p.given(max_frames=max_frames, seed=seed)
        needs_say(say, speech=speech, language=language, max_frames=max_frames, seed=seed)
        transcribed = text is not None or text_file is not None
        order = Order(
            transcript=read_text(text, text_file, "--text") if transcribed else None, silent_tail=silent_tail,
            output=output, say=None if say is None else read_text(say, None, "--say"), speech=speech or SPEECH,
            language=language or "auto", options=options, allow_url=allow_url,
        )  # fmt: skip
        inputs = {"the recording": Path(audio)} | ({} if text_file is None else {"the text file": text_file})
        order.check(inputs | checkpoint_files(model))
        load = {
            "backend": backend, "device": device, "dtype": dtype, "revision": revision, "cache_dir": cache_dir,
            "offline": offline, "profile": profile, "verify": verify,
        }  # fmt: skip
        with _load(model, load) as tts:
            order.check_model(tts.config)
            code = order.carry_out(tts, audio)
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
    speech: SpeechFile = None,
    language: Annotated[str, typer.Option(help="Of --sentence and --say; auto leaves it to the model.")] = "auto",
    max_frames: SayFrames = None,
    seed: p.Seed = None,
    backend: p.Backend = "auto",
    device: p.Device = None,
    dtype: p.Dtype = None,
    profile: p.Profile = None,
    verify: p.Verify = True,
    cache_dir: p.CacheDir = None,
    offline: p.Offline = False,
    verbose: p.Verbose = 0,
) -> None:
    """Describe a voice, keep it as a voice file, and speak with it.

    A voice design model speaks --sentence as described, and a base model clones that recording. Every later text is
    then spoken by the same voice, which a description alone does not give.

    Exit codes: those of `qwen3tts clone`.
    """
    set_up_logging(verbose)
    with exit_codes():
        from qwen3tts.checkpoint import open_checkpoint
        from qwen3tts.cli.outputs import checkpoint_files
        from qwen3tts.cli.text_input import read_text

        if not instruct.strip():
            raise VoiceError("the description of the voice is blank; say what it is like")
        options = p.given(max_frames=max_frames, seed=seed)
        needs_say(say, speech=speech, max_frames=max_frames)
        transcript = check_text(sentence, "--sentence")
        order = Order(
            transcript=transcript, silent_tail=silent_tail, output=output, recording=recording,
            say=None if say is None else read_text(say, None, "--say"), speech=speech or SPEECH, language=language,
            options=options,
        )  # fmt: skip
        order.check(checkpoint_files(design_model) | checkpoint_files(model))
        order.check_model(open_checkpoint(model, cache_dir=cache_dir, offline=offline).config)
        load = {
            "backend": backend, "device": device, "dtype": dtype, "cache_dir": cache_dir, "offline": offline,
            "profile": profile, "verify": verify,
        }  # fmt: skip
        with _load(design_model, load) as designer:
            made = _designed(designer, transcript, instruct, language, p.given(seed=seed))
        with _load(model, load) as tts:
            code = order.carry_out(tts, (made.samples, made.sample_rate), made)
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
