"""Text that arrives in pieces: which of its tokens can no longer change.

A token is settled when nothing that may still follow can change it. Held back are
  - the last pre-token (a word may go on), so a word settles when the next one or a space begins;
  - white space at the end (it is stripped if the text ends there), and what it is part of, such as "!\\n";
  - whatever Unicode normalization (NFC) may still join or reorder with a following combining mark.
  - everything before the first visible character: a text that has none is refused.
The settled tokens and the rest at the end are together exactly the tokens of the whole text, whatever the pieces.
Scripts without spaces settle at the next punctuation, digit or symbol: until then a clause is one pre-token.

A piece that only prolongs the held pre-token is put aside unread, so the work grows with the text, not with its square.

settle="eager" holds back white space alone. Tokens then depend on how the text was cut.
"""

import functools
import unicodedata
from typing import Literal

from qwen3tts.errors import TextError
from qwen3tts.text.tokenizer import MAX_TEXT_CHARS, TextTokenizer, checked_text, clean_text, is_blank

Settle = Literal["safe", "eager"]
PUNCTUATION = frozenset('.,!?;:…。，、！？；：．」』”’")）؟،؛।॥—–')
"""ends of clauses, for flush_on_punctuation"""

LONGEST_CONTRACTION = 3
"""characters of "'re", which more letters do not prolong"""


@functools.cache
def _joining_starters() -> frozenset[str]:
    """Characters of combining class 0 that NFC can join to the character before them (Hangul vowels and finals, some
    Indic vowel signs)."""
    found = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A7, 0x11C3))}
    for code in range(0x20000):  # beyond are ideographs, private use and tags, which are made of no pairs
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            second = chr(int(parts[1], 16))
            if unicodedata.combining(second) == 0:
                found.add(second)
    return frozenset(found)


def _joins(char: str) -> bool:
    """NFC may join it to what is before it, or reorder it."""
    first = unicodedata.normalize("NFD", char)[0]
    return unicodedata.combining(first) != 0 or char in _joining_starters()


def stable_length(text: str) -> int:
    """How much of the start of `text` keeps its NFC form whatever follows: up to the last character that can neither
    join what is before it nor be reordered."""
    for i in range(len(text) - 1, -1, -1):
        if not _joins(text[i]):
            return i
    return 0


def _kind(char: str) -> str:
    """Pre-tokens are made of runs of a kind; "alone" are digits, "unknown" what not all Unicode versions know."""
    if char.isspace():
        return "space"
    if unicodedata.ucd_3_2_0.category(char) == "Cn":
        return "unknown"
    category = unicodedata.category(char)[0]
    return "alone" if category == "N" else "letter" if category == "L" else "other"


class TextSettler:
    """Collects pieces of one text and gives out its token ids as they settle. Not thread-safe."""

    def __init__(self, tokenizer: TextTokenizer, settle: Settle = "safe") -> None:
        self.tokenizer, self.settle = tokenizer, settle
        self.finished = False
        self._held: list[str] = []
        """text that is not given out yet, in pieces"""
        self._length = 0
        """characters held"""
        self._tail = 0
        """index of the held piece that starts with the last character that no longer joins what is before it"""
        self._before_tail = 0
        """characters held before that"""
        self._last = ""
        """the last character so far that is no white space"""
        self._visible = False
        """there was something to pronounce"""
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
        if not checked_text(text):
            return []
        if self._length + len(text) > MAX_TEXT_CHARS:
            raise TextError(
                f"{self._length + len(text)} characters were pushed without the end of a word, at most "
                f"{MAX_TEXT_CHARS} are held back. Is this text?"
            )
        settles = self._may_settle(text)
        self._hold(text)
        self._last = text.rstrip()[-1:] or self._last
        return self._scan() if settles else []

    def _may_settle(self, text: str) -> bool:
        """False only if nothing settles through this piece, which then need not be read yet."""
        if not self._visible:
            self._visible = not is_blank(text)
            return self._visible
        if not self._held:
            return True
        # What may join the last word leaves it open; white space at the end settles with whatever follows it.
        if self.settle == "safe" and not self._held[-1][-1:].isspace() and all(map(_joins, text)):
            return False
        if self._before_tail < LONGEST_CONTRACTION:
            return True
        # The tail begins inside the last held pre-token, or is white space at the end: more of the same prolongs it.
        prolonged = self.tokenizer.normalize("".join(self._held[self._tail :]) + text)
        kinds = {char: _kind(char) for char in set(prolonged)}
        found = set(kinds.values())
        if "unknown" in found:
            found.remove("unknown")
            found.add(self._kind_of("".join(char for char, kind in kinds.items() if kind == "unknown")))
        return len(found) > 1 or "alone" in found

    def _kind_of(self, chars: str) -> str:
        """The kind that the tokenizer, whose Unicode version may be another one, takes all of these characters for;
        "alone" if they are of several."""
        if len(self.tokenizer.words("a" + chars)) == 1:
            return "letter"
        return "other" if len(self.tokenizer.words("!" + chars)) == 1 else "alone"

    def _hold(self, text: str) -> None:
        stable = stable_length(text)
        if stable:
            self._held.append(text[:stable])
        if not _joins(text[stable]):
            self._tail, self._before_tail = len(self._held), self._length + stable
        self._held.append(text[stable:])
        self._length += len(text)

    def _scan(self) -> list[int]:
        """Reads all that is held; gives out what has settled and keeps the rest."""
        rest = "".join(self._held)
        rest = rest if self._started else rest.lstrip()
        normal = self.tokenizer.normalize(rest)
        words = self.tokenizer.words(normal)
        limit = len(normal.rstrip())
        if self.settle == "safe":
            limit = min(limit, len(self.tokenizer.normalize(rest[: stable_length(rest)])))
            words = words[:-1]
        settled = [word for word in words if word[0] <= limit]
        if settled:
            rest, self._started = normal[settled[-1][0] :], True
        self._held, self._length, self._tail, self._before_tail = [], 0, 0, 0
        if rest:
            self._hold(rest)
        return [token for _, ids in settled for token in ids]

    def finish(self) -> list[int]:
        """The text is complete; returns its remaining ids. Raises TextError if all of it was blank."""
        if self.finished:
            return []
        rest = "".join(self._held)
        rest = rest.rstrip() if self._started else clean_text(rest)
        self.finished, self._held = True, []
        return self.tokenizer.encode(rest) if rest else []
