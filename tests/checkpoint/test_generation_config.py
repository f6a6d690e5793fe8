"""generation_config.json: optional as a whole, strict in what it has."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from qwen3tts.checkpoint.generation_config import READERS, read_generation_config
from qwen3tts.errors import ConfigError


def test_released_values(tiny_checkpoint: Callable[..., Path]) -> None:
    values = read_generation_config(tiny_checkpoint())
    assert set(values) == set(READERS)
    assert values["max_new_tokens"] == 8192
    assert (values["top_k"], values["subtalker_dosample"], values["repetition_penalty"]) == (50, True, 1.05)


def test_optional_and_partial(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_generation_config(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text('{"top_k": 7, "transformers_version": "4.57.3"}')
    with caplog.at_level(logging.DEBUG, logger="qwen3tts"):
        assert read_generation_config(tmp_path) == {"top_k": 7}
    assert "transformers_version" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, wrong) for key in READERS for wrong in (None, "1", [], -1)]
    + [("do_sample", 1), ("top_k", True), ("top_k", 50.0), ("top_p", 0), ("top_p", 1.01), ("temperature", 0)]
    + [("temperature", False), ("repetition_penalty", 0.0), ("max_new_tokens", 1), ("max_new_tokens", 2.0)],
)
def test_wrong_value(tmp_path: Path, key: str, value: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(ConfigError, match=f"generation_config.json: {key} is .*expected"):
        read_generation_config(tmp_path)
