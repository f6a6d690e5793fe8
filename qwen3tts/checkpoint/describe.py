"""What a checkpoint is, from its configs and the headers of its weight files; no weights are read."""

from collections import Counter
from math import prod
from typing import Any

from qwen3tts.checkpoint.opening import Checkpoint
from qwen3tts.checkpoint.weights import TensorReader
from qwen3tts.model.config import TransformerConfig

TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json")

MODEL_PARTS = (
    ("talker.model.layers.", "talker layers"),
    ("talker.model.norm.", "talker layers"),
    ("talker.model.text_embedding.", "text embedding"),
    ("talker.text_projection.", "text projection"),
    ("talker.model.codec_embedding.", "codec embedding"),
    ("talker.codec_head.", "codec head"),
    ("talker.code_predictor.model.codec_embedding.", "predictor embeddings"),
    ("talker.code_predictor.model.", "predictor layers"),
    ("talker.code_predictor.lm_head.", "predictor heads"),
    ("talker.code_predictor.small_to_mtp_projection.", "predictor input projection"),
    ("speaker_encoder.", "speaker encoder"),
)
CODEC_PARTS = (("decoder.", "codec decoder"), ("encoder.", "codec encoder"))
OTHER = "unknown"


def part_of(key: str) -> str:
    """The part of the model that a tensor belongs to, e.g. "talker layers"."""
    return next((part for prefix, part in MODEL_PARTS + CODEC_PARTS if key.startswith(prefix)), OTHER)


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything `qwen3tts inspect` shows, ready for JSON.

    Raises WeightsError if the weight files do not belong to the config.
    """
    config, codec = checkpoint.config, checkpoint.config.codec
    talker = config.talker
    with checkpoint.model_weights() as model, checkpoint.codec_weights() as codec_reader:
        weights = {"model": _weights(model), "codec": _weights(codec_reader)}
        parameters = _parameters(model) | _parameters(codec_reader)
    dialects = sorted(name for name in talker.languages if "dialect" in name)
    return {
        "path": str(checkpoint.path),
        "type": config.model_type,
        "size": config.model_size,
        "parameters": parameters,
        "weights": weights,
        "talker": _transformer(talker.transformer) | {"vocabulary": talker.vocab_size},
        "code_predictor": _transformer(talker.code_predictor.transformer) | {"codebooks": talker.num_code_groups},
        "codec_decoder": _transformer(codec.decoder.transformer) | {"sliding_window": codec.decoder.sliding_window},
        "text_vocabulary": talker.text_vocab_size,
        "languages": sorted(name for name in talker.languages if "dialect" not in name),
        "dialects": dialects,
        "speakers": {name: talker.speaker_dialects.get(name) for name in sorted(talker.speakers)},
        "sample_rate": codec.sample_rate,
        "frame_rate": codec.sample_rate / codec.samples_per_frame,
        "codebook_size": codec.decoder.codebook_size,
        "tokenizer_files": [name for name in TOKENIZER_FILES if (checkpoint.path / name).is_file()],
        "generation_config": dict(checkpoint.generation_config),
    }


def _transformer(config: TransformerConfig) -> dict[str, int]:
    return {
        "layers": config.num_layers,
        "hidden": config.hidden_size,
        "intermediate": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_positions": config.max_positions,
    }


def _parameters(reader: TensorReader) -> dict[str, int]:
    """Part -> number of values."""
    counts: Counter[str] = Counter()
    for key in reader:
        counts[part_of(key)] += prod(reader.shape(key))
    return dict(counts)


def _weights(reader: TensorReader) -> dict[str, Any]:
    dtypes: Counter[str] = Counter()
    for key in reader:
        dtypes[str(reader.dtype(key)).removeprefix("torch.")] += reader.nbytes(key)
    return {
        "tensors": len(reader),
        "parameters": sum(prod(reader.shape(key)) for key in reader),
        "bytes": sum(dtypes.values()),
        "dtypes": dict(dtypes),
        "files": reader.shard_count,
    }
