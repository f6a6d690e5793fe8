"""Prompt assembly: what the talker is given, as plain integers.

A row of the talker's input is the sum of a text side and a codec side. A Prompt names both by ids; the model embeds
them (T = text_projection of text_embedding, E = the talker's codec_embedding):

    prefill row i  = T(text_ids[i]) + E(codec_ids[i]),  nothing for NO_CODEC, the x-vector for SPEAKER_ROW
    frame s adds   T(trailing_ids[s]),  T(tts_pad) past their end
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qwen3tts.errors import OptionError, VoiceError
from qwen3tts.model.config import ModelConfig, TalkerConfig
from qwen3tts.text.tokenizer import CLOSING_TOKENS, ROLE_TOKENS, ChatTemplate

NO_CODEC = -1
"""codec id of a row that has only a text side"""
SPEAKER_ROW = -2
"""codec id of the row whose codec side is the x-vector"""

TextMode = Literal["whole", "streamed"]


@dataclass(frozen=True)
class Prompt:
    """All of a request's text and voice, in ids. text_ids and codec_ids have one entry per prefill row."""

    text_ids: tuple[int, ...]
    codec_ids: tuple[int, ...]
    """a talker codec id, NO_CODEC or SPEAKER_ROW"""
    trailing_ids: tuple[int, ...]
    """text ids added frame by frame; never empty, tts_pad follows without end"""
    text_tokens: int
    """tokens of the text itself, without templates"""

    def __len__(self) -> int:
        """Positions that the prefill takes."""
        return len(self.text_ids)


def build_prompt(
    config: ModelConfig,
    template: ChatTemplate,
    *,
    text: str,
    instruct: str | None,
    language_id: int | None,
    speaker_id: int | None,
    x_vector: bool,
    text_mode: TextMode,
    lookahead: int,
) -> Prompt:
    """The prompt of one request.

    text_mode "whole": the body b_1..b_n and eos stand in the prefill, the frames add padding.
    text_mode "streamed": with m = min(lookahead, n) the prefill holds b_1..b_m, and the frames add b_(m+1)..b_n, eos.
    lookahead 1 is the official package's streaming text; it means nothing in whole mode.

    Texts are taken as they are (see clean_text). An empty or None instruct gives no instruct turn; language_id None
    leaves the language to the model; the speaker is a preset's id, an x-vector, or neither. Raises OptionError for a
    bad text_mode or lookahead, TextError for what cannot be tokenized.
    """
    if text_mode not in ("whole", "streamed"):
        raise OptionError(f"text_mode is {text_mode!r}, expected 'whole' or 'streamed'.")
    if type(lookahead) is not int or lookahead < 1:
        raise OptionError(f"text_lookahead_tokens is {lookahead!r}, expected a whole number from 1 on.")
    if x_vector and speaker_id is not None:
        raise VoiceError("A prompt takes a preset speaker or an x-vector, not both.")
    talker = config.talker
    ids = template.speech_ids(text)
    body = ids[ROLE_TOKENS:-CLOSING_TOKENS]

    rows = [(token, NO_CODEC) for token in template.instruct_ids(instruct)] if instruct else []
    rows += [(token, NO_CODEC) for token in ids[:ROLE_TOKENS]]
    tags = [*language_tags(talker, language_id)]
    if x_vector or speaker_id is not None:
        tags.append(SPEAKER_ROW if speaker_id is None else speaker_id)
    rows += [(config.tts_pad_id, tag) for tag in tags]
    rows.append((config.tts_bos_id, talker.codec_pad_id))
    if text_mode == "whole":
        rows += [(token, talker.codec_pad_id) for token in (*body, config.tts_eos_id)]
        rows.append((config.tts_pad_id, talker.codec_bos_id))
        trailing = [config.tts_pad_id]
    else:
        # A body without tokens (clean_text lets none through) starts, as in the official package, at what follows it.
        spoken = body or ids[ROLE_TOKENS : ROLE_TOKENS + 1]
        started, rest = spoken[:lookahead], spoken[lookahead:]
        rows += [(token, talker.codec_pad_id) for token in started[:-1]]
        rows.append((started[-1], talker.codec_bos_id))
        trailing = [*rest, config.tts_eos_id]
    text_ids, codec_ids = zip(*rows, strict=True)
    return Prompt(text_ids, codec_ids, tuple(trailing), len(body))


def language_tags(talker: TalkerConfig, language_id: int | None) -> Sequence[int]:
    """Codec ids that open the prompt: "think" with a language, "nothink" without."""
    if language_id is None:
        return talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id
    return talker.codec_think_id, talker.codec_think_bos_id, language_id, talker.codec_think_eos_id
