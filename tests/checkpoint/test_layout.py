"""Keys, shapes and parameter counts of the released sizes."""

from collections import Counter
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path

import pytest
import safetensors

from qwen3tts.checkpoint import codec_keys, model_keys
from qwen3tts.checkpoint.config import parse_config, read_config
from qwen3tts.checkpoint.describe import part_of
from qwen3tts.checkpoint.json_object import JsonObject
from qwen3tts.checkpoint.layout import KeyShape
from qwen3tts.model.config import ModelConfig
from qwen3tts.synthetic.configs import REAL_TEXT_IDS, build_configs


def real(preset: str, model_type: str) -> ModelConfig:
    config, codec = build_configs(preset, model_type, REAL_TEXT_IDS, "4.57.2")
    return parse_config(JsonObject("config.json", "", config), JsonObject("speech_tokenizer/config.json", "", codec))


def count(keys: Iterable[KeyShape]) -> int:
    return sum(prod(shape) for _, shape in keys)


@pytest.mark.parametrize(
    ("preset", "model_type", "parameters", "tensors"),
    [
        ("0.6b", "custom_voice", 905_788_672, 402),
        ("0.6b", "voice_design", 905_788_672, 402),
        ("0.6b", "base", 914_643_008, 478),
        ("1.7b", "custom_voice", 1_916_676_352, 404),
        ("1.7b", "base", 1_928_677_440, 480),
    ],
)
def test_released_model_sizes(preset: str, model_type: str, parameters: int, tensors: int) -> None:
    keys = model_keys(real(preset, model_type))
    assert len(keys) == len(dict(keys)) == tensors
    assert count(keys) == parameters


def test_released_codec_size() -> None:
    keys = codec_keys(real("0.6b", "base").codec)
    assert len(keys) == len(dict(keys)) == 496
    assert count(keys) == 170_557_441


@pytest.mark.parametrize(
    ("preset", "millions"),
    [
        ("0.6b", {"talker layers": 440.5, "text embedding": 311.2, "text projection": 6.3, "codec embedding": 3.1,
                  "codec head": 3.1, "predictor layers": 78.7, "predictor embeddings": 31.5, "predictor heads": 31.5,
                  "speaker encoder": 8.9}),
        ("1.7b", {"talker layers": 1409.4, "text embedding": 311.2, "text projection": 8.4, "codec embedding": 6.3,
                  "codec head": 6.3, "predictor layers": 78.7, "predictor embeddings": 62.9, "predictor heads": 31.5,
                  "predictor input projection": 2.1, "speaker encoder": 12.0}),
    ],
)  # fmt: skip
def test_parts(preset: str, millions: dict[str, float]) -> None:
    config, sums = real(preset, "base"), Counter[str]()
    for key, shape in model_keys(config) + codec_keys(config.codec):
        sums[part_of(key)] += prod(shape)
    found = {part: round(total / 1e6, 1) for part, total in sums.items()}
    assert found == millions | {"codec decoder": 114.3, "codec encoder": 56.2}


@pytest.mark.parametrize("preset", ["tiny", "tiny-mtp"])
@pytest.mark.parametrize("model_type", ["custom_voice", "base", "voice_design"])
def test_files_have_the_layout_in_order(preset: str, model_type: str, tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint(model_type, preset)
    config = read_config(folder)
    for name, keys in (("model", model_keys(config)), ("speech_tokenizer/model", codec_keys(config.codec))):
        with safetensors.safe_open(folder / f"{name}.safetensors", "pt") as file:
            assert [(key, tuple(file.get_slice(key).get_shape())) for key in file.offset_keys()] == keys
