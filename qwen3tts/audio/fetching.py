"""Downloading a recording from an http(s) URL, within limits. Nothing here runs unless a caller asks for it."""

import queue
import threading
import urllib.error
import urllib.request
from http.client import HTTPException
from urllib.parse import urlsplit

from qwen3tts.errors import AudioError, shortened

MAX_FETCHED = 50_000_000
MAX_SECONDS = 20.0
"""For the whole download, not per packet."""
MAX_BYTES = 256_000_000
"""Of a file that is held in memory."""


def is_url(text: str) -> bool:
    """Whether `text` is an address on the network rather than a path."""
    return urlsplit(text).scheme.lower() in ("http", "https") if "://" in text else False


def fetch(url: str, *, max_bytes: int = MAX_FETCHED, max_seconds: float = MAX_SECONDS) -> bytes:
    """Raises AudioError if the server fails, sends more than `max_bytes` or is not done after `max_seconds`."""
    results: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
    stop = threading.Event()
    # In a thread of its own, as a server that sends a byte now and then defeats every timeout of a socket.
    threading.Thread(target=_download, args=(url, max_bytes, max_seconds, stop, results), daemon=True).start()
    try:
        result = results.get(timeout=max_seconds)
    except queue.Empty as error:
        raise AudioError(f"cannot read {url!r}: the download took longer than {max_seconds:g} s") from error
    finally:
        stop.set()
    if isinstance(result, Exception):
        raise AudioError(f"cannot read {url!r}: {shortened(result)}") from result
    return result


def _opener() -> urllib.request.OpenerDirector:
    """Without handlers for file:// and ftp://, to which a server could redirect."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _download(
    url: str,
    max_bytes: int,
    max_seconds: float,
    stop: threading.Event,
    results: "queue.SimpleQueue[bytes | Exception]",
) -> None:
    try:
        with _opener().open(url, timeout=max_seconds) as response:
            pieces, size = [], 0
            while not stop.is_set() and (piece := response.read1(65_536)):
                pieces.append(piece)
                size += len(piece)
                if size > max_bytes:
                    raise AudioError(f"it has more than {max_bytes:,} bytes")
            if response.length:
                raise AudioError(f"the connection ended {response.length:,} bytes early")
            results.put(b"".join(pieces))
    except (AudioError, OSError, HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
        results.put(error)
