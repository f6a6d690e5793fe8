"""Manifests: strict, canonical, read-only, free of secrets, the same bytes after any round trip."""

import copy
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3tts.errors import OptimizationPlanError
from qwen3tts.optimization.manifest import Manifest, canonical_json, check_evidence, parse_json, presentable

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('abcé漢 \n"'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcxyz", max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_canonical_text_is_stable(value):
    text = canonical_json(value, "value")
    assert parse_json(text, "value") == value
    assert canonical_json(parse_json(text, "value"), "value") == text
    assert parse_json(text.encode(), "value") == value


@pytest.mark.parametrize(
    "value",
    [
        math.nan, math.inf, -math.inf, {1: 2}, {1, 2}, b"x", object(), {"a": [1.0, {"b": math.nan}]}, "\ud800",
        {"\ud800": 1},
    ],
)  # fmt: skip
def test_values_that_json_does_not_have(value):
    with pytest.raises(OptimizationPlanError):
        canonical_json(value, "value")


def test_depth_is_limited():
    value = 1
    for _ in range(40):
        value = [value]
    with pytest.raises(OptimizationPlanError, match="deeper"):
        canonical_json(value, "value")
    with pytest.raises(OptimizationPlanError):
        parse_json("[" * 100_000, "value")


@pytest.mark.parametrize(
    "value",
    [
        {"hf_token": "x"}, {"password": "x"}, {"options": {"api_key": "k"}}, {"Authorization": "k"},
        {"a": ["hf_" + "a1B2" * 8]}, {"url": "https://user:pass@example.org/"}, "-----BEGIN RSA PRIVATE KEY-----",
        "Bearer abc", {"aws_secret_access_key": "x"}, {"accessToken": "x"}, {"hfToken": 5}, {"client-secret": "x"},
        {"SECRET_KEY": "x"}, {"a": [{"x.private key": "k"}]}, {"refresh_token": ["x"]}, {"password": b"x"},
        "token hf_" + "a1B2" * 8 + " was refused", "Authorization: Basic YWJj", "with (sk-" + "a1B2" * 8 + ")",
        "AKIA" + "A1B2" * 4, "login?password=abc", "GET x, authorization: bearer abc",
        "see\n-----BEGIN PRIVATE KEY-----",
    ],
)  # fmt: skip
def test_secrets_are_refused(value):
    with pytest.raises(OptimizationPlanError, match="secret"):
        canonical_json(value, "value")


def test_secrets_in_text_can_be_hidden():
    text = "no 'hf_" + "a1B2" * 8 + "' at https://user:pass@example.org/ \ud800 -----BEGIN PRIVATE KEY-----\nabc"
    shown = presentable(text)
    assert shown == "no '[hidden]' at https[hidden]example.org/ ? [hidden]"
    canonical_json(shown, "value")
    for harmless in ("the bearer of this", "task-" + "a1b2" * 8, "größer", "token: 5", "half_" + "a1b2" * 8):
        assert presentable(harmless) == harmless
        canonical_json(harmless, "value")


def test_numbers_that_cannot_be_written():
    with pytest.raises(OptimizationPlanError, match="cannot be written"):
        canonical_json({"a": 10**5000}, "value")


def test_what_only_sounds_like_a_secret():
    sounds = {"secretary": "x", "tokenizer": "x", "key": "x", "hash_key": "x"}
    harmless = {"url": "https://example.org/a@b", "text": "password"}
    value = sounds | harmless | {"max_tokens": 3, "eos_token_id": 5, "token": None}
    assert json.loads(canonical_json(value, "value")) == value


@pytest.fixture
def manifest(tts, passes):
    tts.apply_optimization_plan([passes.Repack(), passes.Quiet(label="größer")])
    tts.record_optimization_evidence("test.repack", passes.Repack().check(None, None, None))
    made = tts.optimization_manifest("inference")
    tts.restore_optimization_plan()
    return made


def test_round_trip_byte_for_byte(manifest):
    text = manifest.to_json()
    for again in (
        Manifest.from_json(text),
        Manifest.from_json(text.encode()),
        Manifest(manifest),
        Manifest(manifest.to_dict()),
    ):
        assert again.to_json() == text
        assert again == manifest
        assert hash(again) == hash(manifest)
    assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False) == text
    assert manifest == manifest.to_dict()


def test_a_manifest_is_read_only(manifest):
    with pytest.raises(TypeError):
        manifest["passes"] = ()
    with pytest.raises(TypeError):
        manifest["context"]["mode"] = "training"
    with pytest.raises(AttributeError):
        manifest["passes"].append(1)
    with pytest.raises(TypeError):
        manifest["passes"][0]["metadata"]["evidence"]["passed"] = False
    manifest.to_dict()["passes"].clear()
    assert len(manifest["passes"]) == 2


def _paths(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from _paths(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _paths(item, (*path, i))


FREE = {"configuration", "runtime_status"}


def _strict(path):
    """Whether the format fixes what stands at this place; evidence is fixed, other metadata and options are free."""
    names = [p for p in path if isinstance(p, str)]
    if FREE & set(names[:-1]):
        return False
    return "metadata" not in names[:-1] or "evidence" in names


def test_every_key_is_needed_and_no_other_allowed(manifest):
    data = manifest.to_dict()
    tried = 0
    for path in list(_paths(data)):
        if not _strict(path) or not isinstance(path[-1], str):
            continue
        for change in ("missing", "extra", "type"):
            broken = copy.deepcopy(data)
            owner = broken
            for step in path[:-1]:
                owner = owner[step]
            if path[-1] == "evidence" and owner["evidence"] is None:
                continue
            if change == "missing":
                del owner[path[-1]]
            elif change == "type":
                owner[path[-1]] = {"not": "this"} if not isinstance(owner[path[-1]], dict) else "not this"
            elif isinstance(owner[path[-1]], dict) and path[-1] not in FREE | {"metadata"}:
                owner[path[-1]]["more"] = 1
            else:
                continue
            with pytest.raises(OptimizationPlanError):
                Manifest(broken)
            tried += 1
    assert tried > 60


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + "\n",
        lambda text: " " + text,
        lambda text: text.replace(":", ": ", 1),
        lambda text: text.replace("größer", "gr\\u00f6\\u00dfer"),
        lambda text: text.replace('"format_version":3', '"format_version":3,"format_version":3'),
        lambda text: text.replace('"format_version":3', '"format_version":3.0'),
        lambda text: text.replace('"format_version":3', '"format_version":2'),
        lambda text: text.replace('"error":0.0', '"error":NaN'),
        lambda text: text.replace('"error":0.0', '"error":0.00'),
        lambda text: text.replace('"mode":"inference"', '"mode":"speaking"'),
        lambda text: text[:-1],
        lambda text: "[]",
        lambda text: b"\xff" + text.encode(),
    ],
)
def test_other_texts_are_refused(manifest, change):
    changed = change(manifest.to_json())
    assert changed != manifest.to_json()
    with pytest.raises(OptimizationPlanError):
        Manifest.from_json(changed)


def _set(*path):
    *owners, last, value = path

    def change(data):
        for step in owners:
            data = data[step]
        data[last] = value

    return change


EVIDENCE_AT = ("passes", 0, "metadata", "evidence")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("format_version", 0), "reads 3"),
        (_set("format_version", -3), "reads 3"),
        (_set("passes", []), "at least one pass"),
        (_set("passes", 0, "version", 0), "from 1 up"),
        (_set("passes", 0, "version", -1), "from 1 up"),
        (_set("passes", 0, "pass", ""), "expected a name"),
        (_set("passes", 0, "pass", "test.repack@1"), "expected a name"),
        (_set("passes", 0, "kind", " "), "expected a name"),
        (_set("passes", 0, "pass", "test.quiet"), "again"),
        (_set("passes", 0, "capabilities", "modes", ["speaking"]), "mode is 'speaking'"),
        (_set("passes", 0, "capabilities", "modes", []), "modes"),
        (_set("passes", 0, "capabilities", "devices", [""]), "devices"),
        (_set("passes", 0, "capabilities", "dtypes", [1]), "dtypes"),
        (_set("passes", 0, "runtime_status", "outcome", "fine"), "outcome is 'fine'"),
        (_set("passes", 0, "runtime_status", "outcome", ["applied"]), "outcome is"),
        (_set("passes", 0, "runtime_status", {}), "outcome is None"),
        (_set("passes", 1, "runtime_status", {"outcome": "not-applicable"}), "the reason"),
        (_set("passes", 1, "runtime_status", {"outcome": "not-applicable", "reason": ""}), "the reason"),
        (_set(*EVIDENCE_AT, "error", 2.0), "not within"),
        (_set(*EVIDENCE_AT, "error", None), "not within"),
        (_set(*EVIDENCE_AT, "error", -1.0), "0 or more"),
        (_set(*EVIDENCE_AT, "bound", -1.0), "0 or more"),
        (_set(*EVIDENCE_AT, "seconds", -1.0), "0 or more"),
        (_set(*EVIDENCE_AT, "seconds", 10**400), "0 or more"),
        (_set(*EVIDENCE_AT, "gain", "much"), "gain"),
    ],
)
def test_values_that_no_plan_can_have(manifest, change, message):
    data = manifest.to_dict()
    change(data)
    with pytest.raises(OptimizationPlanError, match=message):
        Manifest(data)
    with pytest.raises(OptimizationPlanError, match=message):
        Manifest.from_json(canonical_json(data, "data"))


@pytest.mark.parametrize("text", [5, None, [], {}, 1.5, object()], ids=str)
def test_what_is_no_text(text):
    with pytest.raises(OptimizationPlanError, match="expected JSON text"):
        Manifest.from_json(text)


@pytest.mark.parametrize("value", [None, [], "x", {}, {"error": object()}], ids=str)
def test_what_is_no_evidence(value):
    with pytest.raises(OptimizationPlanError):
        check_evidence(value, "it")


def test_null_evidence_needs_a_reason(manifest):
    data = manifest.to_dict()
    assert data["passes"][1]["metadata"]["evidence"] is None
    del data["passes"][1]["metadata"]["evidence_reason"]
    with pytest.raises(OptimizationPlanError, match="without an evidence_reason"):
        Manifest(data)


def test_later_changes_do_not_reach_into_a_manifest(tts, passes):
    """Metadata is what it was when the pass was applied; only the runtime status moves."""
    kept = {"list": [1]}

    class Telling(passes.Quiet):
        calls = 0

        def apply(self, model, context):
            return passes.Quiet.apply(self, model, context).__class__(model, None, kept)

        def runtime_manifest_status(self, result):
            type(self).calls += 1
            return {"calls": type(self).calls}

    tts.apply_optimization_plan(Telling())
    first = tts.optimization_manifest("inference")
    kept["list"].append(2)
    second = tts.optimization_manifest("inference")
    assert first["passes"][0]["metadata"]["list"] == second["passes"][0]["metadata"]["list"] == (1,)
    assert second["passes"][0]["runtime_status"]["calls"] == first["passes"][0]["runtime_status"]["calls"] + 1
    tts.restore_optimization_plan()
