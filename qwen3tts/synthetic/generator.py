"""Puts a synthetic checkpoint together: configs, tokenizer, weights, renamed into place when all of it is there."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from qwen3tts.checkpoint.config import CODEC_CONFIG_FILE, CONFIG_FILE, read_config
from qwen3tts.checkpoint.layout import codec_keys, model_keys
from qwen3tts.errors import CheckpointError, OptionError, nearest
from qwen3tts.synthetic.configs import PRESETS, REAL_VOCABULARY, TYPES, Json, build_configs, merge
from qwen3tts.synthetic.tokenizer_files import (
    check_released,
    copy_tokenizer,
    mini_vocabulary,
    real_vocabulary,
    text_ids,
    write_tokenizer,
)
from qwen3tts.synthetic.weights import RandomWeights, write_safetensors

WEIGHT_FILES = ("model.safetensors", "speech_tokenizer/model.safetensors")

_GENERATION_CONFIG = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}
_PREPROCESSOR_CONFIG = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}
_CODEC_CONFIGURATION = {"framework": "pytorch", "task": "feature-extraction", "allow_remote": True}
_CODEC_PREPROCESSOR_CONFIG = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
}


def make_checkpoint(
    out: str | os.PathLike[str],
    *,
    preset: str = "tiny",
    model_type: str = "custom_voice",
    seed: int = 0,
    eos_gain: float = 2.0,
    tiktoken: str | os.PathLike[str] | None = None,
    tokenizer_from: str | os.PathLike[str] | None = None,
    transformers_version: str = "4.57.2",
    override: Json | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes one checkpoint folder and returns it; on an error or Ctrl-C nothing is left behind.

    preset, model_type: of PRESETS and TYPES. seed: of the weights.
    eos_gain: scale of the end-of-speech row of codec_head: 2.0 ends after 2 to 20 frames, 0.5 or 0 practically never.
    tiktoken: qwen.tiktoken or a dashscope wheel, which holds it; tokenizer_from: a checkpoint folder to copy the
    tokenizer from. The presets small, 0.6b and 1.7b need one of them.
    transformers_version: written to config.json. With 4.57.2 the official package keeps Qwen's text splitting when it
    loads a local folder; with 4.57.3 it replaces it.
    override: {"config": {...}, "speech_tokenizer": {...}}, merged into the two configs before the weights are made.
    overwrite: replace a folder that is there.
    Raises OptionError, TokenizerError, ConfigError (an override that contradicts the rest) or CheckpointError.
    """
    for name, value, choices in (("preset", preset, PRESETS), ("model type", model_type, TYPES)):
        if value not in choices:
            raise OptionError(
                f"{name} {value!r} is unknown; expected one of {', '.join(choices)}.{nearest(value, choices)}"
            )
    if preset in REAL_VOCABULARY and tiktoken is None and tokenizer_from is None:
        raise OptionError(
            f"preset {preset!r} has the real vocabulary: give tokenizer_from, a checkpoint that has it, or tiktoken, a "
            "wheel that has its rank file (pip download --no-deps dashscope==2.0.2)"
        )
    if not 0 <= seed < 2**64:
        raise OptionError(f"seed is {seed}; expected 0 to 2**64 - 1")
    with _renamed_when_done(Path(out), overwrite) as folder:
        (folder / "speech_tokenizer").mkdir()
        _write_tokenizer(folder, preset, tiktoken, tokenizer_from)
        config, codec = build_configs(preset, model_type, text_ids(folder), transformers_version)
        merge(config, (override or {}).get("config", {}))
        merge(codec, (override or {}).get("speech_tokenizer", {}))
        _write_configs(folder, config, codec)
        parsed = read_config(folder)
        weights = RandomWeights(seed, parsed.talker.codec_eos_id, eos_gain)
        write_safetensors(folder / WEIGHT_FILES[0], model_keys(parsed), weights, "BF16")
        write_safetensors(folder / WEIGHT_FILES[1], codec_keys(parsed.codec), weights, "F32")
    return Path(out)


def _write_tokenizer(
    folder: Path,
    preset: str,
    tiktoken: str | os.PathLike[str] | None,
    tokenizer_from: str | os.PathLike[str] | None,
) -> None:
    if preset not in REAL_VOCABULARY:
        write_tokenizer(folder, mini_vocabulary())
        return
    if tokenizer_from is not None:
        copy_tokenizer(Path(tokenizer_from), folder)
    elif tiktoken is not None:
        write_tokenizer(folder, real_vocabulary(Path(tiktoken)))
    check_released(folder)


def _write_configs(folder: Path, config: Json, codec: Json) -> None:
    def write(name: str, value: Json, indent: int | None = 2, end: str = "") -> None:
        (folder / name).write_text(json.dumps(value, indent=indent) + end, encoding="utf-8")

    # Line ends and indents as in the released files, some of which come out byte for byte.
    write(CONFIG_FILE, config, end="\n")
    write("generation_config.json", _GENERATION_CONFIG)
    write("preprocessor_config.json", _PREPROCESSOR_CONFIG)
    write(CODEC_CONFIG_FILE, codec, end="\n")
    write("speech_tokenizer/configuration.json", _CODEC_CONFIGURATION, indent=None)
    write("speech_tokenizer/preprocessor_config.json", _CODEC_PREPROCESSOR_CONFIG, end="\n")


@contextmanager
def _renamed_when_done(out: Path, overwrite: bool) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its place at the end, or vanishes on an error."""
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"{out} is a file; expected a folder to write")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise CheckpointError(f"{out} is there and not empty; choose another folder, or overwrite it")
    out.parent.mkdir(parents=True, exist_ok=True)
    unique = uuid.uuid4().hex[:8]
    folder = out.absolute().with_name(f".{out.absolute().name}.{unique}.partial")
    folder.mkdir()
    try:
        yield folder
        if out.is_dir() and any(out.iterdir()):
            old = folder.with_suffix(".old")
            out.rename(old)
            folder.rename(out)
            shutil.rmtree(old)
        else:
            folder.replace(out)
    finally:
        if folder.exists():
            shutil.rmtree(folder)


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint of the list that parity tests use."""

    preset: str
    model_type: str
    seed: int
    eos_gain: float
    sha256: tuple[str, str]
    """of the two WEIGHT_FILES"""

    @property
    def needs_real_vocabulary(self) -> bool:
        """Whether it can only be made with the rank file."""
        return self.preset in REAL_VOCABULARY


def listed_checkpoints() -> dict[str, ListedCheckpoint]:
    """Name -> checkpoint, from checkpoints.json beside this module."""
    text = resources.files("qwen3tts.synthetic").joinpath("checkpoints.json").read_text(encoding="utf-8")
    return {
        name: ListedCheckpoint(entry["preset"], entry["type"], entry["seed"], entry["eos_gain"], tuple(entry["sha256"]))
        for name, entry in json.loads(text).items()
    }


def weights_sha256(folder: str | os.PathLike[str]) -> tuple[str, str]:
    """SHA-256 of the two weight files of a checkpoint folder."""
    digests = []
    for name in WEIGHT_FILES:
        with (Path(folder) / name).open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests[0], digests[1]


def make_listed_checkpoint(
    name: str, out: str | os.PathLike[str], *, tiktoken: str | os.PathLike[str] | None = None
) -> Path:
    """Makes a listed checkpoint; raises CheckpointError if its weights are not the listed ones, bit for bit."""
    listed = listed_checkpoints()
    if name not in listed:
        raise OptionError(f"{name!r} is not listed; expected one of {', '.join(listed)}.{nearest(name, listed)}")
    entry = listed[name]
    folder = make_checkpoint(
        out,
        preset=entry.preset,
        model_type=entry.model_type,
        seed=entry.seed,
        eos_gain=entry.eos_gain,
        tiktoken=tiktoken,
    )
    if weights_sha256(folder) != entry.sha256:
        raise CheckpointError(f"{name}: the weights differ from those in checkpoints.json; numpy draws other numbers")
    return folder
