"""Prompts that go on from a recording, against rows written out by hand and by the reference's rule."""

import random

import pytest

from qwen3tts.errors import VoiceError
from qwen3tts.text.prompt import REFERENCE_ROW, Reference, build_prompt

START, END, ASSISTANT, NL = 295, 296, 263, 104
BOS, EOS, PAD = 323, 324, 322
A, B, C, D = 64, 65, 66, 67
CPAD, CBOS, NOTHINK, THINK_BOS, THINK_EOS = 164, 165, 171, 172, 173
NONE, X_VECTOR, REF = -1, -2, -3

HEAD = [
    (START, NONE), (ASSISTANT, NONE), (NL, NONE), (PAD, NOTHINK), (PAD, THINK_BOS), (PAD, THINK_EOS), (PAD, X_VECTOR),
    (BOS, CPAD),
]  # fmt: skip

# name: (text, transcript, frames, mode, rows after HEAD, trailing)
CASES = {
    "whole": (
        "ab", "cd", 3, "whole",
        [(C, CPAD), (D, CPAD), (A, CPAD), (B, CPAD), (EOS, CPAD), (PAD, CBOS), (PAD, REF), (PAD, REF), (PAD, REF)],
        [PAD]),
    "text longer": ("abc", "d", 2, "streamed", [(D, CBOS), (A, REF), (B, REF)], [C, EOS]),
    "only eos left over": ("ab", "d", 2, "streamed", [(D, CBOS), (A, REF), (B, REF)], [EOS]),
    "equally long": ("ab", "d", 3, "streamed", [(D, CBOS), (A, REF), (B, REF), (EOS, REF)], [PAD]),
    "text shorter": (
        "a", "d", 5, "streamed", [(D, CBOS), (A, REF), (EOS, REF), (PAD, REF), (PAD, REF), (PAD, REF)], [PAD]),
    "transcript longer than the recording": ("a", "bcd", 1, "streamed", [(B, CBOS), (C, REF)], [D, A, EOS]),
}  # fmt: skip


def build(config, template, text, transcript, frames, mode, lookahead=8, **options):
    arguments = {"instruct": None, "language_id": None, "speaker_id": None, "x_vector": True} | options
    return build_prompt(
        config, template, text=text, text_mode=mode, lookahead=lookahead, reference=Reference(transcript, frames),
        **arguments,
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rows_written_by_hand(name, config, template):
    text, transcript, frames, mode, rows, trailing = CASES[name]
    prompt = build(config, template, text, transcript, frames, mode)
    assert list(zip(prompt.text_ids, prompt.codec_ids, strict=True)) == HEAD + rows
    assert list(prompt.trailing_ids) == trailing
    assert (prompt.text_tokens, prompt.reference_tokens) == (len(text), len(transcript))
    assert prompt.reference_frames == frames == prompt.codec_ids.count(REFERENCE_ROW)


def test_special_codec_id_is_no_id():
    assert REFERENCE_ROW == REF


def test_properties(config, template, mini_tokenizer, seed):
    rng = random.Random(seed)
    for _ in range(200):
        drawn = ("".join(rng.choices("abcd 你好.Hello", k=rng.randrange(1, 20))) for _ in range(2))
        text, transcript = (text.strip() or "a" for text in drawn)
        frames, language = rng.randrange(1, 40), rng.choice([None, 66])
        lane = [*mini_tokenizer.encode(transcript), *mini_tokenizer.encode(text), EOS]
        head = len(HEAD) + (language is not None)
        whole = build(config, template, text, transcript, frames, "whole", language_id=language)
        assert list(whole.text_ids[head:]) == [*lane, *[PAD] * (frames + 1)], seed
        assert list(whole.codec_ids[head:]) == [*[CPAD] * len(lane), CBOS, *[REF] * frames]
        streamed = build(config, template, text, transcript, frames, "streamed", language_id=language)
        assert streamed.codec_ids[:head] == whole.codec_ids[:head]
        assert list(streamed.codec_ids[head:]) == [CBOS, *[REF] * frames]
        beside = [*streamed.text_ids[head:], *streamed.trailing_ids]
        assert beside[: len(lane)] == lane, seed
        assert set(beside[len(lane):]) <= {PAD}
        assert streamed.trailing_ids[0] != PAD or len(streamed.trailing_ids) == 1
        for lookahead in (1, 5):
            assert build(config, template, text, transcript, frames, "streamed", lookahead,
                         language_id=language) == streamed  # fmt: skip


def test_a_reference_has_frames(config, template):
    for frames in (0, -1):
        with pytest.raises(VoiceError, match="expected 1 or more"):
            build(config, template, "a", "b", frames, "whole")
