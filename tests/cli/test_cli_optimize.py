"""`qwen3tts optimize`: what it lists, shows and checks, from outside."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qwen3tts", "optimize", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip


PROFILE = """
[profile]
name = "mine"
backend = "torch"
[[pass]]
name = "diffusion-cache"
[[pass]]
name = "compile"
options = { backend = "eager" }
"""


def test_list() -> None:
    text = run("list")
    assert text.returncode == 0, text.stderr
    listed = json.loads(run("list", "--json").stdout)
    assert {"compile", "custom-kernels", "codec-kernels", "flash-attention-4"} <= set(listed["passes"])
    assert len(listed["profiles"]) == 12
    for found in listed["profiles"]:
        assert re.fullmatch("[0-9a-f]{16}", found["hash"])
        assert found["hash"] in text.stdout
    for switch in listed["switches"]:
        assert f"{switch['variable']}=1 on {switch['backend']}" in text.stdout


def test_show_and_check(tiny_checkpoint, tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(PROFILE)
    model, cache = tiny_checkpoint(), {"QWEN3TTS_CACHE": str(tmp_path / "cache")}
    shown = run("show", model, "--backend", "cpu", **cache)
    assert shown.returncode == 0, shown.stderr
    assert "no passes: the plain torch model" in shown.stdout
    shown = run("show", model, "--backend", "cpu", "--profile", own, "--json", **cache)
    assert shown.returncode == 0, shown.stderr
    first, second = json.loads(shown.stdout)["passes"]
    assert first["runtime_status"]["outcome"] == "not-applicable"
    assert second["metadata"]["evidence"]["passed"] is True

    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    checked = run(
        "check", model, "--backend", "cpu", "--profile", own, "--frames", 3, "--repeats", 1, "--html", page,
        "--json", figures, **cache,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rows = {row["name"]: row for row in json.loads(figures.read_text())["rows"]}
    assert rows["diffusion-cache"]["status"].startswith("not applicable: this model has no diffusion stage")
    assert rows["compile"]["equal"] is True
    assert rows["compile"]["ratio"] > 0
    assert "equal (" in checked.stdout
    text = page.read_text()
    assert "diffusion" in text
    drawn = re.findall("<svg.*?</svg>", text, re.DOTALL)
    assert drawn
    for picture in drawn:
        tree.fromstring(picture)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "--profile", "fast"], "there is no profile 'fast'"),
        (["check"], "has no passes"),
        (["check", "--profile", "nowhere.toml"], "'nowhere.toml' does not exist"),
        (["check", "--html", "no/where/page.html"], "does not exist; make it first"),
    ],
)
def test_bad_input(tiny_checkpoint, arguments: list[str], message: str) -> None:
    result = run(arguments[0], tiny_checkpoint(), "--backend", "cpu", *arguments[1:])
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_two_outputs_in_one_file_are_refused(tiny_checkpoint, tmp_path: Path) -> None:
    own, link = tmp_path / "mine.toml", tmp_path / "link"
    own.write_text(PROFILE)
    link.symlink_to(tmp_path / "report")
    for first, second, message in [
        (tmp_path / "report", link, "is the same file as --html"),
        (tmp_path / "page.html", own, "is the same file as the profile"),
        (tmp_path / "page.html", Path(tiny_checkpoint()) / "config.json", "is the same file as the checkpoint's"),
    ]:
        checkpoint = tiny_checkpoint()
        result = run(
            "check", checkpoint, "--backend", "cpu", "--profile", own, "--html", first, "--json", second,
        )  # fmt: skip
        assert result.returncode == 2, result.stdout + result.stderr
        assert message in " ".join(result.stderr.split())
        assert not first.exists()
    assert own.read_text() == PROFILE
