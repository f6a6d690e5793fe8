"""One safetensors file: the header is checked completely, then tensors are views of the memory-mapped file.

Format: 8 bytes little-endian header length n, n bytes of JSON {key: {dtype, shape, data_offsets}}, then the tensors'
bytes without gaps. A file can come from anywhere, so nothing in the header is believed before it is checked against
the file's real size.
"""

import json
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qwen3tts.errors import WeightsError, shortened
from qwen3tts.regular_file import open_regular

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "BOOL": torch.bool,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
}
MAX_HEADER_BYTES = 8 << 20
"""The format allows 100 MB; the released files have under 200 kB."""
MAX_TENSORS = 10_000
"""The released files have under 1000."""
MAX_DIMENSIONS = 16

_SIGNATURES = (
    (b"version https://git-lfs", "a Git LFS pointer: the weights were not downloaded; run `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive, probably a PyTorch pickle; convert it to safetensors"),
    (b"\x80\x02", "a Python pickle; convert it to safetensors"),
    (b"\x80\x04", "a Python pickle; convert it to safetensors"),
    (b"GGUF", "a GGUF file; the original checkpoint is needed"),
    (b"<", "a web page or XML; download it again"),
)


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: byte offsets from the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """A mapped file. The mapping lives as long as this object or any tensor that `read` returned."""

    def __init__(self, path: Path) -> None:
        """Opens and checks; raises WeightsError."""
        self.path = path
        try:
            with open_regular(path) as file:
                size = file.seek(0, 2)
                file.seek(0)
                self.entries = _read_header(path, file.read(8), size, file.read)
                # A private mapping: nobody can change the file through a tensor, and torch takes only writable memory.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise WeightsError(f"{path.name} is missing in {path.parent}") from None
        except OSError as error:
            raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise WeightsError(f"{path} cannot be read: {shortened(error)}") from error

    def read(self, key: str) -> torch.Tensor:
        """The tensor as a view of the file, to be read only."""
        entry = self.entries[key]
        if entry.start == entry.end:
            return torch.empty(entry.shape, dtype=entry.dtype)
        if entry.start % entry.dtype.itemsize:  # legal in the format, but not for a typed pointer
            data = torch.frombuffer(self._map, dtype=torch.uint8, count=entry.end - entry.start, offset=entry.start)
            return data.clone().view(entry.dtype).view(entry.shape)
        count = math.prod(entry.shape)
        return torch.frombuffer(self._map, dtype=entry.dtype, count=count, offset=entry.start).view(entry.shape)

    def forget(self, key: str) -> None:
        """Drops the tensor's pages from this process (not from the file cache); reading it again is fine."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        entry = self.entries[key]
        start = -(-entry.start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = entry.end - start
        if length >= mmap.PAGESIZE:
            self._map.madvise(mmap.MADV_DONTNEED, start, length // mmap.PAGESIZE * mmap.PAGESIZE)


def _read_header(path: Path, prefix: bytes, size: int, read: Any) -> dict[str, TensorEntry]:
    if size == 0:
        raise WeightsError(f"{path} is empty; download it again")
    for signature, what in _SIGNATURES:
        if prefix.startswith(signature[:8]):
            raise WeightsError(f"{path} is not a safetensors file but {what}")
    if len(prefix) < 8:
        raise WeightsError(f"{path} has {size} bytes, too few for a safetensors file; download it again")
    (length,) = struct.unpack("<Q", prefix)
    if not 2 <= length <= MAX_HEADER_BYTES:
        asked = f"it asks for a header of {length} bytes, expected at most {MAX_HEADER_BYTES}"
        raise WeightsError(f"{path} is not a safetensors file: {asked}")
    if 8 + length > size:
        raise WeightsError(f"{path} is truncated: its header has {length} bytes, the file {size}; download it again")
    header = _parse(path, read(length))
    if len(header) > MAX_TENSORS:
        raise WeightsError(f"{path} has {len(header)} tensors, expected at most {MAX_TENSORS}: it is another model's")
    entries = {}
    for key, value in header.items():
        if key == "__metadata__":
            continue
        entries[key] = _entry(f"{path}: tensor {key!r}", value, 8 + length)
    _check_coverage(path, entries, 8 + length, size)
    return entries


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in pairs:
            if name in result:
                raise ValueError(f"the key {name[:200]!r} is there twice")
            result[name] = value
        return result

    try:
        header = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        detail = shortened(error)
        raise WeightsError(f"{path} is no safetensors file or is damaged: its header is no JSON: {detail}") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path} is damaged: its header is not an object")
    return header


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _entry(what: str, value: object, data_start: int) -> TensorEntry:
    if not isinstance(value, dict):
        raise WeightsError(f"{what} is described by no object; the file is damaged")
    name, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(name, str) or name not in DTYPES:
        raise WeightsError(f"{what} has the unknown dtype {name!r}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(_is_size(n) for n in shape):
        raise WeightsError(f"{what} has a damaged shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(n) for n in offsets):
        raise WeightsError(f"{what} has damaged offsets")
    start, end = offsets
    wanted = math.prod(shape) * DTYPES[name].itemsize
    if end - start != wanted:
        raise WeightsError(f"{what} is {name} {shape}, which takes {wanted} bytes, but has {end - start}")
    return TensorEntry(DTYPES[name], tuple(shape), data_start + start, data_start + end)


def _check_coverage(path: Path, entries: dict[str, TensorEntry], start: int, size: int) -> None:
    """The tensors fill the file without gaps or overlaps."""
    at = start
    for key, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != at:
            problem = "overlaps another tensor" if entry.start < at else "follows a gap"
            raise WeightsError(f"{path}: tensor {key!r} {problem}; the file is damaged")
        at = entry.end
    if at > size:
        raise WeightsError(f"{path} is truncated: it has {size} bytes, its header asks for {at}; download it again")
    if at < size:
        raise WeightsError(f"{path} has {size - at} bytes after the last tensor; the file is damaged")
