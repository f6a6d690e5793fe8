"""A loopback server that answers as the hub does, as far as a snapshot download asks."""

import hashlib
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class HubServer:
    """Repositories in memory: repos["owner/name"][revision] = {path: content}."""

    def __init__(self, repos: dict[str, dict[str, dict[str, bytes]]]) -> None:
        self.repos = repos
        self.downloaded: list[str] = []
        """paths whose content was asked for"""
        self.requests: list[str] = []
        self.gated: set[str] = set()
        self.status: int | None = None
        """answer everything with this status"""
        self.truncate: set[str] = set()
        """files whose connection breaks half way, once each"""
        self.stall: str | None = None
        """silence: "again" at the second question about a repository, "head" at a file, "body" in a file's contents"""
        self.release = threading.Event()
        """ends the silences of `stall`"""
        self.info: bytes | None = None
        """the answer to a question about a repository"""
        self.headers: dict[str, str] = {}
        """replaced headers of files"""
        self.hang = threading.Event()
        self.hang.set()
        """cleared: answers wait until it is set"""
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "HubServer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang.set()
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def commit_of(repo: str, revision: str) -> str:
    """The commit hash that a branch or tag stands for."""
    return hashlib.sha1(f"{repo}@{revision}".encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, url = self.hub, urllib.parse.urlparse(self.path)
        path = urllib.parse.unquote(url.path).strip("/")
        hub.requests.append(f"{self.command} {path}")
        hub.hang.wait()
        questions = sum(request.startswith("GET api/models/") for request in hub.requests)
        if (hub.stall == "again" and questions > 1) or (hub.stall == "head" and self.command == "HEAD"):
            hub.release.wait()
        if hub.status is not None:
            return self._send(hub.status, b"{}")
        parts = path.removeprefix("api/models/").split("/")
        repo = "/".join(parts[:2])
        if repo not in hub.repos:
            return self._send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        if repo in hub.gated:
            return self._send(403, b'{"error": "Access is restricted"}', {"X-Error-Code": "GatedRepo"})
        kind, revision = (parts[2], parts[3]) if len(parts) > 3 else ("revision", "main")
        names = {name: name for name in hub.repos[repo]} | {commit_of(repo, name): name for name in hub.repos[repo]}
        if revision not in names:
            return self._send(404, b'{"error": "Revision not found"}', {"X-Error-Code": "RevisionNotFound"})
        files, commit = hub.repos[repo][names[revision]], commit_of(repo, names[revision])
        if kind == "revision" and hub.info is not None:
            return self._send(200, hub.info, {"Content-Type": "application/json"})
        if kind == "revision":
            siblings = [{"rfilename": name} for name in files]
            return self._json({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "private": False})
        if kind == "tree":
            return self._json([_tree_entry(name, content) for name, content in files.items()])
        return self._file("/".join(parts[4:]), files, commit)

    def _file(self, name: str, files: dict[str, bytes], commit: str) -> None:
        if name not in files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        content, start = files[name], 0
        headers = {"ETag": f'"{_blob_id(content)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if self.command == "GET":
            self.hub.downloaded.append(name)
            wanted = self.headers.get("Range", "")
            if wanted.startswith("bytes="):
                start = int(wanted.removeprefix("bytes=").split("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = name in self.hub.truncate and self.command == "GET"
        self._send(206 if start else 200, content[start:], headers | self.hub.headers, cut=cut)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: bool = False) -> None:
        stalls = self.hub.stall == "body" and "ETag" in (headers or {})
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut or stalls else body)
            if stalls:
                self.wfile.flush()
                self.hub.release.wait()
        if cut:
            self.close_connection = True


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _tree_entry(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "oid": _blob_id(content), "size": len(content), "path": name}
