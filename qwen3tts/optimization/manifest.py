"""The record of an applied plan: strict canonical JSON, format version 3.

Canonical: UTF-8, keys sorted, no blanks, no NaN, no key twice; parsing and writing again gives the same bytes. Nothing
that looks like a password or an access token is let in.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Self

from qwen3tts.errors import OptimizationPlanError
from qwen3tts.optimization.passes import MODES, Capabilities, PassContext

FORMAT_VERSION = 3
MAX_DEPTH = 32
_SECRET_KEY = re.compile(
    r"(^|[_\-.\s])(token|password|passwd|secret|credentials?|authorization|api_?key|private_?key)$"
)
_SECRET_VALUE = re.compile(
    r"^(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_\-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|bearer\s+\S+)$"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/@\s]+:[^/@\s]+@",
    re.IGNORECASE,
)


def canonical_json(value: object, where: str) -> str:
    """The one text that stands for a JSON value. `where` names it in messages.

    Mappings need string keys; tuples count as lists. Raises OptimizationPlanError for anything that JSON does not
    have, NaN and infinity included, and for what looks like a secret."""
    text = json.dumps(
        _plain(value, where, 0), allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=True
    )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise OptimizationPlanError(f"{where} contains text that is not valid Unicode.") from error
    return text


def _plain(value: object, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise OptimizationPlanError(f"{where} is nested deeper than {MAX_DEPTH} levels.")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise OptimizationPlanError(f"{where} has the key {key!r}; expected a string.")
            if _SECRET_KEY.search(key.lower()) and value[key] not in (None, "", True, False):
                raise OptimizationPlanError(f"{where}.{key} looks like a secret; manifests must not contain any.")
        return {key: _plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        if _SECRET_VALUE.search(value):
            raise OptimizationPlanError(f"{where} looks like a secret; manifests must not contain any.")
        return value
    if type(value) is float and math.isfinite(value):
        return value
    shown = repr(value)[:60] if isinstance(value, float) else type(value).__name__
    raise OptimizationPlanError(f"{where} is {shown}; expected JSON: strings, finite numbers, lists, mappings, null.")


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a canonical text. Raises OptimizationPlanError for any other text, also of the same meaning."""
    try:
        shown = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(shown)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise OptimizationPlanError(f"{where} is not valid JSON: {error}") from error
    if canonical_json(value, where) != shown:
        raise OptimizationPlanError(f"{where} is not canonical: keys sorted and once each, no blanks, no escapes.")
    return value


class Manifest(Mapping[str, Any]):
    """A manifest: a read-only mapping all the way down. `to_json` and `from_json` keep it byte for byte."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        """Raises OptimizationPlanError for anything that format version 3 does not have."""
        self._json = canonical_json(value, "the manifest")
        data = json.loads(self._json)
        _check(data)
        self._data: Mapping[str, Any] = _frozen(data)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Reads what to_json wrote; refuses every other text."""
        value = parse_json(text, "the manifest")
        _mapping(value, "the manifest")
        return cls(value)

    def to_json(self) -> str:
        """Canonical JSON."""
        return self._json

    def to_dict(self) -> dict[str, Any]:
        """A copy made of dicts and lists."""
        data: dict[str, Any] = json.loads(self._json)
        return data

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Manifest):
            return self._json == other._json
        return self.to_dict() == other if isinstance(other, dict) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._json)

    def __repr__(self) -> str:
        return f"Manifest({self._json})"


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


# ------------------------------------------------------------ format version 3

_CONTEXT = {f.name: bool if f.default in (True, False) else str for f in dataclasses.fields(PassContext)}
_CAPABILITIES = {f.name: bool if f.default in (True, False) else list for f in dataclasses.fields(Capabilities)}
_PASS = {
    "pass": str, "kind": str, "version": int, "configuration": dict, "capabilities": dict, "metadata": dict,
    "runtime_status": dict,
}  # fmt: skip
_EVIDENCE = {"compared": str, "reference": str, "error": float, "bound": float, "passed": bool, "seconds": float}
_GAIN = {"figure": str, "card": str, "commit": str}
_NULLABLE = {"error", "gain"}


def _check(data: dict[str, Any]) -> None:
    _fields(data, {"format_version": int, "context": dict, "passes": list}, "the manifest")
    if data["format_version"] != FORMAT_VERSION:
        raise OptimizationPlanError(
            f"The manifest's format_version is {data['format_version']}; this version reads {FORMAT_VERSION}."
        )
    _fields(data["context"], _CONTEXT, "context")
    if data["context"]["mode"] not in MODES:
        raise OptimizationPlanError(f"context.mode is {data['context']['mode']!r}; expected one of {MODES}.")
    for i, entry in enumerate(data["passes"]):
        where = f"passes[{i}]"
        _mapping(entry, where)
        _fields(entry, _PASS, where)
        _fields(entry["capabilities"], _CAPABILITIES, f"{where}.capabilities")
        _check_evidence(entry["metadata"], f"{where}.metadata")


def _check_evidence(metadata: dict[str, Any], where: str) -> None:
    if "evidence" not in metadata:
        raise OptimizationPlanError(f"{where} has no evidence; expected a check's result, or null and evidence_reason.")
    evidence = metadata["evidence"]
    if evidence is None:
        reason = metadata.get("evidence_reason")
        if not isinstance(reason, str) or not reason:
            raise OptimizationPlanError(f"{where}.evidence is null without an evidence_reason.")
        return
    _mapping(evidence, f"{where}.evidence")
    gain = evidence.get("gain")
    _fields(evidence, _EVIDENCE | {"gain": dict}, f"{where}.evidence")
    if gain is not None:
        _fields(gain, _GAIN, f"{where}.evidence.gain")


def _mapping(value: object, where: str) -> None:
    if not isinstance(value, Mapping):
        raise OptimizationPlanError(f"{where} is a {type(value).__name__}; expected a mapping.")


def _fields(data: dict[str, Any], kinds: Mapping[str, type], where: str) -> None:
    if data.keys() != kinds.keys():
        wrong = sorted(data.keys() ^ kinds.keys())
        raise OptimizationPlanError(f"{where} has not exactly the keys {sorted(kinds)}: see {wrong}.")
    for key, kind in kinds.items():
        value = data[key]
        if value is None and key in _NULLABLE:
            continue
        if not (type(value) is kind or (kind is float and type(value) is int)):
            raise OptimizationPlanError(f"{where}.{key} is a {type(value).__name__}; expected {kind.__name__}.")
    for key in ("modes", "devices", "dtypes"):
        if key in kinds and not all(type(item) is str for item in data[key]):
            raise OptimizationPlanError(f"{where}.{key} lists something else than names.")


def status_json(value: object, where: str) -> str:
    """Canonical JSON of a pass's mapping. Raises OptimizationPlanError."""
    _mapping(value, where)
    return canonical_json(value, where)


__all__ = ["FORMAT_VERSION", "Manifest", "canonical_json", "parse_json", "status_json"]
