"""Vocabulary files in every spelling, and every kind of damage."""

import json
import random
import shutil

import pytest

from qwen3tts.errors import TokenizerError
from qwen3tts.text.tokenizer import TextTokenizer
from qwen3tts.text.vocabulary import byte_alphabet, read_vocabulary

TEXT = "Hello world, the user and the assistant. 你好\n"


@pytest.fixture
def folder(tmp_path, mini_vocabulary_folder):
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(mini_vocabulary_folder / name, tmp_path / name)
    return tmp_path


def read(folder):
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merges = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    return vocab, merges


def write(folder, vocab, merges):
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")


def write_tokenizer_json(folder, model, **others):
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, **others}), encoding="utf-8")
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink(missing_ok=True)


def refused(folder, match):
    with pytest.raises(TokenizerError, match=match):
        TextTokenizer.from_folder(folder)


def test_byte_alphabet():
    chars = byte_alphabet()
    assert len(set(chars)) == 256
    assert chars[ord(" ")] == "Ġ"
    assert chars[ord("\n")] == "Ċ"
    assert all(char.isprintable() and not char.isspace() for char in chars)


@pytest.mark.parametrize("change", [
    lambda text: "#version: 0.2\n" + text,
    lambda text: text.replace("\n", "\r\n"),
    lambda text: text.rstrip("\n"),
    lambda text: text + "\n\n",
])  # fmt: skip
def test_spellings_of_merges(change, folder, mini_tokenizer):
    path = folder / "merges.txt"
    path.write_bytes(change(path.read_text(encoding="utf-8")).encode())
    assert TextTokenizer.from_folder(folder).encode(TEXT) == mini_tokenizer.encode(TEXT)


@pytest.mark.parametrize("spelling", ["strings", "pairs"])
def test_tokenizer_json(spelling, folder, mini_tokenizer):
    vocab, merges = read(folder)
    added = [{"id": len(vocab), "content": "Hello", "special": True}]
    pairs = merges if spelling == "strings" else [merge.split(" ") for merge in merges]
    write_tokenizer_json(folder, {"type": "BPE", "vocab": vocab, "merges": pairs}, added_tokens=added)
    tokenizer = TextTokenizer.from_folder(folder)
    assert len(tokenizer) == 294
    assert tokenizer.encode(TEXT) == mini_tokenizer.encode(TEXT)


def test_added_tokens_in_the_vocabulary_are_not_parsed(folder, mini_tokenizer):
    vocab, merges = read(folder)
    for token in ("<|endoftext|>", "<|im_start|>", "<tts_pad>"):
        vocab[token] = len(vocab)
    write(folder, vocab, merges)
    assert TextTokenizer.from_folder(folder).encode("a<|im_start|>b") == mini_tokenizer.encode("a<|im_start|>b")


def test_merge_order_is_kept(folder):
    vocab, merges = read(folder)
    random.Random(5).shuffle(merges)
    write(folder, vocab, merges)
    assert read_vocabulary(folder).merges == [tuple(merge.split(" ")) for merge in merges]


@pytest.mark.parametrize("gone", [["vocab.json"], ["merges.txt"], ["vocab.json", "merges.txt"]])
def test_missing_files(gone, folder):
    for name in gone:
        (folder / name).unlink()
    refused(folder, f"no {' and no '.join(gone)} and no tokenizer.json")


def test_missing_folder(tmp_path):
    refused(tmp_path / "nowhere", "no vocab.json")


@pytest.mark.parametrize(
    ("name", "data", "match"),
    [
        ("vocab.json", b"", "vocab.json: not valid JSON"),
        ("vocab.json", b'{"a": 0', "vocab.json: not valid JSON"),
        ("vocab.json", b'{"a": 0, "a": 1}', "vocab.json: not valid JSON: a key is there twice: 'a'"),
        ("vocab.json", b"[" * 100_000, "vocab.json: not valid JSON"),
        ("vocab.json", b'{"\xff": 0}', "vocab.json: not UTF-8 at byte 2"),
        ("vocab.json", b"[1, 2]", "vocab.json: expected a JSON object"),
        ("vocab.json", b"{}", "vocab.json: expected a JSON object"),
        ("vocab.json", b'{"a": "0"}', "vocab.json: the id of 'a' is '0'"),
        ("vocab.json", b'{"a": true}', "vocab.json: the id of 'a' is True"),
        ("vocab.json", b'{"a": 0.5}', "vocab.json: the id of 'a' is 0.5"),
        ("vocab.json", b'{"a": 0}', "vocab.json: 255 of the 256 bytes have no entry"),
        ("merges.txt", b"a b\nc\n", "merges.txt: line 2: 'c' is not a merge"),
        ("merges.txt", b"a  b\n", "merges.txt: line 1: 'a  b' is not a merge"),
        ("merges.txt", b"a b c\n", "merges.txt: line 1"),
        ("merges.txt", b"\xc3\n", "merges.txt: not UTF-8 at byte 0"),
        ("merges.txt", b"u s\nq q\n", "merges.txt: the merge 'q q' needs 'qq'"),
        ("merges.txt", b"u s\nus e\nu s\n", "merges.txt: the merge 'u s' is there twice"),
        ("merges.txt", b"", "merges.txt: no merge makes 38 entries of vocab.json, for example 'as'"),
    ],
)
def test_damaged_files(name, data, match, folder):
    (folder / name).write_bytes(data)
    refused(folder, match)


def test_truncated_merges(folder):
    vocab, merges = read(folder)
    for keep in range(len(merges)):
        write(folder, vocab, merges[:keep])
        refused(folder, r"merges.txt: no merge makes \d+ entries.*cut short")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda vocab: vocab.update(a=vocab["b"]), "id 65 is there twice"),
        (lambda vocab: vocab.update(a=9999), "the highest is 9999"),
        (lambda vocab: vocab.update(a=-1), "are not 0..293"),
        (lambda vocab: vocab.update(zz=vocab.pop("a")), "1 of the 256 bytes have no entry, the first is 0x61"),
    ],
)
def test_ids_and_bytes(change, match, folder):
    vocab, merges = read(folder)
    change(vocab)
    write(folder, vocab, merges)
    refused(folder, f"vocab.json: .*{match}")


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (None, 'no object "model"'),
        ({"type": "Unigram", "vocab": {}, "merges": []}, "model.type is 'Unigram'"),
        ({"type": "BPE", "merges": []}, "model.vocab expected a JSON object"),
        ({"type": "BPE", "vocab": {"a": 0}}, "model.merges: expected a list"),
        ({"type": "BPE", "vocab": {"a": 0}, "merges": ["a b", 5]}, r"model.merges\[1\]: '5' is not a merge"),
        ({"type": "BPE", "vocab": {"a": 0}, "merges": [["a", 1]]}, r"model.merges\[0\]"),
        ({"type": "BPE", "vocab": {"a": 0}, "merges": []}, "255 of the 256 bytes"),
    ],
)
def test_damaged_tokenizer_json(model, match, folder):
    write_tokenizer_json(folder, model)
    refused(folder, f"tokenizer.json: ?.*{match}")
