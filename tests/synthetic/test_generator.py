"""Synthetic checkpoints: pinned weights, released files, nothing half written."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from qwen3tts.errors import CheckpointError, ConfigError, OptionError, TokenizerError
from qwen3tts.synthetic import listed_checkpoints, make_checkpoint, make_listed_checkpoint, weights_sha256
from qwen3tts.synthetic.__main__ import main
from qwen3tts.synthetic.configs import REAL_TEXT_IDS
from qwen3tts.synthetic.tokenizer_files import text_ids, vocabulary_from_ranks
from qwen3tts.synthetic.weights import BLOCK, RandomWeights, to_bfloat16, write_safetensors

RELEASED = {
    "generation_config.json": "f1b90b4513f3b34c62851049e2492d7b4c5940daf1276f89c82b8ef04127f3aa",
    "preprocessor_config.json": "efdde1022ea9d76928bf7a9cd53139138f5ba2e466e837f08f6105ab1af1c119",
    "speech_tokenizer/preprocessor_config.json": "fcb3805e597e786d4067706e602f6688524640f8d3396790e2e09b5942fcbdfb",
    "speech_tokenizer/configuration.json": "6bc26d64eb5024b4d1dab5a52371958b429256d6c9d59787f1f5294a54e0cebd",
}


@pytest.mark.parametrize("name", [name for name in listed_checkpoints() if name.startswith("tiny")])
def test_listed_weights(tmp_path: Path, name: str) -> None:
    entry = listed_checkpoints()[name]
    assert weights_sha256(make_listed_checkpoint(name, tmp_path / name)) == entry.sha256


@pytest.mark.parametrize("name", [name for name in listed_checkpoints() if name.startswith("small")])
def test_listed_weights_with_the_real_vocabulary(tmp_path: Path, real_vocabulary_folder: Path, name: str) -> None:
    entry = listed_checkpoints()[name]
    assert entry.needs_real_vocabulary
    folder = make_checkpoint(
        tmp_path / name,
        preset=entry.preset,
        model_type=entry.model_type,
        seed=entry.seed,
        eos_gain=entry.eos_gain,
        tokenizer_from=real_vocabulary_folder,
    )
    assert weights_sha256(folder) == entry.sha256
    assert text_ids(folder) == REAL_TEXT_IDS


def test_every_size_and_type_is_listed() -> None:
    listed = listed_checkpoints().values()
    assert len(listed) == 8
    assert {(entry.preset, entry.model_type) for entry in listed} >= {
        ("tiny", "base"), ("tiny", "custom_voice"), ("tiny", "voice_design"), ("tiny-mtp", "base"), ("small", "base"),
    }  # fmt: skip


@pytest.mark.parametrize(("file", "sha256"), RELEASED.items())
def test_released_files(tiny_checkpoint: Callable[..., Path], file: str, sha256: str) -> None:
    assert hashlib.sha256((tiny_checkpoint() / file).read_bytes()).hexdigest() == sha256


def test_bfloat16_rounds_as_torch_does(seed: int) -> None:
    print(f"seed {seed}")
    bits = np.random.default_rng(seed).integers(0, 2**32, 100_000, dtype=np.uint32)
    ties = np.arange(0x3F80_0000, 0x3F90_0000, 0x8000, dtype=np.uint32)
    values = np.concatenate([bits, ties]).view(np.float32)
    values = values[np.isfinite(values)]
    wanted = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(to_bfloat16(values), wanted)


def test_blocks_continue_one_stream() -> None:
    """A tensor made in blocks is the one that a single draw gives."""
    weights, shape = RandomWeights(3, 0, 1.0), (BLOCK // 8 + 5, 17)
    blocks = list(weights.blocks("talker.model.text_embedding.weight", shape))
    assert len(blocks) == 3
    digest = 1469598103934665603
    for byte in b"talker.model.text_embedding.weight":
        digest = ((digest ^ byte) * 1099511628211) % 2**64
    generator = np.random.Generator(np.random.SFC64([3, digest % 2**32, digest >> 32]))
    assert np.array_equal(np.concatenate(blocks), generator.standard_normal(shape, dtype=np.float32).reshape(-1))


def test_same_seed_shares_tensors(tiny_checkpoint: Callable[..., Path]) -> None:
    one, other = (
        safetensors.torch.load_file(tiny_checkpoint("base", seed=seed) / "model.safetensors") for seed in (7, 8)
    )
    voice = safetensors.torch.load_file(tiny_checkpoint("custom_voice", seed=7) / "model.safetensors")
    assert all(torch.equal(tensor, one[key]) for key, tensor in voice.items())
    assert not torch.equal(one["talker.model.norm.weight"], other["talker.model.norm.weight"])


def test_eos_gain_scales_one_row(tiny_checkpoint: Callable[..., Path]) -> None:
    heads = [
        safetensors.torch.load_file(tiny_checkpoint(eos_gain=gain) / "model.safetensors")["talker.codec_head.weight"]
        for gain in (0.5, 2.0)
    ]
    assert torch.equal(heads[0][166] * 4, heads[1][166])
    rows = torch.arange(1088) != 166
    assert torch.equal(heads[0][rows], heads[1][rows])


def test_one_dead_entry_per_codebook(tiny_checkpoint: Callable[..., Path]) -> None:
    tensors = safetensors.torch.load_file(tiny_checkpoint() / "speech_tokenizer" / "model.safetensors")
    usage = {key: tensor for key, tensor in tensors.items() if key.endswith("cluster_usage")}
    assert len(usage) == 16 + 20
    assert all(int((tensor == 0).sum()) == 1 for tensor in usage.values())


def test_written_file_is_safetensors(tmp_path: Path) -> None:
    keys = [("a.bias", (3,)), ("b.weight", (BLOCK + 3, 2)), ("c.initialized", (1,))]
    for dtype, wanted in (("F32", torch.float32), ("BF16", torch.bfloat16)):
        write_safetensors(tmp_path / "x.safetensors", keys, RandomWeights(0, 0, 1.0), dtype)
        tensors = safetensors.torch.load_file(tmp_path / "x.safetensors")
        assert {key: tuple(tensor.shape) for key, tensor in tensors.items()} == dict(keys)
        assert {tensor.dtype for tensor in tensors.values()} == {wanted}


def test_override_changes_sizes(tmp_path: Path) -> None:
    override = {"config": {"talker_config": {"num_hidden_layers": 3}}, "speech_tokenizer": {}}
    folder = make_checkpoint(tmp_path / "x", override=override)
    keys = safetensors.torch.load_file(folder / "model.safetensors")
    assert "talker.model.layers.2.mlp.up_proj.weight" in keys


def test_refusals_leave_nothing(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    out = tmp_path / "folder" / "x"
    bad = {"config": {"talker_config": {"num_key_value_heads": 3}}}
    for error, message, settings in (
        (OptionError, "Did you mean 'tiny'", {"preset": "tinny"}),
        (OptionError, "Did you mean 'custom_voice'", {"model_type": "customvoice"}),
        (OptionError, "give tokenizer_from, a checkpoint that has it, or tiktoken", {"preset": "small"}),
        (OptionError, "seed", {"seed": -1}),
        (ConfigError, "no multiple of num_key_value_heads", {"override": bad}),
        (TokenizerError, "not the released vocabulary", {"preset": "small", "tokenizer_from": tiny_checkpoint()}),
        (TokenizerError, "has no vocab.json", {"preset": "small", "tokenizer_from": tmp_path}),
        (TokenizerError, "neither qwen.tiktoken nor", {"preset": "small", "tiktoken": tmp_path / "none.whl"}),
        (TokenizerError, "neither", {"preset": "small", "tiktoken": tiny_checkpoint() / "config.json"}),
    ):
        with pytest.raises(error, match=message):
            make_checkpoint(out, **settings)
        assert not list(tmp_path.rglob("*x*"))


def test_existing_folder_needs_overwrite(tmp_path: Path) -> None:
    out = tmp_path / "x"
    out.mkdir()
    make_checkpoint(out, seed=1)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not empty"):
        make_checkpoint(out, seed=2)
    assert (out / "notes.txt").read_text() == "mine"
    make_checkpoint(out, seed=2, overwrite=True)
    assert not (out / "notes.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        make_checkpoint(tmp_path / "file")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "o.json").write_text(json.dumps({"config": {"talker_config": {"num_hidden_layers": 1}}}))
    out = str(tmp_path / "x")
    options = ["--preset", "tiny-mtp", "--type", "base", "--seed", "4", "--override", str(tmp_path / "o.json")]
    assert main(["--out", out, *options]) == 0
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert (config["tts_model_type"], config["talker_config"]["num_hidden_layers"]) == ("base", 1)
    assert main(["--out", out]) == 2
    assert "not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--out is missing. The folder to write is given as --out FOLDER"),
        (["OUT"], "what is 'OUT'? The folder to write is given as --out FOLDER"),
        (["--out", "OUT", "--presset", "tiny"], "there is no option --presset"),
        (["--out", "OUT", "--preset", "huge"], "invalid choice: 'huge'"),
        (["--out", "OUT", "--eos-gain", "nan"], "--eos-gain is nan; expected a finite number"),
        (["--out", "OUT", "--override", "missing.json"], "--override: 'missing.json' cannot be read: No such file"),
        (["--out", "OUT", "--override", "text.json"], "--override: 'text.json' is not JSON in UTF-8: "),
        (["--out", "OUT", "--override", "binary.json"], "--override: 'binary.json' is not JSON in UTF-8: "),
    ],
)
def test_bad_usage_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("text")
    (tmp_path / "binary.json").write_bytes(b"\xff")
    code: object = None
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    shown = capsys.readouterr().err
    assert (code, message in shown, shown.count("\n")) == (2, True, 1), shown
    assert not (tmp_path / "OUT").exists()


def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C in the middle of 600 MB of weights."""
    (tmp_path / "big.json").write_text(json.dumps({"config": {"talker_config": {"text_vocab_size": 6_000_000}}}))
    arguments = ["--out", str(tmp_path / "out" / "x"), "--override", str(tmp_path / "big.json")]
    process = subprocess.Popen(
        [sys.executable, "-m", "qwen3tts.synthetic", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out/.x.*/model.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert list((tmp_path / "out").iterdir()) == []


def test_rank_file() -> None:
    ranks = b"YQ== 0\nYg== 1\nYWI= 2\nIA== 3\nYWJi 4\n"  # a, b, ab, space, abb
    vocab, merges = vocabulary_from_ranks(ranks)
    assert vocab == {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "abb": 4}
    assert merges == [("a", "b"), ("ab", "b")]
    with pytest.raises(ValueError, match="rank 1"):
        vocabulary_from_ranks(b"YQ== 0\nYWJj 1\n")
