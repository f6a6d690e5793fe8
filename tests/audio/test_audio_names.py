"""Names of files at the limits of the file system, and files that appear together."""

import os
from pathlib import Path

import numpy as np
import pytest

from qwen3tts.audio.atomic import Batch, replacing
from qwen3tts.audio.files import check_audio_path, write_audio
from qwen3tts.errors import AudioError

SAMPLES = np.linspace(-0.5, 0.5, 2400, dtype=np.float32)


@pytest.mark.parametrize("letter", ["a", "é", "语", "🎤"])
@pytest.mark.parametrize("extension", [".wav", ".flac", ".ogg"])
def test_longest_names(tmp_path: Path, letter: str, extension: str) -> None:
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") - len(extension)
    path = tmp_path / (letter * (longest // len(letter.encode())) + extension)
    write_audio(path, SAMPLES, 24000)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(AudioError, match="too long"):
        check_audio_path(tmp_path / (letter * longest + extension + ".wav"))


@pytest.mark.parametrize(
    ("name", "message"), [("a\udcfc.wav", "not valid UTF-8"), ("a\0.wav", "NUL"), ("\ud800.wav", "not valid UTF-8")]
)
def test_names_that_are_none(tmp_path: Path, name: str, message: str) -> None:
    for call in (lambda path: check_audio_path(path), lambda path: write_audio(path, SAMPLES, 24000)):
        with pytest.raises(AudioError, match=message):
            call(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_clearing_away_does_not_hide_what_went_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def write() -> None:
        with replacing(folder / "a.wav") as temporary:
            temporary.mkdir()  # cannot be unlinked
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()


def test_largest_gain(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav", SAMPLES * np.float32(4), 24000, gain=float(np.finfo(np.float32).max))
    assert (tmp_path / "a.wav").is_file()


def test_files_of_a_batch_appear_together(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"old")
    with Batch() as batch:
        for name in "ab":
            with replacing(tmp_path / name, batch) as temporary:
                temporary.write_bytes(name.encode())
            assert not (tmp_path / "a").exists()
            assert (tmp_path / "b").read_bytes() == b"old"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"a", "b": b"b"}


@pytest.mark.parametrize("error", [AudioError("full"), KeyboardInterrupt(), ZeroDivisionError()])
def test_a_batch_that_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "b").write_bytes(b"old")

    def write() -> None:
        with Batch() as batch:
            for name in "ab":
                with replacing(tmp_path / name, batch) as temporary:
                    temporary.write_bytes(b"new")
            with replacing(tmp_path / "c", batch) as temporary:
                temporary.write_bytes(b"half")
                raise error

    with pytest.raises(type(error)):
        write()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"b": b"old"}


def test_a_batch_whose_last_file_cannot_take_its_name(tmp_path: Path) -> None:
    def write() -> None:
        with Batch() as batch:
            for name in "ab":
                with replacing(tmp_path / name, batch) as temporary:
                    temporary.write_bytes(b"new")
            (tmp_path / "b").mkdir()

    with pytest.raises(AudioError, match="cannot write .*b'"):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
