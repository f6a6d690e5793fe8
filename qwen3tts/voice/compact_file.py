"""Voice files in safetensors: the fields of the JSON form, a tenth of the size.

Contents:
    tensors   speaker_embedding F32 [enc_dim], ref_codes I16 [frames, 16]
    metadata  x_vector_only_mode and icl_mode ("true" or "false"), ref_text, format, version, fingerprint
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save

from qwen3tts.errors import VoiceError, shortened
from qwen3tts.voice.json_file import FORMAT, VERSION, check_format, quoted, uses_reference
from qwen3tts.voice.record import VoiceRecord, make_record

TENSORS = {"speaker_embedding": ("F32", np.float32), "ref_codes": ("I16", np.int16)}
METADATA = ("x_vector_only_mode", "icl_mode", "ref_text", "format", "version", "fingerprint")
FLAGS = {"true": True, "false": False}
MAX_HEADER_BYTES = 4 << 20
"""characters of what safetensors says, which quotes the file"""


def looks_like(data: bytes) -> bool:
    """A header length and the brace that opens the header; no JSON text starts with a NUL among its first 8 bytes."""
    return b"\0" in data[:8] and (len(data) < 9 or data[8:9] == b"{")


def dump(record: VoiceRecord) -> bytes:
    """The file's contents."""
    tensors: dict[str, Any] = {"speaker_embedding": record.x_vector}
    icl = record.ref_codes is not None
    if icl:
        tensors["ref_codes"] = record.ref_codes
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "x_vector_only_mode": json.dumps(not icl),
        "icl_mode": json.dumps(icl),
        "ref_text": record.ref_text,
        "fingerprint": record.fingerprint,
    }
    data: bytes = save(tensors, {key: value for key, value in metadata.items() if value is not None})
    return data


def parse(data: bytes, path: Path) -> VoiceRecord:
    """The voice of a safetensors file. Raises VoiceError."""
    tensors, metadata = _tensors(data, path), _metadata(data, path)
    for key in metadata:
        if key not in METADATA:
            raise VoiceError(f"{path}: unknown metadata {quoted(key)}; a voice file has {', '.join(METADATA)}.")
    version = metadata.get("version")
    check_format(metadata.get("format"), int(version) if version in ("1",) else version, path)
    only, icl = (FLAGS.get(metadata.get(key, ""), metadata.get(key)) for key in ("x_vector_only_mode", "icl_mode"))
    codes, text = None, None
    if uses_reference(only, icl, path):
        codes, text = tensors.get("ref_codes"), metadata.get("ref_text")
    if "speaker_embedding" not in tensors:
        raise VoiceError(f"{path}: the tensor 'speaker_embedding' is missing.")
    try:
        return make_record(tensors["speaker_embedding"], codes, text, metadata.get("fingerprint"))
    except VoiceError as error:
        raise VoiceError(f"{path}: {error}") from None


def _tensors(data: bytes, path: Path) -> dict[str, Any]:
    deserialize: Any = safetensors.deserialize
    try:
        found = dict(deserialize(data))  # checks lengths, shapes and offsets against the data
    except (safetensors.SafetensorError, ValueError, OverflowError) as error:
        raise VoiceError(f"{path}: not a safetensors file, or damaged: {shortened(error)}.") from None
    tensors = {}
    for key, tensor in found.items():
        if key not in TENSORS:
            raise VoiceError(f"{path}: unknown tensor {quoted(key)}; a voice file has {', '.join(TENSORS)}.")
        name, dtype = TENSORS[key]
        if tensor["dtype"] != name:
            raise VoiceError(f"{path}: {key} has dtype {tensor['dtype']}, expected {name}.")
        tensors[key] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return tensors


def _metadata(data: bytes, path: Path) -> dict[str, str]:
    (length,) = struct.unpack("<Q", data[:8])
    if length > MAX_HEADER_BYTES:
        raise VoiceError(f"{path}: its header has {length} bytes: not a voice file.")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise VoiceError(f"{path}: its header is no JSON: {shortened(error)}.") from None
    metadata: dict[str, str] = header.get("__metadata__", {})  # strings, or deserialize() would have refused it
    return metadata
