"""The cache of checks: whole files, any damage counts as absent, one entry per key."""

import dataclasses
import errno
import json
import logging
import math
import os
import random
import threading
from pathlib import Path

import pytest

from qwen3tts.errors import OptimizationPlanError
from qwen3tts.optimization.evidence_store import EvidenceKey, EvidenceStore, cache_folder, canonical_options
from qwen3tts.optimization.passes import Evidence, Gain

KEY = EvidenceKey(
    "qwen3tts.custom-kernels", 1, canonical_options({"norms": True}), "ab" * 32, "0.1", "2.6", "card", "1.2",
    "bfloat16", "tiny",
)  # fmt: skip
EVIDENCE = Evidence("norms of 3 rows", "plain torch", 1e-3, 2e-3, True, 0.25, Gain("2 times", "card", "abc"))


def test_what_is_put_is_got(tmp_path: Path) -> None:
    store = EvidenceStore(tmp_path / "new" / "folder")
    assert store.get(KEY) is None
    assert store.put(KEY, EVIDENCE)
    assert store.get(KEY) == EVIDENCE
    failed = dataclasses.replace(EVIDENCE, passed=False, error=None, gain=None)
    assert store.put(KEY, failed)
    assert store.get(KEY) == failed
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 1


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(EvidenceKey)])
def test_every_part_of_the_key_counts(tmp_path: Path, field: str) -> None:
    store = EvidenceStore(tmp_path)
    store.put(KEY, EVIDENCE)
    value = getattr(KEY, field)
    other = dataclasses.replace(KEY, **{field: value + 1 if isinstance(value, int) else value + "x"})
    assert store.get(other) is None
    assert other.digest != KEY.digest


def test_damaged_files_count_as_absent(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    store = EvidenceStore(tmp_path)
    store.put(KEY, EVIDENCE)
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    damaged = [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 50_000, good[:-5], good + b"x", b" " * 100_000 + good]
    for name in ("passed", "error", "seconds", "compared", "gain"):
        entry = json.loads(good)
        entry["evidence"][name] = ["wrong"]
        damaged.append(json.dumps(entry).encode())
        del entry["evidence"][name]
        damaged.append(json.dumps(entry).encode())
    odd = [
        {"bound": math.nan}, {"bound": math.inf}, {"bound": -1.0}, {"error": math.nan}, {"error": -1.0},
        {"error": 10**400}, {"seconds": math.inf}, {"seconds": -0.5}, {"error": "0"}, {"error": True}, {"passed": 1},
        {"passed": None}, {"passed": False}, {"error": 3e-3}, {"error": None}, {"compared": "\ud800"},
        {"reference": "hf_" + "a1B2" * 8}, {"compared": None}, {"gain": {}}, {"gain": []}, {"gain": False},
        {"gain": {"figure": 1, "card": "a", "commit": "b"}}, {"gain": {"figure": "1", "card": "a", "commit": "\udfff"}},
        {"gain": {"figure": "1", "card": "a", "commit": "b", "more": 1}}, {"more": 1},
    ]  # fmt: skip
    for change in odd:
        entry = json.loads(good)
        entry["evidence"].update(change)
        damaged.append(json.dumps(entry).encode())
    entry = json.loads(good)
    entry["key"]["device"] = "another"
    damaged.append(json.dumps(entry).encode())
    for data in damaged:
        file.write_bytes(data)
        assert store.get(KEY) is None, data[:100]
    for _ in range(200):
        cut = bytearray(good)
        del cut[draw.randrange(len(cut)) :]
        file.write_bytes(bytes(cut))
        assert store.get(KEY) is None
    file.unlink()
    os.mkfifo(file)
    assert store.get(KEY) is None
    file.unlink()
    file.mkdir()
    assert store.get(KEY) is None
    assert not store.put(KEY, EVIDENCE)
    assert list(tmp_path.iterdir()) == [file]


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = EvidenceStore(blocked / "below")
    assert not store.put(KEY, EVIDENCE)
    assert store.get(KEY) is None


def test_file_system_that_became_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    store = EvidenceStore(tmp_path)
    monkeypatch.setattr(Path, "unlink", refuse)
    for module, name in ((os, "fsync"), (os, "replace"), (Path, "open")):
        with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
            patch.setattr(module, name, refuse)
            assert not store.put(KEY, EVIDENCE)
        assert "Read-only file system" in caplog.text
        caplog.clear()
    assert store.get(KEY) is None


@pytest.mark.parametrize(
    "change", [{"bound": math.nan}, {"compared": "\ud800"}, {"error": 1.0}, {"seconds": -1.0}], ids=str
)
def test_what_no_manifest_may_hold_is_not_kept(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(OptimizationPlanError):
        EvidenceStore(tmp_path).put(KEY, dataclasses.replace(EVIDENCE, **change))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["", "relative"])
def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog, home: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("QWEN3TTS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(Path, "mkdir", lambda *arguments, **named: pytest.fail("a folder was made"))
    with caplog.at_level(logging.INFO):
        assert not EvidenceStore().put(KEY, EVIDENCE)
    assert f"HOME is {home!r}" in caplog.text
    assert EvidenceStore().get(KEY) is None
    with pytest.raises(RuntimeError, match="HOME is"):
        cache_folder()


def test_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    results = [dataclasses.replace(EVIDENCE, seconds=float(i)) for i in range(8)]

    def write(evidence: Evidence) -> None:
        for _ in range(20):
            assert EvidenceStore(tmp_path).put(KEY, evidence)
            assert EvidenceStore(tmp_path).get(KEY) in results

    threads = [threading.Thread(target=write, args=(evidence,)) for evidence in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(tmp_path.iterdir())) == 1
    assert EvidenceStore(tmp_path).get(KEY) in results


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QWEN3TTS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "qwen3tts" / "evidence"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "qwen3tts" / "evidence"
    monkeypatch.setenv("QWEN3TTS_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" / "evidence"
