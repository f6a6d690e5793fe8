"""load(), generate() and TTS: the package's front door."""

import logging
import os
import secrets
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, overload

import torch

from qwen3tts.arguments import check_kind, checked_texts, one_per_text
from qwen3tts.audio.reading import AudioSource, read_audio
from qwen3tts.backends.memory import give_back_unused
from qwen3tts.backends.registry import choose, open_encoders, open_runtime
from qwen3tts.checkpoint import open_checkpoint
from qwen3tts.errors import OptionError, Qwen3TTSError, VoiceError
from qwen3tts.markers import marker
from qwen3tts.model.config import ModelConfig
from qwen3tts.optimization.apply import apply_profile
from qwen3tts.optimization.manager import OptimizationManager
from qwen3tts.optimization.profiles import Profile, find_profile
from qwen3tts.optimization.switches import apply_switches
from qwen3tts.optimization.tts import Optimizable
from qwen3tts.options import DEFAULT_LOOKAHEAD, GenerateOptions, RuntimeOptions, checked
from qwen3tts.runtime.engine import Engine, RowSpec
from qwen3tts.runtime.generation import Progress
from qwen3tts.runtime.protocols import Runtime
from qwen3tts.runtime.speech import Speech
from qwen3tts.runtime.turns import Turns
from qwen3tts.streaming import Streaming, VoiceLike
from qwen3tts.text.prompt import TextMode
from qwen3tts.text.tokenizer import ChatTemplate, TextTokenizer, clean_text
from qwen3tts.voice.clone import DEFAULT_SILENT_TAIL, Encoders, clone_voice
from qwen3tts.voice.resolve import resolve, supported_languages, supported_speakers
from qwen3tts.voice.voice import Voice

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}


def parse_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """float32, bfloat16 or float16 by name or torch dtype; None: bfloat16 on a GPU, float32 on the CPU."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    found = DTYPES.get(dtype.lower()) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise OptionError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)} or the torch dtype.")
    return found


def load(
    model: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    backend: str = "auto",
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    runtime: RuntimeOptions | None = None,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    offline: bool = False,
    profile: str | os.PathLike[str] | Profile | None = None,
    verify: bool = True,
) -> "TTS":
    """Loads a model: a checkpoint folder, or a hub id, which is downloaded first.

    backend: "auto" (the best present), "torch" (plain torch on any device), "cpu", "cuda" or "hip". dtype: of the
    transformers; the codec always computes in float32. revision, cache_dir, offline: for hub ids. profile: which
    optimization passes are switched on: "reference", "default" (None), "low-latency", "throughput", or a .toml file
    (docs/passes.md). verify: compare each pass with the plain model once on this machine.
    Raises BackendError, CheckpointError (with its kinds), OptionError or OptimizationError.
    """
    started = time.perf_counter()
    name, where = choose(backend, device)
    kind = parse_dtype(dtype, where)
    plan = apply_switches(find_profile(profile, name))
    shown = where.type == "cuda" and any(item.options.get("markers") is True for item in plan.passes)
    with marker("load", on=shown):
        tts = _loaded(model, name, where, kind, plan, runtime, revision, cache_dir, offline, verify)
    tts.load_seconds = time.perf_counter() - started
    logger.info("loaded in %.2f s", tts.load_seconds)
    return tts


def _loaded(
    model: str | os.PathLike[str],
    name: str,
    where: torch.device,
    kind: torch.dtype,
    plan: Profile,
    runtime: RuntimeOptions | None,
    revision: str | None,
    cache_dir: str | os.PathLike[str] | None,
    offline: bool,
    verify: bool,
) -> "TTS":
    """See load, where everything about the device is decided."""
    clock = time.perf_counter
    started = clock()
    checkpoint = open_checkpoint(model, revision=revision, cache_dir=cache_dir, offline=offline)
    template = ChatTemplate.from_config(checkpoint.config, TextTokenizer.from_folder(checkpoint.path))
    options = (RuntimeOptions() if runtime is None else runtime).with_streams(plan.max_streams)
    opening = clock()
    opened = open_runtime(name, checkpoint=checkpoint, device=where, dtype=kind, options=options)
    logger.info("checkpoint and tokenizer in %.2f s, weights in %.2f s", opening - started, clock() - opening)
    encoders = open_encoders(checkpoint, where, kind)
    tts = TTS(opened, template, checkpoint.generation_config, encoders, backend=name, profile=plan)
    try:
        apply_profile(tts, plan, verify=verify)
    except BaseException:
        tts.close()
        raise
    give_back_unused(where)  # what loading and checking needed for a while
    logger.debug("gave back what nothing holds")
    return tts


class TTS(Streaming, Optimizable):
    """A loaded model. Safe to call from several threads (calls queue); a context manager that frees it at the end."""

    def __init__(
        self,
        runtime: Runtime,
        template: ChatTemplate,
        generation_config: dict[str, Any],
        encoders: Encoders,
        *,
        backend: str,
        profile: Profile,
    ) -> None:
        self._runtime: Runtime | None = runtime
        self._engine = Engine(runtime, template, generation_config.get("max_new_tokens"))
        self.turns = Turns(runtime.frames)
        self._optimization = OptimizationManager(self._end_streams)
        self.encoders = encoders
        self._foreign: set[str] = set()
        self.config: ModelConfig = runtime.config
        self.generation_config = dict(generation_config)
        self.backend_name, self.profile = backend, profile
        self.load_seconds = 0.0
        self.device, self.dtype = runtime.device, runtime.dtype

    # ------------------------------------------------------------ what it can do

    @property
    def voices(self) -> list[str]:
        """Preset voices; empty for base and voice design models."""
        return supported_speakers(self.config)

    @property
    def languages(self) -> list[str]:
        """Languages, "auto" among them."""
        return supported_languages(self.config)

    @property
    def sample_rate(self) -> int:
        """Of the speech, in Hz."""
        return self.config.codec.sample_rate

    # ------------------------------------------------------------ cloning

    def clone(
        self,
        audio: AudioSource,
        text: str | None = None,
        *,
        name: str | None = None,
        silent_tail: float = DEFAULT_SILENT_TAIL,
        x_vector_only: bool = False,
        sample_rate: int | None = None,
        allow_url: bool = False,
    ) -> Voice:
        """A voice from a recording, for any number of texts: 3 to 15 seconds of one speaker. Base models only.

        audio: a path, a binary file object, (array, rate), or an array with sample_rate; an http(s) URL only with
        allow_url. text: exactly what the recording says, for speech that goes on from it; without it, or with
        x_vector_only, the voice is the x-vector alone. silent_tail: seconds of silence added before the codec encodes
        the recording. name: a label for messages.

        Warns (logging) of a transcript that cannot fit the recording: less than one frame of 80 ms a token, or more
        than 15 and 2 seconds. Raises VoiceError, also for silence; AudioError for what cannot be read or is too short.
        """
        if self.config.model_type != "base":
            raise VoiceError(f"A {self.config.model_type} model cannot clone a voice; that needs a base model.")
        _ = self.engine  # refuses after close()
        samples = read_audio(audio, self.sample_rate, sample_rate=sample_rate, allow_url=allow_url)
        encode = self.engine.template.tokenizer.encode
        with self.turns:
            _ = self.engine
            return clone_voice(
                self.encoders, samples, self.sample_rate, text, name=name, silent_tail=silent_tail,
                x_vector_only=x_vector_only, count_tokens=lambda transcript: len(encode(transcript)),
            )  # fmt: skip

    def _check_fingerprint(self, voice: VoiceLike) -> None:
        """Warns, once for each, of an x-vector that another speaker encoder made."""
        if not isinstance(voice, Voice) or voice.fingerprint is None or voice.fingerprint in self._foreign:
            return
        own = self.encoders.fingerprint()
        if voice.fingerprint != own:
            self._foreign.add(voice.fingerprint)
            logger.warning(
                "%r was made with another model (fingerprint %s, this model has %s): it may sound like somebody else. "
                "Clone it again with this one.",
                voice, voice.fingerprint, own,
            )  # fmt: skip

    # ------------------------------------------------------------ speaking

    @overload
    def generate(
        self,
        text: str,
        voice: VoiceLike | Sequence[VoiceLike] = None,
        language: str | None | Sequence[str | None] = "auto",
        instruct: str | None | Sequence[str | None] = None,
        options: GenerateOptions | None | Sequence[GenerateOptions | None] = None,
        *,
        decode: bool = True,
        progress: Progress | None = None,
    ) -> Speech: ...

    @overload
    def generate(
        self,
        text: list[str] | tuple[str, ...],
        voice: VoiceLike | Sequence[VoiceLike] = None,
        language: str | None | Sequence[str | None] = "auto",
        instruct: str | None | Sequence[str | None] = None,
        options: GenerateOptions | None | Sequence[GenerateOptions | None] = None,
        *,
        decode: bool = True,
        progress: Progress | None = None,
    ) -> list[Speech]: ...

    def generate(
        self,
        text: str | list[str] | tuple[str, ...],
        voice: VoiceLike | Sequence[VoiceLike] = None,
        language: str | None | Sequence[str | None] = "auto",
        instruct: str | None | Sequence[str | None] = None,
        options: GenerateOptions | None | Sequence[GenerateOptions | None] = None,
        *,
        decode: bool = True,
        progress: Progress | None = None,
    ) -> Speech | list[Speech]:
        """Speaks one text, or a list of texts side by side; a row's result does not depend on its neighbours.

        voice: a preset's name or a Voice; language: a name or "auto"; instruct: how to speak (voice design, 1.7B custom
        voice); options: GenerateOptions. Each is one value for all or a list with one per text. decode=False leaves the
        samples out. progress is called between frames with a ProgressEvent.

        Raises TextError, VoiceError, OptionError, CapacityError or NumericsError; nothing is half done then.
        """
        single = isinstance(text, str)
        texts = [text] if isinstance(text, str) else checked_texts(text)
        count = None if single else len(texts)
        columns = zip(
            texts,
            one_per_text("voice", voice, count, len(texts)),
            one_per_text("language", language, count, len(texts)),
            one_per_text("instruct", instruct, count, len(texts)),
            one_per_text("options", options, count, len(texts)),
            strict=True,
        )
        specs = [self._spec(*row, batch=len(texts)) for row in columns]
        with self.turns:
            speeches = self.engine.speak(specs, decode=decode, progress=progress)
        return speeches[0] if single else speeches

    def _spec(
        self,
        text: str,
        voice: VoiceLike,
        language: str | None,
        instruct: str | None,
        options: GenerateOptions | None,
        *,
        batch: int,
        default_mode: TextMode | None = None,
    ) -> RowSpec:
        merged = checked("options", options, GenerateOptions).over(self.generation_config)
        check_kind(voice)
        resolved = resolve(self.config, voice=voice, language=language, instruct=instruct)
        if merged.text_lookahead_tokens is not None and resolved.ref_codes is not None:
            raise OptionError(
                "text_lookahead_tokens means nothing with a voice that has a recording: the text runs beside it. Leave "
                "it out, or use voice.without_reference()."
            )
        mode = merged.text_mode or default_mode or ("streamed" if self.config.model_type == "base" else "whole")
        if merged.text_lookahead_tokens is not None and mode == "whole":
            raise OptionError(
                "text_lookahead_tokens needs text_mode='streamed': the whole text is the default for this model."
            )
        seed = merged.seed if merged.seed is not None else secrets.randbits(64)
        generator = None
        if merged.rng == "torch":
            if batch > 1:
                raise OptionError(
                    "rng='torch' draws in the official package's order, which a batch would change: give one text at "
                    "a time, or use rng='philox'."
                )
            generator = torch.Generator(self.device).manual_seed(seed)
        spec = RowSpec(
            clean_text(text),
            resolved,
            merged,
            seed,
            mode,
            merged.text_lookahead_tokens or DEFAULT_LOOKAHEAD,
            generator=generator,
        )
        self._check_fingerprint(voice)  # warns: only of what is not refused
        return spec

    # ------------------------------------------------------------ life

    @property
    def engine(self) -> Engine:
        """What speaks; raises Qwen3TTSError after close()."""
        if self._runtime is None:
            raise Qwen3TTSError("This model was closed; load it again.")
        return self._engine

    def _use(self, runtime: Runtime) -> None:
        self._runtime = self._engine.runtime = runtime
        self.turns.decoder = runtime.frames

    def warmup(self) -> None:
        """Runs every part once, so that the first request is not slower than the others."""
        voice: VoiceLike = None
        if self.config.model_type == "custom_voice":
            voice = self.voices[0]
        elif self.config.model_type == "base":
            voice = Voice.from_x_vector([0.0] * self.config.talker.transformer.hidden_size, name="warm-up")
        self.generate("Hello.", voice=voice, options=GenerateOptions(max_frames=2))

    def close(self) -> None:
        """Frees the model and all that its streams hold, after calls in other threads have ended. May be called again.

        Whoever waits for a stream's text, or asks an open stream for more, gets Qwen3TTSError."""
        with self.turns:
            if self._optimization.busy:
                raise Qwen3TTSError("close() was called by an optimization pass while a plan is applied or restored.")
            if self.turns.nested:
                raise Qwen3TTSError("close() was called while this thread is speaking, from a progress callback.")
            if self._runtime is not None:
                self.turns.end_streams()
                self._engine.forget_references()
                self._runtime.close()
                self.encoders.close()
                self._optimization.discard()
                self._runtime = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._runtime is None else f"{self.backend_name} on {self.device}, {self.dtype}"
        return f"TTS({self.config.model_type}, {self.config.model_size}, {state})"


def generate(
    text: str,
    *,
    model: str | os.PathLike[str] = DEFAULT_MODEL,
    voice: VoiceLike = None,
    language: str = "auto",
    instruct: str | None = None,
    options: GenerateOptions | None = None,
    **load_arguments: Any,
) -> Speech:
    """Loads a model, speaks one text, frees the model: qwen3tts.generate("Hello.", voice="ryan").save("hello.wav").

    Keep a TTS from load() to speak more than once. Other arguments are those of load()."""
    with load(model, **load_arguments) as tts:
        return tts.generate(text, voice=voice, language=language, instruct=instruct, options=options)
