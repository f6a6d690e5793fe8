"""Text that arrives in pieces: which of its tokens can no longer change.

A token is settled when nothing that may still follow can change it. Held back are
  - the last pre-token (a word may go on), so a word settles when the next one or a space begins;
  - white space at the end (it is stripped if the text ends there), and what it is part of, such as "!\\n";
  - whatever Unicode normalization (NFC) may still join or reorder with a following combining mark.
The settled tokens and the rest at the end are together exactly the tokens of the whole text, whatever the pieces.
Scripts without spaces settle at the next punctuation, digit or symbol: until then a clause is one pre-token.

settle="eager" holds back white space alone. Tokens then depend on how the text was cut.
"""

import functools
import sys
import unicodedata
from typing import Literal

from qwen3tts.errors import TextError
from qwen3tts.text.tokenizer import TextTokenizer, checked_text, clean_text

Settle = Literal["safe", "eager"]
PUNCTUATION = frozenset(".,!?;:…。，、！？；：．」』”’\")）؟،؛।॥—–")
"""ends of clauses, for flush_on_punctuation"""


@functools.cache
def _joining_starters() -> frozenset[str]:
    """Characters of combining class 0 that NFC can join to the character before them (Hangul vowels and finals, some
    Indic vowel signs)."""
    found = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A7, 0x11C3))}
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            second = chr(int(parts[1], 16))
            if unicodedata.combining(second) == 0:
                found.add(second)
    return frozenset(found)


def stable_length(text: str) -> int:
    """How much of the start of `text` keeps its NFC form whatever follows: up to the last character that can neither
    join what is before it nor be reordered."""
    for i in range(len(text) - 1, -1, -1):
        first = unicodedata.normalize("NFD", text[i])[0]
        if unicodedata.combining(first) == 0 and text[i] not in _joining_starters():
            return i
    return 0


class TextSettler:
    """Collects pieces of one text and gives out its token ids as they settle. Not thread-safe."""

    def __init__(self, tokenizer: TextTokenizer, settle: Settle = "safe") -> None:
        self.tokenizer, self.settle = tokenizer, settle
        self.finished = False
        self._rest = ""
        """text that is not given out yet"""
        self._last = ""
        """the last character so far that is no white space"""
        self._started = False
        """something was given out, so white space at the start of the rest belongs to the text"""

    @property
    def ends_a_clause(self) -> bool:
        """The text so far ends with punctuation."""
        return self._last in PUNCTUATION

    def push(self, text: str) -> list[int]:
        """Adds a piece; returns the ids that settled. Raises TextError for what is no text, or after finish()."""
        if self.finished:
            raise TextError("The text was finished; no more can be pushed.")
        rest = checked_text(self._rest + checked_text(text))
        self._rest = rest if self._started else rest.lstrip()
        self._last = text.rstrip()[-1:] or self._last
        normal = self.tokenizer.normalize(self._rest)
        words = self.tokenizer.words(normal)
        limit = len(normal.rstrip())
        if self.settle == "safe":
            limit = min(limit, len(self.tokenizer.normalize(self._rest[: stable_length(self._rest)])))
            words = words[:-1]
        return self._give(normal, [word for word in words if word[0] <= limit])

    def _give(self, normal: str, words: list[tuple[int, list[int]]]) -> list[int]:
        if words:
            self._rest, self._started = normal[words[-1][0] :], True
        return [token for _, ids in words for token in ids]

    def finish(self) -> list[int]:
        """The text is complete; returns its remaining ids. Raises TextError if all of it was blank."""
        if self.finished:
            return []
        rest = self._rest.rstrip() if self._started else clean_text(self._rest)
        self.finished, self._rest = True, ""
        return self.tokenizer.encode(rest) if rest else []
