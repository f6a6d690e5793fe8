"""`qwen3tts clone`, `design` and `voice`, with small real models; voice files through the speaking commands."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

import qwen3tts
from qwen3tts import Voice, VoiceError

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
        (["--text", "a", "--text-file", "b"], "both --text and --text-file"),
        (["--text", "-", "--say", "-"], "both read stdin"),
        (["--text", " "], "transcript of the recording"),
        (["-o", "anna.wav"], "ends in .json or .safetensors"),
        (["-o", "nowhere/anna.json"], "does not exist"),
        (["--say", "Hi", "--speech", "hello.xyz"], "hello.xyz"),
        (["--say", "Hi", "--speech", "recording.wav"], "--speech 'recording.wav' is the same file as the recording"),
        (["--say", "Hi", "--language", "klingon"], "unknown language 'klingon'"),
        (["--say", "Hi", "--max-frames", "0"], "--max-frames is 0"),
        (["--say", "Hi", "--max-frames", "32768"], "--max-frames is 32768; expected less than 32768"),
        (["--say", "Hi", "--seed", "9" * 30], "--seed is 999"),
        (["--say", " "], "--say: the text is blank"),
        (["--speech", "hello.wav"], "--speech needs --say TEXT"),
        (["--max-frames", "3"], "--max-frames needs --say TEXT"),
        (["--language", "english"], "--language needs --say TEXT"),
        (["--silent-tail", "-1"], "--silent-tail is -1.0"),
        (["--seed", "x"], "--seed is 'x'"),
    ],
)
def test_clone_refuses_before_the_work(invoke, base, recording, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr(qwen3tts.TTS, "clone", no_work)
    result = invoke("qwen3tts", "clone", recording, "-m", base, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recording.wav"]


def no_work(*_: object, **__: object) -> None:
    raise AssertionError("this is work")


def test_clone_writes_all_or_nothing(invoke, base, recording, tmp_path, monkeypatch):
    command = ("qwen3tts", "clone", recording, "-m", base, "--say", "Hi.", "--max-frames")
    result = invoke(*command, "32767")
    assert (result.exit_code, "--max-frames 32767 does not fit" in result.stderr) == (2, True)

    def full(*_: object, **__: object) -> None:
        raise VoiceError("no space")

    monkeypatch.setattr(Voice, "save", full)
    result = invoke(*command, "2")
    assert (result.exit_code, result.stderr) == (2, "error: no space\n")
    assert [path.name for path in tmp_path.iterdir()] == ["recording.wav"]


def test_speech_that_is_cut(invoke, tiny_checkpoint, recording, tmp_path):
    """By the rule of `generate`: a warning, and exit code 3 unless the limit is the user's."""
    endless = tiny_checkpoint("base", seed=2, eos_gain=0.0)
    command = ("qwen3tts", "clone", recording, "-m", endless, "--say", "Hi.")
    result = invoke(*command)
    assert result.exit_code == 3
    assert "warning: finish_reason=length: the speech did not end by itself" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recording.wav", "speech.wav", "voice.json"]
    result = invoke(*command, "--max-frames", "3")
    assert result.exit_code == 0
    assert "warning: finish_reason=length: the speech was cut at --max-frames 3, after 3 frames" in result.stderr


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
    assert "the speech was cut at --max-frames 4" in result.stderr
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--say", "Hi", "--language", "klingon"], "unknown language 'klingon'"),
        (["--say", "Hi", "--max-frames", "0"], "--max-frames is 0"),
        (["--say", "Hi", "--recording", "speech.wav"], "--speech 'speech.wav' is the same file as --recording"),
        (["--speech", "a.wav"], "--speech needs --say TEXT"),
        (["--silent-tail", "11"], "--silent-tail is 11.0"),
        (["-m", "nowhere/at/all"], "there is no folder 'nowhere/at/all'"),
        (["-m", "DESIGNER"], "--model is a voice_design model"),
        (["--sentence", ""], "--sentence: the text is empty"),
        (["--sentence", "a" * 20_001], "20,001 characters"),
    ],
)
def test_design_refuses_before_the_work(invoke, base, tiny_checkpoint, tmp_path, monkeypatch, arguments, message):
    designer = tiny_checkpoint("voice_design", seed=1, eos_gain=2.0)
    monkeypatch.setattr(qwen3tts.TTS, "generate", no_work)
    arguments = [str(designer) if argument == "DESIGNER" else argument for argument in arguments]
    command = ("design", "Low.", "--design-model", designer, "-m", base, "--sentence", "Hi.", *arguments)
    result = invoke("qwen3tts", *command)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []
    assert invoke("qwen3tts", "design", " ", *command[2:]).stderr.startswith("error: the description")


def test_messages_speak_of_options_and_not_of_python(invoke, base, tiny_checkpoint, icl_voice, recording, tmp_path):
    custom, described = tiny_checkpoint("custom_voice"), tiny_checkpoint("voice_design")
    icl_voice.save(tmp_path / "anna.json")
    icl_voice.without_reference().save(tmp_path / "x.json")
    Voice.from_x_vector(np.ones(32)).save(tmp_path / "small.json")
    generate, hip = ("qwen3tts", "generate", "Hi.", "--max-frames", "2", "-m"), ("hip",)
    alone = "use its x-vector alone (`qwen3tts voice export --x-vector-only`)"
    for command, message in (
        ((*generate, custom), "needs a voice: --voice NAME."),
        ((*generate, custom, "--voice", "x.json"), "'x.json' is the name of a file: give --voice-file x.json"),
        ((*generate, base, "--voice", "x.json"), "'x.json' is the name of a file: give --voice-file x.json"),
        ((*generate, custom, "--voice-file", "x.json"), "use a base model for the voice 'x', or one of"),
        ((*generate, custom, "--voice-file", "anna.json"), "use a base model for the voice 'anna', or one of"),
        ((*generate, base, "--voice-file", "small.json"), "the x-vector of the voice 'small' has 32 values"),
        ((*generate, base, "--voice-file", "anna.json"), "warning: the voice 'anna' was made with another model"),
        ((*generate, base, "--voice-file", "anna.json", "--text-lookahead-tokens", "4"), alone),
        ((*generate, base, "--voice-file", "x.json", "--instruct", "Low."), "a base model takes no --instruct"),
        ((*generate, described, "--voice", "ryan"), "the preset 'ryan' was given: describe it in --instruct."),
        ((*generate, base, "--voice-file", "x.json", "--max-frames", "99999"), "--max-frames 99999 does not fit"),
        ((*hip, base, "Hi."), "give a cloned one (--voice-clone-prompt FILE"),
        ((*hip, base, "Hi.", "--speaker", "x.json"), "give --voice-clone-prompt x.json"),
        ((*hip, base, "Hi.", "--voice-clone-prompt", "anna.json", "--text-lookahead-tokens", "8"), alone),
        ((*hip, described, "Hi."), "--instruct of `qwen3tts generate`"),
        ((*hip, base, "Hi.", "--wav-gain", "-1"), "--wav-gain is -1.0"),
        (("qwen3tts", "clone", "http://localhost/a", "-m", base), "downloaded unless --allow-url is given"),
        (("qwen3tts", "voices", custom, "--revision", "x"), "leave --revision out"),
        (("qwen3tts", "voice", "export", "anna.json", "b.safetensors"), "`qwen3tts voice convert` writes .safetensors"),
        (("qwen3tts", "voice", "export", "anna.json", "anna.json"), "is the same file as the voice file"),
    ):
        shown = " ".join(invoke(*command).stderr.split())
        assert message in shown, shown
        assert not re.search(r"Voice\.|tts\.|\b\w+=(?!length)", shown), shown
    assert "--voice-file" in invoke("qwen3tts", "voices", base).stdout
    with qwen3tts.load(base) as tts:
        with pytest.raises(VoiceError, match=r"'x\.json' is the name of a file: give Voice\.load\('x\.json'\)"):
            tts.generate("Hi.", "x.json")
        (item,) = qwen3tts.Qwen3TTSModel(tts).create_voice_clone_prompt(recording, SAID)
        with pytest.raises(VoiceError, match=r"VoiceClonePromptItem, which only .* takes: give a Voice"):
            tts.generate("Hi.", item)
    assert Voice.load(tmp_path / "anna.json") == icl_voice


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


@pytest.mark.parametrize("command", ["convert", "export"])
def test_the_target_is_an_argument_or_an_option(invoke, icl_voice, tmp_path, command):
    icl_voice.save(tmp_path / "a.json")
    assert invoke("qwen3tts", "voice", command, "a.json", "b.json").exit_code == 0
    for arguments in (("a.json", "-o", "c.json"), ("--output", "c.json", "a.json")):
        assert invoke("qwen3tts", "voice", command, *arguments).stdout == "wrote c.json\n"
        assert (tmp_path / "c.json").read_bytes() == (tmp_path / "b.json").read_bytes()
        (tmp_path / "c.json").unlink()
    for arguments, message in (
        (("a.json",), "error: no file to write was given: name it after the source, or with -o\n"),
        (("a.json", "b", "-o", "c.json"), "error: both TARGET 'b' and --output 'c.json' were given; give one\n"),
    ):
        result = invoke("qwen3tts", "voice", command, *arguments)
        assert (result.exit_code, result.stderr) == (2, message)
    assert not (tmp_path / "c.json").exists()


def test_choose_one_of_an_official_prompt(invoke, icl_voice, tmp_path):
    import torch

    item = {"ref_code": torch.from_numpy(icl_voice.ref_codes.copy()), "x_vector_only_mode": False, "icl_mode": True,
            "ref_spk_embedding": torch.from_numpy(icl_voice.x_vector.copy()), "ref_text": SAID}  # fmt: skip
    other = item | {"ref_code": None, "x_vector_only_mode": True, "icl_mode": False}
    torch.save({"items": [other, item]}, tmp_path / "a.pt")
    result = invoke("qwen3tts", "voice", "convert", "a.pt", "b.json")
    assert (result.exit_code, "choose one with --index" in result.stderr) == (2, True)
    result = invoke("hip", "model", "Hi.", "--voice-clone-prompt", "a.pt")
    assert result.stderr == "error: a.pt: holds 2 voices: take one with `qwen3tts voice convert --index`.\n"
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
