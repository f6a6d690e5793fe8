"""A profile at load: passes that can be used, that cannot, and whose checks fail."""

import dataclasses
import json
import logging
import math
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import qwen3tts
from qwen3tts.errors import (
    OptimizationApplicationError,
    OptimizationCompatibilityError,
    OptimizationPlanError,
    OptionError,
)
from qwen3tts.optimization import apply as apply_module
from qwen3tts.optimization import compare as compare_module
from qwen3tts.optimization.apply import apply_profile, checks
from qwen3tts.optimization.compare import compare
from qwen3tts.optimization.evidence_store import EvidenceStore
from qwen3tts.optimization.manifest import Manifest
from qwen3tts.optimization.passes import Capabilities, Evidence, OptimizationPass, PassContext, PassResult
from qwen3tts.optimization.profiles import PlannedPass, Profile
from qwen3tts.optimization.registry import PassRegistry
from qwen3tts.options import GenerateOptions


class Wrapper:
    """A codec that does what the other one does, on a scale."""

    def __init__(self, inner: Any, scale: float) -> None:
        self.inner, self.scale, self.model = inner, scale, inner.model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def decode(self, states: Any, codes: Any) -> list[Any]:
        return [piece * self.scale for piece in self.inner.decode(states, codes)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaled(OptimizationPass):
    """Replaces the codec. With a scale of 1 it is right."""

    pass_id = "test.scaled"
    optimization_kind = "codec-kernels"
    capabilities = Capabilities()
    scale: float = 1.0
    usable: bool = True
    checked: ClassVar[list[float]] = []

    def validate(self, model: Any, context: PassContext) -> None:
        if not self.usable:
            raise OptimizationCompatibilityError("There is no such card here.")

    def apply(self, model: Any, context: PassContext) -> PassResult:
        before = model.codec
        model.codec = Wrapper(before, self.scale)
        return PassResult(model, before)

    def restore(self, model: Any, state: Any, context: PassContext) -> Any:
        model.codec = state
        return model

    def check(self, model: Any, state: Any, context: PassContext) -> Evidence:
        self.checked.append(self.scale)
        error = abs(self.scale - 1)
        return Evidence("samples", "the plain codec", error, 1e-6, error <= 1e-6, 0.01)


class Unchecked(Scaled):
    pass_id = "test.unchecked"
    capabilities = Capabilities(devices=("cpu",))

    def check(self, model: Any, state: Any, context: PassContext) -> None:
        return None


class Elsewhere(Scaled):
    pass_id = "test.elsewhere"
    capabilities = Capabilities(devices=("cuda",))


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    own = PassRegistry()
    for name, kind in (("scaled", Scaled), ("unchecked", Unchecked), ("elsewhere", Elsewhere)):
        own.register(name)(kind)
    for module in (apply_module, compare_module):
        monkeypatch.setattr(module, "default_registry", own)
    monkeypatch.setattr(Scaled, "checked", [])


@pytest.fixture(scope="module")
def loaded(tiny_checkpoint) -> Iterator[Any]:
    with qwen3tts.load(tiny_checkpoint(), backend="cpu") as tts:
        yield tts


@pytest.fixture(autouse=True)
def without_a_plan() -> None:
    """Here `tts` takes back what is left."""


@pytest.fixture
def tts(loaded: Any) -> Iterator[Any]:
    yield loaded
    if loaded.optimization_result() is not None:
        loaded.restore_optimization_plan()


def profile(*passes: PlannedPass) -> Profile:
    return Profile("test", "torch", "", passes)


def speak(tts: Any) -> np.ndarray:
    return tts.generate("Profile.", voice=tts.voices[0], options=GenerateOptions(max_frames=3)).samples


def test_nothing_is_applied_without_passes(tts) -> None:
    assert tts.profile.name == "default"
    assert tts.optimization_manifest() == {}
    apply_profile(tts, profile())
    assert tts.optimization_result() is None


def test_check_is_made_once_per_machine(tts, tmp_path) -> None:
    store = EvidenceStore(tmp_path)
    plain = speak(tts)
    for _ in range(3):
        apply_profile(tts, profile(PlannedPass("scaled")), store=store)
        assert np.array_equal(speak(tts), plain)
        manifest = tts.optimization_manifest("inference")
        assert manifest["passes"][0]["metadata"]["evidence"]["passed"] is True
        assert Manifest.from_json(manifest.to_json()).to_json() == manifest.to_json()
        tts.restore_optimization_plan()
    assert Scaled.checked == [1.0]
    apply_profile(tts, profile(PlannedPass("scaled", {"scale": 1.0 + 1e-7})), store=store)
    assert len(Scaled.checked) == 2, "other options, another check"


@pytest.mark.parametrize("known", [False, True])
def test_failed_check_leaves_the_pass_off(tts, tmp_path, caplog, known: bool) -> None:
    store = EvidenceStore(tmp_path)
    plain = speak(tts)
    plan = profile(PlannedPass("scaled", {"scale": 0.5}), PlannedPass("unchecked"))
    for _ in range(1 + known):
        if tts.optimization_result() is not None:
            tts.restore_optimization_plan()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            apply_profile(tts, plan, store=store)
        assert "'scaled' is left off: its check failed: samples differ by 0.5" in caplog.text
    assert Scaled.checked == [0.5]
    assert np.array_equal(speak(tts), plain)
    first, second = tts.optimization_manifest("inference")["passes"]
    assert first["pass"] == "test.scaled"
    assert first["configuration"] == {"scale": 0.5, "usable": True}
    assert first["runtime_status"]["outcome"] == "not-applicable"
    assert "check failed" in first["runtime_status"]["reason"]
    assert second["runtime_status"]["outcome"] == "applied"
    assert second["metadata"] == {"evidence": None, "evidence_reason": "this pass has no check"}
    lines = checks(tts.optimization_result())
    assert "left off" in lines[0]
    assert "no check" in lines[1]


def test_required_pass_that_fails_its_check_raises_and_nothing_is_applied(tts, tmp_path) -> None:
    plain = speak(tts)
    plan = profile(PlannedPass("unchecked"), PlannedPass("scaled", {"scale": 2.0}, "required"))
    with pytest.raises(OptimizationCompatibilityError, match="'scaled' is required, but cannot be used: its check"):
        apply_profile(tts, plan, store=EvidenceStore(tmp_path))
    assert tts.optimization_result() is None
    assert np.array_equal(speak(tts), plain)


@pytest.mark.parametrize(
    ("planned", "reason"),
    [
        (PlannedPass("scaled", {"usable": False}), "There is no such card here"),
        (PlannedPass("elsewhere"), "does not support the device 'cpu'"),
    ],
    ids=["validate", "capabilities"],
)
def test_pass_that_cannot_be_used_here(tts, tmp_path, caplog, planned: PlannedPass, reason: str) -> None:
    with caplog.at_level(logging.WARNING):
        apply_profile(tts, profile(planned), store=EvidenceStore(tmp_path))
    assert reason in caplog.text
    (entry,) = tts.optimization_manifest("inference")["passes"]
    assert entry["runtime_status"] == {"outcome": "not-applicable", "reason": entry["runtime_status"]["reason"]}
    assert reason in entry["runtime_status"]["reason"]
    assert entry["metadata"] == {"evidence": None, "evidence_reason": "not applicable"}
    tts.restore_optimization_plan()
    with pytest.raises(OptimizationCompatibilityError, match=reason):
        apply_profile(tts, profile(dataclasses.replace(planned, requirement="required")))
    assert tts.optimization_result() is None


def test_verify_false_checks_nothing_and_says_so(tts, tmp_path) -> None:
    apply_profile(tts, profile(PlannedPass("scaled", {"scale": 0.5})), verify=False, store=EvidenceStore(tmp_path))
    assert Scaled.checked == []
    (entry,) = tts.optimization_manifest("inference")["passes"]
    assert entry["metadata"] == {"evidence": None, "evidence_reason": "not checked: verify=False"}
    assert list(tmp_path.iterdir()) == []


SECRET = "hf_" + "a1B2" * 8

ODD_CHECKS = {
    "raises": (lambda: 1 / 0, "its check raised ZeroDivisionError: division by zero"),
    "says a secret": (lambda: int(SECRET), "its check raised ValueError: invalid literal.*[hidden]"),
    "tensor": (lambda: torch.tensor(0.0), "its check returned something odd: a Tensor; expected Evidence or None"),
    "text": (lambda: "fine", "odd: a str; expected Evidence"),
    "numpy": (lambda: Evidence("a", "b", np.float32(0.1), 1.0, True, 0.1), "odd: it.error is float32"),
    "tensor inside": (lambda: Evidence("a", "b", torch.tensor(0.5), 1.0, True, 0.1), "odd: it.error is Tensor"),
    "no number": (lambda: Evidence("a", "b", "c", 1.0, True, 0.1), "raised TypeError"),
    "bound": (lambda: Evidence("a", "b", 0.1, math.inf, True, 0.1), "odd: it.bound is inf"),
    "bound of text": (lambda: Evidence("a", "b", 0.1, "1", True, 0.1), "TypeError"),
    "seconds": (lambda: Evidence("a", "b", 0.1, 1.0, True, math.nan), "odd: it.seconds is nan"),
    "unicode": (lambda: Evidence("\ud800", "b", 0.1, 1.0, True, 0.1), "odd: it contains text that is not valid"),
    "secret": (lambda: Evidence(SECRET, "b", 0.1, 1.0, True, 0.1), "odd: it.compared looks like a secret"),
    "lie": (lambda: Evidence("a", "b", 3.0, 1.0, True, 0.1), "its check failed: a differ by 3 from b, more than 1"),
}


@pytest.mark.parametrize("name", ODD_CHECKS)
def test_pass_with_an_odd_check_is_left_off_or_refused(tts, tmp_path, monkeypatch, caplog, name: str) -> None:
    answer, reason = ODD_CHECKS[name]
    monkeypatch.setattr(Scaled, "check", lambda *arguments: answer())
    plan = profile(PlannedPass("unchecked", {"scale": 1.0}), PlannedPass("scaled", {"scale": 0.5}))
    monkeypatch.setattr(Unchecked, "check", lambda *arguments: None)
    codec = tts.engine.runtime.codec
    with caplog.at_level(logging.WARNING):
        apply_profile(tts, plan, store=EvidenceStore(tmp_path))
    expected = re.escape(reason).replace(r"\.\*", ".*")
    assert re.search(f"'scaled' is left off: .*{expected}", caplog.text)
    first, second = tts.optimization_manifest("inference")["passes"]
    assert first["runtime_status"]["outcome"] == "applied"
    assert second["runtime_status"]["outcome"] == "not-applicable"
    assert re.search(expected, second["runtime_status"]["reason"])
    tts.restore_optimization_plan()
    with pytest.raises(OptimizationCompatibilityError, match=f"'scaled' is required, but cannot be used: .*{expected}"):
        apply_profile(tts, profile(PlannedPass("scaled", {"scale": 0.5}, "required")), store=EvidenceStore(tmp_path))
    assert tts.optimization_result() is None
    assert tts.engine.runtime.codec is codec


@pytest.mark.parametrize("method", ["apply", "validate", "runtime_manifest_status"])
def test_pass_that_raises_is_left_off_or_refused(tts, tmp_path, monkeypatch, caplog, method: str) -> None:
    def fail(self: Any, model: Any, *arguments: Any) -> None:
        if method == "apply":
            model.codec = None
        raise RuntimeError(f"out of memory with {SECRET} and \ud800.")

    codec = tts.engine.runtime.codec
    monkeypatch.setattr(Scaled, method, fail)
    monkeypatch.setattr(Elsewhere, method, getattr(OptimizationPass, method))
    plan = profile(PlannedPass("scaled"), PlannedPass("elsewhere"))
    with caplog.at_level(logging.WARNING):
        apply_profile(tts, plan, store=EvidenceStore(tmp_path))
    reason = "it raised RuntimeError: out of memory with [hidden] and ?"
    assert f"'scaled' is left off: {reason}.\n" in caplog.text
    entry = tts.optimization_manifest("inference")["passes"][0]
    assert entry["runtime_status"] == {"outcome": "not-applicable", "reason": reason}
    tts.restore_optimization_plan()
    with pytest.raises((OptimizationApplicationError, OptimizationCompatibilityError), match="out of memory"):
        apply_profile(tts, profile(PlannedPass("scaled", requirement="required")), store=EvidenceStore(tmp_path))
    assert tts.optimization_result() is None
    assert tts.engine.runtime.codec is codec


@pytest.mark.parametrize("requirement", ["auto", "required"])
def test_validate_that_changes_the_model_and_then_refuses(tts, tmp_path, monkeypatch, requirement: str) -> None:
    def validate(self: Any, model: Any, context: PassContext) -> None:
        model.codec = None
        next(model.talker.parameters()).data.mul_(2)
        raise OptimizationCompatibilityError("No such card.")

    plain, codec = speak(tts), tts.engine.runtime.codec
    monkeypatch.setattr(Scaled, "validate", validate)
    with pytest.raises((OptimizationPlanError, OptimizationCompatibilityError)):
        apply_profile(tts, profile(PlannedPass("scaled", {}, requirement)), store=EvidenceStore(tmp_path))
    assert tts.engine.runtime.codec is codec
    assert np.array_equal(speak(tts), plain)


def test_model_that_could_not_be_put_back_is_an_error(tts, tmp_path, monkeypatch) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise OptimizationApplicationError("test.scaled", RuntimeError("lost"), [OSError("no file")], intact=False)

    monkeypatch.setattr(tts, "apply_optimization_plan", fail)
    with pytest.raises(OptimizationApplicationError, match="load the model again"):
        apply_profile(tts, profile(PlannedPass("scaled")), store=EvidenceStore(tmp_path))


def test_status_that_fails_later_leaves_the_pass_off(tts, tmp_path, monkeypatch) -> None:
    calls = []

    def status(self: Any, result: PassResult) -> dict[str, int]:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("lost")
        return {}

    monkeypatch.setattr(Scaled, "runtime_manifest_status", status)
    apply_profile(tts, profile(PlannedPass("scaled")), store=EvidenceStore(tmp_path))
    (entry,) = tts.optimization_manifest("inference")["passes"]
    assert entry["runtime_status"] == {"outcome": "not-applicable", "reason": "it raised RuntimeError: lost"}


def test_interrupted_check_takes_the_plan_back(tts, tmp_path, monkeypatch) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Scaled, "check", interrupt)
    with pytest.raises(KeyboardInterrupt):
        apply_profile(tts, profile(PlannedPass("scaled")), store=EvidenceStore(tmp_path))
    assert tts.optimization_result() is None


def test_damaged_cache_costs_a_check_and_no_more(tts, tmp_path) -> None:
    plan = profile(PlannedPass("scaled"))
    apply_profile(tts, plan, store=EvidenceStore(tmp_path))
    tts.restore_optimization_plan()
    (file,) = tmp_path.iterdir()
    entry = json.loads(file.read_text())
    odd = ({"bound": math.nan}, {"seconds": math.inf}, {"compared": "\ud800"}, {"error": 1.0}, {"passed": False})
    for change in odd:
        file.write_text(json.dumps(entry | {"evidence": entry["evidence"] | change}))
        before = len(Scaled.checked)
        apply_profile(tts, plan, store=EvidenceStore(tmp_path))
        assert len(Scaled.checked) == before + 1, change
        assert tts.optimization_manifest("inference")["passes"][0]["metadata"]["evidence"]["error"] == 0.0
        tts.restore_optimization_plan()


def test_load_takes_a_profile(tiny_checkpoint, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("QWEN3TTS_CACHE", str(tmp_path / "cache"))
    own = tmp_path / "own.toml"
    text = '[profile]\nname = "own"\nbackend = "torch"\n[[pass]]\nname = "scaled"\nrequirement = "required"\n'
    own.write_text(text)
    with qwen3tts.load(tiny_checkpoint(), backend="cpu", profile=own) as tts:
        assert tts.profile.name == "own"
        assert tts.optimization_manifest("inference")["passes"][0]["pass"] == "test.scaled"
        assert len(list((tmp_path / "cache" / "evidence").iterdir())) == 1
    own.write_text(text + "options = { usable = false }\n")
    with pytest.raises(OptimizationCompatibilityError, match="no such card"):
        qwen3tts.load(tiny_checkpoint(), backend="cpu", profile=own)
    with pytest.raises(OptionError, match="There is no profile 'fast'"):
        qwen3tts.load(tiny_checkpoint(), backend="cpu", profile="fast")


def test_compare_tells_right_from_wrong(tts) -> None:
    plan = profile(
        PlannedPass("scaled"), PlannedPass("elsewhere"), PlannedPass("unchecked", {"scale": 0.5})
    )
    rows = {row.name: row for row in compare(tts, plan, frames=3, repeats=1)}
    assert list(rows) == ["scaled", "elsewhere", "unchecked", "all together"]
    assert rows["scaled"].equal
    assert rows["scaled"].audio_error == 0.0
    assert rows["scaled"].ratio > 0
    assert rows["scaled"].evidence.passed
    assert "does not support the device" in rows["elsewhere"].status
    assert rows["elsewhere"].ratio is None
    assert rows["unchecked"].audio_error == pytest.approx(0.5)
    assert "cannot be used" in rows["all together"].status
    assert tts.optimization_result() is None
    with pytest.raises(OptionError, match="has no passes"):
        compare(tts, profile())


@pytest.mark.parametrize("name", ["raises", "tensor", "numpy", "bound"])
def test_compare_says_that_a_check_is_odd(tts, tmp_path, monkeypatch, name: str) -> None:
    answer, reason = ODD_CHECKS[name]
    monkeypatch.setattr(Scaled, "check", lambda *arguments: answer())
    (row,) = compare(tts, profile(PlannedPass("scaled")), frames=3, repeats=1, store=EvidenceStore(tmp_path))
    assert row.status == f"cannot be used: {reason}" or row.status.startswith("cannot be used: its check returned")
    assert list(tmp_path.iterdir()) == []
    assert tts.optimization_result() is None


def test_measured_gain_stands_in_later_manifests(tts, tmp_path) -> None:
    store, plan = EvidenceStore(tmp_path), profile(PlannedPass("scaled"))
    (row,) = compare(tts, plan, frames=3, repeats=1, store=store)
    apply_profile(tts, plan, store=store)
    (entry,) = tts.optimization_manifest("inference")["passes"]
    gain = entry["metadata"]["evidence"]["gain"]
    assert gain["figure"].startswith(f"{row.ratio:.2f} times")
    assert gain["card"] == "cpu"
