"""Splitting long texts: nothing is lost, no part is too long, sentences stay whole where they fit."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3tts.text.sentences import split_text


def words(text):
    return len(text.split())


def squeezed(text):
    return "".join(text.split())


@pytest.mark.parametrize(
    ("text", "size", "parts"),
    [
        ("One two. Three four! Five six?", 2, ["One two.", "Three four!", "Five six?"]),
        ("One two. Three four! Five six?", 4, ["One two. Three four!", "Five six?"]),
        ("Pi is 3.14 exactly. No.", 4, ["Pi is 3.14 exactly.", "No."]),
        ('He said "Stop." Then he left.', 3, ['He said "Stop."', "Then he left."]),
        ("a b, c d, e f", 2, ["a b,", "c d,", "e f"]),
        ("a b c d e", 2, ["a b", "c d", "e"]),
        ("First line\n\nSecond line", 2, ["First line", "Second line"]),
        ("", 3, []),
        (" \n ", 3, []),
        ("One two.\n\u200b \u200b \u200b\n\u200b \ufeff\nThree four.", 3, ["One two.", "Three four."]),
        ("One\u200b two. \u200b", 4, ["One\u200b two. \u200b"]),
        ("\u200b \u200b", 3, []),
    ],
)
def test_where_texts_are_split(text, size, parts):
    assert split_text(text, words, size) == parts


def test_scripts_without_spaces():
    text = "你好，世界。今天天气很好！我们出去走走吧？好。"
    assert split_text(text, len, 10) == ["你好，世界。", "今天天气很好！", "我们出去走走吧？好。"]
    assert split_text(text, len, 4) == ["你好，", "世界。", "今天天", "气很好！", "我们出去", "走走吧？", "好。"]
    assert split_text("他说“好。”然后走了。", len, 6) == ["他说“好。”", "然后走了。"]


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="ab .,!?\n。，“”’)3", max_size=120), size=st.integers(1, 12))
def test_nothing_is_lost_and_no_part_is_too_long(text, size):
    parts = split_text(text, len, size)
    assert squeezed("".join(parts)) == squeezed(text)
    assert all(part == part.strip() and 0 < len(part) <= size for part in parts)


def test_parts_are_as_long_as_possible(seed):
    rng = random.Random(seed)
    sentences = [" ".join(["word"] * rng.randrange(1, 9)) + "." for _ in range(60)]
    parts = split_text(" ".join(sentences), words, 20)
    assert all(words(part) <= 20 for part in parts)
    for a, b in pairwise(parts):
        assert words(a) + words(b.split(".")[0]) > 20
