"""Fixtures that several packages' tests share."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def package_logging() -> Iterator[None]:
    """The commands set the package's level for their process; a test that runs one in this process gives it back."""
    logger = logging.getLogger("qwen3tts")
    level = logger.level
    yield
    logger.setLevel(level)


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


@pytest.fixture(scope="session")
def seed() -> int:
    """A fresh seed for this run, printed; set QWEN3TTS_TEST_SEED to repeat one."""
    value = int(os.environ.get("QWEN3TTS_TEST_SEED", "") or int.from_bytes(os.urandom(4), "little"))
    print(f"\nQWEN3TTS_TEST_SEED={value}")
    return value


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny_checkpoint(model_type, preset="tiny", seed=0, eos_gain=0.5, override=None) -> folder, made once."""
    from qwen3tts.synthetic import make_checkpoint

    made: dict[str, Path] = {}

    def make(model_type: str = "custom_voice", preset: str = "tiny", **settings: Any) -> Path:
        key = repr((model_type, preset, sorted(settings.items(), key=repr)))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("checkpoints") / f"{preset}-{model_type}-{len(made)}"
            make_checkpoint(made[key], preset=preset, model_type=model_type, **({"eos_gain": 0.5} | settings))
        return made[key]

    return make
