"""What this machine has already checked, kept in the user's cache: a pass is compared with the plain model once per
native module, package version, torch, device, driver, dtype, model shape and options, not at every load.

One small JSON file per key under `$QWEN3TTS_CACHE`, `$XDG_CACHE_HOME/qwen3tts` or `~/.cache/qwen3tts`, written whole or
not at all. A file that cannot be read counts as absent; a cache that cannot be written costs the check at each load.
"""

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qwen3tts.optimization.passes import Evidence, Gain

logger = logging.getLogger(__name__)

FORMAT = 1
MAX_BYTES = 65_536


@dataclass(frozen=True)
class EvidenceKey:
    """Everything that a check's result may depend on."""

    pass_id: str
    pass_version: int
    options: str
    """canonical JSON"""
    module: str
    """hash of the native module's file, "" for passes without one"""
    package: str
    torch: str
    device: str
    """the card's name"""
    driver: str
    dtype: str
    architecture: str
    """of the model, with its sizes"""

    @property
    def digest(self) -> str:
        """Name of the entry's file, without its ending."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def canonical_options(options: Mapping[str, Any]) -> str:
    """Options as they enter the key."""
    return json.dumps(dict(options), sort_keys=True, separators=(",", ":"), allow_nan=False)


def cache_folder() -> Path:
    """Where entries lie; it need not exist."""
    own = os.environ.get("QWEN3TTS_CACHE")
    if own:
        return Path(own) / "evidence"
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"
    return root / "qwen3tts" / "evidence"


class EvidenceStore:
    """Reads and writes entries. Safe for several processes: a file appears whole, the last writer wins."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def _path(self, key: EvidenceKey) -> Path:
        return (self.folder or cache_folder()) / f"{key.digest}.json"

    def get(self, key: EvidenceKey) -> Evidence | None:
        """The stored result of a check, None when there is none that can be understood."""
        try:
            with self._path(key).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            entry = json.loads(data)
            if entry["format"] != FORMAT or entry["key"] != asdict(key):
                return None
            return _evidence(entry["evidence"])
        except FileNotFoundError:
            return None
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.debug("evidence %s is not usable: %s", key.digest, error)
            return None

    def put(self, key: EvidenceKey, evidence: Evidence) -> bool:
        """Stores a result; False (with a message in the log) if the cache cannot be written."""
        text = json.dumps(
            {"format": FORMAT, "key": asdict(key), "evidence": asdict(evidence)}, sort_keys=True, indent=1
        )
        path: Path | None = None
        partial: Path | None = None
        try:
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
            with partial.open("x") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            return True
        except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
            logger.info("The check's result cannot be kept (%s); it is made again at the next load.", error)
            if partial is not None:
                partial.unlink(missing_ok=True)
            return False


def _evidence(data: dict[str, Any]) -> Evidence:
    kinds: dict[str, Any] = {
        "compared": str, "reference": str, "error": (float, type(None)), "bound": float, "passed": bool,
        "seconds": float, "gain": (dict, type(None)),
    }  # fmt: skip
    for name, kind in kinds.items():
        if not isinstance(data[name], kind):
            raise ValueError(f"{name} is {data[name]!r}")
    return Evidence(**{**{name: data[name] for name in kinds}, "gain": data["gain"] and Gain(**data["gain"])})
