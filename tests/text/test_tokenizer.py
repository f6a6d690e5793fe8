"""The tokenizer against stored ids of the reference tokenizer and against a slow one written out here."""

import json
import random
import threading
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwen3tts.errors import TextError
from qwen3tts.text import tokenizer as tokenizer_module
from qwen3tts.text.tokenizer import ASCII_PATTERN, KEPT_CHARS, MAX_TEXT_CHARS, TextTokenizer

CASES = json.loads(Path(__file__).with_name("tokenizer_cases.json").read_text(encoding="utf-8"))
PLAIN_CASES = [case for case in CASES if case["note"] != "special tokens, parsed"]
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

VALID_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
POOL = [
    *"abcdefgstvmlrABCDREST", *"éüñßçÅ", *"中文的是", *"かなカナ", *"한국어", *"Привет", *"สวัสดี", *"مرحبا",
    *"0123٣", *"'''''.,!?-_()#<>|", *"     \n\n\r\t", "\u00a0", "\u3000", "\u200b", "\u0301", "\u0323", "🎉", "👩‍🚀",
    "\u2019", "Hello", "assistant", " world", "'LL", "'re",
]  # fmt: skip


class SlowTokenizer:
    """Byte-level BPE from the definition: split by hand, then join the best-ranked pair until none is left."""

    def __init__(self, folder: Path) -> None:
        self.vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        self.rank = {tuple(line.split(" ")): i for i, line in enumerate(lines) if line}
        self.char = {}
        for byte in range(256):
            shown = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
            self.char[byte] = chr(byte) if shown else chr(256 + sum(1 for c in self.char.values() if ord(c) > 255))
        self.byte = {char: byte for byte, char in self.char.items()}
        self.token = {number: token for token, number in self.vocab.items()}

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in split(unicodedata.normalize("NFC", text)):
            parts = [self.char[byte] for byte in word.encode()]
            while len(parts) > 1:
                rank, at = min((self.rank.get(pair, 1 << 30), i) for i, pair in enumerate(pairwise(parts)))
                if rank == 1 << 30:
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            ids += [self.vocab[part] for part in parts]
        return ids

    def decode(self, ids: list[int]) -> str:
        return bytes(self.byte[char] for i in ids for char in self.token[i]).decode()


def split(text: str) -> list[str]:
    """Qwen's splitting pattern, alternative by alternative, without a regular expression."""
    words, i = [], 0
    while i < len(text):
        end = contraction(text, i) or letters(text, i) or number(text, i) or punctuation(text, i) or spaces(text, i)
        words.append(text[i:end])
        i = end
    return words


def is_letter(char):
    return unicodedata.category(char)[0] == "L"


def is_number(char):
    return unicodedata.category(char)[0] == "N"


def run(text, i, wanted):
    while i < len(text) and wanted(text[i]):
        i += 1
    return i


def contraction(text, i):
    for tail in ("s", "t", "re", "ve", "m", "ll", "d"):
        if text[i] == "'" and text[i + 1 : i + 1 + len(tail)].lower() == tail:
            return i + 1 + len(tail)
    return None


def letters(text, i):
    start = i + (text[i] not in "\r\n" and not is_letter(text[i]) and not is_number(text[i]))
    end = run(text, start, is_letter)
    return end if end > start else None


def number(text, i):
    return i + 1 if is_number(text[i]) else None


def punctuation(text, i):
    start = i + (text[i] == " ")
    end = run(text, start, lambda char: not char.isspace() and not is_letter(char) and not is_number(char))
    return run(text, end, lambda char: char in "\r\n") if end > start else None


def spaces(text, i):
    end = run(text, i, str.isspace)
    newline = max(text.rfind("\n", i, end), text.rfind("\r", i, end))
    if newline >= 0:
        return newline + 1
    return end if end == len(text) or end == i + 1 else end - 1  # the last space stays with the next word


@pytest.fixture(scope="module")
def real_reference(real_vocabulary_folder):
    return SlowTokenizer(real_vocabulary_folder)


@pytest.fixture(scope="module")
def mini_reference(mini_vocabulary_folder):
    return SlowTokenizer(mini_vocabulary_folder)


def test_case_file_is_whole():
    assert len(CASES) == 60
    assert len(PLAIN_CASES) == 59


@pytest.mark.parametrize("case", PLAIN_CASES, ids=lambda case: case["note"])
def test_stored_cases(case, real_tokenizer, mini_tokenizer):
    assert real_tokenizer.encode(case["text"]) == case["ids"]
    assert mini_tokenizer.encode(case["text"]) == case["ids_tiny"]


def test_special_tokens_in_a_text_are_spelled_out(real_tokenizer, mini_tokenizer, real_reference, mini_reference):
    case = CASES[-1]
    assert case["note"] == "special tokens, parsed"
    for tokenizer, reference in ((real_tokenizer, real_reference), (mini_tokenizer, mini_reference)):
        ids = tokenizer.encode(case["text"])
        assert max(ids) < len(tokenizer) == len(reference.vocab)  # the added tokens' ids start there
        assert reference.decode(ids) == case["text"]
        assert ids == reference.encode(case["text"])
    assert len(real_tokenizer) == 151643


@pytest.mark.parametrize("seed", range(4))
def test_equals_slow_tokenizer(seed, real_tokenizer, mini_tokenizer, real_reference, mini_reference):
    rng = random.Random(seed)
    for _ in range(100):
        text = "".join(rng.choice(POOL) for _ in range(rng.randrange(1, 40)))
        assert real_tokenizer.encode(text) == real_reference.encode(text), (seed, text)
        assert mini_tokenizer.encode(text) == mini_reference.encode(text), (seed, text)


@FUZZ
@given(text=VALID_TEXT)
def test_bytes_come_back_in_nfc(text, real_tokenizer, real_reference):
    ids = real_tokenizer.encode(text)
    assert all(0 <= i < len(real_tokenizer) for i in ids)
    assert real_reference.decode(ids) == unicodedata.normalize("NFC", text)


@FUZZ
@given(text=VALID_TEXT)
def test_speech_body_is_the_text(text, template, mini_tokenizer):
    text = text.strip()
    ids = template.speech_ids(text)
    assert ids[:3] == [295, 263, 104]
    assert ids[3:-5] == mini_tokenizer.encode(text)
    assert ids[-5:] == [296, 104, 295, 263, 104]


def test_threads_share_a_tokenizer(real_tokenizer):
    wrong = []

    def work():
        for case in PLAIN_CASES:
            if real_tokenizer.encode(case["text"]) != case["ids"]:
                wrong.append(case["note"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff"])
def test_lone_surrogates_are_refused(text, mini_tokenizer):
    with pytest.raises(TextError, match=r"lone surrogate \(U\+D"):
        mini_tokenizer.encode(text)


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["a"]])
def test_only_strings_are_text(text, mini_tokenizer):
    with pytest.raises(TextError, match="expected str"):
        mini_tokenizer.encode(text)


def test_endless_text_is_refused_before_tokenizing(mini_tokenizer):
    assert len(mini_tokenizer.encode("a" * 1000)) == 1000
    with pytest.raises(TextError, match="at most 1000000"):
        mini_tokenizer.encode("a" * (MAX_TEXT_CHARS + 1))


PIECES = [
    *map(chr, range(128)), "'", "'ll", "'RE", "'d", "  ", "\n\n", " \r\n ", "\x0b", "\x0c", "\x1c", "\x1f", "word",
    " and", "A", "7", "..", "x" * 40,
]  # fmt: skip


def library_ids(tokenizer, text):
    return tokenizer._tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kept", [1 << 16, 50])
def test_words_of_ascii_are_those_of_the_library(kept, seed, real_vocabulary_folder, monkeypatch):
    """Whatever was remembered before, and however often it is forgotten."""
    print(f"seed {seed}")
    monkeypatch.setattr(tokenizer_module, "KEPT_WORDS", kept)
    tokenizer, rng = TextTokenizer.from_folder(real_vocabulary_folder), random.Random(seed)
    for _ in range(3000):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 12)))
        want = library_ids(tokenizer, text)
        assert "".join(ASCII_PATTERN.findall(text)) == text
        for _ in range(2):
            ids = tokenizer.encode(text)
            assert ids == want, repr(text)
            ids.clear()  # a caller's list is its own
    assert 0 < len(tokenizer._words) <= kept
    assert max(map(len, tokenizer._words)) <= KEPT_CHARS
