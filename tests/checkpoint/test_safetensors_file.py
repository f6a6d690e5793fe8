"""Damaged and hostile weight files give a WeightsError; sound ones equal what the safetensors library reads."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from qwen3tts.checkpoint import TensorReader, open_checkpoint
from qwen3tts.errors import WeightsError

Header = dict[str, Any]


def sample() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "a": torch.randn(3, 5, generator=generator),
        "b": torch.randn(7, generator=generator).bfloat16(),
        "c": torch.randn(2, 2, 2, generator=generator).half(),
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 4),
    }


def parts(folder: Path) -> tuple[Header, bytes]:
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write(folder: Path, header: Header | bytes, data: bytes, length: int | None = None) -> None:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = struct.pack("<Q", len(head) if length is None else length) + head + data
    (folder / "model.safetensors").write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    safetensors.torch.save_file(sample(), tmp_path / "model.safetensors")
    return tmp_path


def test_equals_what_was_written(folder: Path) -> None:
    with TensorReader(folder) as reader:
        assert set(reader) == set(sample())
        for key, tensor in sample().items():
            assert (reader.shape(key), reader.dtype(key)) == (tuple(tensor.shape), tensor.dtype)
            assert torch.equal(reader.read(key), tensor)
            reader.forget(key)
            assert torch.equal(reader.read(key), tensor)


@pytest.mark.parametrize("spaces", range(1, 5))
def test_data_at_odd_addresses(folder: Path, spaces: int) -> None:
    header, data = parts(folder)
    write(folder, json.dumps(header).encode() + b" " * spaces, data)
    with TensorReader(folder) as reader:
        for key, tensor in sample().items():
            assert torch.equal(reader.read(key), tensor)


def test_view_outlives_the_reader_and_never_changes_the_file(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with TensorReader(folder) as reader:
        view = reader.read("a")
    assert torch.equal(view, sample()["a"])
    view.zero_()
    assert (folder / "model.safetensors").read_bytes() == before
    with pytest.raises(WeightsError, match="no tensor 'a'"):
        reader.read("a")


def test_unknown_key_gets_a_hint(tiny_checkpoint: Callable[..., Path]) -> None:
    with (
        open_checkpoint(tiny_checkpoint()).model_weights() as reader,
        pytest.raises(WeightsError, match=r"Did you mean 'talker\.codec_head\.weight'"),
    ):
        reader.read("talker.codec_head.weights")


def change(key: str, field: str, value: object) -> Callable[[Header], None]:
    return lambda header: header[key].__setitem__(field, value)


HOSTILE: list[tuple[str, Callable[[Header], object], str]] = [
    ("offset past the end", change("a", "data_offsets", [10**12, 10**12 + 60]), "gap|truncated"),
    ("negative offset", change("a", "data_offsets", [-60, 0]), "damaged offsets"),
    ("offsets swapped", change("a", "data_offsets", [60, 0]), "takes 60 bytes"),
    ("offset too large", change("a", "data_offsets", [2**64, 2**64 + 60]), "damaged offsets"),
    ("float offset", change("a", "data_offsets", [0.0, 60.0]), "damaged offsets"),
    ("one offset", change("a", "data_offsets", [0]), "damaged offsets"),
    ("overlap", lambda h: h.update(z=dict(h["a"])), "overlaps"),
    ("gap", lambda h: h.pop("a"), "gap|after the last"),
    ("shape too large", change("a", "shape", [3, 6]), "takes 72 bytes"),
    ("shape overflows", change("a", "shape", [2**62, 2**62, 2**62]), "takes"),
    ("shape wraps to the right size", change("a", "shape", [2**32, 2**32, 15]), "takes"),
    ("negative shape", change("a", "shape", [-3, -5]), "damaged shape"),
    ("boolean shape", change("a", "shape", [True, 15]), "damaged shape"),
    ("float shape", change("a", "shape", [3.0, 5]), "damaged shape"),
    ("shape is no list", change("a", "shape", "3x5"), "damaged shape"),
    ("very many dimensions", change("a", "shape", [1] * 100_000), "damaged shape"),
    ("unknown dtype", change("a", "dtype", "Q4_K"), "unknown dtype 'Q4_K'"),
    ("dtype is no string", change("a", "dtype", ["F32"]), "unknown dtype"),
    ("another size of dtype", change("a", "dtype", "F16"), "takes 30 bytes"),
    ("entry is no object", lambda h: h.update(a=3), "no object"),
    ("entry without dtype", lambda h: h["a"].pop("dtype"), "unknown dtype None"),
]


@pytest.mark.parametrize(("mutate", "message"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile_header(folder: Path, mutate: Callable[[Header], object], message: str) -> None:
    header, data = parts(folder)
    mutate(header)
    write(folder, header, data)
    with pytest.raises(WeightsError, match=message):
        TensorReader(folder)


@pytest.mark.parametrize(
    ("length", "message"),
    [(0, "asks for a header"), (1, "asks for a header"), (2**63, "asks for a header"), (10**8 + 1, "asks for a header"),
     (10**6, "truncated"), (10, "no JSON")],
)  # fmt: skip
def test_header_length(folder: Path, length: int, message: str) -> None:
    header, data = parts(folder)
    write(folder, header, data, length)
    with pytest.raises(WeightsError, match=message):
        TensorReader(folder)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
         "'a' is there twice"),
        (b"[1, 2]", "not an object"),
        (b'{"\xff": 1}', "no JSON"),
        (b'{"a":' + b"[" * 100_000, "no JSON"),
        (b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', "no JSON"),
    ],
)  # fmt: skip
def test_header_is_not_a_table(tmp_path: Path, header: bytes, message: str) -> None:
    write(tmp_path, header, b"\0\0\0\0")
    with pytest.raises(WeightsError, match=message):
        TensorReader(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x10\0\0", "too few"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
        (b"PK\x03\x04" + bytes(100), "PyTorch pickle"),
        (b"\x80\x02}q\x00X" + bytes(100), "pickle"),
        (b"GGUF\x03\0\0\0" + bytes(100), "GGUF"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"Entry not found, but in plain text", "not a safetensors file"),
    ],
)
def test_other_kinds_of_file(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        TensorReader(tmp_path)


def test_bytes_after_the_last_tensor(folder: Path) -> None:
    header, data = parts(folder)
    write(folder, header, data + b"\0\0")
    with pytest.raises(WeightsError, match="2 bytes after the last tensor"):
        TensorReader(folder)


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(WeightsError, match="cannot be read"):
        TensorReader(tmp_path)


def test_truncation_anywhere(tmp_path: Path, tiny_checkpoint: Callable[..., Path], seed: int) -> None:
    data = (tiny_checkpoint() / "model.safetensors").read_bytes()
    draw = random.Random(seed)
    print(f"seed {seed}")
    for size in [*range(12), len(data) - 1, *(draw.randrange(len(data)) for _ in range(60))]:
        (tmp_path / "model.safetensors").write_bytes(data[:size])
        with pytest.raises(WeightsError):
            TensorReader(tmp_path)


def test_flipped_header_bytes(tmp_path: Path, tiny_checkpoint: Callable[..., Path], seed: int) -> None:
    """A flip is either refused or harmless: the layout check passes only if nothing that counts has changed."""
    whole = (tiny_checkpoint() / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    for name in ("config.json", "speech_tokenizer"):
        (tmp_path / name).symlink_to(tiny_checkpoint() / name)
    draw, refused = random.Random(seed), 0
    print(f"seed {seed}")
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 2, 8))):
            data[draw.randrange(8 + length)] ^= 1 << draw.randrange(8)
        (tmp_path / "model.safetensors").write_bytes(data)
        try:
            with open_checkpoint(tmp_path).model_weights() as reader:
                for key in reader:
                    reader.read(key)
        except WeightsError:
            refused += 1
    assert refused > 120
