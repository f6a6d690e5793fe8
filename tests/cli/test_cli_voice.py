"""`qwen3tts clone`, `design` and `voice`, with small real models; voice files through the speaking commands."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

import qwen3tts
from qwen3tts import Voice

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "parity"))
from signals import SAMPLE_RATE, signal

SAID = "The user and the voice."


@pytest.fixture(scope="module")
def base(tiny_checkpoint):
    return tiny_checkpoint("base", seed=2)


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "recording.wav"
    soundfile.write(path, signal("voice", 40_000, 3), SAMPLE_RATE)
    return path


@pytest.fixture(scope="module")
def icl_voice(seed):
    rng = np.random.default_rng(seed)
    return Voice.from_reference(rng.standard_normal(64), rng.integers(0, 64, (9, 16)), SAID, fingerprint="ab12")


def test_clone(invoke, base, recording, tmp_path):
    result = invoke("qwen3tts", "clone", recording, "-m", base, "--text", SAID, "-o", "anna.json")
    assert result.exit_code == 0, result.output
    assert "anna.json: x-vector of 64 values, recording of 28 frames (2.24 s)" in result.stdout
    with qwen3tts.load(base, backend="cpu") as tts:
        assert Voice.load(tmp_path / "anna.json") == tts.clone(recording, SAID)
    (tmp_path / "said.txt").write_text(SAID)
    result = invoke("qwen3tts", "clone", recording, "-m", base, "--text-file", "said.txt", "--silent-tail", "0",
                    "-o", "anna.safetensors")  # fmt: skip
    assert result.exit_code == 0
    assert Voice.load(tmp_path / "anna.safetensors").frames == 21
    assert invoke("qwen3tts", "clone", recording, "-m", base, "-o", "x.json").exit_code == 0
    assert Voice.load(tmp_path / "x.json") == Voice.load(tmp_path / "anna.json").without_reference()


def test_clone_and_speak(invoke, base, recording, tmp_path):
    how = ["-o", "anna.json", "--speech", "hello.flac", "--max-frames", "5", "--seed", "3", "--language", "english"]
    result = invoke("qwen3tts", "clone", recording, "-m", base, "--text", SAID, "--say", "Hello world.", *how)
    assert result.exit_code == 0, result.output
    samples, _ = soundfile.read(tmp_path / "hello.flac")
    options = qwen3tts.GenerateOptions(max_frames=5, seed=3)
    with qwen3tts.load(base, backend="cpu") as tts:
        speech = tts.generate("Hello world.", Voice.load(tmp_path / "anna.json"), "english", options=options)
    np.testing.assert_allclose(samples, speech.samples, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--x-vector-only", "--text", "a"], "keeps no transcript"),
        (["--text", "a", "--text-file", "b"], "both TEXT and --text-file"),
        (["--text", " "], "transcript of the recording"),
        (["-o", "anna.wav"], "ends in .json or .safetensors"),
        (["-o", "nowhere/anna.json"], "does not exist"),
        (["--say", "Hi", "--speech", "hello.xyz"], "hello.xyz"),
        (["--silent-tail", "-1"], "silent_tail"),
        (["--seed", "x"], "--seed is 'x'"),
    ],
)
def test_clone_refuses(invoke, base, recording, tmp_path, arguments, message):
    result = invoke("qwen3tts", "clone", recording, "-m", base, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recording.wav"]


def test_clone_refuses_text_for_audio(invoke, base, tmp_path):
    (tmp_path / "a.wav").write_text("This is text.")
    for name in ("a.wav", "nothing.wav", "http://example.org/a.wav"):
        result = invoke("qwen3tts", "clone", name, "-m", base)
        assert result.exit_code == 2, result.output
        assert "error:" in result.stderr


def test_design(invoke, base, tiny_checkpoint, tmp_path):
    designer = tiny_checkpoint("voice_design", seed=1, eos_gain=2.0)
    result = invoke("qwen3tts", "design", "A low voice.", "--design-model", designer, "-m", base, "--sentence", SAID,
                    "--say", "Hello.", "--max-frames", "4", "--recording", "designed.wav")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert soundfile.info(tmp_path / "speech.wav").frames == 4 * 1920
    with qwen3tts.load(designer, backend="cpu") as tts:
        made = tts.generate(SAID, instruct="A low voice.")
    assert made.complete
    assert soundfile.info(tmp_path / "designed.wav").frames == len(made.samples)
    with qwen3tts.load(base, backend="cpu") as tts:
        assert Voice.load(tmp_path / "voice.json") == tts.clone((made.samples, SAMPLE_RATE), SAID)


def test_design_refuses(invoke, base, tiny_checkpoint, tmp_path):
    endless = tiny_checkpoint("voice_design", seed=1, eos_gain=0.0)
    for designer, sentence, message in (
        (base, "Hi", "--design-model is a base model"),
        (endless, " ", "blank"),
        (endless, "Hi", "did not end the sentence"),
    ):
        arguments = ["--design-model", designer, "-m", base, "--sentence", sentence]
        result = invoke("qwen3tts", "design", "A low voice.", *arguments)
        assert (result.exit_code, message in result.stderr) == (2, True), result.output
    assert list(tmp_path.iterdir()) == []


def test_show(invoke, icl_voice, tmp_path):
    icl_voice.save(tmp_path / "anna.safetensors")
    result = invoke("qwen3tts", "voice", "show", "anna.safetensors")
    assert result.exit_code == 0
    lines = dict(line.split("=", 1) for line in result.stdout.splitlines())
    rms = float(lines.pop("x_vector_rms"))
    assert rms == pytest.approx(float(np.sqrt(np.mean(icl_voice.x_vector**2))), abs=1e-5)
    assert lines == {"voice": "0", "kind": "icl", "x_vector_values": "64", "fingerprint": "ab12", "ref_frames": "9",
                     "ref_seconds": "0.72", "ref_text": SAID}  # fmt: skip
    (tmp_path / "bad.json").write_text("{")
    result = invoke("qwen3tts", "voice", "show", "bad.json")
    assert (result.exit_code, "not valid JSON" in result.stderr) == (2, True)


def test_convert_and_export(invoke, icl_voice, tmp_path):
    icl_voice.save(tmp_path / "a.json")
    assert invoke("qwen3tts", "voice", "convert", "a.json", "b.safetensors").exit_code == 0
    assert invoke("qwen3tts", "voice", "convert", "b.safetensors", "c.json").exit_code == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "c.json").read_bytes()
    assert invoke("qwen3tts", "voice", "export", "b.safetensors", "d.json").exit_code == 0
    assert Voice.load(tmp_path / "d.json") == icl_voice
    keys = ["speaker_embedding", "x_vector_only_mode", "icl_mode", "ref_text", "ref_codes"]
    assert list(json.loads((tmp_path / "d.json").read_text())) == keys
    assert invoke("qwen3tts", "voice", "export", "b.safetensors", "e.json", "--x-vector-only").exit_code == 0
    record = json.loads((tmp_path / "e.json").read_text())
    assert (record["x_vector_only_mode"], record["icl_mode"], record["ref_codes"]) == (True, False, None)
    result = invoke("qwen3tts", "voice", "export", "a.json", "f.safetensors")
    assert (result.exit_code, "ends in .json" in result.stderr) == (2, True)


def test_choose_one_of_an_official_prompt(invoke, icl_voice, tmp_path):
    import torch

    item = {"ref_code": torch.from_numpy(icl_voice.ref_codes.copy()), "x_vector_only_mode": False, "icl_mode": True,
            "ref_spk_embedding": torch.from_numpy(icl_voice.x_vector.copy()), "ref_text": SAID}  # fmt: skip
    other = item | {"ref_code": None, "x_vector_only_mode": True, "icl_mode": False}
    torch.save({"items": [other, item]}, tmp_path / "a.pt")
    result = invoke("qwen3tts", "voice", "convert", "a.pt", "b.json")
    assert (result.exit_code, "choose one with --index" in result.stderr) == (2, True)
    assert invoke("qwen3tts", "voice", "convert", "a.pt", "b.json", "--index", "1").exit_code == 0
    assert Voice.load(tmp_path / "b.json") == icl_voice
    result = invoke("qwen3tts", "voice", "convert", "a.pt", "b.json", "--index", "2")
    assert (result.exit_code, "--index is 2" in result.stderr) == (2, True)


def test_voice_files_speak(invoke, base, icl_voice, tmp_path):
    icl_voice.save(tmp_path / "anna.safetensors")
    greedy = ["--no-do-sample", "--no-subtalker-dosample", "--max-frames", "5"]
    result = invoke("hip", base, "Hello.", "--voice-clone-prompt", "anna.safetensors", *greedy)
    assert result.exit_code == 0, result.output
    assert "frames=5" in result.stdout.splitlines()
    generated = invoke("qwen3tts", "generate", "Hello.", "-m", base, "--voice-file", "anna.safetensors", "--language",
                       "English", "-o", "other.wav", *greedy)  # fmt: skip
    assert generated.exit_code == 0, generated.output
    assert (tmp_path / "other.wav").read_bytes() == (tmp_path / "output.wav").read_bytes()
    ahead = ["--text-lookahead-tokens", "4"]
    result = invoke("hip", base, "Hello.", "--voice-clone-prompt", "anna.safetensors", *ahead)
    assert (result.exit_code, "means nothing with a voice that has a recording" in result.stderr) == (2, True)
