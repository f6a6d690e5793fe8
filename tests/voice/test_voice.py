"""Voices: construction, checks, equality, pickling."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch

from qwen3tts.errors import VoiceError
from qwen3tts.voice.voice import Voice


def vector(seed, width=64):
    return np.random.default_rng(seed).standard_normal(width).astype(np.float32)


def codes(seed, frames=5):
    return np.random.default_rng(seed).integers(0, 2048, (frames, 16))


ALL = [
    Voice.preset("Ryan"), Voice.no_speaker(), Voice.from_x_vector(vector(1)), Voice.from_x_vector(vector(2), "Anna"),
    Voice.from_reference(vector(1), codes(1), "What was said.", "Anna", "ab12"),
]  # fmt: skip


@pytest.mark.parametrize("voice", ALL, ids=repr)
@pytest.mark.parametrize("again", [lambda v: pickle.loads(pickle.dumps(v)), copy.copy, copy.deepcopy])
def test_pickles_and_copies(voice, again):
    other = again(voice)
    assert other == voice
    assert hash(other) == hash(voice)
    assert (other.kind, other.name, repr(other)) == (voice.kind, voice.name, repr(voice))
    if voice.x_vector is not None:
        np.testing.assert_array_equal(other.x_vector, voice.x_vector)
        assert not other.x_vector.flags.writeable
    if voice.ref_codes is not None:
        np.testing.assert_array_equal(other.ref_codes, voice.ref_codes)
        assert not other.ref_codes.flags.writeable
        assert (other.ref_text, other.fingerprint) == (voice.ref_text, voice.fingerprint)


def test_equality_is_what_is_heard():
    assert Voice.preset("Ryan") == Voice.preset(" ryan ")
    assert Voice.preset("ryan") != Voice.preset("eric")
    assert Voice.from_x_vector(vector(3)) == Voice.from_x_vector(vector(3), "label")
    assert Voice.from_x_vector(vector(3)) != Voice.from_x_vector(vector(4))
    assert Voice.from_x_vector(vector(3)) != Voice.from_x_vector(vector(3)[:-1])
    assert Voice.no_speaker() == Voice.no_speaker()
    assert Voice.preset("ryan") != "ryan"
    assert len(set(ALL)) == len({*ALL, Voice.preset("RYAN"), Voice.from_x_vector(vector(1), "x")}) == 5


def test_x_vector_is_a_copy_that_nobody_changes():
    values = vector(5)
    voice = Voice.from_x_vector(values)
    values[0] = 100
    np.testing.assert_array_equal(voice.x_vector, vector(5))
    with pytest.raises(ValueError, match="read-only"):
        voice.x_vector[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        voice.name = "other"


@pytest.mark.parametrize(
    "convert",
    [np.float64, np.float16, list, tuple, torch.from_numpy, lambda a: a[::2], lambda a: (a * 100).astype(np.int16)],
)
def test_x_vector_takes_numbers_of_any_kind(convert):
    values = convert(vector(6))
    voice = Voice.from_x_vector(values)
    assert voice.x_vector.dtype == np.float32
    assert voice.x_vector.flags.c_contiguous
    np.testing.assert_array_equal(voice.x_vector, np.asarray(values, dtype=np.float32))


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([], r"shape \[enc_dim\], not \[0\]"),
        ([[1.0, 2.0]], r"not \[1, 2\]"),
        (1.5, r"not \[\]"),
        ([[1.0], [1.0, 2.0]], "cannot be made of a list"),
        (["1.0"], "not dtype <U3"),
        ([True, False], "not dtype bool"),
        ([1j], "not dtype complex128"),
        ([None], "not dtype object"),
        (None, "not dtype object"),
        ([1.0, float("nan"), float("inf")], "2 of 3 values .* first at index 1: nan"),
        ([1.0, 1e39], "1 of 2 values .* first at index 1: 1e[+]39"),
        (torch.zeros(4, dtype=torch.bfloat16), r"tensor.detach\(\).float\(\)"),
        (torch.zeros(4, requires_grad=True), r"tensor.detach\(\).float\(\)"),
    ],
)
def test_bad_x_vectors(values, match):
    with pytest.raises(VoiceError, match=match):
        Voice.from_x_vector(values)


def test_bad_names_and_kinds():
    for name in ("", "  "):
        with pytest.raises(VoiceError, match="not blank"):
            Voice.preset(name)
    for name in (None, 3):
        with pytest.raises(VoiceError, match="expected str"):
            Voice.preset(name)
    with pytest.raises(VoiceError, match="expected a string"):
        Voice.from_x_vector(vector(1), name=7)
    for arguments in (
        ("preset",),
        ("preset", "ryan", vector(1)),
        ("no_speaker", "ryan"),
        ("icl", "ryan"),
        ("icl", "ryan", vector(1)),
        ("icl", "ryan", vector(1), codes(1)),
        ("icl", "ryan", vector(1), None, "text"),
        ("icl", "ryan", None, codes(1), "text"),
        ("x_vector", "anna", vector(1), codes(1)),
        ("x_vector", "anna", vector(1), None, "text"),
        ("preset", "ryan", None, codes(1)),
        ("preset", "ryan", None, None, None, "ab12"),
        ("x_vector",),
    ):
        with pytest.raises(VoiceError):
            Voice(*arguments)


def test_repr_is_short():
    assert repr(Voice.preset("Ryan")) == "Voice.preset('ryan')"
    assert repr(Voice.no_speaker()) == "Voice.no_speaker()"
    assert repr(Voice.from_x_vector(vector(1, 2048), "Anna")) == "Voice.from_x_vector(<float32 [2048]>, name='Anna')"
    text = "What was said, and what was said after that."
    assert repr(Voice.from_reference(vector(1), codes(1), text)) == (
        "Voice.from_reference(<float32 [64]>, <5 frames>, 'What was said, and what was said afte...', name=None)"
    )


def test_recordings():
    voice = Voice.from_reference(vector(1), codes(1), " What was said.\n", "Anna", "ab12")
    assert (voice.kind, voice.frames, voice.ref_text, voice.fingerprint) == ("icl", 5, "What was said.", "ab12")
    assert voice.ref_codes.dtype == np.int16
    np.testing.assert_array_equal(voice.ref_codes, codes(1))
    plain = voice.without_reference()
    assert plain == Voice.from_x_vector(vector(1))
    assert (plain.name, plain.fingerprint, plain.frames) == ("Anna", "ab12", 0)
    assert voice == Voice.from_reference(vector(1), codes(1), "What was said.", "Bert", "cd34")
    assert voice != Voice.from_reference(vector(1), codes(2), "What was said.")
    assert voice != Voice.from_reference(vector(1), codes(1), "What was sung.")
    assert voice != plain
    with pytest.raises(VoiceError, match="has no x-vector"):
        Voice.preset("ryan").without_reference()


@pytest.mark.parametrize("convert", [np.int64, np.uint16, list, torch.from_numpy, np.asfortranarray])
def test_codes_of_any_kind(convert):
    values = convert(codes(3))
    voice = Voice.from_reference(vector(1), values, "x")
    np.testing.assert_array_equal(voice.ref_codes, codes(3))
    assert voice.ref_codes.flags.c_contiguous


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([], r"not dtype float64"),
        (np.zeros((0, 16), int), r"1 to 7500 frames, not \[0, 16\]"),
        (np.zeros((7501, 16), int), r"not \[7501, 16\]"),
        (np.zeros((3, 15), int), r"not \[3, 15\]"),
        (np.zeros((1, 3, 16), int), r"not \[1, 3, 16\]"),
        (np.zeros((3, 16)), "not dtype float64"),
        (np.full((2, 16), -1), r"code \[0, 0\] is -1"),
        (np.arange(48).reshape(3, 16) + 32752, r"code \[1, 0\] is 32768"),
        ([[1, 2], [3]], "cannot be made of a list"),
        (None, "not dtype object"),
    ],
)
def test_bad_codes(values, match):
    with pytest.raises(VoiceError, match=match):
        Voice.from_reference(vector(1), values, "x")


@pytest.mark.parametrize("text", ["", " \n", None, 5, "\ud800", "\u200b"])
def test_bad_transcripts(text):
    with pytest.raises(VoiceError, match="transcript of the recording"):
        Voice.from_reference(vector(1), codes(1), text)


@pytest.mark.parametrize("fingerprint", ["", 5, "a" * 201, "a\nb"])
def test_bad_fingerprints(fingerprint):
    with pytest.raises(VoiceError, match="fingerprint"):
        Voice.from_x_vector(vector(1), fingerprint=fingerprint)


def test_a_transcript_too_long_is_refused():
    codes = np.zeros((2, 16), np.int16)
    assert len(Voice.from_reference(np.ones(4), codes, "你" * 20_000).ref_text) == 20_000
    with pytest.raises(VoiceError, match="20,001 characters"):
        Voice.from_reference(np.ones(4), codes, "你" * 20_001)
