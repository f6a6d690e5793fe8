"""What the build recorded: which native modules this installation has, and why it has no more."""

import json
from dataclasses import dataclass
from importlib import resources

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
    """The record of "cuda" or "hip"."""
    file = resources.files("qwen3tts") / FILE
    if not file.is_file():
        reason = "the package is run from its source folder, where nothing is built"
        return BuildRecord(False, reason, "", "", "")
    whole = json.loads(file.read_text(encoding="utf-8"))
    own = whole[name]
    return BuildRecord(own["built"], own["reason"], own["toolkit"], own["targets"], whole["commit"])
