"""`qwen3tts generate` with a stand-in model: what it passes on, prints, writes and exits with."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qwen3tts.errors import BackendError, CheckpointError, NumericsError, VoiceError

SPEAK = ("generate", "Hello.", "-m", "model")


def test_writes_audio_picture_and_figures(fake, invoke, tmp_path):
    result = invoke("qwen3tts", *SPEAK, "-o", "a.flac", "--plot", "a.png", "--json", "a.json", "--gain", "0.5")
    assert result.exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.flac", "a.json", "a.png"]
    samples, rate = soundfile.read(tmp_path / "a.flac")
    assert (rate, samples.size) == (24000, 5 * 1920)
    assert np.all(samples == 0.125)
    figures = json.loads((tmp_path / "a.json").read_text())
    assert figures.pop("write_seconds") > 0
    assert figures.pop("version")
    assert figures == {
        "frames": 5, "ended_by_eos": True, "finish_reason": "eos", "seed": 7, "audio_seconds": 0.4,
        "model_load_seconds": 0.25, "generation_seconds": 1.5, "decode_seconds": 0.5, "inference_seconds": 2.0,
        "generation_rtf": 3.75, "decode_rtf": 1.25, "inference_rtf": 5.0, "model": "model", "backend": "torch",
        "device": "cpu", "dtype": "float32", "output": "a.flac",
    }  # fmt: skip
    assert "generate + decode" in result.stdout
    assert "5.000" in result.stdout
    assert result.stdout.splitlines()[-1] == "wrote a.flac, a.png, a.json"
    assert result.stderr == ""


def test_only_given_options_override_the_checkpoint(fake, invoke):
    assert invoke("qwen3tts", *SPEAK).exit_code == 0
    text, asked = fake.asked[0]
    assert text == "Hello."
    assert asked["options"].passed == frozenset()
    assert (asked["voice"], asked["language"], asked["instruct"], asked["decode"]) == (None, "auto", None, True)
    assert asked["progress"] is None
    unset = dict.fromkeys(("device", "dtype", "revision", "cache_dir", "profile"))
    assert fake.loaded == [("model", {"backend": "auto", "offline": False, "verify": True, **unset})]


def test_every_option_arrives(fake, invoke):
    options = {
        "do_sample": False, "top_k": 3, "top_p": 0.5, "temperature": 0.7, "repetition_penalty": 1.2,
        "subtalker_dosample": False, "subtalker_top_k": 4, "subtalker_top_p": 0.25, "subtalker_temperature": 1.5,
        "seed": 99, "max_frames": 12, "text_mode": "streamed", "text_lookahead_tokens": 2, "rng": "torch",
        "codec_chunking": "official",
    }  # fmt: skip
    flags = ["--no-do-sample", "--no-subtalker-dosample"]
    for name, value in options.items():
        if not isinstance(value, bool):
            flags += [f"--{name.replace('_', '-')}", value]
    place = ["--backend", "torch", "--device", "cuda:1", "--dtype", "bfloat16"]
    place += ["--revision", "r", "--cache-dir", "c", "--offline", "--profile", "reference", "--no-verify"]
    how = ["--voice", "Ryan", "--language", "English", "--instruct", "Calmly."]
    assert invoke("qwen3tts", *SPEAK, *flags, *place, *how).exit_code == 0
    _, asked = fake.asked[0]
    assert asked["options"].passed == set(options)
    assert {name: getattr(asked["options"], name) for name in options} == options
    assert (asked["voice"], asked["language"], asked["instruct"]) == ("Ryan", "English", "Calmly.")
    assert fake.loaded[0][1] == {
        "backend": "torch", "device": "cuda:1", "dtype": "bfloat16", "revision": "r", "cache_dir": Path("c"),
        "offline": True, "profile": "reference", "verify": False,
    }  # fmt: skip


def test_random_seed_asks_for_one_and_reports_it(fake, invoke):
    result = invoke("qwen3tts", *SPEAK, "--seed", "random")
    assert fake.asked[0][1]["options"].seed is None
    assert "seed" in fake.asked[0][1]["options"].passed
    assert "seed 7" in result.stdout


def test_text_from_stdin_and_file(fake, invoke, tmp_path):
    said = "Füße – 你好\n"
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbf" + said.encode())
    assert invoke("qwen3tts", "generate", "-", "-m", "model", input=said.encode()).exit_code == 0
    assert invoke("qwen3tts", "generate", "--text-file", "text.txt", "-m", "model").exit_code == 0
    assert [text for text, _ in fake.asked] == [said, said]


def test_voice_file(fake, invoke, voice_file):
    assert invoke("qwen3tts", *SPEAK, "--voice-file", voice_file).exit_code == 0
    assert fake.asked[0][1]["voice"].x_vector.tolist() == [0.5] * 8


def test_a_speech_cut_at_the_default_limit_exits_3_and_keeps_the_file(fake, invoke, tmp_path):
    fake.finish_reason = "length"
    result = invoke("qwen3tts", *SPEAK, "-o", "a.wav", "--json", "a.json")
    assert result.exit_code == 3
    assert "finish_reason=length" in result.stderr
    assert (tmp_path / "a.wav").is_file()
    assert json.loads((tmp_path / "a.json").read_text())["ended_by_eos"] is False


def test_a_speech_cut_where_asked_exits_0_with_a_warning(fake, invoke, tmp_path):
    fake.finish_reason = "length"
    result = invoke("qwen3tts", *SPEAK, "--max-frames", "5")
    assert result.exit_code == 0
    assert "finish_reason=length" in result.stderr
    assert "--max-frames 5" in result.stderr


@pytest.mark.parametrize(
    "error", [BackendError("no [gpu] here"), CheckpointError("bad"), NumericsError("nan"), VoiceError("who")]
)
def test_errors_of_the_package_are_one_message_and_exit_2(fake, invoke, tmp_path, error):
    fake.error = error
    result = invoke("qwen3tts", *SPEAK, "--plot", "a.png", "--json", "a.json")
    assert result.exit_code == 2
    assert result.stderr == f"error: {error}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("python", "command_line"),
    [
        ("The backend 'hip' cannot be used. backend='torch' runs anywhere.",
         "the backend 'hip' cannot be used. --backend torch runs anywhere."),
        ("Base models have no preset voices; give an x-vector voice (Voice.load(file) or Voice.from_x_vector(array)).",
         "base models have no preset voices; give an x-vector voice (--voice-file FILE; `qwen3tts clone` makes one)."),
        ("text_lookahead_tokens needs text_mode='streamed'.", "--text-lookahead-tokens needs --text-mode streamed."),
        ("Aname/top_k is 1\nTop", "Aname/top_k is 1 Top"),
    ],
)  # fmt: skip
def test_errors_speak_of_options(fake, invoke, python, command_line):
    fake.error = VoiceError(python)
    assert invoke("qwen3tts", *SPEAK).stderr == f"error: {command_line}\n"


def test_verbose_says_where_the_time_goes(fake, invoke):
    result = invoke("qwen3tts", *SPEAK, "-v")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "loading model", "loaded in 0.25 s: torch on cpu, torch.float32", "speaking: at most 9 frames of 80 ms",
        "prompt 0.010 s, prefill 0.020 s", "5 frames in 1.47 s, 294.0 ms each", "decoded to audio in 0.50 s",
    ]  # fmt: skip


def test_clipping_is_a_warning_like_the_others(fake, invoke):
    result = invoke("qwen3tts", *SPEAK, "--gain", "8")
    assert result.stderr.startswith("warning: 9600 of 9600 samples are clipped")


def test_an_interrupt_exits_130_and_leaves_nothing(fake, invoke, tmp_path):
    fake.error = KeyboardInterrupt()
    assert invoke("qwen3tts", *SPEAK).exit_code == 130
    assert not list(tmp_path.iterdir())


def test_other_errors_are_not_hidden(fake, invoke):
    fake.error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        invoke("qwen3tts", *SPEAK)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Hello.", "-o", "a.mp3"], "expected one of .wav, .flac, .ogg"),
        (["Hello.", "-o", "missing/a.wav"], "does not exist"),
        (["Hello.", "--plot", "a.jpg"], "written as .png"),
        (["Hello.", "--json", "missing/a.json"], "does not exist"),
        (["Hello.", "--gain", "nan"], "gain is nan"),
        (["Hello.", "-o", "-"], "error: --output -: stdout is not supported"),
        (["Hello.", "--plot", "-"], "error: --plot -: stdout is not supported"),
        (["Hello.", "--max-frames", "0"], "error: --max-frames is 0"),
        (["Hello.", "--top-p", "1.5"], "error: --top-p is 1.5"),
        (["Hello.", "--subtalker-temperature", "nan"], "error: --subtalker-temperature is nan"),
        (["Hello.", "--seed", "-1"], "--seed is '-1'"),
        (["Hello.", "--seed", "x"], "'random'"),
        (["Hello.", "--text-mode", "hole"], "'whole'"),
        (["Hello.", "--rng", "x"], "'philox'"),
        (["Hello.", "--voice", "a", "--voice-file", "b"], "give one of them"),
        (["Hello.", "--voice-file", "missing.json"], "missing.json"),
        (["Hello.", "--text-file", "missing.txt"], "both TEXT and --text-file"),
        (["--text-file", "missing.txt"], "missing.txt"),
        ([], "no text was given"),
    ],
)
def test_bad_input_is_refused_before_the_model_is_loaded(fake, invoke, tmp_path, arguments, message):
    result = invoke("qwen3tts", "generate", *arguments, "-m", "model")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not fake.loaded
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "Hello."],
        ["generate", "Hello.", "-m", "model", "--unknown", "1"],
        ["generate", "Hello.", "-m", "model", "--top-k", "x"],
        ["nothing"],
    ],
)
def test_unknown_options_and_commands_exit_2(fake, invoke, arguments):
    assert invoke("qwen3tts", *arguments).exit_code == 2
    assert not fake.loaded


def test_text_that_is_not_utf8(fake, invoke, tmp_path):
    (tmp_path / "latin1.txt").write_bytes("Füße".encode("latin-1"))
    for arguments, name in ((["-"], "stdin"), (["--text-file", "latin1.txt"], "latin1.txt"), (["F\udcfc"], "TEXT")):
        result = invoke("qwen3tts", "generate", *arguments, "-m", "model", input=(tmp_path / "latin1.txt").read_bytes())
        assert result.exit_code == 2
        assert f"{name}" in result.stderr
        assert "is not UTF-8: byte 0xfc at offset 1" in result.stderr
    assert not fake.loaded
