"""Fixtures that several packages' tests share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_vocabulary_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the released vocab.json and merges.txt, converted from the dashscope wheel."""
    from qwen3tts.synthetic.tokenizer_files import check_released, real_vocabulary, write_tokenizer

    wheel = os.environ.get("QWEN3TTS_DASHSCOPE_WHEEL", "")
    if not Path(wheel).is_file():
        pytest.fail(
            f"QWEN3TTS_DASHSCOPE_WHEEL is {wheel!r}, no file. It must name the wheel that the real vocabulary is taken "
            "from: pip download --no-deps dashscope==2.0.2"
        )
    folder = tmp_path_factory.mktemp("real_vocabulary")
    write_tokenizer(folder, real_vocabulary(Path(wheel)))
    check_released(folder)
    return folder


@pytest.fixture(scope="session")
def mini_vocabulary_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the vocabulary of the tiny checkpoints: bytes and a few words."""
    from qwen3tts.synthetic.tokenizer_files import mini_vocabulary, write_tokenizer

    folder = tmp_path_factory.mktemp("mini_vocabulary")
    write_tokenizer(folder, mini_vocabulary())
    return folder
