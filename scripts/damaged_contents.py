"""What the files of damaged_files.py hold: voice files of the three forms, and recordings.

All functions take a numpy Generator and yield (name, contents); recordings have their ending in the name.
"""

import io
import json
import struct
import wave
import zipfile

import numpy as np

MEGABYTE = 1 << 20
SAID = b"This is no sound. " * 500


# ------------------------------------------------------------------ voices


def random_parts(rng):
    """x-vector [64] and reference codes [9, 16]."""
    return rng.standard_normal(64).astype(np.float32), rng.integers(0, 2048, (9, 16))


def json_voices(rng):
    """(name, contents) of voice files in JSON."""
    vector, codes = random_parts(rng)
    good = {"speaker_embedding": vector.tolist(), "x_vector_only_mode": False, "icl_mode": True, "ref_text": "Hello.",
            "ref_codes": codes.tolist()}
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
    yield "long key", json.dumps(good | {"k" * 1_900_000: 1}).encode()
    yield "long number", b'{"speaker_embedding":[' + b"9" * 2_000_000 + b"]}"
    yield "utf-16", text.decode().encode("utf-16")
    yield "noise", rng.bytes(100_000)
    yield "zeros", bytes(17 * MEGABYTE)
    yield "spaces", b" " * (2 * MEGABYTE)
    yield "sound", wav(tone(rng, 3000))
    yield "empty", b""


def compact_voices(rng):
    """The same of voice files in safetensors."""
    vector, codes = random_parts(rng)
    metadata = {"format": "qwen3tts-voice", "version": "1", "x_vector_only_mode": "false", "icl_mode": "true",
                "ref_text": "Hello."}
    tensors = {"speaker_embedding": vector, "ref_codes": codes.astype(np.int16)}

    def made(changes=None, **meta):
        kept = {name: value for name, value in (tensors | (changes or {})).items() if value is not None}
        return safetensors_file(kept, {k: v for k, v in (metadata | meta).items() if v is not None})

    good = made()
    for cut in rng.choice(np.arange(9, len(good)), 25, replace=False):
        yield "cut", good[:cut]
    for name, value in tensors.items():
        for dtype in (np.float64, np.float16, np.int64, np.int32, np.uint8, bool):
            yield f"{name} {np.dtype(dtype)}", made({name: value.astype(dtype)})
        yield f"{name} empty", made({name: value[:0]})
        yield f"{name} flat", made({name: value.reshape(1, 1, -1)})
        yield f"{name} missing", made({name: None})
    yield "nan", made({"speaker_embedding": np.full(64, np.nan, np.float32)})
    yield "negative", made({"ref_codes": tensors["ref_codes"] - 3000})
    yield "long", made({"ref_codes": np.zeros((7501, 16), np.int16)})
    yield "wide", made({"speaker_embedding": np.zeros(70_000, np.float32)})
    yield "other tensor", made({"m" * 100_000: vector})
    for key in ("x_vector_only_mode", "icl_mode", "ref_text"):
        yield f"{key} missing", made(**{key: None})
    for meta in ({"version": "2"}, {"version": "x"}, {"format": "x"}, {"icl_mode": "yes"}, {"icl_mode": "false"},
                 {"m" * 100_000: "x"}, {"ref_text": " "}, {"fingerprint": ""}, {"fingerprint": "x" * 300}):
        yield f"{meta}", made(**meta)
    header = b'{"speaker_embedding":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}'
    for count in (10, 2**31, 2**62, 2**64):
        head = header % (count, 4 * count)
        yield f"promises {count}", len(head).to_bytes(8, "little") + head + bytes(8)
    for length in (0, 1, 2**20, 2**40, 2**63, 2**64 - 1):
        yield f"header of {length}", length.to_bytes(8, "little") + b"{" + bytes(100)
    deep = b"{" + b'"a":{' * 100_000
    yield "deep header", len(deep).to_bytes(8, "little") + deep


DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
          "uint8": "U8", "bool": "BOOL"}


def safetensors_file(tensors, metadata):
    """A well-formed file; the library's own order of metadata is random."""
    header, data = {"__metadata__": metadata}, b""
    for name, array in tensors.items():
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def official_voices(rng):
    """The same of prompts saved by the official package."""
    import torch

    vector, codes = random_parts(rng)
    item = {"ref_code": torch.from_numpy(codes), "ref_spk_embedding": torch.from_numpy(vector), "icl_mode": True,
            "x_vector_only_mode": False, "ref_text": "Hello."}

    def saved(value):
        out = io.BytesIO()
        torch.save(value, out)
        return out.getvalue()

    good = saved({"items": [item]})
    for cut in rng.choice(len(good) - 1, 30, replace=False):
        yield "cut", good[: cut + 1]
    for key in ("ref_code", "ref_spk_embedding", "x_vector_only_mode"):
        for value in (None, 5, "text", torch.zeros(0), torch.zeros(3, 3, dtype=torch.bool), [item]):
            yield f"{key} wrong", saved([item | {key: value}])
    yield "nan", saved([item | {"ref_spk_embedding": torch.full((64,), torch.nan)}])
    yield "stretched", saved([item | {"ref_spk_embedding": torch.zeros(1).expand(10**12)}])
    yield "stretched codes", saved([item | {"ref_code": torch.zeros(1, 16, dtype=torch.int64).expand(10**11, 16)}])
    yield "many items", saved([item] * 5000)
    loop = []
    loop.append(loop)
    yield "loop", saved(loop)
    nested = []
    for _ in range(60):
        nested = [nested]
    yield "nested", saved(nested)
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        yield "bomb", zipped(method, {"x/data.pkl": bytes(64 * MEGABYTE)})
    yield "crowd", zipped(zipfile.ZIP_STORED, {f"x/{i}": b"" for i in range(60_000)})
    yield "empty archive", zipped(zipfile.ZIP_STORED, {})
    yield "two pickles", zipped(zipfile.ZIP_STORED, {"a/data.pkl": b".", "b/data.pkl": b"."})
    yield "runs something", zipped(zipfile.ZIP_STORED, {"x/data.pkl": b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R."})
    yield "name as long as the rest", misnamed(good, b"/data/0")
    yield "old pickle", b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R."


def misnamed(data, ending):
    """An archive in which the local header of the entry with this ending claims a name of 65,535 bytes, and so many
    follow it: Python's message about such a name quotes all of them."""
    place = 0
    while data[place + 30 : place + 30 + data[place + 26]][-len(ending) :] != ending:
        place = data.index(b"PK\3\4", place + 1)
    flags = struct.unpack_from("<H", data, place + 6)[0] & ~0x800  # not UTF-8, which the bytes are not
    header = data[place : place + 6] + struct.pack("<H", flags) + data[place + 8 : place + 26] + b"\xff\xff"
    return data[:place] + header + data[place + 28 : -2] + b"\xff\xff" + bytes(0xFFFF)


def zipped(method, entries):
    """An archive of {name: bytes}; always with the same date."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=method)
    return out.getvalue()


# ------------------------------------------------------------------ recordings


def tone(rng, samples):
    """float64 [samples] at 24 kHz, peak below 0.8."""
    sine = 0.5 * np.sin(2 * np.pi * rng.uniform(100, 900) / 24_000 * np.arange(samples))
    return sine + 0.02 * rng.uniform(-1, 1, samples)


def wav(samples, rate=24_000):
    """A good 16-bit file of float samples [n]."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(np.asarray(samples) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def wav_header(*, channels=1, rate=24_000, bits=16, form=1, data=b"\0" * 4000, size=None):
    """A RIFF file with whatever is asked for in its header."""
    align = channels * bits // 8
    fmt = struct.pack("<HHIIHH", form, channels, rate, rate * align & 0xFFFFFFFF, align & 0xFFFF, bits)
    length = len(data) if size is None else size
    body = b"WAVEfmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", length) + data
    return b"RIFF" + struct.pack("<I", 36 + length & 0xFFFFFFFF) + body


def encoded(container, encoding, samples, rate=24_000):
    """A good file in another format."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=container, subtype=encoding)
    return buffer.getvalue()


def ogg_with_serial(data, serial):
    """An Ogg stream with another serial number; libsndfile's is of the time of day."""
    pages, table = [], []
    for byte in range(256):
        crc = byte << 24
        for _ in range(8):
            crc = crc << 1 ^ (0x04C11DB7 if crc & 0x80000000 else 0)
        table.append(crc & 0xFFFFFFFF)
    for part in data.split(b"OggS\0")[1:]:
        page = bytearray(b"OggS\0" + part)
        page[14:18], page[22:26] = struct.pack("<I", serial), bytes(4)
        crc = 0
        for byte in page:
            crc = (crc << 8 ^ table[crc >> 24 ^ byte]) & 0xFFFFFFFF
        page[22:26] = struct.pack("<I", crc)
        pages.append(bytes(page))
    return b"".join(pages)


def long_flac():
    """A bomb: 610 s of silence in stereo at 96 kHz, in half a megabyte."""
    import soundfile

    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", 96_000, 2, "PCM_16", format="FLAC") as file:
        for _ in range(610):
            file.write(np.zeros((96_000, 2), np.int16))
    return buffer.getvalue()


def recordings(rng):
    """(file name, contents) of damaged recordings."""
    samples = tone(rng, 60_000)
    whole = {"wav": wav(samples), "flac": encoded("FLAC", "PCM_16", samples),
             "ogg": ogg_with_serial(encoded("OGG", "VORBIS", samples), int(rng.integers(2**32))),
             "aiff": encoded("AIFF", "PCM_16", samples)}
    for ending, data in whole.items():
        for keep in rng.uniform(0.02, 0.98, 8):
            cut = int(keep * len(data))
            yield f"cut.{ending}", data[: cut + (data[cut : cut + 4] == b"OggS")]  # whole pages are a whole file
    yield "empty.wav", b""
    for ending in ("wav", "mp3", "au", "gsm", "raw", "flac", "ogg"):
        yield f"text.{ending}", SAID
    vector, codes = random_parts(rng)
    yield "voice.wav", json.dumps({"speaker_embedding": vector.tolist(), "ref_codes": codes.tolist()}).encode()
    yield "zeros.wav", bytes(10_000)
    yield "noise.vox", rng.bytes(20_000)
    yield "zip.wav", b"PK\x03\x04" + rng.bytes(5000)
    yield "video.mp4", b"\0\0\0\x20ftypisom" + rng.bytes(5000)
    for ending, start in (("ogg", b"OggS"), ("flac", b"fLaC"), ("wav", b"RIFF"), ("aiff", b"FORM"), ("mp3", b"ID3\4")):
        yield f"magic.{ending}", start
    yield "tag.mp3", b"ID3\4\0\0\x7f\x7f\x7f\x7f" + bytes(2000)
    yield from bad_headers()
    yield "bomb.flac", (bomb := long_flac())
    yield "bomb_of_unknown_length.flac", bomb[:21] + bytes([bomb[21] & 0xF0, 0, 0, 0, 0]) + bomb[26:]


def bad_headers():
    """WAV files whose header is well formed and whose numbers are not."""
    nan = np.zeros(5000, "<f4")
    nan[1234] = np.nan
    for name, settings in {
        "nan": {"form": 3, "bits": 32, "data": nan.tobytes()},
        "nan_64": {"form": 3, "bits": 64, "data": nan.astype("<f8").tobytes()},
        "inf": {"form": 3, "bits": 32, "data": np.full(5000, np.inf, "<f4").tobytes()},
        "huge": {"form": 3, "bits": 32, "data": np.full(99, 1e30, "<f4").tobytes()},
        "huge_64": {"form": 3, "bits": 64, "data": np.full(99, 1e300, "<f8").tobytes()},
        "cancelling": {"channels": 2, "data": np.array([9000, -9000] * 2000, "<i2").tobytes()},
        "rate_0": {"rate": 0},
        "rate_1": {"rate": 1},
        "rate_2g": {"rate": 0x7FFFFFFF},
        "rate_max": {"rate": 0xFFFFFFFF},
        "no_channels": {"channels": 0},
        "many_channels": {"channels": 200},
        "no_samples": {"data": b""},
        "claims_more": {"size": 1_000_000_000},
        "unknown_encoding": {"form": 0x1234},
        "bits_4096": {"bits": 4096},
    }.items():
        yield f"{name}.wav", wav_header(**settings)
