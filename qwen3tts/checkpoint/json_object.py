"""Strict JSON: a file is read into a `JsonObject` whose accessors name the file and the dotted key in every error."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qwen3tts.errors import ConfigError, nearest, shortened
from qwen3tts.regular_file import open_regular

MAX_FILE_BYTES = 16 << 20
"""Far above any config; a larger file is something else."""
MAX_SIZE = 1 << 24
"""Upper bound of a layer width or vocabulary, so that a damaged number cannot ask for absurd tensors."""
MAX_COUNT = 1024
"""Upper bound of anything that is counted in layers, heads or codebooks."""
MAX_POSITIONS = 131_072
"""Upper bound of max_position_embeddings; the released checkpoints have at most 65536."""

_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


def read_json(path: Path, label: str) -> "JsonObject":
    """Reads a JSON file whose top level is an object. `label` is how errors call the file, e.g. "config.json".

    Raises ConfigError if the file is missing, no regular file, too large, not UTF-8, not JSON, has a key twice or
    a NaN.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if path.is_symlink():
            raise ConfigError(f"{label} in {path.parent} is a link to a file that is not there") from None
        raise ConfigError(f"{label} is missing in {path.parent}") from None
    except OSError as error:
        raise ConfigError(f"{label} in {path.parent} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{label} is larger than {MAX_FILE_BYTES >> 20} MB, so it is not a config file")
    return parse_json(data, label)


def parse_json(data: bytes, label: str) -> "JsonObject":
    """Parses bytes as `read_json` does."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label} is not UTF-8: {shortened(error)}") from error
    except RecursionError:
        raise ConfigError(f"{label} is nested too deeply to be a config file") from None
    except ValueError as error:  # JSONDecodeError, and what the two hooks raise
        raise ConfigError(f"{label} is not valid JSON: {shortened(error)}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{label} must be a JSON object, not {_kind(value)}")
    return JsonObject(label, "", value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} is there twice")
        result[key] = value
    return result


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


class JsonObject:
    """One JSON object of a config file. Accessors check presence, type and range and raise ConfigError."""

    def __init__(self, label: str, path: str, values: dict[str, Any]) -> None:
        self.label = label
        self.path = path
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def name(self, key: str) -> str:
        """ "config.json: talker_config.head_dim" """
        return f"{self.label}: {self.path}{key}"

    def error(self, key: str, message: str) -> ConfigError:
        """The exception for a key, to be raised by the caller."""
        return ConfigError(f"{self.name(key)} {message}")

    def _get(self, key: str, expected: str) -> Any:
        if key not in self._values:
            raise self.error(key, f"is missing; expected {expected}.{nearest(key, self._values)}")
        return self._values[key]

    def raw(self, key: str, expected: str) -> Any:
        """Any value, e.g. where several types are allowed."""
        return self._get(key, expected)

    def wrong(self, key: str, expected: str) -> ConfigError:
        """The exception for a value of the wrong type or range."""
        value = self._values[key]
        return self.error(key, f"is {_shown(value)}; expected {expected}")

    def integer(self, key: str, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """An integer in [minimum, maximum]; true, false and 16.0 are not integers."""
        expected = f"an integer from {minimum} to {maximum}"
        value = self._get(key, expected)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.wrong(key, expected)
        return value

    def number(self, key: str, minimum: float = 0.0, maximum: float = math.inf, *, above: bool = False) -> float:
        """A finite number in [minimum, maximum], or in (minimum, maximum] with above=True."""
        low = f"above {minimum:g}" if above else f"of at least {minimum:g}"
        expected = f"a number {low}" + (f" and at most {maximum:g}" if maximum < math.inf else "")
        value = self._get(key, expected)
        if type(value) not in (int, float):
            raise self.wrong(key, expected)
        try:
            result = float(value)
        except OverflowError:
            raise self.wrong(key, expected) from None
        if not math.isfinite(result) or not minimum <= result <= maximum or (above and result == minimum):
            raise self.wrong(key, expected)
        return result

    def boolean(self, key: str) -> bool:
        """true or false."""
        value = self._get(key, "true or false")
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, choices: tuple[str, ...]) -> str:
        """One of `choices`."""
        expected = " or ".join(repr(choice) for choice in choices)
        value = self._get(key, expected)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(key, f"{expected}.{nearest(value, choices)}")
        return value

    def integers(self, key: str, minimum: int = 1, maximum: int = MAX_SIZE) -> tuple[int, ...]:
        """A list of 1 to 64 integers in [minimum, maximum]."""
        expected = f"a list of integers from {minimum} to {maximum}"
        value = self._get(key, expected)
        if not isinstance(value, list) or not 0 < len(value) <= 64:
            raise self.wrong(key, expected)
        if any(type(item) is not int or not minimum <= item <= maximum for item in value):
            raise self.wrong(key, expected)
        return tuple(value)

    def section(self, key: str) -> "JsonObject":
        """A nested object."""
        value = self._get(key, "an object")
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return JsonObject(self.label, f"{self.path}{key}.", value)

    def require(self, key: str, wanted: object, reason: str) -> None:
        """An optional key must have the one value that this package computes with; absent is fine.

        null stands for "off", so it is fine where `wanted` is False.
        """
        if key in self._values:
            value = self._values[key]
            if value is None and wanted is False:
                return
            if type(value) is not type(wanted) or value != wanted:
                raise self.wrong(key, f"{_shown(wanted)}: {reason}")
