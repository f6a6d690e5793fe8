"""Some three hundred damaged voice files and recordings, made and loaded by scripts/damaged_files.py."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from damaged_contents import tone, wav
from damaged_files import corpus

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

LIMITS = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(SCRIPTS)!r})
import damaged_files
failures = 0
for limit, value in (("CPU_SECONDS", -1), ("GROWTH", -damaged_files.MEGABYTE), ("MESSAGE", -1000)):
    usual = getattr(damaged_files, limit)
    setattr(damaged_files, limit, value)
    failures += damaged_files.check([Path(sys.argv[1])])
    setattr(damaged_files, limit, usual)
sys.exit(failures)
"""
"""Checks one file with limits that nothing can keep, one after the other."""


def check(path, *arguments, program=SCRIPTS / "damaged_files.py"):
    """(exit code, the table's lines) of the script on a folder."""
    done = subprocess.run(
        [sys.executable, str(program), str(path), "--check", *arguments],
        capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    print(done.stdout[-1500:], done.stderr[-1500:])
    return done.returncode, done.stdout.splitlines()


def test_every_file_is_refused_in_time_and_in_little_memory(tmp_path, seed):
    code, lines = check(tmp_path / "files", "--seed", str(seed % 10_000))
    assert [line for line in lines if "FAILED" in line] == []
    assert code == 0
    files = {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}
    assert len(files) >= 250
    assert lines[-1].startswith(f"{len(files)} files, 0 failures")
    kinds = Counter(Path(name).suffix for name in files)
    assert min(kinds[ending] for ending in (".json", ".safetensors", ".pt", ".wav", ".flac")) >= 10
    assert files == dict(corpus(seed % 10_000)), "the same seed should make the same files"
    others = list(islice(corpus(seed % 10_000 + 1), 25))
    assert any(files[name] != contents for name, contents in others), "another seed should make other files"


def test_what_the_check_finds(tmp_path, seed):
    folder = tmp_path / "files"
    folder.mkdir()
    voice = {"speaker_embedding": [0.5] * 64, "x_vector_only_mode": True, "icl_mode": False}
    (folder / "good.json").write_text(json.dumps(voice))
    (folder / "good.wav").write_bytes(wav(tone(np.random.default_rng(seed), 3000)))
    (folder / "text.wav").write_bytes(b"text")
    code, lines = check(folder)
    assert code == 1
    assert ["FAILED: it was read" in line for line in lines] == [True, True, False, False]
    assert lines[-1].startswith("3 files, 2 failures")
    limits = tmp_path / "limits.py"
    limits.write_text(LIMITS)
    code, lines = check(folder / "text.wav", program=limits)
    assert code == 3
    found = ["more than -1 s", "more than -1 MB", "the message is too long"]
    assert [f"FAILED: {words}" in line for words, line in zip(found, lines[::2], strict=True)] == [True] * 3
