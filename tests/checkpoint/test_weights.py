"""Shards, the layout check, and `describe`."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from qwen3tts.checkpoint import TensorReader, check_layout, describe, open_checkpoint
from qwen3tts.errors import WeightsError


def shard(source: Path, target: Path, count: int) -> dict[str, str]:
    """Spreads the tensors of source/model.safetensors over `count` files in target; returns the weight map."""
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    weight_map = {}
    for i in range(count):
        name = f"model-{i + 1:05}-of-{count:05}.safetensors"
        keys = list(tensors)[i::count]
        safetensors.torch.save_file({key: tensors[key] for key in keys}, target / name)
        weight_map |= dict.fromkeys(keys, name)
    write_index(target, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: object) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def sharded(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> Path:
    """A whole checkpoint whose model is in three shards and its codec in two."""
    source = tiny_checkpoint("base")
    shutil.copytree(source, tmp_path / "sharded", ignore=shutil.ignore_patterns("*.safetensors"))
    shard(source, tmp_path / "sharded", 3)
    shard(source / "speech_tokenizer", tmp_path / "sharded" / "speech_tokenizer", 2)
    return tmp_path / "sharded"


def test_shards_equal_the_single_file(sharded: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    whole, split = open_checkpoint(tiny_checkpoint("base")), open_checkpoint(sharded)
    pairs = [
        (whole.model_weights(), split.model_weights(), 3),
        (whole.codec_weights(), split.codec_weights(), 2),
    ]
    for one, many, count in pairs:
        assert (one.shard_count, many.shard_count) == (1, count)
        assert set(one) == set(many)
        assert all(torch.equal(one.read(key), many.read(key)) for key in one)
    assert describe(split)["weights"]["model"]["files"] == 3
    assert describe(split)["parameters"] == describe(whole)["parameters"]


@pytest.mark.parametrize(
    "name",
    ["../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "..\\x.safetensors", "x.bin",
     ".hidden.safetensors", "c:x.safetensors", "x\0.safetensors", "", 3, None],
)  # fmt: skip
def test_index_cannot_leave_the_folder(sharded: Path, name: object) -> None:
    index = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    index["talker.codec_head.weight"] = name
    write_index(sharded, index)
    with pytest.raises(WeightsError, match=r"talker\.codec_head\.weight is .*\.safetensors file in the same folder"):
        TensorReader(sharded)


def test_damaged_shards(sharded: Path) -> None:
    first, second, _ = sorted(sharded.glob("model-*.safetensors"))
    data = second.read_bytes()
    second.unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00003\.safetensors is missing"):
        TensorReader(sharded)
    second.write_bytes(first.read_bytes())
    with pytest.raises(WeightsError, match=r"lacks .* and \d+ more, which model.safetensors.index.json says it has"):
        TensorReader(sharded)
    tensors = safetensors.torch.load(data) | {"talker.model.norm.weight": torch.ones(64)}
    tensors |= {"talker.model.layers.0.self_attn.q_proj.weight": torch.ones(2)}
    safetensors.torch.save_file(tensors, second)
    with pytest.raises(WeightsError, match=r"which .* has too"):
        TensorReader(sharded)


@pytest.mark.parametrize(("content", "message"), [("{", "not valid JSON"), ("{}", "weight_map is missing"),
                                                  ('{"weight_map": {}}', "lists no tensors")])  # fmt: skip
def test_damaged_index(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(WeightsError, match=message):
        TensorReader(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"neither model\.safetensors nor"):
        TensorReader(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"found 'pytorch_model\.bin', but only safetensors"):
        TensorReader(tmp_path)


def rewritten(source: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy of a checkpoint with other model tensors."""
    shutil.copytree(source, target)
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, target / "model.safetensors")
    return target


def test_missing_tensors_are_listed(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["talker.codec_head.weights"] = tensors.pop("talker.codec_head.weight")

    folder = rewritten(tiny_checkpoint(), tmp_path / "x", change)
    with pytest.raises(WeightsError, match=r"lacks 1 of \d+ tensors: 'talker\.codec_head\.weight'.*head\.weights'"):
        open_checkpoint(folder).model_weights()


def test_base_config_with_other_weights(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if key.startswith("speaker_encoder")]:
            del tensors[key]

    folder = rewritten(tiny_checkpoint("base"), tmp_path / "x", change)
    with pytest.raises(WeightsError, match=r"lacks 76 of 159 tensors: 'speaker_encoder.*and 71 more"):
        open_checkpoint(folder).model_weights()


def test_other_shapes_and_dtypes(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    key = "talker.codec_head.weight"
    folder = rewritten(tiny_checkpoint(), tmp_path / "x", lambda t: t.update({key: torch.ones(1088, 63)}))
    with pytest.raises(WeightsError, match=r"codec_head\.weight is \[1088, 63\], expected \[1088, 64\]"):
        open_checkpoint(folder).model_weights()
    folder = rewritten(tiny_checkpoint(), tmp_path / "y", lambda t: t.update({key: torch.ones(1088, 64).char()}))
    with pytest.raises(WeightsError, match=r"quantized or damaged: .*codec_head\.weight \(torch\.int8\)"):
        open_checkpoint(folder).model_weights()


def test_unknown_tensors_are_reported(
    tmp_path: Path, tiny_checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = rewritten(tiny_checkpoint(), tmp_path / "x", lambda t: t.update({"talker.new.weight": torch.ones(2)}))
    with caplog.at_level(logging.WARNING, logger="qwen3tts"):
        open_checkpoint(folder).model_weights().close()
    assert "1 unknown tensors" in caplog.text
    assert "talker.new.weight" in caplog.text


def test_check_layout_of_equal_tables(tiny_checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    with TensorReader(tiny_checkpoint()) as reader:
        check_layout(reader, [(key, reader.shape(key)) for key in reader], what="the model")
    assert caplog.text == ""


def test_describe(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint("custom_voice", "tiny-mtp")
    found = describe(open_checkpoint(folder))
    assert json.loads(json.dumps(found)) == found
    assert (found["type"], found["size"]) == ("custom_voice", "1b7")
    for name, weights in (("model", found["weights"]["model"]), ("speech_tokenizer/model", found["weights"]["codec"])):
        tensors = safetensors.torch.load_file(folder / f"{name}.safetensors")
        assert weights["tensors"] == len(tensors)
        assert weights["parameters"] == sum(tensor.numel() for tensor in tensors.values())
        assert weights["bytes"] == sum(tensor.nbytes for tensor in tensors.values())
    assert sum(found["parameters"].values()) == sum(part["parameters"] for part in found["weights"].values())
    assert "unknown" not in found["parameters"]
    assert found["weights"]["model"]["dtypes"].keys() == {"bfloat16"}
    assert found["speakers"]["eric"] == "sichuan_dialect"
    assert found["speakers"]["ryan"] is None
    assert found["dialects"] == ["beijing_dialect", "sichuan_dialect"]
    assert "english" in found["languages"]
    assert "beijing_dialect" not in found["languages"]
    assert (found["sample_rate"], found["frame_rate"]) == (24000, 12.5)
    assert found["tokenizer_files"] == ["vocab.json", "merges.txt", "tokenizer_config.json"]
    assert found["generation_config"]["max_new_tokens"] == 8192
