"""Qwen3TTSModel: the official package's class on this runtime."""

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qwen3tts.api import TTS, load
from qwen3tts.errors import OptionError, VoiceError, nearest
from qwen3tts.official.arguments import column, listed, loading_arguments, sampling_arguments, warn
from qwen3tts.official.clone import VoiceClonePromptItem, Who, check_text, create_items, listed_items, who_of
from qwen3tts.options import GenerateOptions
from qwen3tts.runtime.engine import RowSpec
from qwen3tts.runtime.length import OFFICIAL_MAX_NEW_TOKENS
from qwen3tts.text.prompt import TextMode
from qwen3tts.voice.resolve import (
    ResolvedVoice,
    drops_instruct,
    language_id,
    resolve_language,
    supported_languages,
    supported_speakers,
)

SAMPLING = (
    "do_sample",
    "top_k",
    "top_p",
    "temperature",
    "repetition_penalty",
    "subtalker_dosample",
    "subtalker_top_k",
    "subtalker_top_p",
    "subtalker_temperature",
)

Wavs = tuple[list[NDArray[np.float32]], int]


class Qwen3TTSModel:
    """The official package's Qwen3TTSModel."""

    def __init__(self, tts: TTS) -> None:
        self.tts = tts
        self.device = tts.device

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> "Qwen3TTSModel":
        """Loads a folder or hub id.

        dtype (or torch_dtype; default float32), device_map (a device, "auto" or {"": device}; default the CPU),
        revision, cache_dir and local_files_only are as in transformers; attn_implementation and its like have no
        effect here. Raises OptionError for others, and what load() raises."""
        dtype, device, offline, passed = loading_arguments(kwargs)
        tts = load(
            pretrained_model_name_or_path,
            backend="torch",
            dtype=torch.float32 if dtype is None else dtype,
            device=device,
            offline=offline,
            **passed,
        )
        return cls(tts)

    def get_supported_speakers(self) -> list[str]:
        """Preset names in lower case, sorted; empty where there are none."""
        return supported_speakers(self.tts.config)

    def get_supported_languages(self) -> list[str]:
        """Language names in lower case, sorted, "auto" among them."""
        return supported_languages(self.tts.config)

    # ------------------------------------------------------------ generation

    def generate_custom_voice(
        self,
        text: str | list[str],
        speaker: str | list[str],
        language: str | list[str] | None = None,
        instruct: str | list[str] | None = None,
        non_streaming_mode: bool = True,
        **kwargs: Any,
    ) -> Wavs:
        """(waveforms float32 [samples] in [-1, 1], sample rate). max_new_tokens N gives at most N - 1 frames of 80 ms.

        A speaker None or "" leaves the voice to the model. Raises ValueError for what is not supported."""
        self._require("custom_voice", "generate_custom_voice")
        texts = listed(text)
        if drops_instruct(self.tts.config):
            if any(listed(instruct)):
                warn("0.6B custom voice models cannot follow an instruct; it is dropped, as the official package does.")
            instruct = None
        who = [self._preset(speaker) for speaker in column("speaker", speaker, len(texts))]
        return self._generate(texts, who, language, instruct, non_streaming_mode, kwargs)

    def generate_voice_design(
        self,
        text: str | list[str],
        instruct: str | list[str],
        language: str | list[str] | None = None,
        non_streaming_mode: bool = True,
        **kwargs: Any,
    ) -> Wavs:
        """(waveforms float32 [samples], sample rate) in a voice that `instruct` describes; "" describes none."""
        self._require("voice_design", "generate_voice_design")
        texts = listed(text)
        return self._generate(texts, [Who()] * len(texts), language, instruct, non_streaming_mode, kwargs)

    def create_voice_clone_prompt(
        self,
        ref_audio: Any,
        ref_text: str | None | list[str | None] = None,
        x_vector_only_mode: bool | list[bool] = False,
    ) -> list[VoiceClonePromptItem]:
        """Voices from recordings, for generate_voice_clone; each argument is one value or a list.

        ref_audio: a path, http(s) URL, base64 string or (array, rate). ref_text: what the recording says, needed
        unless x_vector_only_mode. Raises ValueError or AudioError."""
        self._require("base", "create_voice_clone_prompt")
        return create_items(self.tts, ref_audio, ref_text, x_vector_only_mode)

    def generate_voice_clone(
        self,
        text: str | list[str],
        language: str | list[str] | None = None,
        ref_audio: Any = None,
        ref_text: str | None | list[str | None] = None,
        x_vector_only_mode: bool | list[bool] = False,
        voice_clone_prompt: Any = None,
        non_streaming_mode: bool = False,
        **kwargs: Any,
    ) -> Wavs:
        """(waveforms float32 [samples], sample rate) in the voice of a recording, or of a prompt made from one.

        voice_clone_prompt: items of create_voice_clone_prompt, one for all texts or one each; then ref_audio,
        ref_text and x_vector_only_mode are not used. The dict form works for x-vectors alone, since it has no
        transcripts (a key ref_text is accepted). Raises ValueError or AudioError."""
        self._require("base", "generate_voice_clone")
        texts = listed(text)
        if voice_clone_prompt is None:
            if ref_audio is None:
                raise ValueError("Give voice_clone_prompt or ref_audio.")
            voice_clone_prompt = create_items(self.tts, ref_audio, ref_text, x_vector_only_mode)
        items = listed_items(voice_clone_prompt, len(texts))
        who = [who_of(self.tts, item, index) for index, item in enumerate(items)]
        return self._generate(texts, who, language, None, non_streaming_mode, kwargs)

    def _require(self, model_type: str, method: str) -> None:
        config = self.tts.config
        if config.model_type != model_type:
            raise ValueError(
                f"A {config.model_type} model (size {config.model_size}) does not support {method}; "
                f"that needs a {model_type} checkpoint."
            )

    def _preset(self, speaker: str | None) -> Who:
        name = str(speaker).lower() if speaker else None
        if name is not None and name not in self.tts.config.talker.speakers:
            choices = supported_speakers(self.tts.config)
            raise VoiceError(
                f"Unsupported speaker {speaker!r}.{nearest(name, choices)} There are {', '.join(choices)}."
            )
        return Who(name)

    def _generate(
        self,
        texts: list[Any],
        who: list[Who],
        language: str | list[str] | None,
        instruct: str | list[str] | None,
        non_streaming_mode: bool,
        kwargs: dict[str, Any],
    ) -> Wavs:
        if not texts:
            raise ValueError("The list of texts is empty.")
        languages = column("language", "auto" if language is None else language, len(texts))
        instructs = column("instruct", instruct, len(texts))
        options = self._options(kwargs)
        specs = []
        for row in zip(texts, who, languages, instructs, strict=True):
            specs.append(self._spec(*row, options, non_streaming_mode, len(texts)))
        with self.tts.turns:
            speeches = self.tts.engine.speak(specs)
        return [speech.samples for speech in speeches], self.tts.sample_rate

    def _options(self, kwargs: dict[str, Any]) -> GenerateOptions:
        """The official order: what is passed and not None, then generation_config.json, then fixed defaults."""
        kwargs = dict(kwargs)
        given = sampling_arguments({name: kwargs.pop(name) for name in SAMPLING if kwargs.get(name) is not None})
        checkpoint = self.tts.generation_config
        limit = kwargs.pop("max_new_tokens", None)
        if limit is None:
            limit = checkpoint.get("max_new_tokens", OFFICIAL_MAX_NEW_TOKENS)
        if isinstance(limit, float) and limit.is_integer():
            limit = int(limit)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 2:
            raise OptionError(f"max_new_tokens is {limit!r}; expected 2 or more: N tokens give N - 1 frames.")
        eos = kwargs.pop("eos_token_id", None)
        if eos not in (None, self.tts.config.talker.codec_eos_id):
            raise OptionError(f"eos_token_id is {eos!r}; only the model's own, {self.tts.config.talker.codec_eos_id}.")
        unknown = [name for name in kwargs if name not in SAMPLING]
        if unknown:
            warn(f"These arguments have no effect, as in the official package: {', '.join(unknown)}.")
        return (
            GenerateOptions(**given)
            .over(checkpoint)
            .replace(max_frames=limit - 1, rng="torch", codec_chunking="official")
        )

    def _spec(
        self,
        text: str,
        who: Who,
        language: str,
        instruct: str | None,
        options: GenerateOptions,
        whole: bool,
        rows: int,
    ) -> RowSpec:
        config = self.tts.config
        check_text(text)
        if language is None:
            raise VoiceError("A language in a list is None; give its name or 'auto'.")
        voice = ResolvedVoice(
            language_id=language_id(config, resolve_language(config, str(language)), who.speaker),
            speaker_id=config.talker.speakers[who.speaker] if who.speaker is not None else None,
            x_vector=who.x_vector,
            instruct=instruct or None,
            speaker_name=who.speaker,
            ref_codes=who.ref_codes,
            ref_text=who.ref_text,
        )
        generator, seed = None, 0
        if options.do_sample or options.subtalker_dosample:
            generator = _global_generator(self.device)
            if rows > 1:
                seed, generator = int(torch.randint(2**62, (), generator=torch.default_generator)), None
        mode: TextMode = "whole" if whole else "streamed"
        return RowSpec(text, voice, options, seed, mode, 1, generator=generator, frames_may_shrink=True)


def _global_generator(device: torch.device) -> torch.Generator:
    """The generator that torch.manual_seed seeds for this device."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator
