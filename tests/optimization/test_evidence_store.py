"""The cache of checks: whole files, any damage counts as absent, one entry per key."""

import dataclasses
import json
import random
import threading
from pathlib import Path

import pytest

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
