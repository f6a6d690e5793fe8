"""Any chopping of a text settles to exactly the tokens of the whole."""

import random
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3tts.errors import TextError
from qwen3tts.text.settling import TextSettler, stable_length
from qwen3tts.text.tokenizer import MAX_TEXT_CHARS, TextTokenizer, clean_text, is_blank

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
        st.sampled_from(
            list(" \n\r\t.,!?'-=<3aéstdmrevlTx你好，世。가ᄀ👍\u1161\u11a8\u0301\u0323\u0307\u0338\u200b\x1c")
        ),
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


def test_no_pair_of_characters_was_overlooked():
    """NFC joins exactly what canonical decompositions into two characters say."""
    seconds = set()
    for char in map(chr, range(sys.maxunicode + 1)):
        parts = unicodedata.decomposition(char).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            seconds.add(chr(int(parts[1], 16)))
    assert len(seconds) > 60
    assert all(stable_length("a" + char) == 0 for char in seconds)


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


def test_invisible_text_is_refused_at_the_end(tokenizer):
    for pieces in (["\u200b"], ["\u200b", " \u200b\n", "\ufeff"], ["\x08\x0c"], ["\u200e \u200f \u00ad "]):
        for settle in ("safe", "eager"):
            settler = TextSettler(tokenizer, settle)
            assert [settler.push(piece) for piece in pieces] == [[]] * len(pieces), (
                "nothing settles, so nothing is spoken"
            )
            with pytest.raises(TextError, match="invisible"):
                settler.finish()
    text = "\u200b \u200b\u200bone \u200b"
    assert settled(tokenizer, list(text)) == tokenizer.encode(clean_text(text))


class Scanning(TextSettler):
    """Reads everything held at every push."""

    def _may_settle(self, text):
        self._visible = self._visible or not is_blank(text)
        return self._visible


def same_at_every_push(tokenizer, pieces, settle):
    settler, scanning = TextSettler(tokenizer, settle), Scanning(tokenizer, settle)
    for piece in pieces:
        assert settler.push(piece) == scanning.push(piece), (pieces, piece)
        assert settler.ends_a_clause == scanning.ends_a_clause


@pytest.mark.parametrize("settle", ["safe", "eager"])
@settings(max_examples=300, deadline=None)
@given(text=PIECES, data=st.data())
def test_unread_pieces_delay_nothing(mini_tokenizer, settle, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    same_at_every_push(mini_tokenizer, pieces, settle)
    same_at_every_push(mini_tokenizer, list(text), settle)


@pytest.mark.parametrize("settle", ["safe", "eager"])
def test_unread_pieces_delay_nothing_in_long_runs(tokenizer, settle, seed):
    rng = random.Random(f"{seed} {settle}")
    kinds = [
        "你好世界",
        "か\u3099き",
        "\u1112\u1161\u11ab",
        "a\u0301",
        "!?-",
        "👍🏽\u200d",
        " \n\t",
        "37",
        "\u0301\u0323",
        "'s",
        "\u0378\U000e1000",
        "\U0001fae8!",
        "\u1c89\ua7cb\U0001c000a",
    ]
    for _ in range(60):
        text = "".join("".join(rng.choices(rng.choice(kinds), k=rng.randrange(1, 20))) for _ in range(6))
        same_at_every_push(tokenizer, list(text), settle)
        same_at_every_push(tokenizer, chop(text, rng), settle)
        if settle == "safe" and not is_blank(text):
            assert settled(tokenizer, list(text)) == settled(tokenizer, chop(text, rng))
            assert settled(tokenizer, list(text)) == tokenizer.encode(clean_text(text))


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, tokenizer):
        self.tokenizer, self.characters = tokenizer, 0

    def __getattr__(self, name):
        def call(text):
            self.characters += len(text)
            return getattr(self.tokenizer, name)(text)

        return call


@pytest.mark.parametrize(
    "unit",
    [
        "你好世界",
        "か\u3099き\u3099",
        "\u1112\u1161\u11ab",
        "e\u0301a",
        "abc",
        "!?",
        "👍🏽",
        "\u0301",
        " \n",
        "!\n",
        "7",
        "一1",
        "a's ",
        "\U000e1000",
        "\u0378\u0e3c",
        "\U0001fae8",
        "x\U000e1000",
    ],
)
@pytest.mark.parametrize("size", [1, 7])
def test_work_grows_with_the_text(mini_tokenizer, unit, size):
    def work(length):
        text = ("x" + unit * length)[:length]
        counting = Counting(mini_tokenizer)
        pieces = [text[i : i + size] for i in range(0, length, size)]
        assert settled(counting, pieces) == mini_tokenizer.encode(clean_text(text))
        return counting.characters

    short, long = work(500), work(2000)
    assert long <= 20 * 2000, "characters read, for 2000 pushed"
    assert long <= 4.5 * short


def test_a_run_without_end_is_refused(mini_tokenizer):
    settler = TextSettler(mini_tokenizer)
    settler.push("a" * MAX_TEXT_CHARS)
    with pytest.raises(TextError, match="without the end of a word"):
        settler.push("a")
    settler.push("")
