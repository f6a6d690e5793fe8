"""What the build recorded: which native modules this installation has, and why it has no more."""

import json
from dataclasses import dataclass
from importlib import resources

from qwen3tts.errors import shortened

FILE = "_build_info.json"


@dataclass(frozen=True)
class BuildRecord:
    """One backend's part of the record."""

    built: bool
    reason: str
    """why it was not built"""
    toolkit: str
    """version of CUDA or HIP"""
    targets: str
    """architectures, separated by semicolons"""
    commit: str
    """of the source, where it was known"""


def build_record(name: str) -> BuildRecord:
    """The record of "cuda" or "hip". One that is damaged says so in `reason`."""
    file = resources.files("qwen3tts") / FILE
    if not file.is_file():
        return _none("the package is run from its source folder, where nothing is built")
    try:
        whole = json.loads(file.read_bytes().decode("utf-8", "replace"), strict=False)
        own = whole[name]
        record = BuildRecord(own["built"], own["reason"], own["toolkit"], own["targets"], whole["commit"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return _none(f"{FILE}, the record of the build, cannot be read ({type(error).__name__}: {shortened(error)})")
    texts = (record.reason, record.toolkit, record.targets, record.commit)
    if not isinstance(record.built, bool) or not all(isinstance(text, str) for text in texts):
        return _none(f"{FILE}, the record of the build, is damaged")
    return record


def _none(reason: str) -> BuildRecord:
    return BuildRecord(False, reason, "", "", "")
