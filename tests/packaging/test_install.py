"""What is tested is what a user installs, and it is complete."""

import base64
import csv
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import qwen3tts

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r'"(.+)"', (ROOT / "qwen3tts/_version.py").read_text().splitlines()[-1]).group(1)
PACKAGE_FILES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "qwen3tts").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)


PURE = {"QWEN3TTS_CUDA": "OFF", "QWEN3TTS_HIP": "OFF"}
"""environment of a build that needs no compiler"""


def build(
    kind: str, target: Path, settings: dict[str, str] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Builds the source folder without isolation and without a network, as `pip install --no-build-isolation` does."""
    code = (
        "import sys, json; sys.path.insert(0, 'build_support'); import qwen3tts_build;"
        f"print(qwen3tts_build.build_{kind}(sys.argv[1], json.loads(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(target), json.dumps(settings or {})]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(sdist, wheel) of this source."""
    given = os.environ.get("QWEN3TTS_TEST_DIST")
    if given:
        folder = Path(given)
    else:
        folder = tmp_path_factory.mktemp("dist")
        for kind in ("sdist", "wheel"):
            done = build(kind, folder, **PURE)
            assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def test_the_installed_wheel_is_what_is_tested() -> None:
    inside_source = Path(qwen3tts.__file__).resolve().is_relative_to(ROOT / "qwen3tts")
    assert inside_source == (os.environ.get("QWEN3TTS_TEST_INSTALLED") != "1"), qwen3tts.__file__
    found = subprocess.run(
        [sys.executable, "-m", "qwen3tts.cli.main", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == f"qwen3tts {VERSION}"


def test_wheel_is_complete_and_tagged_by_what_it_holds(distributions: tuple[Path, Path]) -> None:
    wheel = distributions[1]
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    modules = {name for name in contents if name.endswith(".so")}
    native = {re.match(r"qwen3tts/_(cuda|hip)\.", name).group(1) for name in modules}
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tag = f"{python}-{python}-{sysconfig.get_platform().replace('-', '_')}" if native else "py3-none-any"
    assert wheel.name == f"qwen3tts-{VERSION}-{tag}.whl"
    record = json.loads(contents["qwen3tts/_build_info.json"])
    assert {name for name in ("cuda", "hip") if record[name]["built"]} == native
    assert all(record[name]["built"] or record[name]["reason"] for name in ("cuda", "hip"))
    package = {name for name in contents if name.startswith("qwen3tts/")}
    assert package - modules - {"qwen3tts/_build_info.json"} == set(PACKAGE_FILES)
    information = f"qwen3tts-{VERSION}.dist-info"
    assert {name.split("/")[0] for name in contents} == {"qwen3tts", information}
    assert any(name.endswith("LICENSE") for name in contents)
    tags = contents[f"{information}/WHEEL"].decode()
    assert f"Tag: {tag}\n" in tags
    assert f"Root-Is-Purelib: {str(not native).lower()}\n" in tags
    listed = list(csv.reader(contents[f"{information}/RECORD"].decode().splitlines()))
    assert {line[0] for line in listed} == set(contents)
    for name, digest, size in listed:
        if not name.endswith("/RECORD"):
            found = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={found}", len(contents[name])), name


def test_sdist_has_sources_and_no_caches(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[0]) as archive:
        names = [member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()]
    wanted = {"CMakeLists.txt", "LICENSE", "README.md", "csrc/README.md", "constraints.txt", "scripts/test.sh"}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "cmake").iterdir()} | {"build_support/qwen3tts_build.py"}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*") if path.is_file()}
    assert not (wanted | set(PACKAGE_FILES)) - set(names)
    assert not [name for name in names if re.search(r"__pycache__|\.pyc$|^\.venv|^\.cache|^build/|^dist/|\.wav$", name)]


NVCC = """#!/bin/sh
case "$1" in
--version) echo "Cuda compilation tools, release 12.4, V12.4.131";;
--list-gpu-code) printf 'sm_80\\nsm_90\\n';;
*) printf "\\033[31mtry.cu:1:10: fatal error:\\033[0m cuda_runtime.h:\\tNo such file or directory\\n" >&2; exit 1;;
esac
"""
"""a CUDA toolkit whose headers are missing"""


@pytest.fixture
def nvcc(tmp_path: Path) -> str:
    """A program in the place of nvcc."""
    program = tmp_path / "nvcc"
    program.write_text(NVCC)
    program.chmod(0o755)
    return str(program)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("backend", "environment", "reason", "remedy"),
    [
        ("CUDA", {"CUDACXX": "/does/not/exist"}, "/does/not/exist does not answer", "Repair the CUDA toolkit"),
        ("CUDA", {"QWEN3TTS_CUDA_ARCHITECTURES": "20"}, "none of QWEN3TTS_CUDA_ARCHITECTURES=20", "it knows sm_80"),
        ("CUDA", {}, "cannot build a small program: try.cu:1:10: fatal error: cuda_runtime.h", "or set CUDACXX"),
        ("HIP", {"CXX": "/does/not/exist"}, "no C++ compiler works here", "Install g++"),
        ("HIP", {"QWEN3TTS_ROCM_PATH": "/does/not/exist"}, "was found in /does/not/exist", "Install ROCm"),
    ],
)  # fmt: skip
def test_a_broken_toolkit(
    backend: str, environment: dict[str, str], reason: str, remedy: str, nvcc: str, tmp_path: Path
) -> None:
    """ON fails with the reason and the remedy; AUTO installs without the backend, says why and keeps it."""
    variables = {**PURE, "CUDACXX": nvcc, f"QWEN3TTS_{backend}": "ON", **environment}
    done = build("wheel", tmp_path, **variables)
    assert done.returncode != 0
    assert f"QWEN3TTS_{backend}=ON, but" in one_line(done)
    assert reason in one_line(done)
    assert remedy in one_line(done)
    assert not list(tmp_path.glob("*.whl"))

    done = build("wheel", tmp_path, {f"cmake.define.QWEN3TTS_{backend}": "auto"}, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{backend} backend: not built" in one_line(done)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"qwen3tts-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        record = json.loads(archive.read("qwen3tts/_build_info.json"))[backend.lower()]
    assert record["built"] is False
    assert reason in record["reason"]


def test_a_choice_that_is_none(tmp_path: Path) -> None:
    done = build("wheel", tmp_path, **(PURE | {"QWEN3TTS_CUDA": "maybe"}))
    assert done.returncode != 0
    assert "QWEN3TTS_CUDA is 'maybe', expected AUTO, ON or OFF" in one_line(done)


def test_without_a_backend_no_compiler_is_needed(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("CC", "CXX", "CUDACXX", "HIPCXX"), "/does/not/exist")
    done = build("wheel", tmp_path, **(PURE | nothing))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.glob("*.whl")] == [f"qwen3tts-{VERSION}-py3-none-any.whl"]


def test_pip_installs_offline_without_isolation(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    command = [*pip, "--target", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | PURE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "qwen3tts" / "py.typed").is_file()
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {"qwen3tts", "hip-custom-voice-generate"}


def test_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert project["license"] == "Apache-2.0"
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()
    runtime = {re.split(r"[<>=]", line)[0] for line in project["dependencies"]}
    assert runtime == {
        "torch", "numpy", "safetensors", "tokenizers", "huggingface-hub", "soundfile", "soxr", "rich", "typer"
    }  # fmt: skip
    if os.environ.get("QWEN3TTS_TEST_INSTALLED") == "1":
        assert importlib.metadata.version("qwen3tts") == VERSION


def test_constraints_pin_every_requirement_exactly() -> None:
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            pinned[name.lower().replace("_", "-")] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    assert not {re.split(r"[<>=]", line)[0].lower() for line in needed} - set(pinned)
    assert f'TORCH="torch=={pinned["torch"]}"' in (ROOT / "scripts/lib.sh").read_text()
