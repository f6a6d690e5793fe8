"""scripts/parity_codes.sh and export_codes.py, with stand-ins for the official package and this project's program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
OFFICIAL = """
import json, os, sys
from types import SimpleNamespace
import numpy as np

class VoiceClonePromptItem:
    def __init__(self, *fields):
        self.fields = fields

class Qwen3TTSModel:
    @classmethod
    def from_pretrained(cls, path, **_):
        if not os.path.isdir(path):
            raise OSError(f"{path} is not there\\nand no id")
        tts = cls()
        codes = SimpleNamespace(cpu=lambda: SimpleNamespace(numpy=lambda: np.arange(32).reshape(2, 16)))
        tts.model = SimpleNamespace(generate=lambda *_: ([codes], None))
        return tts

    def generate_custom_voice(self, text, speaker=None, language=None, voice_clone_prompt=None, **_):
        if language not in ("English", "german"):
            raise ValueError(f"Unsupported languages: ['{language}']")
        print("official:", json.dumps([text, speaker or voice_clone_prompt[0].fields[3]]), file=sys.stderr)
        self.model.generate(text)

    generate_voice_clone = generate_custom_voice
"""
TRANSFORMERS = "from types import SimpleNamespace\nlogging = SimpleNamespace(set_verbosity_error=lambda: None)\n"
TORCH = """
import numpy as np
float32, set_num_threads = np.float32, int
def tensor(values, dtype=None): return np.asarray(values, dtype)
"""
PROJECT = """#!/bin/sh
[ "$1" = -c ] && exec "$REAL" "$@"
printf '%s\\n' "$@" >"$RECORD"
echo codes_match=true
"""
VOICE = {"speaker_embedding": [0.5] * 8, "x_vector_only_mode": True, "icl_mode": False, "ref_codes": None}


@pytest.fixture
def parity(tmp_path):
    """parity(TEXT, option, ...) -> (finished process, arguments that this project's program got)."""
    modules = {"qwen_tts.py": OFFICIAL, "transformers.py": TRANSFORMERS, "torch.py": TORCH}
    for name, text in (modules | {"python": PROJECT}).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "model").mkdir()
    record = tmp_path / "record"
    environment = {"PYTHONPATH": str(tmp_path), "PYTHON": str(tmp_path / "python"), "REAL": sys.executable,
                   "RECORD": str(record), "PYTHONSAFEPATH": ""}  # fmt: skip

    def run(text, *options, checkpoint="model"):
        record.unlink(missing_ok=True)
        command = ["bash", ROOT / "scripts/parity_codes.sh", sys.executable, checkpoint, text, *options]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True)
        print(done.stdout, done.stderr)
        return done, record.read_text().splitlines() if record.exists() else None

    return run


@pytest.mark.parametrize("text", ["Hello.", "- no option", "--help"])
def test_a_text_is_a_text(parity, text):
    done, passed = parity(text, "--speaker", "Ryan", "--language", "german")
    assert done.returncode == 0
    assert f'official: ["{text}", "Ryan"]' in done.stderr
    assert done.stdout.splitlines() == ["python_frames=2", "codes_match=true"]
    assert passed[-3:] == ["--", "model", text]
    assert {"--speaker=Ryan", "--language=german", "--text-lookahead-tokens"} <= set(passed)


@pytest.mark.parametrize("spaces", ["", " ", "\n\t"])
@pytest.mark.parametrize("icl", [True, False])
def test_only_voices_without_a_recording_have_lookahead(parity, tmp_path, spaces, icl):
    record = VOICE | ({"x_vector_only_mode": False, "icl_mode": True, "ref_codes": [[1] * 16]} if icl else {})
    record["ref_text"] = '"icl_mode": true, "icl_mode" : false'
    (tmp_path / "a b.json").write_text(json.dumps(record, separators=(",", f"{spaces}:{spaces}")))
    done, passed = parity("Hello.", "--voice-clone-prompt", "a b.json")
    assert done.returncode == 0
    assert f'official: ["Hello.", {json.dumps(icl)}]' in done.stderr
    assert "--voice-clone-prompt=a b.json" in passed
    assert ("--text-lookahead-tokens" in passed) is not icl


def test_what_cannot_be_used_is_said_in_one_line(parity, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(np.random.default_rng(1).bytes(300))
    (tmp_path / "list.json").write_text("[]")
    without_codes = {key: value for key, value in VOICE.items() if key != "ref_codes"}
    (tmp_path / "icl.json").write_text(json.dumps(without_codes | {"icl_mode": True}))
    for options, message in (
        (("--voice-clone-prompt", "x.safetensors"), "error: x.safetensors is no JSON, the only kind of voice file"),
        (("--voice-clone-prompt", "list.json"), "error: list.json is no voice file: expected a JSON object with"),
        (("--voice-clone-prompt", "icl.json"), "error: icl.json is no voice file: expected a JSON object with"),
        (("--voice-clone-prompt", "none.json"), "No such file or directory: 'none.json'"),
        (("--speaker", "Ryan", "--language", "klingon"), "error: Unsupported languages: ['klingon']"),
        (("--language", "klingon"), "error: give --speaker or --voice-clone-prompt"),
    ):
        done, passed = parity("Hello.", *options)
        assert (done.returncode, passed, done.stderr.count("\n")) == (2, None, 1)
        assert message in done.stderr
    done, _ = parity("Hello.", "--speaker", "Ryan", checkpoint="nowhere")
    assert (done.returncode, done.stderr) == (2, "error: nowhere is not there and no id\n")
