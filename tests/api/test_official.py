"""The drop-in class. That its audio equals the official package's is shown in tests/parity."""

import warnings

import numpy as np
import pytest
import torch

from qwen3tts import OptionError, Qwen3TTSModel

SHORT = {"max_new_tokens": 6}


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return Qwen3TTSModel.from_pretrained(tiny_checkpoint())


def test_what_it_returns(model):
    wavs, rate = model.generate_custom_voice("Hello.", "Ryan", "English", **SHORT)
    assert rate == 24000
    assert [wav.dtype for wav in wavs] == [np.float32]
    assert wavs[0].shape == (5 * 1920,), "N tokens give N - 1 frames"
    assert "ryan" in model.get_supported_speakers()
    assert model.get_supported_languages()[0] == "auto"


def test_the_global_generator_decides(model):
    def wav(seed):
        torch.manual_seed(seed)
        return model.generate_custom_voice("Hello.", "ryan", **SHORT)[0][0]

    assert np.array_equal(wav(1), wav(1))
    assert not np.array_equal(wav(1), wav(2))


def test_batches_are_repeatable_and_broadcast(model):
    def wavs():
        torch.manual_seed(4)
        return model.generate_custom_voice(["Hello.", "The world."], "ryan", language=["auto"], **SHORT)[0]

    first, second = wavs(), wavs()
    assert len(first) == 2
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_no_speaker_is_allowed_as_in_the_official_package(model):
    greedy = {"do_sample": False, "subtalker_dosample": False, **SHORT}
    a, b = (model.generate_custom_voice("Hello.", speaker, **greedy)[0][0] for speaker in ("", None))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, model.generate_custom_voice("Hello.", "ryan", **greedy)[0][0])


def test_traps_warn(model):
    with pytest.warns(UserWarning, match="instruct") as caught:
        model.generate_custom_voice("Hello.", "ryan", instruct="Whisper.", **SHORT)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="no effect.*min_new_tokens"):
        model.generate_custom_voice("Hello.", "ryan", min_new_tokens=3, **SHORT)
    with pytest.warns(UserWarning, match="white space"):
        model.generate_custom_voice("\nHello.", "ryan", **SHORT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate_custom_voice("Hello.", "ryan", instruct="", **SHORT)


def test_errors_are_value_errors(model):
    for arguments in (
        ("Hello.", "nobody"),
        ("Hello.", "ryan", "klingon"),
        ("Hello.", "ryan", [None]),
        (["Hello.", "Hi"], ["ryan"] * 3),
        ("", "ryan"),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 the official package promises no more than the type
            model.generate_custom_voice(*arguments, **SHORT)
    with pytest.raises(ValueError, match="does not support generate_voice_design"):
        model.generate_voice_design("Hello.", "A voice.")
    for tokens in (1, 0, True, 2.5):
        with pytest.raises(OptionError, match="max_new_tokens"):
            model.generate_custom_voice("Hello.", "ryan", max_new_tokens=tokens)
    with pytest.raises(OptionError, match="eos_token_id"):
        model.generate_custom_voice("Hello.", "ryan", eos_token_id=5, **SHORT)


def test_loading_arguments(tiny_checkpoint):
    model = Qwen3TTSModel.from_pretrained(
        tiny_checkpoint(), dtype=torch.bfloat16, device_map={"": "cpu"}, attn_implementation="flash_attention_2"
    )
    assert model.tts.dtype == torch.bfloat16
    assert model.device == torch.device("cpu")
    with pytest.raises(OptionError, match="Did you mean 'device_map'"):
        Qwen3TTSModel.from_pretrained(tiny_checkpoint(), device_mapp="cpu")
    with pytest.raises(OptionError, match="one device"):
        Qwen3TTSModel.from_pretrained(tiny_checkpoint(), device_map={"talker": "cpu", "codec": "cpu"})


def test_voice_design(tiny_checkpoint):
    model = Qwen3TTSModel.from_pretrained(tiny_checkpoint("voice_design", seed=1))
    wavs, _ = model.generate_voice_design(["Hello.", "Hi."], ["A low voice.", ""], **SHORT)
    assert [len(wav) for wav in wavs] == [5 * 1920] * 2
    assert model.get_supported_speakers() == []


def test_values_that_the_official_package_takes(tiny_checkpoint):
    model = Qwen3TTSModel.from_pretrained(tiny_checkpoint(eos_gain=2.0))
    greedy = model.generate_custom_voice("Hello.", "ryan", do_sample=False, subtalker_dosample=False)[0][0]
    for arguments in (
        {"do_sample": 0, "subtalker_dosample": 0, "max_new_tokens": 40_000},
        {"top_p": 0.0, "subtalker_top_p": 0.0, "max_new_tokens": 60.0},
        {"do_sample": False, "subtalker_dosample": False, "top_p": 1.5},
    ):
        assert np.array_equal(model.generate_custom_voice("Hello.", "ryan", **arguments)[0][0], greedy)
    with pytest.raises(ValueError, match="empty"):
        model.generate_custom_voice([], "ryan")
