"""Any chopping of a text settles to exactly the tokens of the whole."""

import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3tts.errors import TextError
from qwen3tts.text.settling import TextSettler, stable_length
from qwen3tts.text.tokenizer import TextTokenizer, clean_text

TEXTS = [
    "The quick brown fox: it's y'all'd've, we'll re-read 3.14159 and 1,000!\n\nNext line...  \n  end",
    "其实我真的有发现，我是一个特别善于观察别人情绪的人。你好。",
    "สวัสดีครับ ยินดีที่ได้รู้จัก",
    "한국어 \u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165 각",
    "Cafe\u0301 de\u0301ja\u0300 nai\u0308ve a\u0315\u0301 q\u0323\u0307 o\u0307\u0323 x=\u0338y",
    "👩‍🚀👨‍👩‍👧‍👦 👍🏽 ❤️ 1️⃣ e\u0301!",
    "def f(x):\n    return x**2  # square\n\nprint(f(3))\t\r\n",
    "  leading, and trailing   \n ",
    "e\u0f73\u0301 abc a\u0345\u07fd b \u0f75x",
    "ক\u09c7\u09be \u0dd9\u0dcf\u0dca",
]
PIECES = st.text(
    alphabet=st.one_of(
        st.sampled_from(list(" \n\r\t.,!?'-=<3aéstdmrevlTx你好，世。가ᄀ👍\u1161\u11a8\u0301\u0323\u0307\u0338")),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=40,
)


@pytest.fixture(scope="module", params=["real", "mini"])
def tokenizer(request):
    return TextTokenizer.from_folder(request.getfixturevalue(f"{request.param}_vocabulary_folder"))


def settled(tokenizer, pieces, settle="safe"):
    settler = TextSettler(tokenizer, settle)
    ids = []
    for piece in pieces:
        ids += settler.push(piece)
    return ids + settler.finish()


def chop(text, rng):
    cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randrange(1, 12))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("text", TEXTS)
def test_every_way_of_cutting(tokenizer, text, seed):
    whole = tokenizer.encode(clean_text(text))
    assert settled(tokenizer, list(text)) == whole
    rng = random.Random(seed)
    for _ in range(40):
        assert settled(tokenizer, chop(text, rng)) == whole


@settings(max_examples=400, deadline=None)
@given(text=PIECES, data=st.data())
def test_any_text_any_cuts(mini_tokenizer, text, data):
    try:
        whole = mini_tokenizer.encode(clean_text(text))
    except TextError:
        with pytest.raises(TextError):
            settled(mini_tokenizer, [text])
        return
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert settled(mini_tokenizer, pieces) == whole
    assert settled(mini_tokenizer, list(text)) == whole


@pytest.fixture(scope="module")
def mini_tokenizer(mini_vocabulary_folder):
    return TextTokenizer.from_folder(mini_vocabulary_folder)


@settings(max_examples=500, deadline=None)
@given(text=PIECES, more=PIECES)
def test_stable_text_keeps_its_normal_form(text, more):
    stable = unicodedata.normalize("NFC", text[: stable_length(text)])
    assert unicodedata.normalize("NFC", text + more).startswith(stable)


def test_what_settles_when(tokenizer):
    settler = TextSettler(tokenizer)
    assert settler.push("Hel") == []
    assert settler.push("lo") == []
    assert settler.push(" wor") == tokenizer.encode("Hello")
    assert settler.push("ld") == []
    assert settler.push("!\n ") == tokenizer.encode(" world")
    assert settler.finish() == tokenizer.encode("!")
    with pytest.raises(TextError, match="finished"):
        settler.push("x")
    assert settler.finish() == []


def test_clauses_settle_in_scripts_without_spaces(real_vocabulary_folder):
    settler = TextSettler(TextTokenizer.from_folder(real_vocabulary_folder))
    assert settler.push("其实我真的") == []
    assert settler.push("有发现") == []
    assert settler.push("，") != []
    assert settler.ends_a_clause


@pytest.mark.parametrize("pieces", [["One,"], ["One, "], ["One,", " "], ["One.\n"], ['One."'], ["واحد؟"]])
def test_a_clause_ends_whatever_white_space_follows(tokenizer, pieces):
    settler = TextSettler(tokenizer)
    for piece in pieces:
        settler.push(piece)
    assert settler.ends_a_clause
    settler.push(" and")
    assert not settler.ends_a_clause


def test_eager_gives_out_all_but_white_space(tokenizer):
    settler = TextSettler(tokenizer, "eager")
    assert settler.push("Hel") == tokenizer.encode("Hel")
    assert settler.push("lo \n") == tokenizer.encode("lo")
    assert settler.finish() == []


def test_blank_and_wrong_pieces(tokenizer):
    settler = TextSettler(tokenizer)
    assert settler.push(" \n") == []
    with pytest.raises(TextError, match="str"):
        settler.push(b"x")
    with pytest.raises(TextError):
        settler.finish()
