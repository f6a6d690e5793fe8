"""Every wrong request raises before anything is done, and says what was expected."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import qwen3tts
from qwen3tts import (
    BackendError,
    CapacityError,
    CheckpointError,
    GenerateOptions,
    NumericsError,
    OptionError,
    RuntimeOptions,
    TextError,
    TokenizerError,
    Voice,
    VoiceError,
    WeightsError,
)
from qwen3tts.options import DEFAULT_STREAMS


def test_requests_that_do_not_fit_the_model(tts, design_tts, base_tts):
    for call, error, message in [
        (lambda: tts.generate("Hi", "ryna"), VoiceError, "Did you mean 'ryan'"),
        (lambda: tts.generate("Hi"), VoiceError, "needs a voice.*vivian"),
        (lambda: tts.generate("Hi", "ryan", "englich"), VoiceError, "Did you mean 'english'"),
        (lambda: tts.generate("Hi", "ryan", "beijing_dialect"), VoiceError, "dialect"),
        (lambda: tts.generate("Hi", "ryan", instruct="Whisper."), VoiceError, "cannot follow an instruct"),
        (lambda: tts.generate("Hi", Voice.from_x_vector(np.ones(64))), VoiceError, "base model"),
        (lambda: design_tts.generate("Hi", "ryan"), VoiceError, "describe it in instruct"),
        (lambda: base_tts.generate("Hi", "ryan"), VoiceError, "no preset voices"),
        (
            lambda: base_tts.generate("Hi", Voice.from_x_vector(np.ones(65))),
            VoiceError,
            "65 values, this model needs 64",
        ),
        (
            lambda: base_tts.generate("Hi", Voice.from_x_vector(np.ones(64)), instruct="x"),
            VoiceError,
            "takes no instruct",
        ),
        (lambda: tts.generate("", "ryan"), TextError, "empty"),
        (lambda: tts.generate(" \n\t", "ryan"), TextError, "blank"),
        (lambda: tts.generate(3, "ryan"), TextError, "string or a list"),
        (lambda: tts.generate([], "ryan"), TextError, "list of 0"),
        (lambda: tts.generate(["Hi", 3], "ryan"), TextError, "int"),
        (lambda: tts.generate("a\ud800b", "ryan"), TextError, "surrogate"),
        (lambda: tts.generate(["Hi", "Ho"], ["ryan"]), OptionError, "1 entries for 2 texts"),
        (lambda: tts.generate("Hi", ["ryan"]), VoiceError, "single string"),
        (lambda: tts.generate("Hi", "ryan", options={"seed": 1}), OptionError, "expected GenerateOptions"),
        (
            lambda: tts.generate("Hi", "ryan", options=GenerateOptions(text_lookahead_tokens=2)),
            OptionError,
            "needs text_mode='streamed'",
        ),
        (lambda: tts.generate("Hi", "ryan", options=GenerateOptions(max_frames=40_000)), TextError, "32768 positions"),
        (lambda: tts.generate("word " * 40_000, "ryan"), TextError, "Split the text"),
    ]:
        with pytest.raises(error, match=message):
            call()
    assert tts.engine.runtime.frames.free_slots() == DEFAULT_STREAMS


def test_one_bad_text_of_many_stops_the_call_before_the_first_frame(tts):
    events = []
    with pytest.raises(TextError):
        tts.generate(["Hello.", " "], "ryan", progress=events.append)
    assert not events


def test_backends_and_devices(tiny_checkpoint):
    folder = tiny_checkpoint()
    for arguments, message in [
        ({"backend": "cuda", "device": "cpu"}, "backend 'cuda' cannot be used"),
        ({"backend": "hip", "device": "cpu"}, "backend 'hip' cannot be used"),
        ({"backend": "tourch"}, "Did you mean 'torch'"),
        ({"backend": "torch", "device": "nonsense"}, "cannot be used"),
        ({"backend": "cpu", "device": "cuda"}, "runs on the CPU"),
    ]:
        with pytest.raises(BackendError, match=message):
            qwen3tts.load(folder, **arguments)
    with pytest.raises(OptionError, match="dtype"):
        qwen3tts.load(folder, dtype="int8")
    with pytest.raises(OptionError, match="max_positions is 40000"):
        qwen3tts.load(folder, backend="cpu", runtime=RuntimeOptions(max_positions=40_000))


def test_capacity(tiny_checkpoint):
    with qwen3tts.load(tiny_checkpoint(), backend="cpu", runtime=RuntimeOptions(kv_bytes=40_000)) as small:
        with pytest.raises(CapacityError, match="kv_bytes=40,000"):
            small.generate("Hello.", "ryan", options=GenerateOptions(max_frames=400))
        assert small.generate("Hello.", "ryan", options=GenerateOptions(max_frames=3)).frames == 3
    with qwen3tts.load(tiny_checkpoint(), backend="cpu", runtime=RuntimeOptions(max_positions=40)) as short:
        with pytest.raises(TextError, match="40 positions"):
            short.generate("Hello.", "ryan", options=GenerateOptions(max_frames=39))
        assert short.generate("Hello.", "ryan").frames < 40


@pytest.fixture
def damaged(tiny_checkpoint, tmp_path):
    """A copy of a checkpoint to break."""
    return shutil.copytree(tiny_checkpoint(), tmp_path / "damaged")


def test_nan_weights(damaged):
    tensors = load_file(damaged / "model.safetensors")
    tensors["talker.model.norm.weight"][3] = float("nan")
    save_file(tensors, damaged / "model.safetensors")
    with pytest.raises(WeightsError, match=r"talker\.model\.norm\.weight.*NaN"):
        qwen3tts.load(damaged, backend="cpu")


def test_overflow_while_running(damaged):
    tensors = load_file(damaged / "model.safetensors")
    tensors["talker.model.layers.1.mlp.down_proj.weight"].sign_().mul_(3e38)
    save_file(tensors, damaged / "model.safetensors")
    with qwen3tts.load(damaged, backend="cpu") as tts:
        with pytest.raises(NumericsError, match="not finite"):
            tts.generate("Hello.", "ryan", options=GenerateOptions(max_frames=3))
        assert tts.engine.runtime.frames.free_slots() == DEFAULT_STREAMS


def test_overflow_in_the_code_predictor(damaged):
    tensors = load_file(damaged / "model.safetensors")
    tensors["talker.code_predictor.lm_head.7.weight"] = torch.full((64, 64), 3e38, dtype=torch.bfloat16)
    save_file(tensors, damaged / "model.safetensors")
    with qwen3tts.load(damaged, backend="cpu") as tts, pytest.raises(NumericsError, match="not finite"):
        tts.generate("Hello.", "ryan", options=GenerateOptions(max_frames=3))


def test_overflow_in_the_codec(damaged):
    path = damaged / "speech_tokenizer" / "model.safetensors"
    tensors = load_file(path)
    tensors["decoder.decoder.1.block.0.alpha"][0] = 200.0  # finite, but its exponential is not
    save_file(tensors, path)
    with qwen3tts.load(damaged, backend="cpu") as tts:
        for options in (GenerateOptions(max_frames=3), GenerateOptions(max_frames=3, codec_chunking="official")):
            with pytest.raises(NumericsError, match="codec"):
                tts.generate("Hello.", "ryan", options=options)


def test_missing_pieces(damaged, tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        qwen3tts.load(tmp_path / "nowhere", backend="cpu")
    (damaged / "vocab.json").unlink()
    with pytest.raises(TokenizerError, match="vocab"):
        qwen3tts.load(damaged, backend="cpu")


def test_truncated_weights(damaged):
    path = damaged / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        qwen3tts.load(damaged, backend="cpu")


def test_generation_config_decides_defaults(damaged):
    path = damaged / "generation_config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"max_new_tokens": 4, "do_sample": False, "subtalker_dosample": False}))
    with qwen3tts.load(damaged, backend="cpu") as tts:
        greedy = tts.generate("Hello.", "ryan")
        assert greedy.frames == 3
        assert np.array_equal(greedy.codes, tts.generate("Hello.", "ryan", options=GenerateOptions(seed=9)).codes)
