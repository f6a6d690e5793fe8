"""Tokenizers of both vocabularies and a model's text-side configuration, written out by hand."""

import pytest

from qwen3tts.model.config import CodePredictorConfig, ModelConfig, TalkerConfig, TransformerConfig
from qwen3tts.text.tokenizer import ChatTemplate, TextTokenizer


@pytest.fixture(scope="session")
def real_tokenizer(real_vocabulary_folder):
    return TextTokenizer.from_folder(real_vocabulary_folder)


@pytest.fixture(scope="session")
def mini_tokenizer(mini_vocabulary_folder):
    return TextTokenizer.from_folder(mini_vocabulary_folder)


@pytest.fixture(scope="session")
def config() -> ModelConfig:
    """The ids of the tiny checkpoints. The codec plays no part in a prompt."""
    transformer = TransformerConfig(64, 128, 2, 4, 2, 16, 1e-6, 1e6, 32768)
    talker = TalkerConfig(
        transformer, CodePredictorConfig(transformer, 64), vocab_size=1088, text_vocab_size=327, text_hidden_size=48,
        num_code_groups=16, codec_pad_id=164, codec_bos_id=165, codec_eos_id=166, codec_think_id=170,
        codec_nothink_id=171, codec_think_bos_id=172, codec_think_eos_id=173,
        languages={"chinese": 71, "english": 66, "beijing_dialect": 90},
        speakers={"ryan": 1077, "dylan": 894}, speaker_dialects={"dylan": "beijing_dialect"},
    )  # fmt: skip
    return ModelConfig(
        "custom_voice", "1b7", talker, None, None, im_start_id=295, im_end_id=296, assistant_id=263, tts_bos_id=323,
        tts_eos_id=324, tts_pad_id=322,
    )  # fmt: skip


@pytest.fixture(scope="session")
def template(config, mini_tokenizer):
    return ChatTemplate.from_config(config, mini_tokenizer)
