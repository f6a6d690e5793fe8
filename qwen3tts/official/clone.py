"""Voice prompts of the official package: made from recordings, and read back when a clone is to speak."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qwen3tts.api import TTS
from qwen3tts.errors import VoiceError
from qwen3tts.official.arguments import listed, read_official, warn
from qwen3tts.text.tokenizer import clean_text
from qwen3tts.voice.record import check_ref_codes, check_ref_text, check_x_vector

OFFICIAL_MIN_FIELDS = ("ref_spk_embedding", "x_vector_only_mode", "icl_mode")


@dataclass
class VoiceClonePromptItem:
    """One voice, as the official package holds it."""

    ref_code: torch.Tensor | None
    """int64 [frames, 16]; None in x-vector mode"""
    ref_spk_embedding: torch.Tensor
    """[enc_dim] in the model's dtype"""
    x_vector_only_mode: bool
    icl_mode: bool
    ref_text: str | None = None


@dataclass(frozen=True, eq=False)
class Who:
    """Who speaks a row: a preset, a clone, or nobody in particular."""

    speaker: str | None = None
    x_vector: NDArray[np.float32] | None = None
    ref_codes: NDArray[np.int16] | None = None
    ref_text: str | None = None
    """None: reference codes are decoded before the new ones, but the talker does not see them"""


def create_items(tts: TTS, ref_audio: Any, ref_text: Any, x_vector_only_mode: Any) -> list[VoiceClonePromptItem]:
    """See Qwen3TTSModel.create_voice_clone_prompt."""
    audios = listed(ref_audio)
    texts = ref_text if isinstance(ref_text, list) else [ref_text] * len(audios)
    modes = x_vector_only_mode if isinstance(x_vector_only_mode, list) else [x_vector_only_mode] * len(audios)
    if not len(audios) == len(texts) == len(modes):
        raise ValueError(
            f"Batch size mismatch: {len(audios)} recordings, {len(texts)} transcripts, {len(modes)} entries of "
            "x_vector_only_mode."
        )
    for index, (text, x_vector_only) in enumerate(zip(texts, modes, strict=True)):
        if not x_vector_only and not text:
            raise VoiceError(
                f"Recording {index} has no ref_text: give what it says, or x_vector_only_mode=True to use its "
                "x-vector alone."
            )
    items = []
    for audio, text, x_vector_only in zip(audios, texts, modes, strict=True):
        samples = read_official(audio, tts.sample_rate)
        codes = None
        with tts.turns:
            embedding = torch.from_numpy(tts.encoders.embed(samples)).to(tts.device, tts.dtype)
            if not x_vector_only:
                codes = torch.from_numpy(tts.encoders.encode(samples).astype(np.int64)).to(tts.device)
        items.append(VoiceClonePromptItem(codes, embedding, bool(x_vector_only), not x_vector_only, text))
    return items


def listed_items(prompt: Any, rows: int) -> list[Any]:
    """Items of a prompt in any of its forms, one per text."""
    items = _from_columns(prompt) if isinstance(prompt, dict) else listed(prompt)
    if len(items) == 1:
        items = items * rows
    if len(items) != rows:
        raise ValueError(f"Batch size mismatch: {rows} texts, {len(items)} voice prompts.")
    return items


def _from_columns(prompt: dict[str, Any]) -> list[VoiceClonePromptItem]:
    """The dict form: {field: list}. In the official package it has no transcripts."""
    missing = [name for name in OFFICIAL_MIN_FIELDS if name not in prompt]
    if missing:
        raise VoiceError(f"The voice_clone_prompt dict lacks {', '.join(missing)}.")
    rows = len(prompt["ref_spk_embedding"])
    names = [field.name for field in fields(VoiceClonePromptItem)]
    columns: dict[str, Any] = {name: prompt[name] if prompt.get(name) is not None else [None] * rows for name in names}
    for name, values in columns.items():
        if len(values) != rows:
            raise ValueError(f"Batch size mismatch: {rows} voices in the prompt, {len(values)} entries of {name}.")
    return [VoiceClonePromptItem(**{name: columns[name][i] for name in names}) for i in range(rows)]


def who_of(tts: TTS, item: Any, index: int) -> Who:
    """The voice of an item, also of one that the official package made. Raises VoiceError."""
    where = f"Voice prompt {index}"
    if any(not hasattr(item, name) for name in OFFICIAL_MIN_FIELDS):
        raise VoiceError(
            f"{where} is of type {type(item).__name__}; expected a VoiceClonePromptItem of create_voice_clone_prompt()."
        )
    x_vector, ref_codes, ref_text = None, None, None
    code, text = getattr(item, "ref_code", None), getattr(item, "ref_text", None)
    try:
        if item.x_vector_only_mode or item.icl_mode:
            x_vector = check_x_vector(_numbers(item.ref_spk_embedding, torch.float32))
        if code is not None:
            ref_codes = check_ref_codes(_numbers(code, torch.int64))
    except VoiceError as error:
        raise VoiceError(f"{where}: {error}") from None
    config = tts.config.talker
    if x_vector is not None and x_vector.size != config.transformer.hidden_size:
        raise VoiceError(
            f"{where}: the x-vector has {x_vector.size} values, this model needs {config.transformer.hidden_size}."
        )
    if ref_codes is not None and int(ref_codes.max()) >= config.code_predictor.vocab_size:
        raise VoiceError(f"{where}: code {ref_codes.max()} is none of {config.code_predictor.vocab_size}.")
    if item.icl_mode:
        if ref_codes is None:
            raise VoiceError(f"{where}: icl_mode is true, but ref_code is None.")
        if not text:
            raise VoiceError(
                f"{where}: icl_mode is true, but there is no ref_text. The dict form of a prompt loses it: pass the "
                "list that create_voice_clone_prompt() returned, or add 'ref_text': [...] to the dict."
            )
        if check_ref_text(text) != text:
            warn("The ref_text starts or ends with white space, which the model reads too; strip it.")
        ref_text = str(text)
    return Who(None, x_vector, ref_codes, ref_text)


def check_text(text: Any) -> None:
    """Warns of what the model reads although nobody meant it. Raises TextError for what cannot be spoken."""
    if clean_text(text) != text:
        warn("The text starts or ends with white space, which the model reads too; strip it.")


def _numbers(values: Any, dtype: torch.dtype) -> Any:
    return values.detach().to("cpu", dtype).numpy() if isinstance(values, torch.Tensor) else values
