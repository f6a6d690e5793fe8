"""Inputs that never end, outputs that overwrite inputs, and streams that are closed or full."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qwen3tts.errors import AudioError
from qwen3tts.text.tokenizer import MAX_TEXT_CHARS

SPEAK = ("generate", "Hello.", "-m", "model")
RUN = "import sys; from qwen3tts.cli import {program}; sys.argv[0] = 'program'; {program}.main()"


def shell(tail: str, *arguments: str, program: str = "main", cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a shell, `tail` behind its command line."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | env
    command = ["sh", "-c", f'"$@" {tail}', "sh", sys.executable, "-c", RUN.format(program=program), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def refused(result, message: str) -> None:
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


# ---------------------------------------------------------------- inputs


def test_text_that_never_ends(fake, invoke, tmp_path):
    limit = 4 * MAX_TEXT_CHARS
    refused(invoke("qwen3tts", "generate", "--text-file", "/dev/zero", "-m", "model"), f"more than {limit} bytes")
    refused(
        invoke("qwen3tts", "generate", "-", "-m", "model", input=b"a" * (limit + 1)), f"stdin has more than {limit}"
    )
    result = shell("< /dev/zero", "generate", "-", "-m", "model", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"stdin has more than {limit} bytes" in result.stderr
    (tmp_path / "long.txt").write_text("語" * MAX_TEXT_CHARS)
    assert invoke("qwen3tts", "generate", "--text-file", "long.txt", "-m", "model").exit_code == 0
    assert len(fake.asked[0][0]) == MAX_TEXT_CHARS


def test_a_named_pipe_is_read(fake, invoke, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("From a pipe.",))
    writer.start()
    assert invoke("qwen3tts", "generate", "--text-file", "pipe", "-m", "model").exit_code == 0
    writer.join()
    assert fake.asked[0][0] == "From a pipe."
    assert "named pipe is waited for" in " ".join(
        invoke("qwen3tts", "generate", "--help", env={"COLUMNS": "200"}).stdout.split()
    )


def test_stdin_that_is_closed(tmp_path):
    result = shell("<&-", "generate", "-", "-m", "model", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (2, "error: stdin is closed, so no text can be read from it\n")


@pytest.mark.parametrize("seed", ["1" * 5000, "9" * 41, "x" * 5000])
def test_seed_of_very_many_digits(fake, invoke, seed):
    result = invoke("qwen3tts", *SPEAK, "--seed", seed)
    refused(result, "--seed is '")
    assert len(result.stderr) < 200


@pytest.mark.parametrize("speaker", ["", " "])
def test_blank_speaker_is_not_the_default(fake, invoke, speaker):
    refused(invoke("hip", "model", "Hello.", "--speaker", speaker), "--speaker is blank")
    assert not fake.loaded


def npy(shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    "content",
    [
        npy("(99999999999, 16)"),
        npy("(4611686018427387904, 16)"),
        npy("(-1, -16)", bytes(128)),
        npy("(-1, 16)"),
        npy("(2, 16)", bytes(255)),
        npy("(2, 16)", bytes(257)),
        npy("(True, 16)", bytes(127)),
        npy("(2.0, 16)", bytes(256)),
        npy("2"),
        npy("((" * 30),
        npy("(1, 16)")[:20],
    ],
)
def test_reference_codes_with_an_absurd_header(fake, invoke, tmp_path, content):
    (tmp_path / "codes.npy").write_bytes(content)
    refused(invoke("hip", "model", "Hello.", "--ref-codes", "codes.npy"), "--ref-codes: 'codes.npy' cannot be read")
    assert not fake.loaded


def test_reference_codes_that_are_no_file(fake, invoke, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, what in (("pipe", "a named pipe"), ("folder", "a folder"), ("/dev/zero", "a device")):
        refused(invoke("hip", "model", "Hello.", "--ref-codes", name), f"{what}, expected a regular file")
    np.save(tmp_path / "fortran.npy", np.asfortranarray(fake.codes))
    assert invoke("hip", "model", "Hello.", "--ref-codes", "fortran.npy").exit_code == 0


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "a.wav", "--json", "a.wav"], "--json 'a.wav' is the same file as --output"),
        (["-o", "a.wav", "--json", "./b/../a.wav"], "is the same file as --output"),
        (["-o", "a.wav", "--json", "link.wav"], "is the same file as --output"),
        (["-o", "hard1.wav", "--json", "hard2.wav"], "is the same file as --output"),
        (["--plot", "a.png", "--json", "a.png"], "is the same file as --plot"),
        (["--json", "voice.json", "--voice-file", "voice.json"], "is the same file as the voice file"),
        (["--json", "checkpoint/config.json"], "is the same file as the checkpoint's config.json"),
        (["--json", "checkpoint/shard.safetensors"], "is the same file as the checkpoint's shard.safetensors"),
        (["--json", "to_checkpoint/speech_tokenizer/config.json"], "the checkpoint's speech_tokenizer/config.json"),
    ],
)
def test_outputs_are_files_of_their_own(fake, invoke, tmp_path, voice_file, arguments, message):
    (tmp_path / "link.wav").symlink_to("a.wav")
    (tmp_path / "b").mkdir()
    (tmp_path / "hard1.wav").write_bytes(b"old")
    os.link(tmp_path / "hard1.wav", tmp_path / "hard2.wav")
    (tmp_path / "checkpoint/speech_tokenizer").mkdir(parents=True)
    for name in ("config.json", "shard.safetensors", "speech_tokenizer/config.json"):
        (tmp_path / "checkpoint" / name).write_text("{}")
    (tmp_path / "to_checkpoint").symlink_to("checkpoint")
    before = sorted(tmp_path.rglob("*"))
    refused(invoke("qwen3tts", "generate", "Hello.", "-m", "checkpoint", *arguments), message)
    assert not fake.loaded
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("model", ["~nobody-of-that-name/x", "a" * 5000, "", "owner/name"])
def test_models_that_are_no_folder_have_no_files(fake, invoke, model):
    assert invoke("qwen3tts", "generate", "Hello.", "-m", model).exit_code == 0


def test_inputs_are_not_overwritten(fake, invoke, tmp_path):
    (tmp_path / "text.json").write_text("Hello.")
    np.save(tmp_path / "codes.npy", fake.codes)
    arguments = ("generate", "-m", "model", "--text-file", "text.json", "--json", "text.json")
    refused(invoke("qwen3tts", *arguments), "is the same file as the text file")
    arguments = ("model", "Hello.", "--ref-codes", "codes.npy", "--json", "codes.npy")
    refused(invoke("hip", *arguments), "--json 'codes.npy' is the same file as --ref-codes")
    refused(invoke("hip", "model", "Hello.", "--output", "a.wav", "--json", "a.wav"), "same file as --output")
    assert not fake.loaded
    assert (tmp_path / "text.json").read_text() == "Hello."


@pytest.mark.parametrize("failing", ["qwen3tts.audio.plot.plot_speech", "qwen3tts.cli.report.Report.save"])
def test_a_late_failure_leaves_nothing_new(fake, invoke, tmp_path, monkeypatch, failing):
    def fail(*_: object, **__: object) -> None:
        raise AudioError("no space")

    (tmp_path / "a.wav").write_bytes(b"old")
    monkeypatch.setattr(failing, fail)
    refused(invoke("qwen3tts", *SPEAK, "-o", "a.wav", "--plot", "a.png", "--json", "a.json"), "no space")
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]
    assert (tmp_path / "a.wav").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("arguments", "message"), [(["-o", "a\udcfc.wav"], "not valid UTF-8"), (["--json", "a\0.json"], "null byte")]
)
def test_names_that_are_none(fake, invoke, tmp_path, arguments, message):
    refused(invoke("qwen3tts", *SPEAK, *arguments), message)
    assert not fake.loaded


# ---------------------------------------------------------------- stdout


def test_json_is_ascii(checkpoint, tmp_path):
    folder = tmp_path / "ö語"
    folder.symlink_to(checkpoint)
    result = shell("", "inspect", str(folder), "--json", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert json.loads(result.stdout)["path"] == str(folder)


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [(["inspect"], ""), (["inspect", "--json"], "1"), (["voices"], ""), (["doctor"], "1"), (["--help"], "1"),
     (["--version"], "")],
)  # fmt: skip
def test_stdout_that_is_full(checkpoint, tmp_path, arguments, unbuffered):
    if arguments[0] in ("inspect", "voices"):
        arguments = [*arguments, str(checkpoint)]
    result = shell("> /dev/full", *arguments, cwd=tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert (result.returncode, result.stderr) == (2, "error: stdout cannot be written: No space left on device\n")


def test_a_clone_on_a_full_disk(tiny_checkpoint, tmp_path, seed):
    noise = np.random.default_rng(seed).normal(0, 0.1, 30_000)
    soundfile.write(tmp_path / "a.wav", noise, 24_000)
    arguments = ("a.wav", "-m", str(tiny_checkpoint("base", seed=2)), "--say", "Hi.", "--max-frames", "2")
    result = shell("> /dev/full", "clone", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (2, "error: stdout cannot be written: No space left on device\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


STAND_IN = """
import sys
sys.path.insert(0, {folder!r})
import conftest, qwen3tts
qwen3tts.load = conftest.FakeTTS().load
from qwen3tts.cli import {program}
{program}.main()
"""


@pytest.mark.parametrize(("program", "unbuffered"), [("main", ""), ("main", "1"), ("hip_generate", "")])
@pytest.mark.parametrize(("tail", "code"), [("> /dev/full", 2), ("| true", 0)])
def test_files_and_a_stdout_that_fails(tmp_path, program, unbuffered, tail, code):
    """On a full disk nothing is left; a reader that has left does not cost the audio."""
    script = STAND_IN.format(folder=str(Path(__file__).parent), program=program)
    arguments = SPEAK if program == "main" else ("model", "Hello.")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": unbuffered}
    command = ["sh", "-c", f'("$@"; echo $? > code) {tail}; while ! [ -s code ]; do sleep 0.1; done', "sh"]
    command += [sys.executable, "-c", script, *arguments]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert int((tmp_path / "code").read_text()) == code
    expected = "error: stdout cannot be written: No space left on device\n" if code else ""
    assert result.stderr == expected
    assert len(list(tmp_path.glob("*.wav"))) == (0 if code else 1)
    assert not list(tmp_path.glob(".*"))


def test_closed_stdout_is_fine(checkpoint, tmp_path):
    result = shell(">&-", "voices", str(checkpoint), cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
