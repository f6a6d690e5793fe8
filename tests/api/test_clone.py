"""Cloning through the native interface and the drop-in class. That the results equal the official package's is shown in
tests/parity."""

import base64
import io
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import qwen3tts
from qwen3tts import GenerateOptions, OptionError, Qwen3TTSModel, Voice, VoiceClonePromptItem, VoiceError
from qwen3tts.voice.clone import misfit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "parity"))
from signals import SAMPLE_RATE, signal

GREEDY = {"do_sample": False, "subtalker_dosample": False}
SHORT = GenerateOptions(max_frames=6, **GREEDY)
OFFICIAL_SHORT = {"max_new_tokens": 7, **GREEDY}
TEXT = "Hello world, the voice."


@pytest.fixture(scope="module")
def audio(seed):
    return signal("voice", 26_000, seed % 1000), SAMPLE_RATE


@pytest.fixture(scope="module")
def other_audio(seed):
    return signal("chirp", 31_000, seed % 1000 + 1), SAMPLE_RATE


@pytest.fixture(scope="module")
def dropin(tiny_checkpoint):
    return Qwen3TTSModel.from_pretrained(tiny_checkpoint("base", seed=2))


def same(a, b):
    assert np.array_equal(a.codes, b.codes)
    assert a.samples.shape == b.samples.shape
    np.testing.assert_allclose(a.samples, b.samples, atol=1e-5)


# ------------------------------------------------------------ native


def test_what_a_clone_is(base_tts, audio):
    voice = base_tts.clone(audio, " The user. ", name="Anna")
    assert (voice.kind, voice.ref_text, voice.name) == ("icl", "The user.", "Anna")
    assert voice.frames == -(-(26_000 + 12_000) // 1920)
    assert voice.fingerprint == base_tts.encoders.fingerprint()
    for plain in (base_tts.clone(audio), base_tts.clone(audio, "The user.", x_vector_only=True)):
        assert plain == voice.without_reference()
    assert Voice.clone(audio, "The user.", tts=base_tts) == voice


def test_the_silent_tail_is_for_the_codec_alone(base_tts, audio):
    for tail in (0, 0.5, 1.25):
        voice = base_tts.clone(audio, "The user.", silent_tail=tail)
        padded = np.pad(audio[0], (0, round(tail * SAMPLE_RATE)))
        np.testing.assert_array_equal(voice.ref_codes, base_tts.encoders.encode(padded))
        np.testing.assert_array_equal(voice.x_vector, base_tts.encoders.embed(audio[0]))
    for tail in (-1, 11, float("nan"), "1", True, None):
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


def test_nothing_is_cloned_after_close(tiny_checkpoint, audio):
    tts = qwen3tts.load(tiny_checkpoint("base", seed=2), backend="cpu")
    tts.close()
    with pytest.raises(qwen3tts.Qwen3TTSError, match="closed"):
        tts.clone(audio)


# ------------------------------------------------------------ drop-in


def test_prompt_items(dropin, base_tts, audio, other_audio):
    items = dropin.create_voice_clone_prompt([audio, other_audio], ["The user.", None], [False, True])
    voice = base_tts.clone(audio, "The user.", silent_tail=0)
    assert items[0].ref_code.dtype == torch.int64
    np.testing.assert_array_equal(items[0].ref_code.numpy(), voice.ref_codes)
    np.testing.assert_array_equal(items[0].ref_spk_embedding.numpy(), voice.x_vector)
    assert (items[0].x_vector_only_mode, items[0].icl_mode, items[0].ref_text) == (False, True, "The user.")
    assert (items[1].x_vector_only_mode, items[1].icl_mode, items[1].ref_code) == (True, False, None)


def test_all_forms_of_a_prompt_speak_alike(dropin, base_tts, audio):
    items = dropin.create_voice_clone_prompt(audio, "The user.")
    first = dropin.generate_voice_clone(TEXT, voice_clone_prompt=items, **OFFICIAL_SHORT)[0][0]
    columns = {name: [getattr(items[0], name)] for name in items[0].__dict__}
    for prompt in (items[0], columns):
        again = dropin.generate_voice_clone(TEXT, voice_clone_prompt=prompt, **OFFICIAL_SHORT)[0][0]
        np.testing.assert_array_equal(first, again)
    again = dropin.generate_voice_clone(TEXT, ref_audio=audio, ref_text="The user.", **OFFICIAL_SHORT)[0][0]
    np.testing.assert_array_equal(first, again)
    voice = base_tts.clone(audio, "The user.", silent_tail=0)
    native = base_tts.generate(TEXT, voice, options=SHORT)
    np.testing.assert_allclose(native.samples, first, atol=1e-5)


def test_audio_arguments(dropin, audio, tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, audio[0], SAMPLE_RATE, subtype="PCM_16")
    text = base64.b64encode(path.read_bytes()).decode().replace("/", "_")
    wanted = dropin.create_voice_clone_prompt(audio, None, True)[0].ref_spk_embedding
    for source in (str(path), path, "data:audio/wav;base64," + base64.b64encode(path.read_bytes()).decode()):
        assert torch.equal(dropin.create_voice_clone_prompt(source, None, True)[0].ref_spk_embedding, wanted)
    with pytest.raises(ValueError, match="sample rate"):
        dropin.create_voice_clone_prompt(audio[0], None, True)
    with pytest.raises(TypeError, match="int"):
        dropin.create_voice_clone_prompt(5, None, True)
    with pytest.raises(qwen3tts.AudioError):
        dropin.create_voice_clone_prompt(text[:3000], None, True)


def test_clone_errors(dropin, audio, tiny_checkpoint):
    item = dropin.create_voice_clone_prompt(audio, "The user.")[0]
    columns = {name: [getattr(item, name)] for name in item.__dict__ if name != "ref_text"}
    say = dropin.generate_voice_clone
    for match, arguments in {
        "Give voice_clone_prompt or ref_audio": {},
        "no ref_text": {"ref_audio": audio},
        "2 texts, 3 voice prompts": {"text": ["a", "b"], "voice_clone_prompt": [item] * 3},
        "1 recordings, 2 transcripts": {"ref_audio": audio, "ref_text": ["a", "b"]},
        "The dict form of a prompt loses it": {"voice_clone_prompt": columns},
        "dict lacks x_vector_only_mode": {"voice_clone_prompt": {"ref_spk_embedding": [], "icl_mode": []}},
        "Voice prompt 0 is of type str": {"voice_clone_prompt": "anna"},
        "ref_code is None": {
            "voice_clone_prompt": VoiceClonePromptItem(None, item.ref_spk_embedding, False, True, "x")
        },
        "has 3 values": {"voice_clone_prompt": VoiceClonePromptItem(None, torch.ones(3), True, False)},
        "not finite": {"voice_clone_prompt": VoiceClonePromptItem(None, torch.full((64,), torch.nan), True, False)},
        "code 64 is none of 64": {
            "voice_clone_prompt": VoiceClonePromptItem(
                torch.full((2, 16), 64), item.ref_spk_embedding, False, True, "x"
            )
        },
        "Unknown language": {"voice_clone_prompt": item, "language": "Klingon"},
    }.items():
        with pytest.raises(ValueError, match=match):
            say(**({"text": TEXT} | arguments), **OFFICIAL_SHORT)
    custom = Qwen3TTSModel.from_pretrained(tiny_checkpoint())
    with pytest.raises(ValueError, match="does not support generate_voice_clone"):
        custom.generate_voice_clone(TEXT, ref_audio=audio, ref_text="x")
    with pytest.raises(ValueError, match="does not support create_voice_clone_prompt"):
        custom.create_voice_clone_prompt(audio, "x")


def test_clone_batches(dropin, audio, other_audio):
    items = dropin.create_voice_clone_prompt([audio, other_audio], ["The user.", ""], [False, True])
    wavs, rate = dropin.generate_voice_clone(["Hello.", TEXT], "English", voice_clone_prompt=items, **OFFICIAL_SHORT)
    assert rate == SAMPLE_RATE
    for wav, text, item in zip(wavs, ["Hello.", TEXT], items, strict=True):
        alone = dropin.generate_voice_clone(text, "English", voice_clone_prompt=[item], **OFFICIAL_SHORT)[0][0]
        np.testing.assert_allclose(wav, alone, atol=1e-5)
    assert len(dropin.generate_voice_clone(["a", "b"], voice_clone_prompt=items[:1], **OFFICIAL_SHORT)[0]) == 2
    with pytest.warns(UserWarning, match="ref_text starts or ends with white space"):
        dropin.generate_voice_clone("a", ref_audio=audio, ref_text="x\n", **OFFICIAL_SHORT)


def test_tokenizer(tiny_checkpoint, base_tts, audio, other_audio, tmp_path):
    codec = qwen3tts.Qwen3TTSTokenizer.from_pretrained(tiny_checkpoint("base", seed=2) / "speech_tokenizer")
    encoded = codec.encode([audio[0], other_audio[0]], sr=SAMPLE_RATE)
    for codes, source in zip(encoded.audio_codes, (audio, other_audio), strict=True):
        assert codes.dtype == torch.int64
        np.testing.assert_array_equal(codes.numpy(), base_tts.encoders.encode(source[0]))
    assert encoded[0] is encoded["audio_codes"] is encoded.audio_codes
    assert torch.equal(codec.encode(audio[0], SAMPLE_RATE, return_dict=False)[0][0], encoded[0][0])
    wavs, rate = codec.decode(encoded)
    assert (rate, [len(wav) for wav in wavs]) == (SAMPLE_RATE, [1920 * len(codes) for codes in encoded[0]])
    padded = torch.nn.utils.rnn.pad_sequence(encoded.audio_codes, batch_first=True, padding_value=-1)
    for form in (
        {"audio_codes": encoded.audio_codes},
        [{"audio_codes": codes} for codes in encoded[0]],
        [{"audio_codes": codes.numpy()} for codes in encoded[0]],
        {"audio_codes": padded},
    ):
        for wav, again in zip(wavs, codec.decode(form)[0], strict=True):
            np.testing.assert_array_equal(wav, again)
    np.testing.assert_array_equal(codec.decode({"audio_codes": encoded[0][1]})[0][0], wavs[1])
    assert codec.encode([]).audio_codes == []
    rates = codec.get_input_sample_rate(), codec.get_output_sample_rate()
    assert (codec.get_model_type(), *rates) == ("qwen3_tts_tokenizer_12hz", 24000, 24000)
    assert codec.get_encode_downsample_rate() == codec.get_decode_upsample_rate() == 1920
    soundfile.write(tmp_path / "a.wav", audio[0], SAMPLE_RATE, subtype="PCM_16")
    assert torch.equal(codec.encode(str(tmp_path / "a.wav"))[0][0], encoded[0][0])
    with pytest.raises(ValueError, match="sample rate"):
        codec.encode(audio[0])
    for bad in ([audio[0], "x"], [5], ["x", audio[0]]):
        with pytest.raises(TypeError, match="mixed"):
            codec.encode(bad, SAMPLE_RATE)
    for bad in (torch.zeros(3, 15, dtype=torch.int64), torch.zeros(3, 16), torch.full((3, 16), 64)):
        with pytest.raises(VoiceError, match="Codes "):
            codec.decode({"audio_codes": bad})
    with pytest.raises(TypeError, match="expected what encode"):
        codec.decode("x")
    with pytest.raises(OptionError, match="device_map"):
        qwen3tts.Qwen3TTSTokenizer.from_pretrained(tiny_checkpoint("base", seed=2), device_mapp="cpu")


def test_a_recording_too_long_is_refused_before_the_work(base_tts, monkeypatch):
    monkeypatch.setattr(base_tts.encoders, "embed", lambda samples: pytest.fail("the work has begun"))
    samples = np.random.default_rng(0).uniform(-0.1, 0.1, 600 * 24_000).astype(np.float32)
    with pytest.raises(VoiceError, match="at most 600 s"):
        base_tts.clone((samples, 24_000), "The user.")
