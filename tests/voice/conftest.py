"""Configurations of the three model types, with the voices and languages of a small model."""

from dataclasses import replace

import pytest

from qwen3tts.model.config import CodePredictorConfig, ModelConfig, TalkerConfig, TransformerConfig


@pytest.fixture(scope="session")
def custom_voice() -> ModelConfig:
    """1.7B style: follows instructions."""
    transformer = TransformerConfig(64, 128, 2, 4, 2, 16, 1e-6, 1e6, 32768)
    talker = TalkerConfig(
        transformer, CodePredictorConfig(transformer, 64), vocab_size=3072, text_vocab_size=151936, text_hidden_size=48,
        num_code_groups=16, codec_pad_id=2148, codec_bos_id=2149, codec_eos_id=2150, codec_think_id=2154,
        codec_nothink_id=2155, codec_think_bos_id=2156, codec_think_eos_id=2157,
        languages={"chinese": 2055, "english": 2050, "german": 2053, "beijing_dialect": 2074, "sichuan_dialect": 2062},
        speakers={"vivian": 3065, "ryan": 3061, "eric": 2875, "dylan": 2878},
        speaker_dialects={"eric": "sichuan_dialect", "dylan": "beijing_dialect"},
    )  # fmt: skip
    return ModelConfig("custom_voice", "1b7", talker, None, None, 151644, 151645, 77091, 151672, 151673, 151671)


def _without_presets(config: ModelConfig, model_type: str) -> ModelConfig:
    return replace(config, model_type=model_type, talker=replace(config.talker, speakers={}, speaker_dialects={}))


@pytest.fixture(scope="session")
def custom_voice_small(custom_voice):
    return replace(custom_voice, model_size="0b6")


@pytest.fixture(scope="session")
def base(custom_voice):
    return _without_presets(custom_voice, "base")


@pytest.fixture(scope="session")
def voice_design(custom_voice):
    return _without_presets(custom_voice, "voice_design")
