"""What a request asks for, checked against what the model can do. Nothing is dropped silently.

custom_voice   a preset voice; instruct from 1.7B on
voice_design   no voice; instruct describes one
base           an x-vector or ICL voice; no instruct
"""

from dataclasses import dataclass

from qwen3tts.errors import VoiceError, nearest
from qwen3tts.model.config import ModelConfig
from qwen3tts.voice.record import CodeArray, FloatArray
from qwen3tts.voice.voice import Voice

AUTO = "auto"


@dataclass(frozen=True, eq=False)
class ResolvedVoice:
    """A request's voice, language and instruction in the terms of one model; what build_prompt() takes."""

    language_id: int | None
    """talker codec id; None leaves the language to the model"""
    speaker_id: int | None
    """talker codec id of the preset"""
    x_vector: FloatArray | None
    """float32 [talker width]"""
    instruct: str | None
    """stripped; None when there is none"""
    speaker_name: str | None
    """the preset's name, or the label of another voice"""
    ref_codes: CodeArray | None = None
    """int16 [R, 16]: frames that the speech goes on from"""
    ref_text: str | None = None
    """what they say; None: they are only decoded before the new frames, the talker does not see them"""


def supported_speakers(config: ModelConfig) -> list[str]:
    """Preset names, sorted; empty for base and voice design."""
    return sorted(config.talker.speakers)


def supported_languages(config: ModelConfig) -> list[str]:
    """Language names, sorted, "auto" among them. Dialects are reached through the speakers that have them."""
    return sorted([AUTO, *(name for name in config.talker.languages if not _is_dialect(name))])


def resolve_language(config: ModelConfig, language: str | None) -> str | None:
    """The language's name in lower case; None for None and "auto". VoiceError lists the choices."""
    if language is None:
        return None
    if not isinstance(language, str):
        raise VoiceError(f"The language is of type {type(language).__name__}, expected str.")
    name, choices = language.strip().lower(), supported_languages(config)
    if name == AUTO:
        return None
    if name in choices:
        return name
    if name in config.talker.languages:
        speakers = sorted(speaker for speaker, dialect in config.talker.speaker_dialects.items() if dialect == name)
        how = "no voice of this model speaks it"
        if speakers:
            how = f"the voice {' or '.join(speakers)} speaks it when the language is chinese or auto"
        raise VoiceError(f"{language!r} is a dialect and cannot be asked for as a language: {how}.")
    raise VoiceError(
        f"Unknown language {language!r:.60}.{nearest(name, choices)} This model knows {', '.join(choices)}."
    )


def language_id(config: ModelConfig, language: str | None, speaker: str | None) -> int | None:
    """The codec id of a language that resolve_language() returned, spoken by a preset (lower-case name) or None.

    A speaker with a dialect speaks it in Chinese and when the language is left open, but not in other languages.
    """
    talker = config.talker
    dialect = talker.speaker_dialects.get(speaker) if speaker is not None else None
    if dialect is not None and language in (None, "chinese"):
        return talker.languages[dialect]
    return None if language is None else talker.languages[language]


def drops_instruct(config: ModelConfig) -> bool:
    """Custom voice at 0.6B was not trained with instructions. The test is the official package's: a substring."""
    return config.model_type == "custom_voice" and config.model_size in "0b6"


def resolve(
    config: ModelConfig, *, voice: str | Voice | None, language: str | None, instruct: str | None
) -> ResolvedVoice:
    """Checks a request of the native interface; VoiceError says what does not fit.

    A string is a preset's name. A name or an instruct of nothing but white space counts as not given.
    """
    if isinstance(voice, str):
        voice = Voice.preset(voice) if voice.strip() else None
    elif voice is not None and not isinstance(voice, Voice):
        raise VoiceError(f"The voice is of type {type(voice).__name__}, expected a preset's name or a Voice.")
    language = resolve_language(config, language)
    instruct = _instruct(config, instruct)
    speaker_id, x_vector = None, None
    if config.model_type == "custom_voice":
        speaker_id = _preset_id(config, voice)
    elif config.model_type == "base":
        x_vector = _x_vector(config, voice)
    elif voice is not None and voice.kind != "no_speaker":
        raise VoiceError(f"A voice design model takes no voice, but {voice!r} was given: describe it in instruct.")
    name = None if voice is None else voice.name
    preset = name if speaker_id is not None else None
    ref_codes, ref_text = (None, None) if voice is None else (voice.ref_codes, voice.ref_text)
    return ResolvedVoice(
        language_id(config, language, preset), speaker_id, x_vector, instruct, name, ref_codes, ref_text
    )


def _is_dialect(name: str) -> bool:
    return "dialect" in name  # the checkpoints mark them by name alone


def _preset_id(config: ModelConfig, voice: Voice | None) -> int:
    choices = supported_speakers(config)
    if voice is None or voice.kind == "no_speaker":
        raise VoiceError(f"A custom voice model needs a voice. This one has {', '.join(choices)}.")
    if voice.kind in ("x_vector", "icl"):
        raise VoiceError(
            "A custom voice model has preset voices and takes no x-vector or recording: use a base model for "
            f"{voice!r}, or one of {', '.join(choices)}."
        )
    if voice.name is None or voice.name not in config.talker.speakers:
        raise VoiceError(
            f"Unknown voice {voice.name!r:.60}.{nearest(voice.name, choices)} This model has {', '.join(choices)}."
        )
    return config.talker.speakers[voice.name]


def _x_vector(config: ModelConfig, voice: Voice | None) -> FloatArray:
    if voice is None or voice.x_vector is None:
        given = "none was given" if voice is None else f"{voice!r} was given"
        raise VoiceError(
            "Base models have no preset voices; give a cloned one (tts.clone(audio, transcript), Voice.load(file) or "
            f"Voice.from_x_vector(array)): {given}."
        )
    width = config.talker.transformer.hidden_size
    if voice.x_vector.size != width:
        raise VoiceError(
            f"The x-vector of {voice!r} has {voice.x_vector.size} values, this model needs {width}: "
            "it was made with a model of another size."
        )
    size = config.talker.code_predictor.vocab_size
    if voice.ref_codes is not None and int(voice.ref_codes.max()) >= size:
        raise VoiceError(
            f"The reference codes of {voice!r} go up to {voice.ref_codes.max()}, this model's codec has {size} codes "
            f"(0 to {size - 1}): they were made with another codec."
        )
    return voice.x_vector


def _instruct(config: ModelConfig, instruct: str | None) -> str | None:
    if instruct is None:
        return None
    if not isinstance(instruct, str):
        raise VoiceError(f"The instruct is of type {type(instruct).__name__}, expected str.")
    instruct = instruct.strip()
    if not instruct:
        return None
    if config.model_type == "base":
        raise VoiceError("A base model takes no instruct: its voice comes from the recording alone.")
    if drops_instruct(config):
        raise VoiceError(
            f"This custom voice model (size {config.model_size!r}) cannot follow an instruct; 1.7B can. Leave it out."
        )
    return instruct
