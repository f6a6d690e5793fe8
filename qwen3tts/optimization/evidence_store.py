"""What this machine has already checked, kept in the user's cache: a pass is compared with the plain model once per
native module, package version, torch, device, driver, dtype, model shape and options, not at every load.

One small JSON file per key under `$QWEN3TTS_CACHE`, `$XDG_CACHE_HOME/qwen3tts` or `~/.cache/qwen3tts`, written whole or
not at all. A file that cannot be read, or that says anything odd, counts as absent; a cache that cannot be written
costs the check at each load.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from qwen3tts._version import __version__
from qwen3tts.errors import OptimizationPlanError
from qwen3tts.optimization.manifest import check_evidence
from qwen3tts.optimization.passes import Evidence, Gain
from qwen3tts.optimization.plan import Declaration

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
    """Where entries lie; it need not exist. Raises RuntimeError without a home folder."""
    own = os.environ.get("QWEN3TTS_CACHE")
    if own:
        return Path(own) / "evidence"
    base = os.environ.get("XDG_CACHE_HOME")
    if base and os.path.isabs(base):
        return Path(base) / "qwen3tts" / "evidence"
    home = os.environ.get("HOME")
    if home is not None and not os.path.isabs(home):  # Path.home() makes "/" of ""
        raise RuntimeError(f"HOME is {home!r}, which is no folder; set it or QWEN3TTS_CACHE")
    return Path.home() / ".cache" / "qwen3tts" / "evidence"


class EvidenceStore:
    """Reads and writes entries. Safe for several processes: a file appears whole, the last writer wins."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def _path(self, key: EvidenceKey) -> Path:
        return (self.folder or cache_folder()) / f"{key.digest}.json"

    def get(self, key: EvidenceKey) -> Evidence | None:
        """The stored result of a check, None when there is none that can be understood."""
        try:
            path = self._path(key)
            if not path.is_file():  # a pipe would never end
                return None
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            entry = json.loads(data)
            if entry["format"] != FORMAT or entry["key"] != asdict(key):
                return None
            return _evidence(entry["evidence"])
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.debug("evidence %s is not usable: %s", key.digest, error)
            return None

    def put(self, key: EvidenceKey, evidence: Evidence) -> bool:
        """Stores a result; False (with a message in the log) if the cache cannot be written.

        Raises OptimizationPlanError for evidence that no manifest may hold."""
        check_evidence(evidence.to_json(), "the evidence")
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
                with contextlib.suppress(OSError):  # what made writing fail may forbid this as well
                    partial.unlink(missing_ok=True)
            return False


def _evidence(data: dict[str, Any]) -> Evidence:
    """Raises OptimizationPlanError, a ValueError, unless a check can have said this."""
    check_evidence(data, "the stored evidence")
    if data["passed"] != (data["error"] is not None and data["error"] <= data["bound"]):
        raise OptimizationPlanError("the stored evidence contradicts itself")
    gain = data["gain"]
    return Evidence(**{**data, "gain": None if gain is None else Gain(**gain)})


# ------------------------------------------------------------ keys


def evidence_key(declaration: Declaration, model: Any) -> EvidenceKey:
    """Under which a check of this pass on this model, card and installation is kept."""
    device: torch.device = model.device
    native = getattr(model, "native", None)
    return EvidenceKey(
        pass_id=declaration.pass_id,
        pass_version=declaration.version,
        options=canonical_options({"configuration": declaration.configuration}),
        module="" if native is None else module_hash(native.module.__file__),
        package=__version__,
        torch=str(torch.__version__),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        driver=driver_version() if device.type == "cuda" else "",
        dtype=str(model.dtype),
        architecture=hashlib.sha256(repr(model.config).encode()).hexdigest()[:16],
    )


@cache
def module_hash(path: str) -> str:
    """SHA-256 of a native module's file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def driver_version() -> str:
    """Of the GPU driver, as the kernel reports it; "unknown" where it does not."""
    for driver in ("nvidia", "amdgpu"):
        try:
            return f"{driver} {Path(f'/sys/module/{driver}/version').read_text().strip()}"
        except OSError:
            continue  # the other one, or none that says its version
    return "unknown"
