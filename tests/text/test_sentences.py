"""Splitting long texts: nothing is lost, no part is too long, sentences stay whole where they fit."""

import random
import unicodedata
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3tts.text.clusters import clusters
from qwen3tts.text.sentences import split_text
from qwen3tts.text.tokenizer import is_blank


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
        ("One two.\n\u200b \u200b \u200b\n\u200b \ufeff\nThree four.", 3,
         ["One two.\n\u200b \u200b \u200b\n\u200b \ufeff", "Three four."]),
        ("\u200b\n\u200b\nOne two.\nThree four.", 2, ["\u200b\n\u200b\nOne two.", "Three four."]),
        ("One\u200b two. \u200b", 4, ["One\u200b two. \u200b"]),
        ("\u200b \u200b", 3, []),
        ("你好。 \u0301世界！\ufe0f好", 2, ["你好。 \u0301世界！\ufe0f好"]),
    ],
)  # fmt: skip
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


# One cluster each. In a text made of them nothing else may be a place to cut, whatever they stand beside.
ATOMS = {
    "Thai": ["ที่", "นี่", "เป็", "แม่", "กำ", "ค่า", "จะ", "โต๊ะ", "น้ำ", "ไม้ๆ"],
    "Hindi": ["हि", "न्दी", "क्षे", "त्र", "में", "ज़", "की", "ॐ", "स्त्री"],
    "families": ["👩‍👩‍👧‍👦", "👨🏽‍🚀", "❤️‍🔥", "👍🏿", "🏴‍☠️", "1️⃣", "🙂"],
    "flags": ["🇩🇪", "🇯🇵", "🇺🇸", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "🇫🇷"],
    "accents": ["e\u0301", "o\u0302\u0323", "a\u030a", "n\u0303", "u\u0308\u0304", "x"],
    "jamo": ["\u1112\u1161\u11ab", "\u1100\u1173\u11af", "\u1109\u116e", "\uac00", "\uac00\u11a8",
             "\u1100\u1100\u1161"],
    "kana": ["きゃ", "コー", "カッ", "フィ", "ハ\uff9f", "か"],
    "invisible": ["a\u200b", "b\ufeff\u200e", "\u2014\u200b"],
}  # fmt: skip


def tokens(text):
    """Bytes: even a single character may be too long for a part."""
    return len(text.encode())


@pytest.mark.parametrize("script", ATOMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_cuts_are_between_characters(script, data):
    between = data.draw(st.sampled_from([[], [" "], [", "], ["。"]]))
    made = data.draw(st.lists(st.sampled_from(ATOMS[script] + between)))
    text = "".join(made)
    ends = set(accumulate(len(atom) for atom in made))
    size = data.draw(st.integers(1, 40))
    parts = split_text(text, tokens, size)
    assert squeezed("".join(parts)) == squeezed(text)
    place = 0
    for part in parts:
        place = text.index(part, place)
        assert place == 0 or place in ends, (made, parts)
        place += len(part)
        assert not is_blank(part)
        assert tokens(part) <= size or len(clusters(part)) == 1, (size, made, parts)
    normal = [unicodedata.normalize("NFC", part) for part in parts]
    assert squeezed("".join(normal)) == squeezed(unicodedata.normalize("NFC", text)), "a cut changed the tokens"


@pytest.mark.parametrize("script", ATOMS)
def test_clusters(script):
    for atom in ATOMS[script]:
        assert clusters(atom) == [atom]
        assert clusters(f"z{atom}z") == ["z", atom, "z"]
        assert split_text(atom, tokens, 1) == [atom]


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60), size=st.integers(1, 30))
def test_any_text_is_kept(text, size):
    parts = split_text(text, tokens, size)
    assert squeezed("".join(parts)) == ("" if is_blank(text) else squeezed(text))
    assert not any(is_blank(part) for part in parts)
    assert "".join(clusters(text)) == text


def test_long_words_are_cut_at_punctuation_near_the_middle():
    assert split_text("example.org/one-two_three", len, 16) == ["example.org/", "one-two_three"]
    assert split_text("aaaa(bbbbb3.14", len, 8) == ["aaaa(bb", "bbb3.14"]
