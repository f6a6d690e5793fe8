"""Cloning through the native interface. That the results equal the official package's is shown in
tests/parity."""

import io
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import qwen3tts
from qwen3tts import GenerateOptions, OptionError, Qwen3TTSModel, Voice, VoiceError
from qwen3tts.voice.clone import misfit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "parity"))
from signals import SAMPLE_RATE, signal

GREEDY = {"do_sample": False, "subtalker_dosample": False}
SHORT = GenerateOptions(max_frames=6, **GREEDY)
TEXT = "Hello world, the voice."


@pytest.fixture(scope="module")
def audio(seed):
    return signal("voice", 26_000, seed % 1000), SAMPLE_RATE


@pytest.fixture(scope="module")
def other_audio(seed):
    return signal("chirp", 31_000, seed % 1000 + 1), SAMPLE_RATE


def same(a, b):
    assert np.array_equal(a.codes, b.codes)
    assert a.samples.shape == b.samples.shape
    np.testing.assert_allclose(a.samples, b.samples, atol=1e-5)


def test_what_a_clone_is(base_tts, audio):
    voice = base_tts.clone(audio, " The user. ", name="Anna")
    assert (voice.kind, voice.ref_text, voice.name) == ("icl", "The user.", "Anna")
    assert voice.frames == -(-(26_000 + 12_000) // 1920)
    assert voice.fingerprint == base_tts.encoders.fingerprint()
    for plain in (base_tts.clone(audio), base_tts.clone(audio, "The user.", x_vector_only=True)):
        assert plain == voice.without_reference()
    assert base_tts.clone(audio, "", x_vector_only=True) == voice.without_reference(), "as in the official package"
    with pytest.raises(VoiceError, match="transcript"):
        base_tts.clone(audio, "")
    assert Voice.clone(audio, "The user.", tts=base_tts) == voice


def test_the_silent_tail_is_for_the_codec_alone(base_tts, audio):
    for tail in (0, 0.5, np.float32(1.25), np.int64(1)):
        voice = base_tts.clone(audio, "The user.", silent_tail=tail)
        padded = np.pad(audio[0], (0, round(tail * SAMPLE_RATE)))
        np.testing.assert_array_equal(voice.ref_codes, base_tts.encoders.encode(padded))
        np.testing.assert_array_equal(voice.x_vector, base_tts.encoders.embed(audio[0]))
    for tail in (-1, 11, float("nan"), np.float32("nan"), "1", True, np.True_, None, np.ones(2)):
        with pytest.raises(VoiceError, match="silent_tail"):
            base_tts.clone(audio, "The user.", silent_tail=tail)


def test_recordings_of_all_kinds_make_the_same_voice(base_tts, audio, tmp_path):
    voice = base_tts.clone(audio, "The user.")
    soundfile.write(tmp_path / "a.wav", audio[0], SAMPLE_RATE, subtype="PCM_16")
    assert base_tts.clone(tmp_path / "a.wav", "The user.") == voice
    assert base_tts.clone(io.BytesIO((tmp_path / "a.wav").read_bytes()), "The user.") == voice
    assert base_tts.clone(audio[0], "The user.", sample_rate=SAMPLE_RATE) == voice
    stereo = np.stack([audio[0], audio[0]], 1)
    assert base_tts.clone((stereo, SAMPLE_RATE), "The user.") == voice


def test_refusals(base_tts, tts, design_tts, audio, tmp_path):
    for model, kind in ((tts, "custom_voice"), (design_tts, "voice_design")):
        with pytest.raises(VoiceError, match=f"A {kind} model cannot clone"):
            model.clone(audio)
    with pytest.raises(qwen3tts.AudioError, match="too short for a voice"):
        base_tts.clone((audio[0][:1279], SAMPLE_RATE))
    with pytest.raises(qwen3tts.AudioError, match="no such file"):
        base_tts.clone(tmp_path / "nothing.wav")
    with pytest.raises(qwen3tts.AudioError, match="allow_url"):
        base_tts.clone("http://example.org/a.wav")
    for silence in (np.zeros(48_000, np.float32), np.full(48_000, 5e-5, np.float32)):
        with pytest.raises(VoiceError, match="The recording is silent"):
            base_tts.clone((silence, SAMPLE_RATE))
    for text in ("", " ", 5):
        with pytest.raises(VoiceError, match="transcript"):
            base_tts.clone(audio, text)


def test_a_transcript_that_cannot_fit_warns(base_tts, audio, caplog):
    caplog.set_level(logging.WARNING, "qwen3tts")
    base_tts.clone(audio, "on and on " * 20)
    assert "too many for 1.1 s" in caplog.text
    long = signal("voice", 10 * SAMPLE_RATE, 1), SAMPLE_RATE
    caplog.clear()
    base_tts.clone(long, "Hi")
    assert "too few for 10.0 s" in caplog.text
    caplog.clear()
    base_tts.clone(long, "The voice is speaking to the user.")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("tokens", "seconds", "fits"),
    [(25, 2.0, True), (26, 2.0, False), (1, 3.2, True), (1, 3.3, False), (40, 10, True), (7, 10, True), (6, 10, False)],
)
def test_what_fits(tokens, seconds, fits):
    assert (misfit(tokens, seconds) is None) == fits


def test_one_token_is_no_tokens():
    assert misfit(1, 0.01).startswith("The transcript has 1 token, too many for")
    assert misfit(1, 60).startswith("The transcript has 1 token, too few for")
    assert misfit(2, 60).startswith("The transcript has 2 tokens, too few for")


def test_short_recordings_warn(base_tts, caplog):
    base_tts.clone((signal("voice", 12_000, 1), SAMPLE_RATE))
    assert "lasts 0.50 s" in caplog.text


def test_mixed_voices_in_a_batch(base_tts, audio, other_audio):
    voices = [base_tts.clone(audio, "The user."), base_tts.clone(other_audio), base_tts.clone(other_audio, "and on")]
    texts = [TEXT, "Hello.", "The voice speaks to the world."]
    options = [SHORT, SHORT.replace(seed=3, do_sample=True, max_frames=9), SHORT.replace(text_mode="whole")]
    for row, *single in zip(base_tts.generate(texts, voices, options=options), texts, voices, options, strict=True):
        same(row, base_tts.generate(single[0], single[1], options=single[2]))


def test_a_voice_speaks_alike_after_a_file(base_tts, audio, tmp_path):
    voice = base_tts.clone(audio, "The user.")
    first = base_tts.generate(TEXT, voice, options=SHORT)
    for name in ("anna.json", "anna.safetensors"):
        voice.save(tmp_path / name)
        same(base_tts.generate(TEXT, Voice.load(tmp_path / name), options=SHORT), first)
    assert not np.array_equal(first.codes, base_tts.generate(TEXT, voice.without_reference(), options=SHORT).codes)


@pytest.mark.parametrize("chunking", ["exact", "official"])
def test_the_recording_is_heard_before_the_cut_only(base_tts, audio, chunking):
    """The samples are those of the codes after the recording's, decoded together."""
    voice = base_tts.clone(audio, "The user.")
    speech = base_tts.generate(TEXT, voice, options=SHORT.replace(codec_chunking=chunking))
    assert speech.samples.shape == (speech.frames * 1920,)
    codec = base_tts.engine.runtime.codec
    whole = codec.decode_official(torch.from_numpy(np.concatenate((voice.ref_codes, speech.codes)).astype(np.int64)))
    np.testing.assert_allclose(speech.samples, whole[voice.frames * 1920 :].numpy(), atol=1e-5)
    alone = codec.decode_official(torch.from_numpy(speech.codes.astype(np.int64)))
    assert float(np.abs(speech.samples - alone.numpy()).max()) > 1e-3, "the codec should go on from the recording"


def test_a_recording_is_decoded_once(base_tts, audio, seed, monkeypatch):
    """Later texts start from the codec's state after it; the oldest of many recordings is forgotten."""
    runtime = base_tts.engine.runtime
    rng, decoded = np.random.default_rng(seed), []
    decode = runtime.codec.decode
    monkeypatch.setattr(
        runtime.codec, "decode", lambda states, codes: (decoded.extend(map(len, codes)), decode(states, codes))[1]
    )
    vector = base_tts.clone(audio).x_vector
    voices = [Voice.from_reference(vector, rng.integers(0, 64, (20 + i, 16)), "The user.") for i in range(5)]
    first = [base_tts.generate(TEXT, voice, options=SHORT) for voice in voices]
    assert [20 + i in decoded for i in range(5)] == [True] * 5
    decoded.clear()
    for _ in range(2):
        same(base_tts.generate(TEXT, voices[4], options=SHORT), first[4])
    chunks = base_tts.stream(TEXT, voices[4], options=SHORT.replace(text_mode="streamed"))
    np.testing.assert_allclose(np.concatenate([chunk.samples for chunk in chunks]), first[4].samples, atol=1e-5)
    assert 24 not in decoded
    same(base_tts.generate(TEXT, voices[0], options=SHORT), first[0])
    assert 20 in decoded


def test_lookahead_means_nothing_beside_a_recording(base_tts, audio):
    voice = base_tts.clone(audio, "The user.")
    with pytest.raises(OptionError, match="without_reference"):
        base_tts.generate(TEXT, voice, options=GenerateOptions(text_lookahead_tokens=1))
    base_tts.generate(TEXT, voice.without_reference(), options=SHORT.replace(text_lookahead_tokens=1))


def test_a_voice_of_another_model_warns_once(base_tts, audio, caplog):
    own = base_tts.clone(audio)
    foreign = Voice.from_x_vector(own.x_vector, "Anna", "0123456789abcdef")
    for voice in (own, foreign, foreign, Voice.from_x_vector(own.x_vector)):
        base_tts.generate("Hi", voice, options=SHORT)
    assert caplog.text.count("was made with another model") == 1
    assert "0123456789abcdef" in caplog.text


def test_no_warning_of_a_voice_that_is_refused_anyway(base_tts, audio, caplog):
    own = base_tts.clone(audio, "The user.")
    foreign = Voice.from_reference(own.x_vector, own.ref_codes, own.ref_text, "Bob", "fedcba9876543210")
    for text, options in (
        (TEXT, GenerateOptions(text_lookahead_tokens=1)),
        (" ", SHORT),
        (TEXT, SHORT.replace(text_mode="whole", rng="torch")),
    ):
        with pytest.raises((OptionError, qwen3tts.TextError)):
            base_tts.generate([text, text], foreign, options=options)
    with pytest.raises(OptionError):
        base_tts.stream(TEXT, foreign, options=SHORT.replace(codec_chunking="official"))
    assert "was made with another model" not in caplog.text
    base_tts.generate(TEXT, foreign, options=SHORT)
    assert "fedcba9876543210" in caplog.text


def test_nothing_is_cloned_after_close(tiny_checkpoint, audio):
    tts = qwen3tts.load(tiny_checkpoint("base", seed=2), backend="cpu")
    tts.close()
    for use in (
        lambda: tts.clone(audio),
        lambda: tts.generate(TEXT, Voice.from_x_vector(np.ones(64), fingerprint="0123456789abcdef")),
        lambda: Qwen3TTSModel(tts).create_voice_clone_prompt(audio, None, True),
    ):
        with pytest.raises(qwen3tts.Qwen3TTSError, match="This model was closed"):
            use()


def test_a_recording_too_long_is_refused_before_the_work(base_tts, monkeypatch):
    monkeypatch.setattr(base_tts.encoders, "embed", lambda samples: pytest.fail("the work has begun"))
    samples = np.random.default_rng(0).uniform(-0.1, 0.1, 600 * 24_000).astype(np.float32)
    with pytest.raises(VoiceError, match="at most 600 s"):
        base_tts.clone((samples, 24_000), "The user.")
