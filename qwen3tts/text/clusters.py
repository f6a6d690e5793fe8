"""Which characters belong together: a text may be cut between clusters, never inside one.

Close to Unicode's grapheme clusters (UAX 29), and coarser where a cut between two of those changes how they sound: at a
virama, at Thai and Lao vowels, before small kana. Invisible characters belong to the visible one before them.
"""

import unicodedata

from qwen3tts.text.tokenizer import is_blank

ZERO_WIDTH_JOINER = "\u200d"
VIRAMA = 9
"""combining class of the signs that tie a consonant to the next one"""
NEVER_FIRST = frozenset(
    ZERO_WIDTH_JOINER + "ะาำๅๆະາຳໆ"  # vowels and repetition marks behind a Thai or Lao consonant
    "ーぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ々ゝゞヽヾ\uff9e\uff9f"  # kana that prolong or change the one before
)
NEVER_LAST = frozenset(ZERO_WIDTH_JOINER + "เแโใไເແໂໃໄ")  # vowels before the consonant that they follow in speech


def extends(before: str, char: str) -> bool:
    """Whether `char` belongs to the character before it. Two regional indicators are not looked at: see clusters()."""
    return (
        unicodedata.category(char)[0] == "M"  # accents, vowel signs, variation selectors, the frame of a keycap
        or char in NEVER_FIRST
        or before in NEVER_LAST
        or unicodedata.combining(before) == VIRAMA
        or "\U0001f3fb" <= char <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= char <= "\U000e007f"  # tags behind a flag
        or "\u1160" <= char <= "\u11ff"  # vowels and finals of a Hangul syllable
        or "\ud7b0" <= char <= "\ud7fb"
        or (_leads(before) and _leads(char))
        or (_leads(before) and "\uac00" <= char <= "\ud7a3")
    )


def _leads(char: str) -> bool:
    return "\u1100" <= char <= "\u115f" or "\ua960" <= char <= "\ua97c"


def _indicates(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"  # half a flag


def clusters(text: str) -> list[str]:
    """The clusters of a text, in order; joined they are the text. Each has a visible character, unless none has."""
    found: list[str] = []
    start, visible, indicators = 0, False, 0
    for i, char in enumerate(text):
        blank, indicates = is_blank(char), _indicates(char)
        if visible and not blank and not extends(text[i - 1], char) and not (indicates and indicators % 2):
            found.append(text[start:i])
            start, visible = i, False
        visible = visible or not blank
        indicators = indicators + 1 if indicates else 0
    return [*found, text[start:]]
