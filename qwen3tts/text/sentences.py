"""Splits a long text into parts that are spoken one by one: at sentences, or finer where a sentence is too long."""

import re
import unicodedata
from collections.abc import Callable, Iterator

from qwen3tts.text.clusters import clusters, extends
from qwen3tts.text.tokenizer import is_blank

SENTENCE_END = re.compile(
    r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])(?![。！？”’」』）])\s*|(?<=[。！？][”’」』）])\s*|\n\s*"
)
CLAUSE_END = re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])\s*")
WORD_END = re.compile(r"\s+")
NEAR = 50
"""clusters around the middle of a word in which punctuation is looked for"""


def split_text(text: str, count_tokens: Callable[[str], int], max_tokens: int) -> list[str]:
    """Parts of at most max_tokens tokens each, as long as possible, stripped; nothing is lost but white space.

    A sentence that is too long is split at clauses, then at spaces, then between clusters of characters, preferably
    behind punctuation. A part is longer than max_tokens only where a single cluster is, or where invisible characters
    are added to it, of which no part consists alone. An empty or blank text has no parts.
    """
    parts: list[str] = []
    room, visible = "", False
    for piece in _pieces(text, count_tokens, max_tokens, (SENTENCE_END, CLAUSE_END, WORD_END)):
        blank = is_blank(piece)
        if visible and not blank and count_tokens(room + piece) > max_tokens:
            parts.append(room.strip())
            room = ""
        room += piece
        visible = visible or not blank
    return [*parts, room.strip()] if visible else []


def _pieces(
    text: str, count_tokens: Callable[[str], int], max_tokens: int, ends: tuple[re.Pattern[str], ...]
) -> Iterator[str]:
    """The text in order, cut at the first pattern, and where that is not enough at the next ones. Pieces keep the white
    space behind them, so that they can be put together again."""
    if not ends:
        yield from _halves(clusters(text), count_tokens, max_tokens)
        return
    start = 0
    places = (match.end() for match in ends[0].finditer(text) if 0 < match.end() < len(text))
    cuts = [cut for cut in places if not extends(text[cut - 1], text[cut])]
    for cut in (*cuts, len(text)):
        piece, start = text[start:cut], cut
        if count_tokens(piece) > max_tokens:
            yield from _pieces(piece, count_tokens, max_tokens, ends[1:])
        elif piece:
            yield piece


def _halves(text: list[str], count_tokens: Callable[[str], int], max_tokens: int) -> Iterator[str]:
    """Pieces of a text that is given in clusters."""
    piece = "".join(text)
    if len(text) < 2 or count_tokens(piece) <= max_tokens:
        yield piece
        return
    middle, reach = len(text) // 2, min(len(text) // 4, NEAR)
    good = (i for i in range(middle - reach, middle + reach + 1) if 0 < i < len(text) and _pauses(text[i - 1], text[i]))
    cut = min(good, key=lambda i: abs(i - middle), default=middle)
    yield from _halves(text[:cut], count_tokens, max_tokens)
    yield from _halves(text[cut:], count_tokens, max_tokens)


def _pauses(before: str, after: str) -> bool:
    """Between two clusters is white space or the end of punctuation, and no apostrophe, bracket or decimal point."""
    last, first = before[-1], after[0]
    if last.isspace():
        return True
    kind = unicodedata.category(last)
    ends = kind[0] == "P" and kind not in ("Ps", "Pi") and last not in "'’"
    return ends and unicodedata.category(first)[0] != "P" and not first.isdigit()
