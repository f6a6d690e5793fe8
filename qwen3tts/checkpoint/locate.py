"""Finds a checkpoint: a local folder, or a hub id that is downloaded into the hub cache.

No other module uses the network.
"""

import errno
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from qwen3tts.errors import DownloadError, nearest

logger = logging.getLogger(__name__)

FILES = [
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
    "speech_tokenizer/model-*.safetensors",
    "speech_tokenizer/model.safetensors.index.json",
]
"""What is downloaded of a repository: the files that this package reads."""

TIMEOUT_SECONDS = 15.0
"""Longest wait for the hub's first answer."""

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
            f"{name!r} cannot be looked up: {error}; expected a checkpoint folder or a hub id"
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
    return _download(name, revision, cache_dir, offline, sys.stderr.isatty() if progress is None else progress)


def _no_folder(name: str, path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return f"There is no folder {name!r}, nor {str(parent)!r}; expected a checkpoint folder or a hub id owner/name"
    siblings = {entry.name.lower(): entry.name for entry in parent.iterdir() if entry.is_dir()}
    hint = nearest(path.name, siblings)
    for lower, spelled in siblings.items():
        hint = hint.replace(repr(lower), repr(str(parent / spelled)))
    return f"There is no folder {name!r}; expected a checkpoint folder or a hub id owner/name.{hint}"


def _download(
    repo: str, revision: str | None, cache_dir: str | os.PathLike[str] | None, offline: bool, progress: bool
) -> Path:
    from huggingface_hub import constants, snapshot_download  # slow to import, and needed for hub ids only

    arguments: dict[str, Any] = {
        "repo_id": repo,
        "revision": revision,
        "cache_dir": cache_dir,
        "allow_patterns": FILES,
        "tqdm_class": _bar_class(progress),
        "etag_timeout": TIMEOUT_SECONDS,
    }
    offline = offline or bool(constants.HF_HUB_OFFLINE)
    refusal = None if offline else _ask_hub(repo, revision)
    try:
        path = Path(snapshot_download(**arguments, local_files_only=offline or refusal is not None))
    except Exception as error:  # the network can fail in many classes; all become one, with its cause
        cause = error if refusal is None else refusal
        raise DownloadError(_explain(repo, revision, offline, cause)) from cause
    if refusal is not None:
        logger.warning("Using the cached copy of %s. %s", repo, _explain(repo, revision, offline, refusal))
    return path


def _ask_hub(repo: str, revision: str | None) -> Exception | None:
    """None if the hub has the repository and revision, otherwise what went wrong.

    snapshot_download asks the same again, but without a time limit.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().repo_info(repo, revision=revision, timeout=TIMEOUT_SECONDS)
    except Exception as error:  # an answer of the hub, connection refused, no such host, time-out, proxy, TLS
        return error
    return None


def _bar_class(progress: bool) -> type:
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"disable": not progress})  # type: ignore[no-untyped-call]

    return Bar


def _explain(repo: str, revision: str | None, offline: bool, error: Exception) -> str:
    """What went wrong and what helps."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return f"{repo} is gated: accept its terms on its web page, then log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, RevisionNotFoundError):
        return f"{repo} has no revision {revision!r}; expected a branch, a tag or a commit"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"The hub has no repository {repo!r}, or it is private. Check the spelling; for a private one log in "
            "with `hf auth login` or set HF_TOKEN. A local folder of that name does not exist either"
        )
    if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403):
        return f"The hub refuses access to {repo}: log in with `hf auth login`, or renew the token in HF_TOKEN"
    if isinstance(error, LocalEntryNotFoundError) and offline:
        return (
            f"{repo}{f' at revision {revision!r}' if revision else ''} is not in the cache, or not all of it, and "
            "offline mode is on: allow the network once, or give the folder of a copy"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"No disk space is left for {repo}: free some, or choose another folder with cache_dir"
    if isinstance(error, PermissionError):
        return f"{repo} cannot be stored: {error}. Choose another folder with cache_dir"
    return (
        f"{repo} cannot be downloaded ({type(error).__name__}: {str(error).strip()}). Check the network and try again "
        "(a download goes on where it stopped), or give the folder of a copy"
    )
