"""Tokenizer files of synthetic checkpoints: a byte-level mini vocabulary, or the real one from its rank file."""

import base64
import hashlib
import json
import zipfile
from pathlib import Path

from qwen3tts.errors import TokenizerError, shortened
from qwen3tts.text.vocabulary import byte_alphabet

ADDED_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>",
    "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>",
    "</tool_response>", "<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>",
    "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>",
]  # fmt: skip
NOT_SPECIAL = frozenset(ADDED_TOKENS[14:26])

RELEASED_SHA256 = {
    "vocab.json": "ca10d7e9fb3ed18575dd1e277a2579c16d108e32f27439684afa0e10b1440910",
    "merges.txt": "599bab54075088774b1733fde865d5bd747cbcc7a547c5bc12610e874e26f5e3",
}
"""The released checkpoints' vocabulary, which comes out byte for byte."""

_WHEEL_MEMBER = "dashscope/resources/qwen.tiktoken"

Vocabulary = tuple[dict[str, int], list[tuple[str, str]]]
"""token -> id, and the merges in order"""


def mini_vocabulary() -> Vocabulary:
    """256 bytes and a few words. "assistant" and "user" are single tokens, as the templates' fixed offsets need."""
    characters = byte_alphabet()
    order = sorted(range(256), key=lambda byte: (byte not in range(33, 127), byte))
    vocab = {characters[byte]: i for i, byte in enumerate(order)}
    merges = []
    for word in (
        "assistant",
        "user",
        "Ġthe",
        "Ġand",
        "Hello",
        "Ġworld",
        "ing",
        "Ġto",
        "Ġspe",
        "Ġvo",
        "ice",
        "er",
        "on",
    ):
        token = word[0]
        for character in word[1:]:
            if token + character not in vocab:
                merges.append((token, character))
                vocab[token + character] = len(vocab)
            token += character
    return vocab, merges


def real_vocabulary(path: Path) -> Vocabulary:
    """Reads the rank file qwen.tiktoken, or a dashscope wheel, which holds it. Raises TokenizerError."""
    try:
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                data = wheel.read(_WHEEL_MEMBER)
        else:
            data = path.read_bytes()
        return vocabulary_from_ranks(data)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        detail = shortened(error)
        raise TokenizerError(f"{path} is neither qwen.tiktoken nor a dashscope wheel with it: {detail}") from error


def vocabulary_from_ranks(data: bytes) -> Vocabulary:
    """Rank file -> vocabulary. A token's merge is the pair that BPE with only the lower ranks leaves of it."""
    ranks: dict[bytes, int] = {}
    for line in data.splitlines():
        encoded, number = line.split()
        ranks[base64.b64decode(encoded)] = int(number)
    by_rank = sorted(ranks.items(), key=lambda item: item[1])
    characters = byte_alphabet()

    def text(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    merges = []
    for token, rank in by_rank:
        if len(token) > 1:
            left, right = _last_pair(token, rank, ranks)
            merges.append((text(left), text(right)))
    return {text(token): rank for token, rank in by_rank}, merges


def _last_pair(token: bytes, rank: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(parts[i] + parts[i + 1], rank) for i in range(len(parts) - 1)]
        best = min(joined)
        if best >= rank:
            raise ValueError(f"the token of rank {rank} cannot be made of lower ones")
        at = joined.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def write_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    """Writes vocab.json, merges.txt and tokenizer_config.json."""
    vocab, merges = vocabulary
    text = json.dumps(vocab, ensure_ascii=False, separators=(",", ":"))
    (folder / "vocab.json").write_text(text, encoding="utf-8")
    (folder / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(len(vocab) + i): {"content": token, **flags, "special": token not in NOT_SPECIAL}
        for i, token in enumerate(ADDED_TOKENS)
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": ADDED_TOKENS[1:14] + ADDED_TOKENS[26:],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "processor_class": "Qwen3TTSProcessor",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copies the three files of another checkpoint. Raises TokenizerError."""
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        try:
            (folder / name).write_bytes((source / name).read_bytes())
        except FileNotFoundError as error:
            raise TokenizerError(f"{source} has no {name}; expected the folder of a checkpoint") from error


def check_released(folder: Path) -> None:
    """Raises TokenizerError unless the vocabulary is the released checkpoints'."""
    for name, wanted in RELEASED_SHA256.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != wanted:
            raise TokenizerError(f"{folder / name} is not the released vocabulary, which this preset needs")


def text_ids(folder: Path) -> dict[str, int]:
    """Ids that config.json names, and "vocab", the number of entries; from the files in `folder`."""
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    ids = {token: len(vocab) + i for i, token in enumerate(ADDED_TOKENS)}
    return {
        "vocab": len(vocab) + len(ADDED_TOKENS),
        "assistant": vocab["assistant"],
        "im_start": ids["<|im_start|>"],
        "im_end": ids["<|im_end|>"],
        "tts_pad": ids["<tts_pad>"],
        "tts_bos": ids["<tts_text_bos>"],
        "tts_eos": ids["<tts_text_eod>"],
    }
