"""Profiles: named plans in strict TOML files. A plan is an ordered list of passes with options.

    [profile]
    name = "default"
    backend = "cuda"
    description = "one line"
    max_streams = 16            # unless load() is told; may be left out

    [[pass]]
    name = "custom-kernels"
    requirement = "auto"        # or "required": raises where the pass cannot be used, instead of leaving it off
    options = { norms = true }

Every backend has `reference`, `default`, `low-latency` and `throughput`; a path to a file of one's own works as well.
"""

import hashlib
import json
import math
import os
import reprlib
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
INTEGERS = range(-(2**63), 2**63)
"""TOML's; Python refuses to write much longer ones down"""
Requirement = Literal["auto", "required"]


@dataclass(frozen=True)
class PlannedPass:
    """One entry of a plan. Raises OptionError for options that a profile cannot hold."""

    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    requirement: Requirement = "auto"

    def __post_init__(self) -> None:
        if self.requirement not in get_args(Requirement):
            raise OptionError(f"requirement is {_shown(self.requirement)}; expected 'auto' or 'required'.")
        if not isinstance(self.options, Mapping):
            raise OptionError(f"options is {_shown(self.options)}; expected a table.")
        for key, value in self.options.items():
            if not isinstance(key, str) or not _is_scalar(value):
                raise OptionError(
                    f"option {key} is {_shown(value)}; expected a number, a text, true or false."
                )
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))


def _is_scalar(value: object) -> bool:
    if type(value) is int:
        return value in INTEGERS
    return value is None or type(value) in (bool, str) or (type(value) is float and math.isfinite(value))


def _shown(value: object) -> str:
    """A short text for any value."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return "an integer of too many digits"


@dataclass(frozen=True)
class Profile:
    """A named plan for one backend."""

    name: str
    backend: str
    description: str
    passes: tuple[PlannedPass, ...]
    switches: tuple[str, ...] = ()
    """environment switches that changed it (see switches.py)"""
    max_streams: int | None = None
    """of RuntimeOptions, where the caller gives none"""

    @property
    def hash(self) -> str:
        """16 hex digits that change with anything that changes what is done."""
        plan = {
            "backend": self.backend,
            "passes": [[p.name, dict(sorted(p.options.items())), p.requirement] for p in self.passes],
        } | ({} if self.max_streams is None else {"max_streams": self.max_streams})
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
    elif profile is None:
        found = _built_in("default", backend)
    else:
        found = _named(profile, backend)
    if found.backend != backend:
        raise OptionError(
            f"The profile {found.name!r} is for the backend {found.backend!r}, but the backend here is {backend!r}. "
            "Choose another profile, or load with that backend."
        )
    return found


def _named(profile: object, backend: str) -> Profile:
    name = os.fspath(profile) if isinstance(profile, os.PathLike) else profile
    if not isinstance(name, str):
        raise OptionError(
            f"profile is {_shown(profile)}; expected one of {', '.join(NAMES)}, the path of a .toml file, or a Profile."
        )
    if name in NAMES and isinstance(profile, str):
        return _built_in(name, backend)
    path = Path(name)
    if path.suffix != ".toml":
        raise OptionError(
            f"There is no profile {name!r}.{nearest(name, NAMES)} There are: {', '.join(NAMES)}, or the path of a "
            ".toml file."
        )
    return parse_profile(_read(path), name)


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
    except (ValueError, RecursionError) as error:  # a plain ValueError: more digits than Python reads
        raise OptionError(f"{source} is not valid TOML: {error}") from error
    _only(data, {"profile", "pass"}, source)
    head = _table(data, "profile", source)
    _only(head, {"name", "backend", "description", "max_streams"}, f"{source}, [profile]")
    name, backend = _text(head, "name", source), _text(head, "backend", source)
    if backend not in BACKENDS:
        raise OptionError(f"{source}: backend is {_shown(backend)}; expected one of {', '.join(BACKENDS)}.")
    entries = data.get("pass", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise OptionError(f"{source}: passes are written as [[pass]] tables.")
    passes = tuple(_planned(entry, f"{source}, pass {i}") for i, entry in enumerate(entries, 1))
    twice = {p.name for p in passes if sum(q.name == p.name for q in passes) > 1}
    if twice:
        raise OptionError(f"{source} has the pass {min(twice)!r} twice; give each pass once, with all of its options.")
    streams = head.get("max_streams")
    if streams is not None and (isinstance(streams, bool) or not isinstance(streams, int) or streams < 1):
        raise OptionError(f"{source}: max_streams is {_shown(streams)}; expected a whole number from 1 up.")
    return Profile(name, backend, _text(head, "description", source, ""), passes, max_streams=streams)


def _planned(entry: dict[str, Any], where: str) -> PlannedPass:
    _only(entry, {"name", "requirement", "options"}, where)
    name = _text(entry, "name", where)
    try:
        return PlannedPass(name, entry.get("options", {}), entry.get("requirement", "auto"))
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from error


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
        raise OptionError(f"{where}: {key} is {_shown(value)}; expected a text.")
    return value
