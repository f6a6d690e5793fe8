"""The programs as processes on a real, tiny checkpoint."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qwen3tts import GenerateOptions, load

MAIN = (sys.executable, "-m", "qwen3tts")
HIP = (sys.executable, "-m", "qwen3tts.cli.hip_generate")


def run(*command: object, cwd: Path, **keywords: object) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if "PYTHONPATH" in environment:
        environment["PYTHONPATH"] = os.path.abspath(environment["PYTHONPATH"])
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, **keywords
    )


def test_generate(checkpoint: Path, tmp_path: Path) -> None:
    text = "Hello there, how are you?"
    done = run(*MAIN, "generate", text, "-m", checkpoint, "--voice", "ryan", "--seed", 11, "-o", "a.wav",
               "--json", "a.json", "--max-frames", 30, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "a.json").read_text())
    with load(checkpoint) as tts:
        speech = tts.generate(text, voice="ryan", options=GenerateOptions(seed=11, max_frames=30))
    samples, _ = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert (figures["frames"], figures["finish_reason"]) == (speech.frames, speech.finish_reason)
    np.testing.assert_allclose(samples, np.clip(speech.samples, -1, 1), atol=1e-4)


def test_split_speaks_a_long_text_in_parts(checkpoint: Path, tmp_path: Path) -> None:
    text = "Hello there, how are you? " * 30
    done = run(*MAIN, "generate", text, "-m", checkpoint, "--voice", "ryan", "--split", "--max-frames", 3,
               "-o", "a.wav", "--json", "a.json", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    with load(checkpoint) as tts:
        parts = tts.generate_long(text, "ryan", options=GenerateOptions(max_frames=3)).parts
    assert len(parts) > 1
    assert json.loads((tmp_path / "a.json").read_text())["frames"] == sum(part.frames for part in parts)
    assert f"of {len(parts)} was cut at its limit" in done.stderr
    assert f"cut at --max-frames 3 of a part, after {3 * len(parts)} frames" in done.stderr


def test_hip_custom_voice_generate_is_the_streamed_mode(checkpoint: Path, invoke, tmp_path: Path) -> None:
    text = "This text is long enough to be streamed token by token."
    options = GenerateOptions(text_mode="streamed", text_lookahead_tokens=1, max_frames=8, do_sample=False)
    with load(checkpoint) as tts:
        speech = tts.generate(text, voice="ryan", language="english", options=options, decode=False)
    np.save(tmp_path / "codes.npy", speech.codes)
    command = (checkpoint, text, "--max-frames", 8, "--no-do-sample", "--output", "none", "--ref-codes", "codes.npy")
    same = run(*HIP, *command, "--text-lookahead-tokens", 1, cwd=tmp_path)
    assert same.returncode == 0, same.stdout + same.stderr
    assert "codes_match=true" in same.stdout
    other = invoke("hip", *command)
    assert other.exit_code == 1
    assert "codes_match=false" in other.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["codes.npy"]


def test_ctrl_c_while_speaking(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    from qwen3tts.synthetic import make_checkpoint

    endless = make_checkpoint(tmp_path_factory.mktemp("endless") / "m", model_type="custom_voice", eos_gain=0.0)
    arguments = ["generate", "Hello.", "-m", str(endless), "--voice", "ryan", "-o", "a.wav", "--max-frames", "8000"]
    code = f"""
import sys
import qwen3tts
from qwen3tts.cli import main
original = qwen3tts.TTS.generate
def generate(self, *arguments, **keywords):
    keywords["progress"] = lambda event: print(event.frames_done, flush=True)
    return original(self, *arguments, **keywords)
qwen3tts.TTS.generate = generate
sys.argv[1:] = {arguments!r}
main.main()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert int(child.stdout.readline()) > 0
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert errors.endswith("interrupted\n")
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())


def test_bad_input_is_one_message(checkpoint: Path, tmp_path: Path) -> None:
    done = run(*MAIN, "generate", "Hello.", "-m", checkpoint, "--voice", "rian", cwd=tmp_path)
    assert done.returncode == 2
    assert "Did you mean 'ryan'?" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--language", "klingon"), "klingon"),
        (("--instruct", "Softly."), "cannot follow an --instruct"),
        (("--backend", "hip"), "'hip' cannot be used"),
        (("--dtype", "int8"), "int8"),
        (("--text-lookahead-tokens", "3"), "streamed"),
    ],
)
def test_requests_that_do_not_fit_the_model(checkpoint: Path, invoke, tmp_path: Path, arguments, message) -> None:
    result = invoke("qwen3tts", "generate", "Hello.", "-m", checkpoint, "--voice", "ryan", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_blank_text_and_missing_checkpoint(checkpoint: Path, invoke, tmp_path: Path) -> None:
    for text, model, message in (("  \n ", checkpoint, "blank"), ("Hello.", tmp_path / "nothing", "nothing")):
        result = invoke("qwen3tts", "generate", text, "-m", model, "--voice", "ryan")
        assert result.exit_code == 2
        assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_help_and_version_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from qwen3tts.cli import hip_generate, main; from typer.testing import CliRunner;"
        "assert CliRunner().invoke(main.app, ['generate', '--help']).exit_code == 0;"
        "assert CliRunner().invoke(hip_generate.app, ['--help']).exit_code == 0;"
        "print(sorted({'torch', 'soundfile', 'matplotlib'} & set(sys.modules)))"
    )
    assert run(sys.executable, "-c", code, cwd=tmp_path).stdout == "[]\n"


def test_help_shows_no_type_for_flags(invoke) -> None:
    shown = invoke("qwen3tts", "generate", "--help", env={"COLUMNS": "160"}).stdout.splitlines()
    flags = ("--verbose ", "--offline ", "--do-sample ", "--subtalker-dosample ")
    lines = [line for line in shown if any(flag in line for flag in flags)]
    assert len(lines) == len(flags)
    for command in (("clone",), ("voice", "export")):
        shown_there = invoke("qwen3tts", *command, "--help", env={"COLUMNS": "160"}).stdout.splitlines()
        lines += [line for line in shown_there if "--x-vector-only" in line or "--allow-url" in line]
    assert not [line for line in lines if "<" in line or "BOOL" in line or "INT" in line]
    bare = [line for line in shown if line.startswith("│ --subtalker") and "codebooks 1-15" not in line]
    assert not bare


def test_inspect_and_voices(checkpoint: Path, invoke) -> None:
    shown = invoke("qwen3tts", "inspect", checkpoint)
    assert shown.exit_code == 0
    facts = ("custom_voice model", "0.6B (0b6)", "talker", "codec decoder", "bfloat16", "(sichuan dialect)")
    for expected in (str(checkpoint), *facts):
        assert expected in shown.stdout
    narrow = invoke("qwen3tts", "inspect", checkpoint, env={"COLUMNS": "44"}).stdout
    assert "…" not in narrow
    assert "intermediate" in narrow
    facts = json.loads(invoke("qwen3tts", "inspect", checkpoint, "--json").stdout)
    assert facts["type"] == "custom_voice"
    listed = invoke("qwen3tts", "voices", checkpoint)
    assert "ryan\n" in listed.stdout
    assert "english" in listed.stdout
    voices = json.loads(invoke("qwen3tts", "voices", checkpoint, "--json").stdout)
    assert voices["speakers"]["eric"] == "sichuan_dialect"
    assert invoke("qwen3tts", "inspect", "/does/not/exist").exit_code == 2


def test_doctor(invoke) -> None:
    import torch

    facts = json.loads(invoke("qwen3tts", "doctor", "--json").stdout)
    assert facts["packages"]["torch"] == torch.__version__
    assert len(facts["gpus"]) == torch.cuda.device_count()
    backends = {entry["name"]: entry for entry in facts["backends"]}
    assert backends["torch"]["available"] is True
    for name in ("cuda", "hip"):
        assert backends[name]["available"] or backends[name]["reason"]
    shown = invoke("qwen3tts", "doctor").stdout
    assert torch.__version__ in shown
    assert "only Linux is tested" in shown
