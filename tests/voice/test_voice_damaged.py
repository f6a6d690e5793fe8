"""A few hundred damaged voice files, made by this script and loaded in one process with little memory to spare.

    python tests/voice/test_voice_damaged.py FOLDER    makes them in FOLDER and loads them, one line each
"""

import io
import json
import resource
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch

MEGABYTE = 1 << 20
HEADROOM = 500 * MEGABYTE
HANG_SECONDS = 30
"""far above what any file takes: this finds hangs and does not measure"""


def random_parts(rng):
    return rng.standard_normal(64).astype(np.float32), rng.integers(0, 2048, (9, 16))


def json_files(rng):
    """(name, contents)."""
    vector, codes = random_parts(rng)
    good = {"speaker_embedding": vector.tolist(), "x_vector_only_mode": False, "icl_mode": True, "ref_text": "Hello.",
            "ref_codes": codes.tolist()}  # fmt: skip
    text = json.dumps(good).encode()
    for cut in rng.choice(len(text), 25, replace=False):
        yield "cut", text[:cut]
    for key in good:
        for value in (5, "", {}, [[[]]], [None] * 16, 10**400, [10**400], float("nan"), "\ud800"):
            yield f"{key} wrong", json.dumps(good | {key: value}).encode()
    yield "many floats", json.dumps(good | {"speaker_embedding": [0.5] * 300_000}).encode()
    yield "thirty thousand frames", json.dumps(good | {"ref_codes": [[1] * 16] * 30_000}).encode()
    yield "deep", b'{"speaker_embedding":' + b"[" * 1_900_000
    yield "many lists", b'{"speaker_embedding":[' + b"[]," * 690_000 + b"[]]}"
    yield "many keys", b"{" + b",".join(b'"%d":{}' % i for i in range(160_000)) + b"}"
    yield "long number", b'{"speaker_embedding":[' + b"9" * 2_000_000 + b"]}"
    yield "utf-16", text.decode().encode("utf-16")
    yield "noise", rng.bytes(100_000)
    yield "zeros", bytes(17 * MEGABYTE)
    yield "spaces", b" " * (2 * MEGABYTE)


def safetensors_files(rng):
    vector, codes = random_parts(rng)
    metadata = {"format": "qwen3tts-voice", "version": "1", "x_vector_only_mode": "false", "icl_mode": "true",
                "ref_text": "Hello."}  # fmt: skip
    tensors = {"speaker_embedding": vector, "ref_codes": codes.astype(np.int16)}

    def made(changes=None, **meta):
        kept = {name: value for name, value in (tensors | (changes or {})).items() if value is not None}
        return safetensors.numpy.save(kept, {k: v for k, v in (metadata | meta).items() if v is not None})

    good = made()
    for cut in rng.choice(np.arange(9, len(good)), 25, replace=False):
        yield "cut", good[:cut]
    for name, value in tensors.items():
        for dtype in (np.float64, np.float16, np.int64, np.int32, np.uint8, bool):
            yield f"{name} {dtype}", made({name: value.astype(dtype)})
        yield f"{name} empty", made({name: value[:0]})
        yield f"{name} flat", made({name: value.reshape(1, 1, -1)})
        yield f"{name} missing", made({name: None})
    yield "nan", made({"speaker_embedding": np.full(64, np.nan, np.float32)})
    yield "negative", made({"ref_codes": tensors["ref_codes"] - 3000})
    yield "long", made({"ref_codes": np.zeros((7501, 16), np.int16)})
    yield "wide", made({"speaker_embedding": np.zeros(70_000, np.float32)})
    yield "other tensor", made({"more": vector})
    for key in ("x_vector_only_mode", "icl_mode", "ref_text"):
        yield f"{key} missing", made(**{key: None})
    for meta in ({"version": "2"}, {"version": "x"}, {"format": "x"}, {"icl_mode": "yes"}, {"icl_mode": "false"},
                 {"more": "x"}, {"ref_text": " "}, {"fingerprint": ""}, {"fingerprint": "x" * 300}):  # fmt: skip
        yield f"{meta}", made(**meta)
    header = b'{"speaker_embedding":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}'
    for count in (10, 2**31, 2**62, 2**64):
        head = header % (count, 4 * count)
        yield f"promises {count}", len(head).to_bytes(8, "little") + head + bytes(8)
    for length in (0, 1, 2**20, 2**40, 2**63, 2**64 - 1):
        yield f"header of {length}", length.to_bytes(8, "little") + b"{" + bytes(100)
    deep = b"{" + b'"a":{' * 100_000
    yield "deep header", len(deep).to_bytes(8, "little") + deep


def archives(rng):
    vector, codes = random_parts(rng)
    item = {"ref_code": torch.from_numpy(codes), "ref_spk_embedding": torch.from_numpy(vector), "icl_mode": True,
            "x_vector_only_mode": False, "ref_text": "Hello."}  # fmt: skip

    def saved(value):
        out = io.BytesIO()
        torch.save(value, out)
        return out.getvalue()

    def zipped(method, **entries):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for name, data in entries.items():
                archive.writestr(name.replace("__", "/"), data)
        return out.getvalue()

    good = saved({"items": [item]})
    for cut in rng.choice(len(good) - 1, 30, replace=False):
        yield "cut", good[: cut + 1]
    for key in ("ref_code", "ref_spk_embedding", "x_vector_only_mode"):
        for value in (None, 5, "text", torch.zeros(0), torch.zeros(3, 3, dtype=torch.bool), [item]):
            yield f"{key} wrong", saved([item | {key: value}])
    yield "stretched", saved([item | {"ref_spk_embedding": torch.zeros(1).expand(10**12)}])
    yield "stretched codes", saved([item | {"ref_code": torch.zeros(1, 16, dtype=torch.int64).expand(10**11, 16)}])
    yield "many items", saved([item] * 5000)
    loop = []
    loop.append(loop)
    yield "loop", saved(loop)
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        yield "bomb", zipped(method, x__data__pkl=b"", **{"x/data.pkl": bytes(64 * MEGABYTE)})
    yield "crowd", zipped(zipfile.ZIP_STORED, **{f"x/{i}": b"" for i in range(60_000)})
    yield "empty archive", zipped(zipfile.ZIP_STORED)
    yield "two pickles", zipped(zipfile.ZIP_STORED, **{"a/data.pkl": b".", "b/data.pkl": b"."})
    nested = []
    for _ in range(60):
        nested = [nested]
    yield "nested", saved(nested)


def make_all(folder):
    """Writes the files; returns their paths."""
    rng = np.random.default_rng(20)
    paths = []
    for maker, ending in ((json_files, "json"), (safetensors_files, "safetensors"), (archives, "pt")):
        for what, contents in maker(rng):
            name = "".join(char if char.isalnum() else "_" for char in what)[:40]
            paths.append(folder / f"{len(paths):03d}_{name}.{ending}")
            paths[-1].write_bytes(contents)
    return paths


def main(folder):
    import signal

    from qwen3tts.errors import VoiceError
    from qwen3tts.voice.voice import Voice

    paths = make_all(folder)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + HEADROOM, now + HEADROOM))  # beyond it: MemoryError, no VoiceError
    slowest = (0.0, "")
    for path in paths:
        started = time.perf_counter()
        signal.alarm(HANG_SECONDS)
        try:
            Voice.load_all(path)
            raise SystemExit(f"{path.name} was read")
        except VoiceError as error:
            message = str(error)
        if str(path) not in message or len(message) > len(str(path)) + 600:
            raise SystemExit(f"{path.name} is refused with {message!r:.2000}")
        print(path.name, message.removeprefix(f"{path}: ")[:100].encode())
        slowest = max(slowest, (time.perf_counter() - started, path.name))
    print(f"{len(paths)} files; the slowest took {slowest[0]:.2f} s: {slowest[1]}")


def test_damaged_files(tmp_path):
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, check=False)
    print(done.stdout[-500:])
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.splitlines()[-1].split()[0]) >= 200


if __name__ == "__main__":
    main(Path(sys.argv[1]))
