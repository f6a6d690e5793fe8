"""Finds a checkpoint: a local folder, or a hub id that is downloaded into the hub cache."""

import os
import re
import sys
from pathlib import Path

from qwen3tts.checkpoint.hub import download
from qwen3tts.errors import DownloadError, nearest, shortened

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def locate(
    model: str | os.PathLike[str],
    *,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    offline: bool = False,
    progress: bool | None = None,
) -> Path:
    """The folder of a checkpoint. An existing folder wins over a hub id of the same spelling.

    model: a folder, or a hub id "owner/name". revision: branch, tag or commit, for hub ids. cache_dir: where downloads
    are kept (default: the hub's own cache). offline: use only what is cached (HF_HUB_OFFLINE=1 does the same).
    progress: show bars on stderr; None = only if it is a terminal.
    Raises DownloadError, whose message says what can be done.
    """
    name = os.fspath(model)
    if not name.strip():
        raise DownloadError("The model is blank; expected a checkpoint folder or a hub id such as owner/name")
    try:
        path = Path(name).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # no permission, name too long, no such user after ~
        raise DownloadError(
            f"{name!r} cannot be looked up: {shortened(error)}; expected a checkpoint folder or a hub id"
        ) from error
    if is_folder:
        if revision is not None:
            raise DownloadError(f"{name} is a local folder, so it has no revision {revision!r}; leave revision out")
        return path
    if exists:
        raise DownloadError(f"{name} is a file; expected the folder of a checkpoint or a hub id such as owner/name")
    looks_local = isinstance(model, Path) or name.startswith((".", "~", os.sep)) or not _HUB_ID.fullmatch(name)
    if looks_local:
        raise DownloadError(_no_folder(name, path))
    try:
        return download(name, revision, cache_dir, offline, sys.stderr.isatty() if progress is None else progress)
    except DownloadError as error:
        if not path.parent.is_dir():
            raise
        raise DownloadError(f"{_no_folder(name, path)} As a hub id: {error}") from error


def _no_folder(name: str, path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return f"There is no folder {name!r}, nor {str(parent)!r}; expected a checkpoint folder or a hub id owner/name"
    try:
        siblings = {entry.name.lower(): entry.name for entry in parent.iterdir() if entry.is_dir()}
    except OSError:  # a folder that may be searched, but not listed: then there is no hint
        siblings = {}
    hint = nearest(path.name, siblings)
    for lower, spelled in siblings.items():
        hint = hint.replace(repr(lower), repr(str(parent / spelled)))
    return f"There is no folder {name!r}; expected a checkpoint folder or a hub id owner/name.{hint}"
