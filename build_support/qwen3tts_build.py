"""The build backend: scikit-build-core, and one decision that it has to take before CMake has looked around.

A wheel with a native module is tagged for this interpreter and platform. One without any runs everywhere, so it is
tagged py3-none-any."""

import base64
import hashlib
import os
import zipfile
from pathlib import Path

from scikit_build_core import build as scikit
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517. There is no prepare_metadata hook: the tag is not known before the wheel is."""
    name = scikit.build_wheel(wheel_directory, config_settings, metadata_directory)
    return with_pure_tag(Path(wheel_directory) / name)


def with_pure_tag(wheel: Path) -> str:
    """Renames a wheel without native modules to py3-none-any, tags inside included. Returns the file's name."""
    with zipfile.ZipFile(wheel) as source:
        entries = source.infolist()
        if any(entry.filename.endswith(".so") for entry in entries):
            return wheel.name
        contents = {entry.filename: source.read(entry) for entry in entries}
    tags = next(name for name in contents if name.endswith(".dist-info/WHEEL"))
    record = next(name for name in contents if name.endswith(".dist-info/RECORD"))
    kept = [line for line in contents[tags].decode().splitlines() if not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    lines = [line for line in kept if line] + ["Root-Is-Purelib: true", "Tag: py3-none-any"]
    contents[tags] = ("\n".join(lines) + "\n").encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(contents[tags]).digest()).decode().rstrip("=")
    listed = [line for line in contents[record].decode().splitlines() if not line.startswith(f"{tags},")]
    listed.insert(-1, f"{tags},sha256={digest},{len(contents[tags])}")
    contents[record] = ("\n".join(listed) + "\n").encode()
    pure = wheel.with_name("-".join([*wheel.stem.split("-")[:-3], "py3", "none", "any"]) + ".whl")
    partial = pure.with_name(f".{pure.name}.partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in entries:
            target.writestr(entry, contents[entry.filename], compress_type=zipfile.ZIP_DEFLATED)
    wheel.unlink()
    os.replace(partial, pure)
    return pure.name
