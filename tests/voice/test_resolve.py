"""What each model type accepts, and what it says to the rest."""

from dataclasses import replace

import numpy as np
import pytest

from qwen3tts.errors import VoiceError
from qwen3tts.voice.resolve import resolve, resolve_language, supported_languages, supported_speakers
from qwen3tts.voice.voice import Voice

X_VECTOR = Voice.from_x_vector(np.arange(64) / 64, "anna")
CODES = np.arange(48).reshape(3, 16)
ICL = Voice.from_reference(np.arange(64) / 64, CODES, "What was said.", "anna")
REQUEST = {"voice": None, "language": "auto", "instruct": None}


def refused(config, match, **request):
    with pytest.raises(VoiceError, match=match):
        resolve(config, **(REQUEST | request))


def test_lists(custom_voice, base):
    assert supported_speakers(custom_voice) == ["dylan", "eric", "ryan", "vivian"]
    assert supported_speakers(base) == []
    assert supported_languages(custom_voice) == supported_languages(base) == ["auto", "chinese", "english", "german"]


@pytest.mark.parametrize(
    ("language", "name"),
    [(None, None), ("auto", None), ("Auto", None), (" AUTO ", None), ("English", "english"), ("CHINESE", "chinese")],
)
def test_languages(language, name, custom_voice):
    assert resolve_language(custom_voice, language) == name


@pytest.mark.parametrize(
    ("language", "match"),
    [
        (
            "Inglish",
            "Unknown language 'Inglish'. Did you mean 'english'[?] This model knows auto, chinese, english, german",
        ),
        ("", "Unknown language ''. This model knows"),
        ("beijing_dialect", "is a dialect .* the voice dylan speaks it when the language is chinese or auto"),
        ("Sichuan_Dialect", "the voice eric speaks it"),
        (5, "type int, expected str"),
    ],
)
def test_bad_languages(language, match, custom_voice):
    refused(custom_voice, match, voice="ryan", language=language)


def test_dialect_without_a_speaker(base):
    refused(base, "no voice of this model speaks it", voice=X_VECTOR, language="beijing_dialect")


@pytest.mark.parametrize(
    ("speaker", "language", "expected"),
    [
        ("dylan", "auto", 2074), ("dylan", None, 2074), ("dylan", "Chinese", 2074), ("dylan", "english", 2050),
        ("eric", "auto", 2062), ("eric", "chinese", 2062), ("eric", "english", 2050), ("eric", "german", 2053),
        ("ryan", "auto", None), ("ryan", "chinese", 2055), ("ryan", "english", 2050),
    ],
)  # fmt: skip
def test_dialects_follow_the_speaker(speaker, language, expected, custom_voice):
    assert resolve(custom_voice, voice=speaker, language=language, instruct=None).language_id == expected


def test_custom_voice(custom_voice):
    for voice in ("Ryan", " RYAN", Voice.preset("ryan")):
        got = resolve(custom_voice, voice=voice, language="english", instruct=" Whisper. ")
        assert (got.language_id, got.speaker_id, got.speaker_name, got.instruct) == (2050, 3061, "ryan", "Whisper.")
        assert got.x_vector is None


def test_custom_voice_refuses(custom_voice):
    for voice in (None, "", " ", Voice.no_speaker()):
        refused(custom_voice, "needs a voice. This one has dylan, eric, ryan, vivian", voice=voice)
    refused(custom_voice, r"Unknown voice 'v{59}[.] This model has dylan, ", voice="v" * 3000)
    refused(custom_voice, "Unknown voice 'vivan'. Did you mean 'vivian'[?] This model has dylan, ", voice="Vivan")
    refused(custom_voice, "takes no x-vector", voice=X_VECTOR)
    refused(custom_voice, "type ndarray, expected a preset's name or a Voice", voice=np.zeros(64))
    refused(custom_voice, "type list, expected str", voice="ryan", instruct=["x"])


@pytest.mark.parametrize("size", ["0b6", "0b", "b6", "6", ""])
def test_small_custom_voice_refuses_instruct(size, custom_voice_small):
    config = replace(custom_voice_small, model_size=size)
    refused(config, f"size {size!r}.* cannot follow an instruct", voice="ryan", instruct="Whisper.")
    for blank in (None, "", " \n"):
        assert resolve(config, voice="ryan", language="auto", instruct=blank).instruct is None


def test_voice_design(voice_design):
    for voice in (None, "", Voice.no_speaker()):
        got = resolve(voice_design, voice=voice, language="german", instruct="A deep voice.")
        assert (got.language_id, got.speaker_id, got.x_vector, got.instruct) == (2053, None, None, "A deep voice.")
        assert got.speaker_name is None
    assert resolve(voice_design, voice=None, language=None, instruct="  ").instruct is None
    assert resolve(replace(voice_design, model_size="0b6"), voice=None, language=None, instruct="x").instruct == "x"
    refused(voice_design, "takes no voice, but Voice.preset[(]'ryan'[)] was given", voice="ryan")
    refused(voice_design, "takes no voice, but Voice.from_x_vector", voice=X_VECTOR)


def test_base(base):
    got = resolve(base, voice=X_VECTOR, language="chinese", instruct="")
    assert (got.language_id, got.speaker_id, got.speaker_name, got.instruct) == (2055, None, "anna", None)
    np.testing.assert_array_equal(got.x_vector, X_VECTOR.x_vector)
    refused(base, "takes no instruct", voice=X_VECTOR, instruct="Whisper.")
    refused(base, "no preset voices; give a cloned one .*Voice.preset[(]'ryan'[)] was given", voice="ryan")
    for voice in (None, ""):
        refused(base, "give a cloned one .* none was given", voice=voice)
    refused(base, "no_speaker[(][)] was given", voice=Voice.no_speaker())
    assert (got.ref_codes, got.ref_text) == (None, None)
    refused(base, "has 32 values, this model needs 64", voice=Voice.from_x_vector(np.ones(32)))


def test_base_with_a_recording(base, custom_voice, voice_design):
    got = resolve(base, voice=ICL, language="german", instruct=None)
    assert (got.language_id, got.speaker_id, got.speaker_name, got.ref_text) == (2053, None, "anna", "What was said.")
    np.testing.assert_array_equal(got.x_vector, ICL.x_vector)
    np.testing.assert_array_equal(got.ref_codes, CODES)
    wide = Voice.from_reference(np.ones(32), CODES, "x")
    refused(base, "has 32 values, this model needs 64", voice=wide)
    refused(base, r"go up to 64, this model's codec has 64 codes \(0 to 63\)",
            voice=Voice.from_reference(np.ones(64), CODES + 17, "x"))  # fmt: skip
    refused(custom_voice, "takes no x-vector or recording", voice=ICL)
    refused(voice_design, "takes no voice, but Voice.from_reference", voice=ICL)


def test_a_label_is_no_preset(base, custom_voice):
    """An x-vector named like a preset with a dialect does not speak that dialect."""
    config = replace(base, talker=replace(base.talker, speaker_dialects=custom_voice.talker.speaker_dialects))
    assert (
        resolve(config, voice=Voice.from_x_vector(np.ones(64), "dylan"), language="auto", instruct=None).language_id
        is None
    )
