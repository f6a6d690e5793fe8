"""The record of an applied plan: strict canonical JSON, format version 3.

Canonical: UTF-8, keys sorted, no blanks, no NaN, no key twice; parsing and writing again gives the same bytes. Nothing
that looks like a password or an access token is let in.
"""

import dataclasses
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Self

from qwen3tts.errors import OptimizationPlanError
from qwen3tts.optimization.passes import Capabilities, PassContext

FORMAT_VERSION = 3
MAX_DEPTH = 32
_SECRET_KEY = re.compile(
    r"(^|_)(token|password|passwd|passphrase|pwd|secret|credentials?|authorization|(api|private|access|secret)_?key"
    r"|(access|auth|refresh)token)$|(^|_)(secret|password)(_|$)"
)
"""for keys in lower case, their words joined by underscores"""
_SECRET_VALUE = re.compile(
    r"(?<![a-z0-9])(hf_[a-z0-9]{16,}|sk-[a-z0-9_\-]{16,}|gh[pousr]_[a-z0-9]{16,}|github_pat_[a-z0-9_]{16,}"
    r"|glpat-[a-z0-9_\-]{16,}|xox[abprs]-[a-z0-9\-]{10,}|AKIA[a-z0-9]{16}|eyJ[a-z0-9_\-]{10,}\.[a-z0-9_\-]{10,}"
    r"|bearer\s+[a-z0-9._~+/=\-]{16,}|(authorization:|(password|passwd|secret|token|api_?key)=)\s*\S+)"
    r"|^bearer\s+\S+$|://[^/@\s]+:[^/@\s]+@",
    re.IGNORECASE,
)
_SECRET_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY.*", re.IGNORECASE | re.DOTALL)
HIDDEN = "[hidden]"


def _names_a_secret(key: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key)
    return _SECRET_KEY.search(re.sub(r"[\W_]+", "_", words.lower())) is not None


def presentable(text: str) -> str:
    """Text of somebody else's, for instance an error's, as a manifest may hold it: valid Unicode, secrets hidden."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return _SECRET_VALUE.sub(HIDDEN, _SECRET_BLOCK.sub(HIDDEN, text))


def canonical_json(value: object, where: str) -> str:
    """The one text that stands for a JSON value. `where` names it in messages.

    Mappings need string keys; tuples count as lists. Raises OptimizationPlanError for anything that JSON does not
    have, NaN and infinity included, and for what looks like a secret."""
    plain = _plain(value, where, 0)
    try:
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise OptimizationPlanError(f"{where} contains text that is not valid Unicode.") from error
    except ValueError as error:
        raise OptimizationPlanError(f"{where} contains a number that cannot be written: {error}.") from error
    return text


def _plain(value: object, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise OptimizationPlanError(f"{where} is nested deeper than {MAX_DEPTH} levels.")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise OptimizationPlanError(f"{where} has the key {key!r}; expected a string.")
            item = value[key]
            empty = item is None or type(item) is bool or (type(item) is str and not item)
            if not empty and _names_a_secret(key):
                raise OptimizationPlanError(f"{where}.{key} looks like a secret; manifests must not contain any.")
        return {key: _plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        if _SECRET_VALUE.search(value) or _SECRET_BLOCK.search(value):
            raise OptimizationPlanError(f"{where} looks like a secret; manifests must not contain any.")
        return value
    if type(value) is float and math.isfinite(value):
        return value
    shown = repr(value)[:60] if isinstance(value, float) else type(value).__name__
    raise OptimizationPlanError(f"{where} is {shown}; expected JSON: strings, finite numbers, lists, mappings, null.")


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a canonical text. Raises OptimizationPlanError for any other text, also of the same meaning."""
    if not isinstance(text, str | bytes):
        raise OptimizationPlanError(f"{where} is a {type(text).__name__}; expected JSON text.")
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


OUTCOMES = ("applied", "not-applicable")


def _check(data: dict[str, Any]) -> None:
    _fields(data, {"format_version": int, "context": dict, "passes": list}, "the manifest")
    if data["format_version"] != FORMAT_VERSION:
        raise OptimizationPlanError(
            f"The manifest's format_version is {data['format_version']}; this version reads {FORMAT_VERSION}."
        )
    _fields(data["context"], _CONTEXT, "context")
    PassContext(**data["context"])
    if not data["passes"]:
        raise OptimizationPlanError("passes is empty; a plan has at least one pass.")
    seen: set[str] = set()
    for i, entry in enumerate(data["passes"]):
        where = f"passes[{i}]"
        _mapping(entry, where)
        _check_pass(entry, where)
        if entry["pass"] in seen:
            raise OptimizationPlanError(f"{where} is {entry['pass']!r} again; a plan has each pass once.")
        seen.add(entry["pass"])


def _check_pass(entry: dict[str, Any], where: str) -> None:
    _fields(entry, _PASS, where)
    for key in ("pass", "kind"):
        if not entry[key].strip() or "@" in entry[key]:
            raise OptimizationPlanError(f"{where}.{key} is {entry[key]!r}; expected a name.")
    if entry["version"] < 1:
        raise OptimizationPlanError(f"{where}.version is {entry['version']}; expected a whole number from 1 up.")
    _fields(entry["capabilities"], _CAPABILITIES, f"{where}.capabilities")
    declared: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry["capabilities"].items()}
    try:
        Capabilities(**declared)
    except OptimizationPlanError as error:
        raise OptimizationPlanError(f"{where}.capabilities: {error}") from error
    status = entry["runtime_status"]
    if status.get("outcome") not in OUTCOMES:
        raise OptimizationPlanError(
            f"{where}.runtime_status.outcome is {status.get('outcome')!r}; expected one of {', '.join(OUTCOMES)}."
        )
    reason = status.get("reason")
    if status["outcome"] == "not-applicable" and not (isinstance(reason, str) and reason.strip()):
        raise OptimizationPlanError(f"{where}.runtime_status does not say the reason why the pass is not applicable.")
    _check_metadata(entry["metadata"], f"{where}.metadata")


def _check_metadata(metadata: dict[str, Any], where: str) -> None:
    if "evidence" not in metadata:
        raise OptimizationPlanError(f"{where} has no evidence; expected a check's result, or null and evidence_reason.")
    if metadata["evidence"] is not None:
        check_evidence(metadata["evidence"], f"{where}.evidence")
        return
    reason = metadata.get("evidence_reason")
    if not isinstance(reason, str) or not reason:
        raise OptimizationPlanError(f"{where}.evidence is null without an evidence_reason.")


def check_evidence(evidence: object, where: str) -> None:
    """Raises OptimizationPlanError for anything but Evidence.to_json() of a check whose verdict its figures allow."""
    data: dict[str, Any] = json.loads(status_json(evidence, where))
    _fields(data, _EVIDENCE | {"gain": dict}, where)
    if data["gain"] is not None:
        _fields(data["gain"], _GAIN, f"{where}.gain")
    for key in ("error", "bound", "seconds"):
        if data[key] is not None and not 0 <= data[key] <= sys.float_info.max:
            raise OptimizationPlanError(f"{where}.{key} is {data[key]}; expected 0 or more, and finite.")
    if data["passed"] and (data["error"] is None or data["error"] > data["bound"]):
        raise OptimizationPlanError(
            f"{where} says that the check passed, but the error {data['error']} is not within {data['bound']}."
        )


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


def status_json(value: object, where: str) -> str:
    """Canonical JSON of a pass's mapping. Raises OptimizationPlanError."""
    _mapping(value, where)
    return canonical_json(value, where)


__all__ = [
    "FORMAT_VERSION", "Manifest", "canonical_json", "check_evidence", "parse_json", "presentable", "status_json",
]  # fmt: skip
