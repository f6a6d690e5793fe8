"""Files that are no files, and headers and tables that are far too large, are refused at once.

A hang or a quadratic loop shows as the limit of the subprocess; what is quick takes milliseconds.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qwen3tts.checkpoint import open_checkpoint
from qwen3tts.checkpoint.generation_config import read_generation_config
from qwen3tts.checkpoint.safetensors_file import MAX_HEADER_BYTES, MAX_TENSORS, SafetensorsFile
from qwen3tts.errors import CheckpointError, ConfigError, WeightsError, nearest
from qwen3tts.regular_file import open_regular
from qwen3tts.text.vocabulary import read_vocabulary

READ_ALL = """
import sys
from qwen3tts.checkpoint import open_checkpoint
from qwen3tts.errors import Qwen3TTSError
from qwen3tts.text.vocabulary import read_vocabulary
for folder in sys.argv[1:]:
    try:
        checkpoint = open_checkpoint(folder)
        checkpoint.model_weights().close()
        checkpoint.codec_weights().close()
        read_vocabulary(folder)
    except Qwen3TTSError as error:
        print(error)
"""
FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
    "vocab.json",
    "merges.txt",
]


def read_all(*folders: Path) -> list[str]:
    """The error of each folder, from a process that may take a minute."""
    command = [sys.executable, "-c", READ_ALL, *map(str, folders)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


@pytest.fixture
def copy(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> Path:
    return Path(shutil.copytree(tiny_checkpoint(), tmp_path / "copy"))


def test_named_pipes(tmp_path: Path, copy: Path) -> None:
    folders = [Path(shutil.copytree(copy, tmp_path / str(i), copy_function=os.link)) for i in range(len(FILES))]
    for folder, name in zip(folders, FILES, strict=True):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    for message, name in zip(read_all(*folders), FILES, strict=True):
        assert name in message
        assert "named pipe, expected a regular file" in message


def read_here(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    checkpoint.model_weights().close()
    checkpoint.codec_weights().close()
    read_vocabulary(folder)


@pytest.mark.parametrize("name", FILES)
def test_folder_and_device(copy: Path, name: str) -> None:
    (copy / name).unlink()
    (copy / name).mkdir()
    with pytest.raises(CheckpointError, match="a folder, expected a regular file") as raised:
        read_here(copy)
    assert name in str(raised.value)
    (copy / name).rmdir()
    (copy / name).symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="a device, expected a regular file"):
        read_here(copy)


def test_link_to_a_regular_file_is_fine(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"abc"


def test_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").symlink_to("gone")
    with pytest.raises(ConfigError, match="link to a file that is not there"):
        read_generation_config(tmp_path)


def header_file(path: Path, header: bytes) -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def entries(count: int) -> bytes:
    return json.dumps({f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(count)}).encode()


def test_number_of_tensors(tmp_path: Path) -> None:
    assert len(SafetensorsFile(header_file(tmp_path / "most", entries(MAX_TENSORS))).entries) == MAX_TENSORS
    with pytest.raises(WeightsError, match=f"{MAX_TENSORS + 1} tensors, expected at most {MAX_TENSORS}"):
        SafetensorsFile(header_file(tmp_path / "more", entries(MAX_TENSORS + 1)))
    with pytest.raises(WeightsError, match=f"expected at most {MAX_HEADER_BYTES}"):
        SafetensorsFile(header_file(tmp_path / "large", b"{}" + b" " * MAX_HEADER_BYTES))


def test_duplicate_after_very_many_keys(copy: Path) -> None:
    keys = [f'"{i:x}":0' for i in range(600_000)] + ['"927bf":0']
    header_file(copy / "model.safetensors", f"{{{','.join(keys)}}}".encode())
    assert "'927bf' is there twice" in read_all(copy)[0]


def test_hints_look_at_a_bounded_number_of_names() -> None:
    drawn = 0

    def names() -> object:
        nonlocal drawn
        for i in range(10**6):
            drawn += 1
            yield f"name{i}"

    assert nearest("nam3", names()) == " Did you mean 'name3'?"  # type: ignore[arg-type]
    assert drawn < 10_000
    assert nearest("x" * 10**6, ["x" * 10**6]) == ""
    assert nearest("name", ["x" * 10**6, "names"]) == " Did you mean 'names'?"
