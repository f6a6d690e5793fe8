"""Downloads a checkpoint from the hub into its cache. No other module uses the network.

Every request has a time limit: huggingface_hub's snapshot_download makes some without one, so it is only asked for what
is cached already.
"""

import errno
import inspect
import logging
import os
import re
import secrets
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from qwen3tts.errors import DownloadError, shortened

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
"""Longest wait for an answer of the hub; the contents of files have HF_HUB_DOWNLOAD_TIMEOUT, which is the hub's own."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"\w[\w.-]*")
"""A hash; it becomes the name of a file in the cache."""


class _MalformedAnswer(Exception):
    """The hub answered, but not as a hub does."""


def download(
    repo: str, revision: str | None, cache_dir: str | os.PathLike[str] | None, offline: bool, progress: bool
) -> Path:
    """The folder of a repository in the hub's cache, after downloading what is missing there.

    If the hub cannot be asked, the cached copy is used with a warning. Raises DownloadError.
    """
    from huggingface_hub import constants, snapshot_download  # slow to import, and needed for hub ids only

    offline = offline or bool(constants.HF_HUB_OFFLINE)
    cache = Path(constants.HF_HUB_CACHE if cache_dir is None else cache_dir).expanduser()
    refusal: Exception | None = None
    if not offline:
        try:
            commit, names = _ask_hub(repo, revision)
        except Exception as error:  # an answer of the hub, connection refused, no such host, time-out, proxy, TLS
            refusal = error
        else:
            try:
                return _fetch(repo, revision or constants.DEFAULT_REVISION, commit, names, cache, progress)
            except Exception as error:  # the network can fail in many classes; all become one, with its cause
                raise DownloadError(_explain(repo, revision, offline, error)) from error
    try:
        path = snapshot_download(repo, revision=revision, cache_dir=cache, allow_patterns=FILES, local_files_only=True)
    except Exception as error:
        cause = error if refusal is None else refusal
        raise DownloadError(_explain(repo, revision, offline, cause)) from cause
    if refusal is not None:
        logger.warning("Using the cached copy of %s. %s", repo, _explain(repo, revision, offline, refusal))
    return Path(path)


def _ask_hub(repo: str, revision: str | None) -> tuple[str, list[str]]:
    """The commit that the revision stands for, and which of its files are wanted."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    try:
        info = HfApi().model_info(repo, revision=revision, timeout=TIMEOUT_SECONDS)
        commit, names = info.sha, [sibling.rfilename for sibling in info.siblings or ()]
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise _MalformedAnswer(f"its commit is {commit!r:.60}, expected 40 hexadecimal digits")
        return commit, _wanted(names)
    except HFValidationError:
        raise
    # What parsing raises; network errors are OSErrors or have classes of their own. Some JSON errors are both.
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        if isinstance(error, OSError) and "JSON" not in type(error).__name__:
            raise
        raise _MalformedAnswer(f"{type(error).__name__}: {error}"[:300]) from error


def _wanted(names: Iterable[Any]) -> list[str]:
    """Those of the repository's files that this package reads, the configs first and the largest last."""
    result = []
    for name in names:
        if not isinstance(name, str):
            raise _MalformedAnswer(f"one of its files is called {name!r:.60}")
        # "*" matches folders too, so that a name could lead out of the repository.
        patterns = (pattern for pattern in FILES if pattern.count("/") == name.count("/") and "\\" not in name)
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            result.append(name)
    return sorted(result, key=lambda name: (name.endswith(".safetensors"), name))


def _fetch(repo: str, revision: str, commit: str, names: list[str], cache: Path, progress: bool) -> Path:
    """Downloads the files of a commit one after the other, so that Ctrl-C ends it at once; returns their folder."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    if "config.json" not in names:
        raise DownloadError(f"{repo} has no config.json, so it is no checkpoint that this package reads")
    arguments: dict[str, Any] = {"cache_dir": cache, "etag_timeout": TIMEOUT_SECONDS}
    if "tqdm_class" in inspect.signature(hf_hub_download).parameters:
        arguments["tqdm_class"] = _bar_class(progress)
    paths = {}
    for name in names:
        if not isinstance(try_to_load_from_cache(repo, name, cache_dir=cache, revision=commit), str):
            # A hub that is silent fails here; hf_hub_download would go on asking for minutes.
            found = get_hf_file_metadata(hf_hub_url(repo, name, revision=commit), timeout=TIMEOUT_SECONDS)
            if not _ETAG.fullmatch(found.etag or "") or found.commit_hash != commit:
                raise _MalformedAnswer(f"{name} has ETag {found.etag!r:.60} and commit {found.commit_hash!r:.60}")
        paths[name] = Path(hf_hub_download(repo, name, revision=commit, **arguments))
    folder = paths["config.json"].parent
    if revision != commit:
        _write_ref(folder.parent.parent / "refs" / revision, commit)
    return folder


def _write_ref(path: Path, commit: str) -> None:
    """Notes in the cache what a branch or tag stands for: now that all files are there, it can be used offline."""
    if path.is_file() and path.read_text(encoding="utf-8") == commit:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(8)}")
    temporary.write_text(commit, encoding="utf-8")
    os.replace(temporary, path)


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
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, DownloadError):
        return str(error)
    if isinstance(error, _MalformedAnswer):
        return (
            f"The hub's answer about {repo} makes no sense ({error}): check HF_ENDPOINT and whether a proxy or a login "
            "page answers in its place, or give the folder of a copy"
        )
    if isinstance(error, HFValidationError):
        return f"{repo!r} is neither a folder nor a hub id: {shortened(error)}"
    if isinstance(error, GatedRepoError):
        return f"{repo} is gated: accept its terms on its web page, then log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, RevisionNotFoundError):
        return f"{repo} has no revision {revision!r}; expected a branch, a tag or a commit"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"The hub has no repository {repo!r}, or it is private. Check the spelling; for a private one log in "
            "with `hf auth login` or set HF_TOKEN. A local folder of that name does not exist either"
        )
    if isinstance(error, HfHubHTTPError) and getattr(error.response, "status_code", None) in (401, 403):
        return f"The hub refuses access to {repo}: log in with `hf auth login`, or renew the token in HF_TOKEN"
    if isinstance(error, LocalEntryNotFoundError) and offline:
        return (
            f"{repo}{f' at revision {revision!r}' if revision else ''} is not in the cache, or not all of it, and "
            "offline mode is on: allow the network once, or give the folder of a copy"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"No disk space is left for {repo}: free some, or choose another folder with cache_dir"
    if isinstance(error, PermissionError):
        return f"{repo} cannot be stored: {shortened(error)}. Choose another folder with cache_dir"
    return (
        f"{repo} cannot be downloaded ({type(error).__name__}: {shortened(error)}). Check the network and try again "
        "(a download goes on where it stopped), or give the folder of a copy"
    )
