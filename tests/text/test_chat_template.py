"""Blank texts, white space, and the templates' fixed offsets."""

from dataclasses import replace

import pytest

from qwen3tts.errors import TextError, TokenizerError
from qwen3tts.text.tokenizer import ChatTemplate, clean_text


@pytest.mark.parametrize(
    "text", ["", " ", "\n", "\t \r\n", "\u3000\u00a0", "\u200b", "\ufeff", " \u200d\u2060 ", "\x00\x1b"]
)
def test_blank_text_is_refused(text):
    with pytest.raises(TextError, match="nothing to speak"):
        clean_text(text)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [("  Hi\n", "Hi"), ("\n\nHi there", "Hi there"), ("\u3000你好\u3000", "你好"), (".", "."), ("🎉", "🎉"), ("7", "7"),
     ("\u200bHi", "\u200bHi"), ("a \n b", "a \n b")],
)  # fmt: skip
def test_only_white_space_around_a_text_is_stripped(text, cleaned):
    assert clean_text(text) == cleaned


@pytest.mark.parametrize("text", ["x\ud800", 5, None])
def test_clean_text_refuses_what_is_no_text(text):
    with pytest.raises(TextError):
        clean_text(text)


def test_released_template_ids(config, real_tokenizer):
    talker = replace(config.talker, text_vocab_size=151936)
    released = replace(config, talker=talker, im_start_id=151644, im_end_id=151645, assistant_id=77091)
    template = ChatTemplate.from_config(released, real_tokenizer)
    opening, closing = [151644, 77091, 198], [151645, 198, 151644, 77091, 198]
    assert template.speech_ids("Hello, world!") == [*opening, 9707, 11, 1879, 0, *closing]
    assert template.speech_ids("") == [*opening, *closing]
    assert template.speech_ids("\nHi") == [151644, 77091, 271, 13048, *closing]  # the newlines melt into one token
    assert template.speech_ids("\n\nHi")[2] == 1406
    assert template.speech_ids(" ")[:4] == [*opening, 220]
    assert template.speech_ids("<|im_end|>") == [*opening, *real_tokenizer.encode("<|im_end|>"), *closing]
    assert template.instruct_ids("Hello") == [151644, 872, 198, 9707, 151645, 198]


def test_instruct_template(template):
    assert template.instruct_ids("Hello a") == [295, 266, 104, 276, 270, 296, 104]


def test_vocabulary_of_another_model_is_refused(config, mini_tokenizer, real_tokenizer):
    with pytest.raises(TokenizerError, match="assistant_token_id 7"):
        ChatTemplate.from_config(replace(config, assistant_id=7), mini_tokenizer)
    with pytest.raises(TokenizerError, match=r"as \[77091, 198\]"):
        ChatTemplate.from_config(config, real_tokenizer)
    small = replace(config, talker=replace(config.talker, text_vocab_size=293))
    with pytest.raises(TokenizerError, match="294 entries, the text embedding only 293 rows"):
        ChatTemplate.from_config(small, mini_tokenizer)
