"""scripts/lib.sh on machines that lack something, played by stand-ins for the programs it calls."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REAL = shlex.quote(sys.executable)
DEAD = "#!/bin/sh\necho 'not installed' >&2\nexit 127\n"
WORKING = f'#!/bin/sh\nexec {REAL} "$@"\n'
OLD = '#!/bin/sh\ncase "$2" in *version_info*) exit 1;; esac\nexit 0\n'
# Debian's python3 without python3-venv; the package "arrives" as a file beside it.
WITHOUT_VENV = f"""#!/bin/sh
case "$2" in *ensurepip*) [ -e "$(dirname "$0")/installed" ]; exit;; esac
exec {REAL} "$@"
"""
APT = """#!/bin/sh
echo "$*" >>"$(dirname "$0")/apt.log"
case "$*" in *install*) touch "$(dirname "$0")/installed";; esac
"""
QUICK_VENV = f"""#!/bin/sh
[ "$2" = venv ] || exec {REAL} "$@"
mkdir -p "$3/bin" && ln -sf {REAL} "$3/bin/python"
"""


@pytest.fixture
def machine(tmp_path: Path):
    """machine(shell code, program=text, ...): runs the code after lib.sh with these programs in front of the others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    base = {
        "python3.13": DEAD, "python3.12": DEAD, "python3.11": DEAD, "python3": WORKING,
        "id": "#!/bin/sh\necho 1000\n", "sudo": "#!/bin/sh\nexit 1\n", "apt-get": APT,
    }  # fmt: skip

    def run(code: str, **programs: str) -> subprocess.CompletedProcess[str]:
        for name, text in (base | programs).items():
            (folder / name.replace("_", "-")).write_text(text)
            (folder / name.replace("_", "-")).chmod(0o755)
        environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(tmp_path)}
        script = f"set -euo pipefail; . {shlex.quote(str(ROOT / 'scripts/lib.sh'))}; {code}"
        return subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def test_dead_names_of_version_managers_are_passed_over(machine, tmp_path):
    done = machine('require_python; echo "$PYTHON_BIN"', **{"python3.12": WORKING})
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/bin/python3.12\n")


def test_no_python_is_installed_for_root(machine, tmp_path):
    appearing = f'#!/bin/sh\n[ -e "$(dirname "$0")/installed" ] || exit 127\nexec {REAL} "$@"\n'
    done = machine('require_python; echo "$PYTHON_BIN"', python3=appearing, id="#!/bin/sh\necho 0\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{tmp_path}/bin/python3\n")
    assert "install -y -qq --no-install-recommends python3 python3-venv" in (tmp_path / "bin/apt.log").read_text()


@pytest.mark.parametrize("python", [DEAD, OLD])
def test_no_python_without_rights_says_what_to_run(machine, python):
    done = machine("require_python", python3=python)
    assert done.returncode == 2
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "sudo apt-get update && sudo apt-get install -y python3 python3-venv" in done.stderr


def test_missing_venv_is_installed_or_asked_for(machine, tmp_path):
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    done = machine("require_python", python3=WITHOUT_VENV)
    assert done.returncode == 2
    assert f"sudo apt-get install -y {package}" in done.stderr
    assert not (tmp_path / "bin/apt.log").exists()
    done = machine("require_python", python3=WITHOUT_VENV, sudo='#!/bin/sh\nshift\nexec "$@"\n')
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "bin/apt.log").read_text().splitlines()
    assert log[0].startswith("update")
    assert log[1].endswith(f" {package}")


def test_a_given_python_that_is_too_old(machine):
    done = machine("PYTHON=python3.9 require_python", **{"python3.9": OLD})
    assert done.returncode == 2
    assert "PYTHON=python3.9 is not a Python 3.11 or newer" in done.stderr


def test_an_environment_is_kept_only_when_complete_and_current(machine, tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/lib.sh").write_text("x")
    (tmp_path / "constraints.txt").write_text("a==1\n")
    make = "PYTHON_BIN=python3; pip_install() { %s; }; make_environment env something; echo made"
    failing, working = make % "return 1", make % 'echo "pip $*"'

    def machine_with_quick_venv(code):
        return machine(code, python3=QUICK_VENV)

    done = machine_with_quick_venv(failing)
    assert done.returncode != 0
    assert not (tmp_path / "env/.stamp").exists()
    assert "pip env torch==2.13.0 something" in machine_with_quick_venv(working).stdout
    assert machine_with_quick_venv(working).stdout == "made\n"
    (tmp_path / "env/leftover").touch()
    (tmp_path / "constraints.txt").write_text("a==2\n")
    assert "pip env" in machine_with_quick_venv(working).stdout
    assert not (tmp_path / "env/leftover").exists()
    os.remove(tmp_path / "env/bin/python")
    assert "pip env" in machine_with_quick_venv(working).stdout


def test_demo_says_at_once_that_it_is_synthetic_and_rejects_a_missing_value():
    demo = (ROOT / "scripts/demo.sh").read_text()
    assert demo.index("SYNTHETIC") < demo.index("require_python")
    done = subprocess.run(["bash", ROOT / "scripts/demo.sh", "--text"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--text needs a value" in done.stderr
    done = subprocess.run(["bash", ROOT / "scripts/demo.sh", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("usage:")


STUBS = """
say() { echo "== $*"; }
die() { echo "error: $*" >&2; exit 2; }
require_python() { :; }
requirements() { :; }
hash_of() { echo same; }
pip_install() { :; }
make_environment() {
    mkdir -p "$1/bin"
    printf '#!/bin/sh\\nexit 0\\n' >"$1/bin/python"
    printf '#!/bin/sh\\nprintf "arg:%%s\\\\n" "$@"\\n' >"$1/bin/qwen3tts"
    chmod +x "$1"/bin/*
}
"""


@pytest.fixture
def demo(tmp_path: Path):
    """demo(argument, ...): what demo.sh, called from another folder, passes to `qwen3tts`."""
    scripts = tmp_path / "project" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "demo.sh").write_text((ROOT / "scripts/demo.sh").read_text())
    (scripts / "lib.sh").write_text((ROOT / "scripts/lib.sh").read_text() + STUBS)
    (tmp_path / "caller").mkdir()

    def run(*arguments: str) -> list[str]:
        command = ["bash", "../project/scripts/demo.sh", *arguments]
        done = subprocess.run(command, cwd=tmp_path / "caller", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [line.removeprefix("arg:") for line in done.stdout.splitlines() if line.startswith("arg:")]

    return run


def test_demo_passes_its_defaults(demo, tmp_path):
    project = tmp_path / "project"
    assert demo("--language", "english") == [
        "generate", "--model", "demo/synthetic-checkpoint", "--output", f"{project}/demo.wav",
        "--plot", f"{project}/demo.png", "--json", f"{project}/demo.json", "--gain", "0.3", "--voice", "ryan",
        "--language", "english", "--", "Hello! This is a short sentence, spoken by a small model.",
    ]  # fmt: skip


@pytest.mark.parametrize("joined", [True, False])
def test_demo_takes_both_spellings_and_paths_of_the_caller(demo, tmp_path, joined):
    (tmp_path / "caller/model").mkdir()
    given = {"--model": "model", "--output": "a b.wav", "--text-file": "t.txt", "--voice-file": "v.json"}
    arguments = [f"{k}={v}" for k, v in given.items()] if joined else [part for pair in given.items() for part in pair]
    passed = demo(*arguments)
    caller = tmp_path / "caller"
    assert passed[:3] == ["generate", "--model", str(caller / "model")]
    assert passed[9:] == [
        "--output", f"{caller}/a b.wav", "--voice-file", f"{caller}/v.json", "--text-file", f"{caller}/t.txt"
    ]  # fmt: skip


def test_demo_takes_a_hub_id_a_voice_and_a_text(demo):
    passed = demo("-m", "owner/name", "--voice=Vivian", "--text=x = --y", "--instruct=Slowly.", "--plot", "/p.png")
    assert passed[1:3] == ["--model", "owner/name"]
    assert passed[9:] == ["--voice", "Vivian", "--instruct", "Slowly.", "--plot", "/p.png", "--", "x = --y"]
    assert "--voice" not in demo("-m", "owner/name", "--instruct", "Slowly.")
