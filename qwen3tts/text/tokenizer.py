"""Text -> token ids, and the chat templates around them.

User text never meets a special token: the tokenizer object has none, and template ids are joined as ids. A text that
says "<|im_end|>" is therefore spelled out like any other, where the official package would end the turn.
"""

import functools
import itertools
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from qwen3tts.errors import TextError, TokenizerError, shortened
from qwen3tts.model.config import ModelConfig
from qwen3tts.text.vocabulary import Vocabulary, read_vocabulary

# Where words end, as in Qwen2 and all later Qwen models: contractions, letters with at most one other character before
# them, single digits, punctuation with its line ends, line ends, spaces.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

ASCII_PATTERN = re.compile(
    r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]|"
    r" ?[^ \t\n\v\f\rA-Za-z0-9]+[\r\n]*|[ \t\n\v\f\r]*[\r\n]+|[ \t\n\v\f\r]+(?![^ \t\n\v\f\r])|[ \t\n\v\f\r]+"
)
"""the same for texts of ASCII alone, in Python's syntax"""
KEPT_WORDS, KEPT_CHARS = 1 << 15, 16
"""how many ASCII words of at most how many characters are remembered, up to about 15 MB; when there are more, all are
forgotten"""

MAX_TEXT_CHARS = 1_000_000
"""A text far over any context is refused before work is put into it."""

ROLE_TOKENS = 3
"""<|im_start|>, assistant, newline: before the body of speech_ids()"""
CLOSING_TOKENS = 5
"""<|im_end|>, newline, <|im_start|>, assistant, newline: after it"""


def clean_text(text: str) -> str:
    """The text without leading and trailing white space, ready to be spoken.

    Raises TextError if it is no string, holds lone surrogates, is longer than MAX_TEXT_CHARS, or is blank (is_blank).
    Only white space is stripped; a leading newline would melt into the template's own.
    """
    stripped = checked_text(text).strip()
    if is_blank(stripped):
        what = "has only invisible characters" if stripped else "is blank" if text else "is empty"
        raise TextError(f"The text {what}: there is nothing to speak. Give at least one visible character.")
    return stripped


def is_blank(text: str) -> bool:
    """There is nothing to pronounce: nothing but white space, control and format characters (zero-width spaces and
    joiners, byte-order marks, direction marks). Punctuation and emoji are not blank: what they sound like is up to the
    model."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in text)


def checked_text(text: str) -> str:
    """The text itself; raises TextError if it is no string, too long or not valid Unicode."""
    if not isinstance(text, str):
        raise TextError(f"The text is of type {type(text).__name__}, expected str.")
    if len(text) > MAX_TEXT_CHARS:
        raise TextError(f"The text has {len(text)} characters, at most {MAX_TEXT_CHARS} are read. Split it.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TextError(
            f"The text is not valid Unicode: a lone surrogate (U+{ord(text[error.start]):04X}) at "
            f"character {error.start}. It was read with a wrong encoding; read it as UTF-8."
        ) from None
    return text


class TextTokenizer:
    """Qwen's byte-level BPE without added tokens. Safe to use from several threads.

    The library's regular expressions take more than half of its time, 0.16 ms for 200 characters on a server. A text of
    ASCII alone is split by Python's, and the ids of its words are remembered."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._size = len(vocabulary.tokens)
        try:
            tokenizer = Tokenizer(models.BPE(vocab=vocabulary.tokens, merges=vocabulary.merges))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"The vocabulary cannot be used: {shortened(error)}.") from error
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        self._tokenizer = tokenizer
        self._words: dict[str, list[int]] = {}

    @classmethod
    def from_folder(cls, folder: str | Path) -> "TextTokenizer":
        """Reads a checkpoint's vocab.json + merges.txt, or its tokenizer.json; TokenizerError if they are unusable."""
        return cls(read_vocabulary(folder))

    def __len__(self) -> int:
        """Entries of the vocabulary; every id that encode() returns is below."""
        return self._size

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, taken literally: no special tokens, no stripping. TextError if it is not valid text."""
        if checked_text(text).isascii():
            known, found = self._words, list[int]()
            words = ASCII_PATTERN.findall(text)
            try:
                for word in words:
                    found += known[word]
            except KeyError:
                return self._learn(text, words)
            return found
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _learn(self, text: str, words: list[str]) -> list[int]:
        """Ids of a text of ASCII, whose words are remembered."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[list[int]] = [[] for _ in words]
        for token, word in zip(encoded.ids, encoded.word_ids, strict=True):
            if word is not None:  # None: special tokens, of which there are none
                ids[word].append(token)
        if len(self._words) + len(words) > KEPT_WORDS:
            self._words.clear()
        short = ((word, tokens) for word, tokens in zip(words, ids, strict=True) if len(word) <= KEPT_CHARS)
        self._words.update(itertools.islice(short, KEPT_WORDS))
        found: list[int] = encoded.ids
        return found

    def normalize(self, text: str) -> str:
        """NFC as encode() does it: the library's Unicode version may differ from Python's."""
        normal: str = self._tokenizer.normalizer.normalize_str(text)
        return normal

    def words(self, text: str) -> list[tuple[int, list[int]]]:
        """The pre-tokens of an NFC-normalized text: (end as a character offset, token ids). No token crosses one."""
        spans: list[tuple[str, tuple[int, int]]] = self._tokenizer.pre_tokenizer.pre_tokenize_str(checked_text(text))
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        words: list[tuple[int, list[int]]] = [(end, []) for _, (_, end) in spans]
        for token, word in zip(encoded.ids, encoded.word_ids, strict=True):
            if word is not None:  # None: special tokens, of which there are none
                words[word][1].append(token)
        return words


@dataclass(frozen=True)
class ChatTemplate:
    """The turns that the models were trained on, as ids:

    speech:   <|im_start|>assistant\\n{text}<|im_end|>\\n<|im_start|>assistant\\n
    instruct: <|im_start|>user\\n{instruct}<|im_end|>\\n
    """

    tokenizer: TextTokenizer
    im_start_id: int
    im_end_id: int

    @classmethod
    def from_config(cls, config: ModelConfig, tokenizer: TextTokenizer) -> "ChatTemplate":
        """Checks that config and vocabulary belong together; TokenizerError if not.

        Roles and body are found at fixed offsets, which needs "assistant" and the newline to be one token each.
        """
        opening = tokenizer.encode("assistant\n")
        if len(opening) != 2 or opening[0] != config.assistant_id or tokenizer.encode("\n") != opening[1:]:
            raise TokenizerError(
                f'The vocabulary spells "assistant\\n" as {opening}; config.json expects '
                f"assistant_token_id {config.assistant_id} and one token for the newline. The "
                "tokenizer files and config.json are of different models."
            )
        rows = config.talker.text_vocab_size
        if len(tokenizer) > rows:
            raise TokenizerError(
                f"The vocabulary has {len(tokenizer)} entries, the text embedding only {rows} rows. "
                "The tokenizer files and config.json are of different models."
            )
        return cls(tokenizer, config.im_start_id, config.im_end_id)

    def speech_ids(self, text: str) -> list[int]:
        """The turn that is to be spoken. For a text without leading newlines: ids[:3] are the role, ids[3:-5] the body.

        The text is taken as it is; clean_text() it first, unless the official package's treatment of blank space is
        what is wanted: there leading newlines change the role's third token.
        """
        return [self.im_start_id, *self.tokenizer.encode("assistant\n" + text), *self._closing]

    @functools.cached_property
    def _closing(self) -> tuple[int, ...]:
        encode = self.tokenizer.encode
        return self.im_end_id, *encode("\n"), self.im_start_id, *encode("assistant\n")

    def instruct_ids(self, instruct: str) -> list[int]:
        """The turn that describes how to speak; it comes before the other."""
        encode = self.tokenizer.encode
        return [self.im_start_id, *encode("user\n" + instruct), self.im_end_id, *encode("\n")]
