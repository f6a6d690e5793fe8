"""Prompt assembly: what the talker is given, as plain integers.

A row of the talker's input is the sum of a text side and a codec side. A Prompt names both by ids; the model embeds
them (T = text_projection of text_embedding, E = the talker's codec_embedding):

    prefill row i  = T(text_ids[i]) + E(codec_ids[i]),  nothing for NO_CODEC, the x-vector for SPEAKER_ROW,
                     for the t-th REFERENCE_ROW the sum of the 16 code embeddings of frame t of the reference
    frame s adds   T(trailing_ids[s]),  T(tts_pad) past their end

Reference: section 5.2.
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
REFERENCE_ROW = -3
"""codec id of a row whose codec side is a frame of the reference recording, in order"""

TextMode = Literal["whole", "streamed"]
Row = tuple[int, int]
"""text id, codec id"""


@dataclass(frozen=True)
class Reference:
    """What a prompt needs to know of a reference recording (in-context learning)."""

    text: str
    """its transcript"""
    frames: int
    """code frames of it, from 1 on"""


@dataclass(frozen=True)
class Prompt:
    """All of a request's text and voice, in ids. text_ids and codec_ids have one entry per prefill row."""

    text_ids: tuple[int, ...]
    codec_ids: tuple[int, ...]
    """a talker codec id, NO_CODEC, SPEAKER_ROW or REFERENCE_ROW"""
    trailing_ids: tuple[int, ...]
    """text ids added frame by frame; tts_pad follows without end once the text is complete"""
    text_tokens: int
    """tokens of the text itself, without templates and transcript"""
    reference_tokens: int = 0
    """tokens of the reference's transcript"""
    reference_frames: int = 0
    """REFERENCE_ROWs among codec_ids"""

    def __len__(self) -> int:
        """Positions that the prefill takes."""
        return len(self.text_ids)


def build_prompt(
    config: ModelConfig,
    template: ChatTemplate,
    *,
    text: str | tuple[int, ...],
    instruct: str | None,
    language_id: int | None,
    speaker_id: int | None,
    x_vector: bool,
    text_mode: TextMode,
    lookahead: int,
    reference: Reference | None = None,
    text_complete: bool = True,
) -> Prompt:
    """The prompt of one request.

    text_mode "whole": the body b_1..b_n and eos stand in the prefill, the frames add padding.
    text_mode "streamed": with m = min(lookahead, n) the prefill holds b_1..b_m, and the frames add b_(m+1)..b_n, eos.
    lookahead 1 is the official package's streaming text; it means nothing in whole mode.
    With a reference of R frames the text lane is its transcript, the body and eos. "whole": all of it stands before
    the frames c_1..c_R. "streamed": it runs beside bos, c_1..c_R, row by row; what is left over is added by the new
    frames, and a shorter lane is filled up with padding. lookahead means nothing then.

    A text of ids is a body that was tokenized already. text_complete False is for streamed text of which more follows:
    it has no eos yet, and with a reference it must reach at least to the reference's end.

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
    if reference is not None and reference.frames < 1:
        raise VoiceError(f"A reference has {reference.frames} frames, expected 1 or more.")
    talker = config.talker
    ids = template.speech_ids(text if isinstance(text, str) else "")
    body = ids[ROLE_TOKENS:-CLOSING_TOKENS] if isinstance(text, str) else list(text)
    end = [config.tts_eos_id] if text_complete else []

    rows = [(token, NO_CODEC) for token in template.instruct_ids(instruct)] if instruct else []
    rows += [(token, NO_CODEC) for token in ids[:ROLE_TOKENS]]
    tags = [*language_tags(talker, language_id)]
    if x_vector or speaker_id is not None:
        tags.append(SPEAKER_ROW if speaker_id is None else speaker_id)
    rows += [(config.tts_pad_id, tag) for tag in tags]
    rows.append((config.tts_bos_id, talker.codec_pad_id))
    transcript: Sequence[int] = ()
    frames = 0
    if reference is not None:
        transcript, frames = template.speech_ids(reference.text)[ROLE_TOKENS:-CLOSING_TOKENS], reference.frames
    lane = [*transcript, *body, *end]
    if text_mode == "whole":
        text_rows, trailing = _whole(config, lane, frames)
    elif reference is not None:
        text_rows, trailing = _beside_reference(config, lane, frames)
    else:
        # A body without tokens (clean_text lets none through) starts, as in the official package, at what follows it.
        text_rows, trailing = _streamed(config, body or ids[ROLE_TOKENS : ROLE_TOKENS + 1], end, lookahead)
    text_ids, codec_ids = zip(*rows, *text_rows, strict=True)
    return Prompt(text_ids, codec_ids, tuple(trailing), len(body), len(transcript), frames)


def _whole(config: ModelConfig, lane: Sequence[int], frames: int) -> tuple[list[Row], list[int]]:
    """Rows and trailing ids: all of the text, then the reference."""
    pad, talker = config.tts_pad_id, config.talker
    rows = [*((token, talker.codec_pad_id) for token in lane), (pad, talker.codec_bos_id)]
    return rows + [(pad, REFERENCE_ROW)] * frames, [pad]


def _streamed(
    config: ModelConfig, spoken: Sequence[int], end: Sequence[int], lookahead: int
) -> tuple[list[Row], list[int]]:
    """Rows and trailing ids: `lookahead` tokens, the others frame by frame."""
    talker, started = config.talker, spoken[:lookahead]
    rows = [*((token, talker.codec_pad_id) for token in started[:-1]), (started[-1], talker.codec_bos_id)]
    return rows, [*spoken[lookahead:], *end]


def _beside_reference(config: ModelConfig, lane: Sequence[int], frames: int) -> tuple[list[Row], list[int]]:
    """Rows and trailing ids: the text beside the reference, position by position."""
    codes = [config.talker.codec_bos_id, *[REFERENCE_ROW] * frames]
    padded = [*lane, *[config.tts_pad_id] * (len(codes) - len(lane))]
    complete = lane[-1] == config.tts_eos_id
    rest = padded[len(codes) :] or ([config.tts_pad_id] if complete else [])
    return list(zip(padded, codes, strict=False)), rest


def language_tags(talker: TalkerConfig, language_id: int | None) -> Sequence[int]:
    """Codec ids that open the prompt: "think" with a language, "nothink" without."""
    if language_id is None:
        return talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id
    return talker.codec_think_id, talker.codec_think_bos_id, language_id, talker.codec_think_eos_id
