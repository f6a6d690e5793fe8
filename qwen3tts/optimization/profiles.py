"""Profiles: named plans in strict TOML files. A plan is an ordered list of passes with options.

    [profile]
    name = "default"
    backend = "cuda"
    description = "one line"

    [[pass]]
    name = "custom-kernels"
    requirement = "auto"        # or "required": raises where the pass cannot be used, instead of leaving it off
    options = { norms = true }

Every backend has `reference`, `default`, `low-latency` and `throughput`; a path to a file of one's own works as well.
"""

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from qwen3tts.errors import OptionError, nearest

NAMES = ("reference", "default", "low-latency", "throughput")
BACKENDS = ("torch", "cuda", "hip")
MAX_BYTES = 100_000
Requirement = Literal["auto", "required"]


@dataclass(frozen=True)
class PlannedPass:
    """One entry of a plan."""

    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    requirement: Requirement = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))


@dataclass(frozen=True)
class Profile:
    """A named plan for one backend."""

    name: str
    backend: str
    description: str
    passes: tuple[PlannedPass, ...]
    switches: tuple[str, ...] = ()
    """environment switches that changed it (see switches.py)"""

    @property
    def hash(self) -> str:
        """16 hex digits that change with anything that changes what is done."""
        plan = {
            "backend": self.backend,
            "passes": [[p.name, dict(sorted(p.options.items())), p.requirement] for p in self.passes],
        }
        text = json.dumps(plan, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.name} for {self.backend} ({self.hash})"

    def with_options(self, name: str, options: Mapping[str, Any], switch: str) -> "Profile":
        """The same plan with these options of one pass changed, because of an environment switch.

        A plan without the pass stays as it is."""
        passes = tuple(replace(p, options={**p.options, **options}) if p.name == name else p for p in self.passes)
        if passes == self.passes:
            return self
        return replace(self, passes=passes, switches=(*self.switches, switch))


def backend_of(backend: str) -> str:
    """The backend whose profiles belong to a backend's name."""
    return "torch" if backend == "cpu" else backend


def find_profile(profile: str | os.PathLike[str] | Profile | None, backend: str) -> Profile:
    """A profile of `backend` by name, or from a TOML file; None: its `default`.

    Raises OptionError: no such profile or file, a file that is none, or one for another backend."""
    backend = backend_of(backend)
    if isinstance(profile, Profile):
        found = profile
    elif profile is None or (isinstance(profile, str) and profile in NAMES):
        found = _built_in(profile or "default", backend)
    else:
        path = Path(profile)
        if path.suffix != ".toml":
            raise OptionError(
                f"There is no profile {str(profile)!r}.{nearest(profile, NAMES)} There are: {', '.join(NAMES)}, or the "
                "path of a .toml file."
            )
        found = parse_profile(_read(path), str(path))
    if found.backend != backend:
        raise OptionError(
            f"The profile {found.name!r} is for the backend {found.backend!r}, but the backend here is {backend!r}. "
            "Choose another profile, or load with that backend."
        )
    return found


def built_in_profiles(backend: str) -> list[Profile]:
    """The four profiles that come with the package."""
    return [_built_in(name, backend_of(backend)) for name in NAMES]


def _built_in(name: str, backend: str) -> Profile:
    file = resources.files("qwen3tts.optimization") / "profile_files" / backend / f"{name}.toml"
    return parse_profile(file.read_text("utf-8"), f"{backend}/{name}.toml")


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            raise OptionError(f"The profile {str(path)!r} does not exist or is no file.")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise OptionError(f"The profile {str(path)!r} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_BYTES:
        raise OptionError(f"The profile {str(path)!r} is larger than {MAX_BYTES:,} bytes; that cannot be a profile.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"The profile {str(path)!r} is not UTF-8 text.") from error


def parse_profile(text: str, source: str) -> Profile:
    """A profile from TOML text; source names it in messages. Unknown keys are refused. Raises OptionError."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise OptionError(f"{source} is not valid TOML: {error}") from error
    _only(data, {"profile", "pass"}, source)
    head = _table(data, "profile", source)
    _only(head, {"name", "backend", "description"}, f"{source}, [profile]")
    name, backend = _text(head, "name", source), _text(head, "backend", source)
    if backend not in BACKENDS:
        raise OptionError(f"{source}: backend is {backend!r}; expected one of {', '.join(BACKENDS)}.")
    entries = data.get("pass", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise OptionError(f"{source}: passes are written as [[pass]] tables.")
    passes = tuple(_planned(entry, f"{source}, pass {i}") for i, entry in enumerate(entries, 1))
    twice = {p.name for p in passes if sum(q.name == p.name for q in passes) > 1}
    if twice:
        raise OptionError(f"{source} has the pass {min(twice)!r} twice; give each pass once, with all of its options.")
    return Profile(name, backend, _text(head, "description", source, ""), passes)


def _planned(entry: dict[str, Any], where: str) -> PlannedPass:
    _only(entry, {"name", "requirement", "options"}, where)
    requirement = entry.get("requirement", "auto")
    if requirement not in get_args(Requirement):
        raise OptionError(f"{where}: requirement is {requirement!r}; expected 'auto' or 'required'.")
    options = entry.get("options", {})
    if not isinstance(options, dict):
        raise OptionError(f"{where}: options is {options!r}; expected a table.")
    for key, value in options.items():
        if not isinstance(value, bool | int | str) and not (isinstance(value, float) and abs(value) < float("inf")):
            raise OptionError(f"{where}: option {key} is {value!r}; expected a number, a text, true or false.")
    return PlannedPass(_text(entry, "name", where), options, requirement)


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise OptionError(
                f"{where}: the key {key[:60]!r} is unknown.{nearest(key, known)} Known: {', '.join(sorted(known))}."
            )


def _table(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise OptionError(f"{where} has no table [{key}].")
    return value


def _text(table: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = table.get(key, default)
    if not isinstance(value, str) or (default is None and not value):
        raise OptionError(f"{where}: {key} is {value!r}; expected a text.")
    return value
