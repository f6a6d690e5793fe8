"""Recordings from the network: only when asked for, and within limits."""

import functools
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from qwen3tts.audio import fetching
from qwen3tts.audio.reading import read_audio
from qwen3tts.errors import AudioError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from damaged_contents import tone, wav


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        served = self.server.served
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(200):
                self.wfile.write(b"R")
                self.wfile.flush()
                time.sleep(0.05)
        elif self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        elif self.path in served:
            self.send_response(200)
            self.send_header("Content-Length", str(len(served[self.path]) + (99 if "short" in self.path else 0)))
            self.end_headers()
            self.wfile.write(served[self.path])
        else:
            self.send_error(404)

    def log_message(self, *_):
        return


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.handle_error = lambda *_: None  # a client that leaves early is part of the test
    httpd.served = {}
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    httpd.url = f"http://127.0.0.1:{httpd.server_port}"
    yield httpd
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_downloads(server, seed):
    samples = tone(np.random.default_rng(seed), 5000)
    server.served["/x.wav"] = wav(samples)
    np.testing.assert_allclose(read_audio(f"{server.url}/x.wav", allow_url=True), samples, atol=1e-4)
    assert read_audio(f"{server.url}/to/{server.url}/x.wav", allow_url=True).shape == (5000,)
    with pytest.raises(AudioError, match="allow_url"):
        read_audio(f"{server.url}/x.wav")


def test_bad_downloads(server, monkeypatch):
    server.served |= {"/big": bytes(3_000_000), "/short": b"RIFF", "/text": b"no sound at all"}
    limited = functools.partial(fetching.fetch, max_bytes=2_000_000, max_seconds=1)
    monkeypatch.setattr("qwen3tts.audio.reading.fetch", limited)
    refusals = {
        "/nothing": "404",
        "/big": "more than 2,000,000 bytes",
        "/short": "99 bytes early|IncompleteRead",
        "/slow": "longer than 1 s",
        "/text": "ffmpeg",
        "/to/file:///etc/hostname": "file",
        "/to/ftp://127.0.0.1/x": "ftp",
    }
    for path, pattern in refusals.items():
        with pytest.raises(AudioError, match=pattern):
            read_audio(server.url + path, allow_url=True)
    with pytest.raises(AudioError, match="cannot read"):
        read_audio("http://127.0.0.1:9/x.wav", allow_url=True)


def test_paths_that_look_like_urls(tmp_path, monkeypatch):
    """Only http and https are addresses."""
    monkeypatch.chdir(tmp_path)
    for name in ("file:///etc/hostname", "ftp://127.0.0.1/x.wav", "data:audio/wav;base64,AAAA", "x" * 250):
        with pytest.raises(AudioError, match="no such file"):
            read_audio(name, allow_url=True)
    assert not fetching.is_url(str(Path("http:/x")))
