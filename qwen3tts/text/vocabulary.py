"""The vocabulary files of a checkpoint, read and checked: vocab.json + merges.txt, or tokenizer.json.

A damaged vocabulary would not crash, it would speak something else. So everything that can be checked is: the ids are
0..n-1, all 256 bytes are there, each merge joins entries into an entry, and each entry is reached by some merge (a
merges.txt that was cut short fails here).
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qwen3tts.errors import TokenizerError, shortened
from qwen3tts.regular_file import open_regular

_T = TypeVar("_T")

VOCAB_FILE = "vocab.json"
MERGES_FILE = "merges.txt"
TOKENIZER_FILE = "tokenizer.json"

_MAX_FILE_BYTES = 128 << 20
"""the released files have 2.8 and 1.7 MB; a tokenizer.json about 11 MB"""


@dataclass(frozen=True)
class Vocabulary:
    """Byte-level BPE entries and their merges, in order of rank."""

    tokens: dict[str, int]
    """entry, in the byte alphabet -> id 0..n-1"""
    merges: list[tuple[str, str]]


def byte_alphabet() -> list[str]:
    """The printable character that stands for each of the 256 bytes in byte-level BPE (GPT-2's table).

    Printable Latin-1 stands for itself; the other bytes take U+0100, U+0101, ... in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def read_vocabulary(folder: str | Path) -> Vocabulary:
    """Reads vocab.json + merges.txt, or tokenizer.json where one of the two is missing.

    Raises TokenizerError, which names the file, for everything that is missing or damaged.
    """
    folder = Path(folder)
    vocab_path, merges_path, tokenizer_path = (folder / name for name in (VOCAB_FILE, MERGES_FILE, TOKENIZER_FILE))
    # A pipe, a folder or a link to nowhere is an error when it is opened, no reason to read another file.
    if os.path.lexists(vocab_path) and os.path.lexists(merges_path):
        tokens = _tokens(_read_json(vocab_path), vocab_path)
        merges = _merges_of_lines(_read_text(merges_path), merges_path)
        sources = (vocab_path, merges_path)
    elif os.path.lexists(tokenizer_path):
        model = _bpe_model(_read_json(tokenizer_path), tokenizer_path)
        tokens = _tokens(model.get("vocab"), tokenizer_path, " model.vocab")
        merges = _merges_of_json(model.get("merges"), tokenizer_path)
        sources = (tokenizer_path, tokenizer_path)
    else:
        missing = [path.name for path in (vocab_path, merges_path) if not os.path.lexists(path)]
        raise TokenizerError(
            f"{folder}: no {' and no '.join(missing)} and no {TOKENIZER_FILE}. A checkpoint needs {VOCAB_FILE} with "
            f"{MERGES_FILE}, or {TOKENIZER_FILE}: download it again."
        )
    _check_tokens(tokens, sources[0])
    _check_merges(tokens, merges, *sources)
    return Vocabulary(tokens, merges)


# ---------------------------------------------------------------- files


def _read_text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise TokenizerError(f"{path}: more than the {_MAX_FILE_BYTES} bytes that a vocabulary file has at most.")
        return data.decode("utf-8")
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: not UTF-8 at byte {error.start}. It is damaged: download it again.") from None


def _read_json(path: Path) -> object:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError(f"a key is there twice: {_first_duplicate(key for key, _ in pairs)!r}")
        return table

    text = _read_text(path)
    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not valid JSON: {shortened(error)}. It is damaged: download it again.") from None


def _bpe_model(document: object, path: Path) -> dict[str, Any]:
    """The "model" of a tokenizer.json. Its added tokens, normalizer and splitting are not used."""
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict):
        raise TokenizerError(f'{path}: no object "model".')
    if model.get("type", "BPE") != "BPE":
        raise TokenizerError(f"{path}: model.type is {model['type']!r}, expected 'BPE'.")
    return model


def _tokens(value: object, path: Path, key: str = "") -> dict[str, int]:
    if not isinstance(value, dict) or not value:
        raise TokenizerError(f"{path}:{key} expected a JSON object of entries and their ids.")
    for token, number in value.items():
        if type(number) is not int:
            raise TokenizerError(f"{path}:{key} the id of {token!r} is {number!r}, expected a whole number.")
    return value


def _merges_of_lines(text: str, path: Path) -> list[tuple[str, str]]:
    """One merge a line, its halves separated by one space. Entries may hold any other character, so only \\n ends a
    line (\\r stands in no entry: it comes from a conversion)."""
    lines = text.split("\n")
    first = 1 if lines[0].startswith("#version") else 0
    merges = []
    for number, line in enumerate(lines[first:], first + 1):
        line = line.removesuffix("\r")
        if line:
            merges.append(_pair(line, f"{path}: line {number}"))
    return merges


def _merges_of_json(value: object, path: Path) -> list[tuple[str, str]]:
    """Both spellings: "a b" and ["a", "b"]."""
    if not isinstance(value, list):
        raise TokenizerError(f"{path}: model.merges: expected a list.")
    merges = []
    for index, item in enumerate(value):
        if isinstance(item, list) and len(item) == 2 and all(isinstance(half, str) for half in item):
            merges.append((item[0], item[1]))
        else:
            merges.append(_pair(item, f"{path}: model.merges[{index}]"))
    return merges


def _pair(item: object, where: str) -> tuple[str, str]:
    halves = item.split(" ") if isinstance(item, str) else []
    if len(halves) != 2 or not all(halves):
        raise TokenizerError(f"{where}: {str(item)[:60]!r} is not a merge: expected two entries separated by a space.")
    return halves[0], halves[1]


# ---------------------------------------------------------------- checks


def _check_tokens(tokens: dict[str, int], path: Path) -> None:
    if set(tokens.values()) != set(range(len(tokens))):
        twice = _first_duplicate(tokens.values())
        what = f"id {twice} is there twice" if twice is not None else f"the highest is {max(tokens.values())}"
        raise TokenizerError(f"{path}: the ids of the {len(tokens)} entries are not 0..{len(tokens) - 1}: {what}.")
    missing = [byte for byte, char in enumerate(byte_alphabet()) if char not in tokens]
    if missing:
        raise TokenizerError(f"{path}: {len(missing)} of the 256 bytes have no entry, the first is 0x{missing[0]:02x}.")


def _check_merges(tokens: dict[str, int], merges: list[tuple[str, str]], vocab_path: Path, merges_path: Path) -> None:
    twice = _first_duplicate(merges)
    if twice is not None:
        raise TokenizerError(f"{merges_path}: the merge {' '.join(twice)!r} is there twice.")
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in tokens:
                raise TokenizerError(
                    f"{merges_path}: the merge {left + ' ' + right!r} needs {token!r}, "
                    f"which is no entry of {vocab_path.name}. The files do not belong together."
                )
    reached = {left + right for left, right in merges}
    reached.update(byte_alphabet())
    # Some conversions write the added tokens (<|im_end|>, <tts_pad>, ...) into the vocabulary too; no text yields them.
    lost = [token for token in tokens.keys() - reached if not (token.startswith("<") and token.endswith(">"))]
    if lost:
        raise TokenizerError(
            f"{merges_path}: no merge makes {len(lost)} entries of {vocab_path.name}, for example "
            f"{min(lost, key=tokens.__getitem__)!r}. The file is cut short, or belongs to another "
            "vocabulary: download it again."
        )


def _first_duplicate(items: Iterable[_T]) -> _T | None:
    seen: set[_T] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None
