"""What is tested is what a user installs, and it is complete."""

import importlib.metadata
import itertools
import os
import re
import subprocess
import sys
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


def build(kind: str, target: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Builds the source folder without isolation and without a network, as `pip install --no-build-isolation` does."""
    code = (
        "import sys, json; from scikit_build_core import build;"
        f"print(build.build_{kind}(sys.argv[1], json.loads(sys.argv[2])))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(target), *(arguments or ["{}"])], cwd=ROOT, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(sdist, wheel) of this source."""
    given = os.environ.get("QWEN3TTS_TEST_DIST")
    if given:
        folder = Path(given)
    else:
        folder = tmp_path_factory.mktemp("dist")
        for kind in ("sdist", "wheel"):
            done = build(kind, folder)
            assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def test_the_installed_wheel_is_what_is_tested() -> None:
    inside_source = Path(qwen3tts.__file__).resolve().is_relative_to(ROOT / "qwen3tts")
    assert inside_source == (os.environ.get("QWEN3TTS_TEST_INSTALLED") != "1"), qwen3tts.__file__
    found = subprocess.run(
        [sys.executable, "-m", "qwen3tts.cli.main", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == f"qwen3tts {VERSION}"


def test_wheel_is_pure_and_complete(distributions: tuple[Path, Path]) -> None:
    wheel = distributions[1]
    assert wheel.name == f"qwen3tts-{VERSION}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in sorted(names) if name.startswith("qwen3tts/")] == PACKAGE_FILES
    others = {name.split("/")[0] for name in names} - {"qwen3tts"}
    assert others == {f"qwen3tts-{VERSION}.dist-info"}
    assert any(name.endswith("LICENSE") for name in names)


def test_sdist_has_sources_and_no_caches(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[0]) as archive:
        names = [member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()]
    wanted = {"CMakeLists.txt", "LICENSE", "README.md", "csrc/README.md", "constraints.txt", "scripts/test.sh"}
    assert not (wanted | set(PACKAGE_FILES)) - set(names)
    assert not [name for name in names if re.search(r"__pycache__|\.pyc$|^\.venv|^\.cache|^build/|^dist/|\.wav$", name)]


@pytest.mark.parametrize("backend", ["CUDA", "HIP"])
def test_asking_for_a_native_backend_says_there_is_none(backend: str, tmp_path: Path) -> None:
    done = build("wheel", tmp_path, f'{{"cmake.define.QWEN3TTS_{backend}": "ON", "build-dir": "{tmp_path}/build"}}')
    assert done.returncode != 0
    assert f"no native {backend} backend yet" in " ".join((done.stdout + done.stderr).split())
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.parametrize("choice", ["OFF", "auto"])
def test_without_a_backend_no_compiler_is_needed(choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CC", "CXX", "CUDACXX", "HIPCXX"):
        monkeypatch.setenv(variable, "/does/not/exist")
    settings = f'{{"cmake.define.QWEN3TTS_CUDA": "{choice}", "build-dir": "{tmp_path}/build"}}'
    done = build("wheel", tmp_path, settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.glob("*.whl")] == [f"qwen3tts-{VERSION}-py3-none-any.whl"]


def test_pip_installs_offline_without_isolation(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", str(tmp_path), str(ROOT)], capture_output=True, text=True)
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
