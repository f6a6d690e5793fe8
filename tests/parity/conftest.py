"""Checkpoints, loaded models and fixtures of the parity tests. What runs them is in scripts/parity."""

import functools
import os
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "parity"))

from checkpoints import build_checkpoint, listed_checkpoints  # noqa: E402
from fixtures import read_manifest  # noqa: E402
from project import Project  # noqa: E402

FIXTURES = ROOT / "tests" / "parity" / "fixtures"
WHEEL = "QWEN3TTS_DASHSCOPE_WHEEL"
MANIFEST = read_manifest(FIXTURES)


def listed_cases(*kinds):
    """pytest parameters (checkpoint, manifest entry) of all cases of these kinds."""
    return [pytest.param((name, entry), id=f"{name}-{entry['case']['name']}")
            for name, checkpoint in MANIFEST["checkpoints"].items() for entry in checkpoint["cases"]
            if entry["case"]["kind"] in kinds]


def pytest_generate_tests(metafunc):
    for fixture, kinds in (("generation_case", ("custom_voice", "voice_design", "voice_clone")),
                           ("clone_case", ("voice_clone",)), ("codec_case", ("codec_decode",)),
                           ("encode_case", ("codec_encode",)), ("probe_case", ("probe",))):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, listed_cases(*kinds), scope="session")


@pytest.fixture(scope="session")
def manifest():
    return MANIFEST


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """Checkpoint name -> Project, built once."""
    @functools.cache
    def load(name):
        wheel = os.environ.get(WHEEL)
        if listed_checkpoints()[name].needs_real_vocabulary and not wheel:
            pytest.fail(f"{name} has the real vocabulary: set {WHEEL} to the wheel that scripts/test.sh fetches")
        return Project(build_checkpoint(name, tmp_path_factory.mktemp("checkpoints"), wheel))

    return load


@pytest.fixture(scope="session")
def archive():
    """Checkpoint name -> npz of the official results."""
    return functools.cache(lambda name: np.load(FIXTURES / f"{name}.npz"))
