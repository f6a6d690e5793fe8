"""`open_checkpoint`: a folder or hub id -> configs read and checked, weights ready to be mapped."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen3tts.checkpoint.config import read_config
from qwen3tts.checkpoint.generation_config import read_generation_config
from qwen3tts.checkpoint.layout import codec_keys, model_keys
from qwen3tts.checkpoint.locate import locate
from qwen3tts.checkpoint.weights import TensorReader, check_layout
from qwen3tts.model.config import ModelConfig

CODEC_FOLDER = "speech_tokenizer"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose configs were read. Holds no open files; the readers it returns do."""

    path: Path
    """the local folder, also for a hub id"""
    config: ModelConfig
    generation_config: dict[str, Any]
    """the values of generation_config.json under their names there; {} without the file"""

    def model_weights(self) -> TensorReader:
        """Talker, code predictor and speaker encoder, checked against the config. Use it in a `with` statement.

        Raises WeightsError."""
        reader = TensorReader(self.path)
        check_layout(reader, model_keys(self.config), what=f"{self.path}: the model")
        return reader

    def codec_weights(self) -> TensorReader:
        """Codec encoder and decoder, likewise."""
        reader = TensorReader(self.path / CODEC_FOLDER)
        check_layout(reader, codec_keys(self.config.codec), what=f"{self.path}: the codec")
        return reader


def open_checkpoint(
    model: str | os.PathLike[str],
    *,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    offline: bool = False,
) -> Checkpoint:
    """Opens a local folder or, after a download if it is needed, a hub id such as "owner/name".

    revision, cache_dir and offline are for hub ids: branch, tag or commit; folder of downloads; never use the network.
    Raises DownloadError if it cannot be found, ConfigError if its config files are incomplete or contradictory.
    """
    path = locate(model, revision=revision, cache_dir=cache_dir, offline=offline)
    return Checkpoint(path, read_config(path), read_generation_config(path))
