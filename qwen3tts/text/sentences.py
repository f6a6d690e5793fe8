"""Splits a long text into parts that are spoken one by one: at sentences, or finer where a sentence is too long."""

import re
from collections.abc import Callable, Iterator

from qwen3tts.text.tokenizer import is_blank

SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])(?![。！？”’」』）])|(?<=[。！？][”’」』）])|\n+")
CLAUSE_END = re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])")
WORD_END = re.compile(r"\s+")


def split_text(text: str, count_tokens: Callable[[str], int], max_tokens: int) -> list[str]:
    """Parts of at most max_tokens tokens each, as long as possible, stripped; nothing is lost but white space and parts
    without a visible character, which have no sound.

    A sentence that is too long is split at clauses, then at spaces, then anywhere. An empty or blank text has no parts.
    """
    parts: list[str] = []
    room = ""
    for piece in _pieces(text, count_tokens, max_tokens, (SENTENCE_END, CLAUSE_END, WORD_END)):
        if room and count_tokens(room + piece) > max_tokens:
            parts.append(room.strip())
            room = ""
        room += piece
    return [part for part in (*parts, room.strip()) if not is_blank(part)]


def _pieces(
    text: str, count_tokens: Callable[[str], int], max_tokens: int, ends: tuple[re.Pattern[str], ...]
) -> Iterator[str]:
    """The text in order, cut at the first pattern, and where that is not enough at the next ones. Pieces keep the white
    space behind them, so that they can be put together again."""
    if not ends:
        yield from _halves(text, count_tokens, max_tokens)
        return
    start = 0
    cuts = [match.end() for match in ends[0].finditer(text) if match.end() < len(text)]
    for cut in (*cuts, len(text)):
        piece, start = text[start:cut], cut
        if count_tokens(piece) > max_tokens:
            yield from _pieces(piece, count_tokens, max_tokens, ends[1:])
        elif piece:
            yield piece


def _halves(text: str, count_tokens: Callable[[str], int], max_tokens: int) -> Iterator[str]:
    if len(text) < 2 or count_tokens(text) <= max_tokens:
        yield text
        return
    yield from _halves(text[: len(text) // 2], count_tokens, max_tokens)
    yield from _halves(text[len(text) // 2 :], count_tokens, max_tokens)
