"""What callers of TTS give as arguments: checked, and spread over the texts."""

from collections.abc import Sequence
from typing import Any

from qwen3tts.errors import OptionError, TextError, VoiceError

MAX_TEXTS = 10_000
VOICE_FILE_ENDINGS = (".json", ".safetensors", ".pt")


def checked_texts(texts: object) -> list[str]:
    """A list of texts as a caller gave it. Raises TextError for what is none."""
    if not isinstance(texts, Sequence) or isinstance(texts, bytes | bytearray):
        raise TextError(f"text is a {type(texts).__name__}; expected a string or a list of strings.")
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise TextError(f"text is a list of {len(texts)}; expected 1 to {MAX_TEXTS} strings.")
    return list(texts)


def check_kind(voice: object) -> None:
    """Says what to give in place of things that stand for a voice elsewhere."""
    if isinstance(voice, str) and voice.lower().endswith(VOICE_FILE_ENDINGS):
        raise VoiceError(f"The voice {voice!r:.120} is the name of a file: give Voice.load({voice!r:.120}).")
    if hasattr(voice, "ref_spk_embedding"):
        raise VoiceError(
            f"The voice is a {type(voice).__name__}, which only Qwen3TTSModel.generate_voice_clone() takes: give a "
            "Voice from tts.clone(audio, transcript), or Voice.load(file) of the prompt saved with torch.save()."
        )


def one_per_text(name: str, value: object, count: int | None, rows: int) -> list[Any]:
    """One value per text."""
    if not isinstance(value, list | tuple):
        return [value] * rows
    if count is None:
        raise (VoiceError if name in ("voice", "language", "instruct") else OptionError)(
            f"{name} is a list, but text is a single string; give a list of texts or one {name}."
        )
    if len(value) != count:
        raise OptionError(f"{name} has {len(value)} entries for {count} texts; give one for all or one per text.")
    return list(value)
