"""Cloning and the codec through the drop-in classes. That the results equal the official package's is shown in
tests/parity."""

import base64
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import qwen3tts
from qwen3tts import GenerateOptions, OptionError, Qwen3TTSModel, VoiceClonePromptItem, VoiceError

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


def test_prompt_items(dropin, base_tts, audio, other_audio):
    items = dropin.create_voice_clone_prompt([audio, other_audio], ["The user.", None], [False, True])
    voice = base_tts.clone(audio, "The user.", silent_tail=0)
    assert items[0].ref_code.dtype == torch.int64
    np.testing.assert_array_equal(items[0].ref_code.numpy(), voice.ref_codes)
    np.testing.assert_array_equal(items[0].ref_spk_embedding.numpy(), voice.x_vector)
    assert (items[0].x_vector_only_mode, items[0].icl_mode, items[0].ref_text) == (False, True, "The user.")
    assert (items[1].x_vector_only_mode, items[1].icl_mode, items[1].ref_code) == (True, False, None)


def test_a_prompt_is_made_in_turn(dropin, audio, monkeypatch):
    """While another thread speaks, nothing is encoded."""
    turns, encoders, seen = dropin.tts.turns, dropin.tts.encoders, []

    def noted(method):
        return lambda samples: (seen.append(others_must_wait(turns)), method(samples))[1]

    monkeypatch.setattr(encoders, "embed", noted(encoders.embed))
    monkeypatch.setattr(encoders, "encode", noted(encoders.encode))
    dropin.create_voice_clone_prompt(audio, "The user.")
    assert seen == [True, True]
    assert not others_must_wait(turns)


def others_must_wait(turns):
    """Whether another thread cannot begin a turn."""
    entered = threading.Event()

    def enter():
        with turns:
            entered.set()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    return not entered.wait(0.5)


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


def test_audio_arguments(dropin, audio, tmp_path, monkeypatch):
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
    slashes = "A/b+" * 10_000
    url = "data:audio/wav;base64," + slashes
    for source in (slashes, slashes + "==\n", slashes + "!", url, slashes.replace("/", "\\")):
        with pytest.raises(qwen3tts.AudioError) as caught:
            dropin.create_voice_clone_prompt(source, None, True)
        assert len(str(caught.value)) < 500
        assert ("before base64 put data:audio" in str(caught.value)) == (source.strip("=\n") == slashes)
    monkeypatch.chdir(tmp_path)
    inside = Path("/".join(["d" * 100] * 3))  # looks like base64, and is there
    inside.parent.mkdir(parents=True)
    path.rename(inside)
    assert torch.equal(dropin.create_voice_clone_prompt(str(inside), None, True)[0].ref_spk_embedding, wanted)


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
    for dtype in (np.uint16, np.uint8, np.int16, np.uint64):
        codes = encoded[0][0].numpy().astype(dtype)
        np.testing.assert_array_equal(codec.decode([{"audio_codes": codes}])[0][0], wavs[0])
    np.testing.assert_array_equal(codec.decode({"audio_codes": encoded[0][0].to(torch.uint16)})[0][0], wavs[0])
    for bad in (
        torch.zeros(3, 15, dtype=torch.int64), torch.zeros(3, 16), torch.full((3, 16), 64), torch.ones(3, 16).bool(),
        np.full((3, 16), 65535, np.uint16), np.zeros((3, 16)), [[[1] * 16, [1] * 15]], np.array([["a"] * 16]),
    ):  # fmt: skip
        with pytest.raises(VoiceError, match="Codes "):
            codec.decode({"audio_codes": bad})
    with pytest.raises(VoiceError, match="no key 'audio_codes'.*its keys: 'codes'"):
        codec.decode({"codes": encoded[0]})
    with pytest.raises(VoiceError, match="no key 'audio_codes'.*none"):
        codec.decode([{}])
    for bad in ({"audio_codes": None}, {"audio_codes": 5}, [encoded[0][0]]):
        with pytest.raises(TypeError, match="audio_codes"):
            codec.decode(bad)
    whole = qwen3tts.Qwen3TTSTokenizer.from_pretrained(tiny_checkpoint("base", seed=2))
    assert torch.equal(whole.encode(audio[0], SAMPLE_RATE)[0][0], encoded[0][0])
    with pytest.raises(TypeError, match="expected what encode"):
        codec.decode("x")
    with pytest.raises(OptionError, match="device_map"):
        qwen3tts.Qwen3TTSTokenizer.from_pretrained(tiny_checkpoint("base", seed=2), device_mapp="cpu")
