"""Prompts against rows written out by hand, and properties over random requests."""

import random

import pytest

from qwen3tts.errors import OptionError, TextError, VoiceError
from qwen3tts.text.prompt import NO_CODEC, SPEAKER_ROW, build_prompt

# The ids of the fixtures: text side ...
START, END, ASSISTANT, USER, NL = 295, 296, 263, 266, 104
BOS, EOS, PAD = 323, 324, 322
A, B, C, D = 64, 65, 66, 67
# ... and codec side.
CPAD, CBOS, THINK, NOTHINK, THINK_BOS, THINK_EOS = 164, 165, 170, 171, 172, 173
ENGLISH, DYLAN, RYAN = 66, 894, 1077
NONE, X_VECTOR = -1, -2

ROLE = [(START, NONE), (ASSISTANT, NONE), (NL, NONE)]
AUTO = [(PAD, NOTHINK), (PAD, THINK_BOS), (PAD, THINK_EOS)]
IN_ENGLISH = [(PAD, THINK), (PAD, THINK_BOS), (PAD, ENGLISH), (PAD, THINK_EOS)]
INSTRUCT_A = [(START, NONE), (USER, NONE), (NL, NONE), (A, NONE), (END, NONE), (NL, NONE)]
READY = [(BOS, CPAD)]

DEFAULTS = {
    "instruct": None,
    "language_id": None,
    "speaker_id": None,
    "x_vector": False,
    "text_mode": "whole",
    "lookahead": 8,
}
STREAMED = {"text_mode": "streamed"}


def whole(*body):
    return [*((token, CPAD) for token in body), (EOS, CPAD), (PAD, CBOS)]


# name: (text, options that differ from DEFAULTS, rows, trailing)
CASES = {
    "design, no language": ("abcd", {}, [*ROLE, *AUTO, *READY, *whole(A, B, C, D)], [PAD]),
    "preset, language": (
        "ab", {"speaker_id": RYAN, "language_id": ENGLISH},
        [*ROLE, *IN_ENGLISH, (PAD, RYAN), *READY, *whole(A, B)], [PAD]),
    "preset with its dialect": (
        "ab", {"speaker_id": DYLAN, "language_id": 90},
        [*ROLE, (PAD, THINK), (PAD, THINK_BOS), (PAD, 90), (PAD, THINK_EOS), (PAD, DYLAN), *READY, *whole(A, B)],
        [PAD]),
    "x-vector": ("a", {"x_vector": True}, [*ROLE, *AUTO, (PAD, X_VECTOR), *READY, *whole(A)], [PAD]),
    "instruct": (
        "ab", {"instruct": "a", "language_id": ENGLISH},
        [*INSTRUCT_A, *ROLE, *IN_ENGLISH, *READY, *whole(A, B)], [PAD]),
    "empty instruct": ("ab", {"instruct": ""}, [*ROLE, *AUTO, *READY, *whole(A, B)], [PAD]),
    "streamed 1": ("abcd", STREAMED | {"lookahead": 1}, [*ROLE, *AUTO, *READY, (A, CBOS)], [B, C, D, EOS]),
    "streamed 2": (
        "abcd", STREAMED | {"lookahead": 2}, [*ROLE, *AUTO, *READY, (A, CPAD), (B, CBOS)], [C, D, EOS]),
    "streamed, lookahead = length": (
        "abcd", STREAMED | {"lookahead": 4},
        [*ROLE, *AUTO, *READY, (A, CPAD), (B, CPAD), (C, CPAD), (D, CBOS)], [EOS]),
    "streamed, lookahead > length": (
        "abc", STREAMED, [*ROLE, *AUTO, *READY, (A, CPAD), (B, CPAD), (C, CBOS)], [EOS]),
    "streamed, one token": ("a", STREAMED, [*ROLE, *AUTO, *READY, (A, CBOS)], [EOS]),
    "streamed, instruct, x-vector and language": (
        "abcdabcda", STREAMED | {"instruct": "a", "x_vector": True, "language_id": ENGLISH},
        [*INSTRUCT_A, *ROLE, *IN_ENGLISH, (PAD, X_VECTOR), *READY,
         *((token, CPAD) for token in (A, B, C, D, A, B, C)), (D, CBOS)], [A, EOS]),
    # The official package's treatment of texts that the native interface refuses: "" streams the closing token.
    "empty text": ("", {}, [*ROLE, *AUTO, *READY, *whole()], [PAD]),
    "empty text, streamed": ("", STREAMED, [*ROLE, *AUTO, *READY, (END, CBOS)], [EOS]),
}  # fmt: skip


def build(config, template, text, **options):
    return build_prompt(config, template, text=text, **(DEFAULTS | options))


@pytest.mark.parametrize("name", CASES)
def test_rows_written_by_hand(name, config, template):
    text, options, rows, trailing = CASES[name]
    prompt = build(config, template, text, **options)
    assert list(zip(prompt.text_ids, prompt.codec_ids, strict=True)) == rows
    assert list(prompt.trailing_ids) == trailing
    assert prompt.text_tokens == len(text)
    assert len(prompt) == len(rows)


def test_special_codec_ids_are_no_ids():
    assert (NO_CODEC, SPEAKER_ROW) == (NONE, X_VECTOR)


def random_request(rng):
    speaker = rng.choice([{}, {"speaker_id": RYAN}, {"x_vector": True}])
    return speaker | {
        "text": "".join(rng.choice("abcd 你好.,!Hello") for _ in range(rng.randrange(1, 30))).strip() or "a",
        "instruct": rng.choice([None, "", "Hello", "in a low voice"]),
        "language_id": rng.choice([None, ENGLISH]),
    }


@pytest.mark.parametrize("seed", range(5))
def test_properties(seed, config, template, mini_tokenizer):
    rng = random.Random(seed)
    for _ in range(60):
        request = random_request(rng)
        body = mini_tokenizer.encode(request["text"])
        n = len(body)
        head = 3 + (3 if request["language_id"] is None else 4) + 1
        head += ("speaker_id" in request) + ("x_vector" in request)
        head += len(template.instruct_ids(request["instruct"])) if request["instruct"] else 0

        prompt = build(config, template, **request)
        common = list(zip(prompt.text_ids, prompt.codec_ids, strict=True))[:head]
        assert len(prompt) == head + n + 2, (seed, request)
        assert list(prompt.text_ids[head:]) == [*body, EOS, PAD]
        assert prompt.trailing_ids == (PAD,)
        assert prompt.text_tokens == n

        for lookahead in range(1, n + 3):
            streamed = build(config, template, **request, text_mode="streamed", lookahead=lookahead)
            m = min(lookahead, n)
            assert len(streamed) == head + m, (seed, request, lookahead)
            assert list(zip(streamed.text_ids, streamed.codec_ids, strict=True))[:head] == common
            assert [*streamed.text_ids[head:], *streamed.trailing_ids] == [*body, EOS]
            assert list(streamed.codec_ids[head:]) == [CPAD] * (m - 1) + [CBOS]
            assert EOS not in streamed.text_ids
            assert streamed.text_tokens == n


def test_lookahead_means_nothing_in_whole_mode(config, template):
    assert build(config, template, "abcd", lookahead=1) == build(config, template, "abcd", lookahead=8)


def test_bad_arguments(config, template):
    for lookahead in (0, -1, 1.5, True, None, "1"):
        with pytest.raises(OptionError, match="text_lookahead_tokens"):
            build(config, template, "a", lookahead=lookahead)
    with pytest.raises(OptionError, match="text_mode is 'half'"):
        build(config, template, "a", text_mode="half")
    with pytest.raises(VoiceError, match="not both"):
        build(config, template, "a", speaker_id=RYAN, x_vector=True)
    with pytest.raises(TextError, match="surrogate"):
        build(config, template, "\ud800")
    with pytest.raises(TextError, match="surrogate"):
        build(config, template, "a", instruct="\ud800")
