"""`hip-custom-voice-generate` with a stand-in model."""

import json

import numpy as np
import pytest

KEYS = [
    "frames", "ended_by_eos", "finish_reason", "seed", "audio_seconds", "model_load_seconds", "generation_seconds",
    "decode_seconds", "write_seconds", "inference_seconds", "generation_rtf", "decode_rtf", "inference_rtf", "model",
    "backend", "device", "dtype", "version", "output_wav",
]  # fmt: skip


def lines(result):
    return dict(line.split("=", 1) for line in result.stdout.splitlines() if "first_difference" not in line)


def test_defaults_and_output(fake, invoke, tmp_path):
    result = invoke("hip", "model", "Hello.")
    assert result.exit_code == 0
    text, asked = fake.asked[0]
    assert (text, asked["voice"], asked["language"], asked["decode"]) == ("Hello.", "Ryan", "English", True)
    assert asked["options"].passed == {"text_mode"}
    assert asked["options"].text_mode == "streamed"
    printed = lines(result)
    assert list(printed) == KEYS
    assert printed["frames"] == "5"
    assert printed["ended_by_eos"] == "true"
    assert printed["audio_seconds"] == "0.400000"
    assert printed["inference_rtf"] == "5.000000"
    assert printed["output_wav"] == "output.wav"
    assert [path.name for path in tmp_path.iterdir()] == ["output.wav"]


def test_every_option_arrives(fake, invoke, tmp_path):
    options = {
        "max_frames": 12, "repetition_penalty": 1.0, "do_sample": False, "top_k": 3, "top_p": 0.5, "temperature": 0.7,
        "subtalker_dosample": True, "subtalker_top_k": 4, "subtalker_top_p": 0.25, "subtalker_temperature": 1.5,
        "seed": 99, "text_lookahead_tokens": 1,
    }  # fmt: skip
    flags = ["--no-do-sample", "--subtalker-dosample"]
    for name, value in options.items():
        if not isinstance(value, bool):
            flags += [f"--{name.replace('_', '-')}", value]
    how = ["--speaker", "Vivian", "--language", "Chinese", "--output", "x.ogg", "--wav-gain", "2"]
    assert invoke("hip", "model", "Hello.", *flags, *how, "--json", "x.json").exit_code == 0
    _, asked = fake.asked[0]
    assert asked["options"].passed == {*options, "text_mode"}
    assert {name: getattr(asked["options"], name) for name in options} == options
    assert (asked["voice"], asked["language"]) == ("Vivian", "Chinese")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.ogg"]


@pytest.mark.parametrize("nothing", ["none", "-"])
def test_codes_only(fake, invoke, tmp_path, nothing):
    result = invoke("hip", "model", "Hello.", "--output", nothing, "--json", "a.json")
    assert result.exit_code == 0
    assert fake.asked[0][1]["decode"] is False
    assert not {"decode_seconds", "decode_rtf", "write_seconds", "output_wav"} & set(lines(result))
    figures = json.loads((tmp_path / "a.json").read_text())
    assert (figures["decode_seconds"], figures["decode_rtf"], figures["inference_seconds"]) == (None, None, 1.5)
    assert figures["inference_rtf"] == 3.75
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_no_frames_have_no_rtf(fake, invoke, tmp_path):
    fake.frames = 0
    result = invoke("hip", "model", "Hello.", "--output", "none", "--json", "a.json")
    assert result.exit_code == 0
    assert "nan" not in result.stdout
    assert json.loads((tmp_path / "a.json").read_text())["generation_rtf"] is None


def test_voice_clone_prompt(fake, invoke, voice_file):
    assert invoke("hip", "model", "Hello.", "--voice-clone-prompt", voice_file).exit_code == 0
    assert fake.asked[0][1]["voice"].x_vector.tolist() == [0.5] * 8
    result = invoke("hip", "model", "Hello.", "--voice-clone-prompt", voice_file, "--speaker", "Ryan")
    assert result.exit_code == 2
    assert "give one of them" in result.stderr


@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.uint16])
def test_reference_codes_that_match(fake, invoke, tmp_path, dtype):
    np.save(tmp_path / "codes.npy", fake.codes.astype(dtype))
    result = invoke("hip", "model", "Hello.", "--ref-codes", "codes.npy")
    assert result.exit_code == 0
    assert lines(result)["codes_match"] == "true"


def test_reference_codes_that_differ(fake, invoke, tmp_path):
    expected = fake.codes.astype(np.int64)
    expected[3, 7] += 1
    expected[4, 0] += 1
    np.save(tmp_path / "codes.npy", expected)
    result = invoke("hip", "model", "Hello.", "--ref-codes", "codes.npy", "--output", "none")
    assert result.exit_code == 1
    assert "codes_match=false" in result.stdout
    got = fake.codes[3, 7]
    assert f"first_difference: frame=3 codebook=7 expected={got + 1} got={got}" in result.stdout
    np.save(tmp_path / "codes.npy", fake.codes[:4])
    result = invoke("hip", "model", "Hello.", "--ref-codes", "codes.npy")
    assert result.exit_code == 1
    assert "frame=4 expected_frames=4 got_frames=5" in result.stdout


def test_reference_codes_that_cannot_be_read(fake, invoke, tmp_path):
    np.save(tmp_path / "float.npy", np.zeros((3, 16)))
    np.save(tmp_path / "flat.npy", np.zeros(16, np.int16))
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "archive.npz", a=np.zeros(3))
    (tmp_path / "empty.npy").touch()
    before = sorted(tmp_path.iterdir())
    for name in ("float.npy", "flat.npy", "pickled.npy", "archive.npz", "empty.npy", "missing.npy"):
        result = invoke("hip", "model", "Hello.", "--ref-codes", name)
        assert result.exit_code == 2, name
        assert "--ref-codes" in result.stderr
        assert name in result.stderr
    assert not fake.loaded
    assert sorted(tmp_path.iterdir()) == before


def test_a_speech_cut_at_the_default_limit_exits_3(fake, invoke):
    fake.finish_reason = "length"
    result = invoke("hip", "model", "Hello.")
    assert result.exit_code == 3
    assert lines(result)["ended_by_eos"] == "false"
    assert invoke("hip", "model", "Hello.", "--max-frames", "5").exit_code == 0


def test_options_are_exactly_those_of_the_other_runtime(invoke):
    shown = invoke("hip", "--help", env={"COLUMNS": "200"}).stdout
    wanted = (
        "max-frames speaker language output wav-gain repetition-penalty do-sample no-do-sample top-k top-p temperature "
        "subtalker-dosample no-subtalker-dosample subtalker-top-k subtalker-top-p subtalker-temperature seed "
        "text-lookahead-tokens voice-clone-prompt ref-codes json"
    )
    missing = [name for name in wanted.split() if f"--{name}" not in shown]
    assert not missing
