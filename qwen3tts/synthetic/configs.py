"""Configs of synthetic checkpoints, as dictionaries in the layout of the released config.json files.

Presets
  tiny      predictor as wide as the talker, so no small_to_mtp_projection (like 0.6B); own small id space
  tiny-mtp  narrower predictor, so that small_to_mtp_projection exists (like 1.7B); own small id space
  small     real ids and vocabularies, narrow layers
  0.6b      real sizes
  1.7b      real sizes
"""

from typing import Any

Json = dict[str, Any]

PRESETS = ("tiny", "tiny-mtp", "small", "0.6b", "1.7b")
TYPES = ("custom_voice", "base", "voice_design")
REAL_VOCABULARY = ("small", "0.6b", "1.7b")

# ids of the released checkpoints
LANGUAGES = {
    "chinese": 2055, "english": 2050, "german": 2053, "italian": 2070, "portuguese": 2071, "spanish": 2054,
    "japanese": 2058, "korean": 2064, "french": 2061, "russian": 2069,
}  # fmt: skip
DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {
    "serena": 3066, "vivian": 3065, "uncle_fu": 3010, "ryan": 3061, "aiden": 2861, "ono_anna": 2873, "sohee": 2864,
    "eric": 2875, "dylan": 2878,
}  # fmt: skip
SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
CODEC_IDS = {
    "codec_pad_id": 2148, "codec_bos_id": 2149, "codec_eos_token_id": 2150, "codec_think_id": 2154,
    "codec_nothink_id": 2155, "codec_think_bos_id": 2156, "codec_think_eos_id": 2157,
}  # fmt: skip
REAL_TEXT_IDS = {
    "vocab": 151676, "assistant": 77091, "im_start": 151644, "im_end": 151645, "tts_pad": 151671, "tts_bos": 151672,
    "tts_eos": 151673,
}  # fmt: skip
"""what `tokenizer_files.text_ids` returns for the real vocabulary"""
CODEBOOK = 2048

TINY_CODEBOOK = 64
"""The tiny presets' codebook. Ids 0..63 are codes, then come the same 1024 special rows, so that every other id moves
down by 2048 - 64."""


def build_configs(
    preset: str, model_type: str, text_ids: dict[str, int], transformers_version: str
) -> tuple[Json, Json]:
    """(config.json, speech_tokenizer/config.json) of a preset.

    text_ids: ids of the special tokens and "vocab", the number of entries, as `tokenizer_files` returns them.
    """
    codebook = CODEBOOK if preset in REAL_VOCABULARY else TINY_CODEBOOK
    talker, codec, speaker_encoder = _sizes(preset, codebook, text_ids["vocab"])
    talker |= _ids(model_type, codebook)
    config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": text_ids["assistant"],
        "im_end_token_id": text_ids["im_end"],
        "im_start_token_id": text_ids["im_start"],
        "tts_bos_token_id": text_ids["tts_bos"],
        "tts_eos_token_id": text_ids["tts_eos"],
        "tts_pad_token_id": text_ids["tts_pad"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "0b6" if preset in ("tiny", "0.6b") else "1b7",
        "tts_model_type": model_type,
        "talker_config": talker,
        "transformers_version": transformers_version,
    }
    if model_type == "base":
        config["speaker_encoder_config"] = speaker_encoder
    return config, codec


def _ids(model_type: str, codebook: int) -> Json:
    def moved(ids: dict[str, int]) -> dict[str, int]:
        return {name: i - CODEBOOK + codebook for name, i in ids.items()}

    languages, speakers = moved(LANGUAGES), {}
    if model_type == "custom_voice":
        languages |= moved(DIALECTS)
        speakers = moved(SPEAKERS)
    return {
        **moved(CODEC_IDS),
        "codec_language_id": languages,
        "spk_id": speakers,
        "spk_is_dialect": {name: SPEAKER_DIALECTS.get(name, False) for name in speakers},
        "vocab_size": codebook + 1024,
    }


def _sizes(preset: str, codebook: int, text_entries: int) -> tuple[Json, Json, Json]:
    """(talker_config without ids, codec config, speaker_encoder_config)."""
    if preset in ("0.6b", "1.7b"):
        hidden, inter = (1024, 3072) if preset == "0.6b" else (2048, 6144)
        predictor = _predictor(codebook, _transformer(1024, 3072, 5, 16, 8, 128))
        talker = _talker(_transformer(hidden, inter, 28, 16, 8, 128), [24, 20, 20], predictor, 151936, 2048)
        return talker, _real_codec(), {"enc_dim": hidden, "sample_rate": 24000}
    narrow = {
        "tiny": _transformer(64, 96, 2, 4, 2, 16),
        "tiny-mtp": _transformer(32, 64, 2, 4, 2, 8),
        "small": _transformer(32, 64, 2, 4, 2, 8),
    }[preset]
    rows, width = (151936, 16) if preset == "small" else (text_entries, 48)
    talker = _talker(_transformer(64, 128, 2, 4, 2, 16), [4, 2, 2], _predictor(codebook, narrow), rows, width)
    speaker_encoder = {
        "enc_dim": 64,
        "enc_channels": [32, 32, 32, 32, 96],
        "enc_attention_channels": 16,
        "enc_se_channels": 16,
        "sample_rate": 24000,
    }
    return talker, _tiny_codec(codebook), speaker_encoder


def _transformer(hidden: int, inter: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> Json:
    return {
        "attention_bias": False,
        "attention_dropout": 0,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": inter,
        "num_attention_heads": heads,
        "num_code_groups": 16,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
    }


def _talker(transformer: Json, mrope: list[int], predictor: Json, text_vocab: int, text_hidden: int) -> Json:
    rope = {"interleaved": True, "mrope_section": mrope, "rope_type": "default", "type": "default"}
    return transformer | {
        "code_predictor_config": predictor,
        "max_position_embeddings": 32768,
        "model_type": "qwen3_tts_talker",
        "position_id_per_seconds": 13,
        "rope_scaling": rope,
        "text_hidden_size": text_hidden,
        "text_vocab_size": text_vocab,
    }


def _predictor(codebook: int, transformer: Json) -> Json:
    return transformer | {
        "layer_types": ["full_attention"] * transformer["num_hidden_layers"],
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "model_type": "qwen3_tts_talker_code_predictor",
        "rope_scaling": None,
        "vocab_size": codebook,
    }


def _real_codec() -> Json:
    return _codec(
        {
            "codebook_dim": 512, "codebook_size": CODEBOOK, "decoder_dim": 1536, "head_dim": 64, "hidden_size": 512,
            "intermediate_size": 1024, "latent_dim": 1024, "num_attention_heads": 16, "num_key_value_heads": 16,
            "num_hidden_layers": 8, "sliding_window": 72, "vector_quantization_hidden_dimension": 512,
        },
        {
            "codebook_dim": 256, "codebook_size": CODEBOOK, "head_dim": 64, "hidden_size": 512,
            "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 8, "num_filters": 64,
            "num_hidden_layers": 8, "num_quantizers": 32, "sliding_window": 250, "upsample_groups": 512,
            "vector_quantization_hidden_dimension": 256,
        },
    )  # fmt: skip


def _tiny_codec(codebook: int) -> Json:
    return _codec(
        {
            "codebook_dim": 32, "codebook_size": codebook, "decoder_dim": 64, "head_dim": 8, "hidden_size": 16,
            "intermediate_size": 32, "latent_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 4,
            "num_hidden_layers": 2, "sliding_window": 12, "vector_quantization_hidden_dimension": 32,
        },
        {
            "codebook_dim": 16, "codebook_size": codebook, "head_dim": 8, "hidden_size": 32,
            "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "num_filters": 4,
            "num_hidden_layers": 2, "num_quantizers": 20, "sliding_window": 16, "upsample_groups": 32,
            "vector_quantization_hidden_dimension": 16,
        },
    )  # fmt: skip


def _codec(decoder: Json, encoder: Json) -> Json:
    """speech_tokenizer/config.json; all rates are the real ones, so that 1 frame = 1920 samples at 24 kHz."""
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": 16,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "decoder_config": decoder | {
            "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
            "layer_scale_initial_scale": 0.01, "max_position_embeddings": 8000, "num_quantizers": 16,
            "num_semantic_quantizers": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000, "semantic_codebook_size": 4096,
            "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2],
        },
        "encoder_config": encoder | {
            "_frame_rate": 12.5, "attention_bias": False, "attention_dropout": 0.0, "audio_channels": 1,
            "compress": 2, "dilation_growth_rate": 2, "hidden_act": "gelu", "initializer_range": 0.02,
            "kernel_size": 7, "last_kernel_size": 3, "layer_scale_initial_scale": 0.01,
            "max_position_embeddings": 8000, "model_type": "mimi", "norm_eps": 1e-5, "num_residual_layers": 1,
            "num_semantic_quantizers": 1, "pad_mode": "constant", "residual_kernel_size": 3, "rope_theta": 10000.0,
            "sampling_rate": 24000, "trim_right_ratio": 1.0, "upsampling_ratios": [8, 6, 5, 4], "use_cache": False,
            "use_causal_conv": True, "use_conv_shortcut": False, "use_streaming": False,
        },
    }  # fmt: skip


def merge(base: Json, changes: Json) -> None:
    """Recursive dictionary update, in place."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = value
