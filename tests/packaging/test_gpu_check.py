"""scripts/gpu_check.sh with a stand-in for Python: what is refused, what is run, what is left behind, how it ends."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/bash
case "$*" in
    *get_device_capability*) [ -z "$NO_GPU" ] || exit 1; echo 90 ;;
    *"pip install"*) exit "${BUILD:-0}" ;;
    *) echo "$*" >>"$CALLS"; case "$*" in *"$FAILS"*) [ -z "$FAILS" ] || exit 5 ;; esac ;;
esac
"""
SANITIZER = """#!/bin/bash
echo "========= ERROR SUMMARY: 0 errors"
while [ "$1" != "$PYTHON" ]; do shift; done
exec "$@"
"""


@pytest.fixture
def check(tmp_path):
    """check(argument, ..., VARIABLE=value) -> the process, from another folder than the project's."""
    for name, text in (("python", PYTHON), ("compute-sanitizer", SANITIZER)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(*arguments, **variables):
        environment = os.environ | {
            "PYTHON": f"{tmp_path}/python", "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "CALLS": f"{tmp_path}/calls", "FAILS": "", "NO_GPU": "",
        }  # fmt: skip
        command = ["bash", str(ROOT / "scripts/gpu_check.sh"), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment | variables, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name the folder for results"),
        (("out", "other"), "one folder for results"),
        (("out", "--parts"), "--parts needs a value"),
        (("out", "--parts", ""), "names none; there are tests backends"),
        (("out", "--parts", "tests,*"), "there is no part '*'"),
        (("out", "--hip-root", "nowhere"), "nowhere/include/hip"),
        (("out", "--model", "nowhere"), "there is no folder"),
        (("out", "--quick"), "there is no option --quick"),
    ],
)
def test_what_cannot_be_meant_is_refused(check, tmp_path, arguments, says):
    done = check(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_a_gpu_or_a_build_nothing_is_run(check, tmp_path):
    for variables, says in (({"NO_GPU": "1"}, "a GPU and a torch for it"), ({"BUILD": "3"}, "the build failed")):
        done = check("out", **variables)
        assert done.returncode == 2
        assert says in done.stderr
        assert not (tmp_path / "calls").exists()


def test_the_parts_asked_for_are_run_and_the_callers_files_stay(check, tmp_path):
    model = tmp_path / "out/checkpoint"
    (tmp_path / "out/site").mkdir(parents=True)
    model.mkdir()
    done = check("out", "--parts=backends,sanitizer", "--model", "out/checkpoint", "-k", "x or y")
    assert done.returncode == 0, done.stdout
    calls = (tmp_path / "calls").read_text()
    assert f"optimize check {model} --backend cuda --dtype float32" in calls
    assert sorted(line for line in calls.splitlines() if "sanitize" in line) == sorted(
        f"scripts/decode_sanitize.py --parts {kinds}"
        for kinds in ("bfloat16", "float16", "float32", *["bfloat16,float16,float32,persistent"] * 2)
    )
    assert done.stdout.count("ERROR SUMMARY: 0 errors") == 5
    assert "-m pytest" not in calls
    assert model.exists()
    assert {p.name for p in (tmp_path / "out").iterdir() if p.suffix != ".log"} == {"site", "checkpoint"}
    check("out", "--parts", "tests", "-k", "x or y")
    assert "-k (x or y) and not hip tests/gpu" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize("fails", ["-m pytest", "-m qwen3tts selftest", "decode_sanitize.py --parts float16"])
def test_what_fails_is_said_at_the_end(check, fails):
    done = check("out", "--parts", "tests,backends,sanitizer", FAILS=fails)
    assert done.returncode == 1
    assert done.stdout.count("exit code 5") == 1
