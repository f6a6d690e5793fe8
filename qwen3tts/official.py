"""Qwen3TTSModel: the official package's class on this runtime, so that existing code runs by changing its import.

It does what the official class does (checked output by output, see docs/parity.md) and warns where that is a trap.
Differences, each on purpose: special tokens inside a text are spoken as text; blank texts are refused; sampled batches
give each row its own random numbers; the codec computes in float32 whatever the dtype. The native interface is TTS.
"""

import inspect
import os
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qwen3tts.api import TTS, load
from qwen3tts.errors import OptionError, VoiceError, nearest
from qwen3tts.options import GenerateOptions
from qwen3tts.runtime.engine import RowSpec
from qwen3tts.text.tokenizer import clean_text
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
OFFICIAL_MAX_NEW_TOKENS = 2048
LOADING = ("revision", "cache_dir")
WITHOUT_EFFECT = ("attn_implementation", "low_cpu_mem_usage", "use_safetensors", "trust_remote_code")

Wavs = tuple[list[NDArray[np.float32]], int]


class Qwen3TTSModel:
    """The official package's Qwen3TTSModel for custom voice and voice design."""

    def __init__(self, tts: TTS) -> None:
        self.tts = tts
        self.device = tts.device

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> "Qwen3TTSModel":
        """Loads a folder or hub id.

        dtype (or torch_dtype; default float32), device_map (a device, "auto" or {"": device}; default the CPU),
        revision, cache_dir and local_files_only are as in transformers; attn_implementation and its like have no
        effect here. Raises OptionError for others, and what load() raises."""
        dtype = kwargs.pop("torch_dtype", None)
        dtype = kwargs.pop("dtype", dtype)
        if isinstance(dtype, str) and dtype == "auto":
            dtype = torch.bfloat16
        device = kwargs.pop("device_map", None)
        if isinstance(device, dict):
            if set(device) != {""}:
                raise OptionError(f"device_map is {device!r}; this runtime puts a model on one device: {{'': device}}.")
            device = device[""]
        offline = bool(kwargs.pop("local_files_only", False))
        for name in WITHOUT_EFFECT:
            kwargs.pop(name, None)
        passed = {name: kwargs.pop(name) for name in LOADING if name in kwargs}
        for name in kwargs:
            known = ("dtype", "device_map", "local_files_only", *LOADING)
            raise OptionError(
                f"from_pretrained does not know {name!r}.{nearest(name, known)} It takes {', '.join(known)}."
            )
        tts = load(
            pretrained_model_name_or_path,
            backend="torch",
            dtype=torch.float32 if dtype is None else dtype,
            device=None if device == "auto" else "cpu" if device is None else device,
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
        self._require("custom_voice")
        texts = _listed(text)
        if drops_instruct(self.tts.config):
            if any(_listed(instruct)):
                _warn(
                    "0.6B custom voice models cannot follow an instruct; it is dropped, as the official package does."
                )
            instruct = None
        speakers = _column("speaker", speaker, len(texts))
        return self._generate(texts, speakers, language, instruct, non_streaming_mode, kwargs)

    def generate_voice_design(
        self,
        text: str | list[str],
        instruct: str | list[str],
        language: str | list[str] | None = None,
        non_streaming_mode: bool = True,
        **kwargs: Any,
    ) -> Wavs:
        """(waveforms float32 [samples], sample rate) in a voice that `instruct` describes; "" describes none."""
        self._require("voice_design")
        texts = _listed(text)
        return self._generate(texts, [None] * len(texts), language, instruct, non_streaming_mode, kwargs)

    def _require(self, model_type: str) -> None:
        config = self.tts.config
        if config.model_type != model_type:
            raise ValueError(
                f"A {config.model_type} model (size {config.model_size}) does not support generate_{model_type}; "
                f"that needs a {model_type} checkpoint."
            )

    def _generate(
        self,
        texts: list[Any],
        speakers: list[Any],
        language: str | list[str] | None,
        instruct: str | list[str] | None,
        non_streaming_mode: bool,
        kwargs: dict[str, Any],
    ) -> Wavs:
        languages = _column("language", "auto" if language is None else language, len(texts))
        instructs = _column("instruct", instruct, len(texts))
        options = self._options(kwargs)
        specs = []
        for row in zip(texts, speakers, languages, instructs, strict=True):
            specs.append(self._spec(*row, options, non_streaming_mode, len(texts)))
        with self.tts.turns:
            speeches = self.tts.engine.speak(specs)
        return [speech.samples for speech in speeches], self.tts.sample_rate

    def _options(self, kwargs: dict[str, Any]) -> GenerateOptions:
        """The official order: what is passed and not None, then generation_config.json, then fixed defaults."""
        kwargs = dict(kwargs)
        given = {name: kwargs.pop(name) for name in SAMPLING if kwargs.get(name) is not None}
        checkpoint = self.tts.generation_config
        limit = kwargs.pop("max_new_tokens", None)
        if limit is None:
            limit = checkpoint.get("max_new_tokens", OFFICIAL_MAX_NEW_TOKENS)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 2:
            raise OptionError(f"max_new_tokens is {limit!r}; expected 2 or more: N tokens give N - 1 frames.")
        eos = kwargs.pop("eos_token_id", None)
        if eos not in (None, self.tts.config.talker.codec_eos_id):
            raise OptionError(f"eos_token_id is {eos!r}; only the model's own, {self.tts.config.talker.codec_eos_id}.")
        unknown = [name for name in kwargs if name not in SAMPLING]
        if unknown:
            _warn(f"These arguments have no effect, as in the official package: {', '.join(unknown)}.")
        return (
            GenerateOptions(**given)
            .over(checkpoint)
            .replace(max_frames=limit - 1, rng="torch", codec_chunking="official")
        )

    def _spec(
        self,
        text: str,
        speaker: str | None,
        language: str,
        instruct: str | None,
        options: GenerateOptions,
        whole: bool,
        rows: int,
    ) -> RowSpec:
        config = self.tts.config
        if clean_text(text) != text:
            _warn("The text starts or ends with white space, which the model reads too; strip it.")
        if language is None:
            raise VoiceError("A language in a list is None; give its name or 'auto'.")
        name = str(speaker).lower() if speaker else None
        if name is not None and name not in config.talker.speakers:
            choices = supported_speakers(config)
            raise VoiceError(
                f"Unsupported speaker {speaker!r}.{nearest(name, choices)} There are {', '.join(choices)}."
            )
        voice = ResolvedVoice(
            language_id=language_id(config, resolve_language(config, str(language)), name),
            speaker_id=config.talker.speakers[name] if name is not None else None,
            x_vector=None,
            instruct=instruct or None,
            speaker_name=name,
        )
        generator, seed = None, 0
        if options.do_sample or options.subtalker_dosample:
            generator = _global_generator(self.device)
            if rows > 1:
                seed, generator = int(torch.randint(2**62, (), generator=torch.default_generator)), None
        return RowSpec(text, voice, options, seed, "whole" if whole else "streamed", 1, generator=generator)


def _global_generator(device: torch.device) -> torch.Generator:
    """The generator that torch.manual_seed seeds for this device."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def _warn(message: str) -> None:
    """Warns at the line that called this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("qwen3tts"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level - 1 if frame is None else level)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _column(name: str, value: Any, rows: int) -> list[Any]:
    """One entry per text; a single one serves all."""
    values = _listed(value)
    if len(values) == 1:
        values = values * rows
    if len(values) != rows:
        raise ValueError(f"Batch size mismatch: {rows} texts, {len(values)} entries of {name}.")
    return values
