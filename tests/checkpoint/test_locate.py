"""Local folders, and downloads from a loopback server that imitates the hub."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qwen3tts.checkpoint import locate, open_checkpoint
from qwen3tts.errors import DownloadError

sys.path.insert(0, str(Path(__file__).parent))
from hub_server import HubServer, commit_of

# The hub's address is read when its library is imported, so the calls run in a process of their own.
DRIVER = """
import json, logging, sys
from qwen3tts.checkpoint import locate
from qwen3tts.errors import DownloadError
sys.modules["qwen3tts.checkpoint.hub"].TIMEOUT_SECONDS = 1.0
logging.basicConfig(format="%(name)s: %(message)s")
for line in sys.stdin:
    try:
        answer = {"path": str(locate(**json.loads(line)))}
    except DownloadError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
"""
DECOYS = {
    "README.md": b"# model\n", "pytorch_model.bin": b"x" * 100, "preprocessor_config.json": b"{}",
    ".gitattributes": b"",
    "onnx/model.safetensors": b"x", "speech_tokenizer/configuration.json": b"{}", "training.safetensors": b"x",
    "speech_tokenizer/preprocessor_config.json": b"{}",
}  # fmt: skip


class Driver:
    """Calls `locate` in another process."""

    def __init__(self, home: Path, endpoint: str, **env: str) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        clean |= {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HOME": str(home), "HF_ENDPOINT": endpoint}
        clean |= {"HF_HUB_DOWNLOAD_TIMEOUT": "1"} | env
        self.stderr = (home.parent / f"{home.name}.stderr").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            env=clean,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
        )

    def __call__(self, model: str, **arguments: Any) -> dict[str, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"model": model, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.messages()
        return dict(json.loads(line))

    def messages(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read()

    def close(self) -> None:
        self.process.communicate(timeout=60)
        self.stderr.close()


@pytest.fixture(scope="module")
def files(tiny_checkpoint: Callable[..., Path]) -> dict[str, bytes]:
    folder = tiny_checkpoint()
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def shared_hub(files: dict[str, bytes]) -> Iterator[HubServer]:
    older = files | {"generation_config.json": b'{"top_k": 7}'}
    with HubServer({"owner/tiny": {"main": files | DECOYS, "v1": older}, "owner/broken": {"main": files}}) as server:
        yield server


@pytest.fixture(scope="module")
def call(shared_hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    driver = Driver(tmp_path_factory.mktemp("hub") / "home", shared_hub.url)
    yield driver
    driver.close()


@pytest.fixture
def hub(shared_hub: HubServer) -> Iterator[HubServer]:
    shared_hub.downloaded.clear()
    shared_hub.requests.clear()
    yield shared_hub
    shared_hub.status = None
    shared_hub.gated.clear()
    shared_hub.truncate.clear()
    shared_hub.hang.set()
    shared_hub.stall = shared_hub.info = None
    shared_hub.headers.clear()
    shared_hub.release.set()
    shared_hub.release = threading.Event()


def test_download_cache_and_offline(
    hub: HubServer, call: Driver, tmp_path: Path, files: dict[str, bytes], tiny_checkpoint: Callable[..., Path]
) -> None:
    cache = str(tmp_path / "cache")
    folder = Path(call("owner/tiny", cache_dir=cache)["path"])
    wanted = set(files) - set(DECOYS)
    assert len(wanted) == 8
    assert sorted(hub.downloaded) == sorted(wanted)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == wanted
    assert all((folder / name).read_bytes() == files[name] for name in wanted)
    assert folder.is_relative_to(cache)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == open_checkpoint(tiny_checkpoint()).config
    checkpoint.model_weights().close()
    checkpoint.codec_weights().close()

    hub.downloaded.clear()
    assert call("owner/tiny", cache_dir=cache)["path"] == str(folder)
    assert hub.downloaded == []
    hub.requests.clear()
    assert call("owner/tiny", cache_dir=cache, offline=True)["path"] == str(folder)
    assert hub.requests == []
    hub.status = 503
    assert call("owner/tiny", cache_dir=cache)["path"] == str(folder)
    assert "Using the cached copy of owner/tiny" in call.messages()
    assert "Fetching" not in call.messages()  # stderr is no terminal, so no bars


def test_revision(hub: HubServer, call: Driver, tmp_path: Path) -> None:
    cache = str(tmp_path)
    tag = Path(call("owner/tiny", revision="v1", cache_dir=cache)["path"])
    assert tag.name == commit_of("owner/tiny", "v1")
    assert open_checkpoint(tag).generation_config == {"top_k": 7}
    commit = call("owner/tiny", revision=commit_of("owner/tiny", "main"), cache_dir=cache)["path"]
    assert open_checkpoint(commit).generation_config["top_k"] == 50
    assert call("owner/tiny", revision="v1", cache_dir=cache, offline=True)["path"] == str(tag)
    assert "has no revision 'v2'" in call("owner/tiny", revision="v2", cache_dir=cache)["error"]
    assert "at revision 'v2'" in call("owner/tiny", revision="v2", cache_dir=cache, offline=True)["error"]


def test_shards_are_downloaded(hub: HubServer, call: Driver, tmp_path: Path) -> None:
    names = [f"{part}model-0000{i}-of-00002.safetensors" for part in ("", "speech_tokenizer/") for i in (1, 2)]
    names += ["model.safetensors.index.json", "speech_tokenizer/model.safetensors.index.json", "config.json"]
    hub.repos["owner/sharded"] = {"main": {name: name.encode() for name in names}}
    call("owner/sharded", cache_dir=str(tmp_path))
    assert sorted(hub.downloaded) == sorted(names)


@pytest.mark.parametrize(
    ("repo", "status", "message"),
    [
        ("owner/none", None, "no repository 'owner/none', or it is private"),
        ("owner/tiny", 401, "refuses access to owner/tiny: log in"),
        ("owner/tiny", 503, "503 Service Unavailable"),
        ("owner/tiny", 404, "404 Not Found"),
    ],
)
def test_refusals_of_the_hub(
    hub: HubServer, call: Driver, tmp_path: Path, repo: str, status: int | None, message: str
) -> None:
    hub.status = status
    assert message in call(repo, cache_dir=str(tmp_path))["error"]
    assert hub.downloaded == []


def test_gated(hub: HubServer, call: Driver, tmp_path: Path) -> None:
    hub.gated.add("owner/tiny")
    assert "owner/tiny is gated: accept its terms" in call("owner/tiny", cache_dir=str(tmp_path))["error"]


def test_hub_that_never_answers(hub: HubServer, call: Driver, tmp_path: Path) -> None:
    hub.hang.clear()
    assert "Timeout" in call("owner/tiny", cache_dir=str(tmp_path))["error"]


def test_hub_that_goes_silent_after_its_first_answer(hub: HubServer, call: Driver, tmp_path: Path) -> None:
    hub.stall = "again"
    assert "path" in call("owner/tiny", cache_dir=str(tmp_path))


@pytest.mark.parametrize("stall", ["head", "body"])
def test_hub_that_goes_silent_at_a_file(hub: HubServer, call: Driver, tmp_path: Path, stall: str) -> None:
    hub.stall = stall
    error = call("owner/tiny", cache_dir=str(tmp_path))["error"]
    assert "owner/tiny cannot be downloaded" in error
    assert "imeout" in error or "timed out" in error
    assert "not in the cache" in call("owner/tiny", cache_dir=str(tmp_path), offline=True)["error"]


@pytest.mark.parametrize(
    "info",
    [
        b"<html>log in</html>",
        b"\xff",
        b"[]",
        b"3",
        b"{}",
        b'{"id": "owner/tiny", "sha": null}',
        b'{"id": "owner/tiny", "sha": 3}',
        b'{"id": "owner/tiny", "sha": "../x"}',
        b'{"id": "owner/tiny", "sha": "%s", "siblings": [{}]}' % (b"0" * 40),
        b'{"id": "owner/tiny", "sha": "%s", "siblings": [{"rfilename": 3}]}' % (b"0" * 40),
    ],
)
def test_answers_that_make_no_sense(hub: HubServer, call: Driver, tmp_path: Path, info: bytes) -> None:
    hub.info = info
    error = call("owner/tiny", cache_dir=str(tmp_path))["error"]
    assert "The hub's answer about owner/tiny makes no sense" in error
    assert "Check the network" not in error


@pytest.mark.parametrize(
    "headers", [{"X-Repo-Commit": "1" * 40}, {"X-Repo-Commit": ""}, {"ETag": ""}, {"ETag": "../x"}]
)
def test_files_of_no_sense(hub: HubServer, call: Driver, tmp_path: Path, headers: dict[str, str]) -> None:
    hub.headers |= headers
    assert "makes no sense (config.json has" in call("owner/tiny", cache_dir=str(tmp_path))["error"]
    assert hub.downloaded == []


def test_repository_of_something_else(hub: HubServer, call: Driver, tmp_path: Path) -> None:
    hub.repos["owner/other"] = {
        "main": {"README.md": b"", "model-/../../x.safetensors": b"", "model-\\..safetensors": b""}
    }
    assert "owner/other has no config.json" in call("owner/other", cache_dir=str(tmp_path))["error"]
    assert hub.downloaded == []


def test_name_that_is_no_hub_id(call: Driver, tmp_path: Path) -> None:
    assert "'owner/a..b' is neither a folder nor a hub id" in call("owner/a..b", cache_dir=str(tmp_path))["error"]


def test_connection_that_breaks(hub: HubServer, call: Driver, tmp_path: Path, files: dict[str, bytes]) -> None:
    hub.truncate.add("model.safetensors")
    error = call("owner/broken", cache_dir=str(tmp_path))["error"]
    assert "owner/broken cannot be downloaded" in error
    assert "goes on where it stopped" in error
    assert "not in the cache, or not all of it" in call("owner/broken", cache_dir=str(tmp_path), offline=True)["error"]
    hub.truncate.clear()
    folder = Path(call("owner/broken", cache_dir=str(tmp_path))["path"])
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]


def test_offline_variable_and_no_server(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "a", "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert "owner/tiny is not in the cache, or not all of it, and offline mode is on" in driver("owner/tiny")["error"]
    driver.close()
    driver = Driver(tmp_path / "b", "http://127.0.0.1:9")
    error = driver("owner/tiny")["error"]
    assert "owner/tiny cannot be downloaded" in error
    assert "refused" in error
    assert "Check the network" in error
    driver.close()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No disk space is left for owner/tiny"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be stored.*cache_dir"),
        (RuntimeError("something new"), r"cannot be downloaded \(RuntimeError: something new\)"),
    ],
)
def test_local_trouble(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr("qwen3tts.checkpoint.hub._fetch", fail)
    monkeypatch.setattr("qwen3tts.checkpoint.hub._ask_hub", lambda repo, revision: ("0" * 40, ["config.json"]))
    with pytest.raises(DownloadError, match=message) as raised:
        locate("owner/tiny")
    assert raised.value.__cause__ is error


def test_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "owner" / "Voices"
    folder.mkdir(parents=True)
    assert locate(folder) == locate(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert locate("owner/Voices") == Path("owner/Voices")  # a folder wins over a hub id
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/owner/Voices") == folder
    with pytest.raises(DownloadError, match="no revision 'v1'"):
        locate(folder, revision="v1")


@pytest.mark.parametrize("spell", [str, Path])
def test_local_folder_that_is_not_there(tmp_path: Path, spell: Callable[[Path], str | Path]) -> None:
    (tmp_path / "Voices-06B").mkdir()
    (tmp_path / "weights.safetensors").write_text("")
    with pytest.raises(DownloadError, match=r"no folder .*Did you mean '.*/Voices-06B'\?"):
        locate(spell(tmp_path / "voices-0.6B"))
    with pytest.raises(DownloadError, match="nor "):
        locate(spell(tmp_path / "a" / "b"))
    with pytest.raises(DownloadError, match="is a file"):
        locate(spell(tmp_path / "weights.safetensors"))


def test_a_mistyped_folder_that_could_be_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo" / "checkpoint").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DownloadError, match=r"no folder 'demo/chekpoint'.*'demo/checkpoint'\?.* As a hub id: .*cache"):
        locate("demo/chekpoint", offline=True, cache_dir=tmp_path / "cache")
    with pytest.raises(DownloadError, match=r"cache") as raised:
        locate("owner/name", offline=True, cache_dir=tmp_path / "cache")
    assert "no folder" not in str(raised.value)


@pytest.mark.parametrize("name", ["word", "a/b/c", "owner/", "/owner", "owner/na me", "./owner/name", "https://x/y"])
def test_neither_folder_nor_hub_id(name: str) -> None:
    with pytest.raises(DownloadError, match=r"no folder .* expected a checkpoint folder or a hub id owner/name"):
        locate(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "blank"), (" ", "blank"), ("a" * 5000, "too long"), ("~nobody-of-that-name/x", "cannot be looked up")],
)
def test_names_that_are_no_path(name: str, message: str) -> None:
    with pytest.raises(DownloadError, match=message):
        locate(name)


def test_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    (tmp_path / "voices").mkdir()
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DownloadError, match="no folder .*voice'; expected a checkpoint folder"):
        locate(tmp_path / "voice")
