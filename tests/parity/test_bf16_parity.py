"""In bf16 on the CPU, prompts, hidden states and logits are the official package's.

On CPUs like the one that made the fixtures they are equal bit for bit (this is printed); elsewhere sums have another
order, and the distance must stay well below the official package's own rounding error. See scripts/parity/bf16.py."""

import functools
import json
from pathlib import Path

import bf16
import numpy as np
import pytest
from checkpoints import build_checkpoint
from fixtures import CaseArrays

FIXTURES = Path(__file__).resolve().parent / "fixtures"
LISTED = Path(__file__).resolve().parents[2] / "scripts" / "parity" / "cases"
MANIFEST = json.loads((FIXTURES / "bf16.json").read_text(encoding="utf-8"))
CASES = [(name, case) for name, cases in MANIFEST["checkpoints"].items() for case in cases]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Checkpoint name -> this project in bf16 and in fp32, loaded once."""
    return functools.cache(lambda name: bf16.Pair(build_checkpoint(name, tmp_path_factory.mktemp("bf16"))))


@pytest.fixture(scope="module", params=CASES, ids=[f"{name}-{case['name']}" for name, case in CASES])
def result(request, pair):
    """(case, official arrays, this project's in bf16 and in fp32)."""
    name, case = request.param
    theirs = CaseArrays(np.load(FIXTURES / "bf16.npz"), f"{name}/{case['name']}")
    ours, exact = (bf16.kept(arrays, name) for arrays in pair(name).arrays(case, theirs))
    return case, theirs, ours, exact


def test_everything_is_close(result):
    case, theirs, ours, exact = result
    found = bf16.distances(ours, exact, theirs)
    assert {name.partition(".")[0] for name in found} == set(bf16.KINDS)
    assert bf16.report(case["name"], found)


def test_other_rounding_is_not_close(result):
    """The same without any rounding in between, as a model would be that computes in fp32."""
    case, theirs, _, exact = result
    found = bf16.distances(exact, exact, theirs)
    print({name: str(distance) for name, distance in found.items()})
    assert not any(found[f"{kind}.0"].good for kind in ("hidden", "talker_logits", "predictor_logits"))
    assert not bf16.report(case["name"], found)


def test_fixtures_belong_to_the_listed_cases():
    assert MANIFEST["checkpoints"].keys() == bf16.CASES.keys()
    assert MANIFEST["run"]["dtype"] == "bfloat16"
    for name, wanted in bf16.CASES.items():
        listed = json.loads((LISTED / f"{name}.json").read_text(encoding="utf-8"))["cases"]
        chosen = [case for case in listed if case["name"] in wanted]
        assert MANIFEST["checkpoints"][name] == chosen, "run scripts/parity/make_fixtures.py"
        assert len(chosen) == len(wanted)
