"""Voice files: an x-vector as JSON.

    {"speaker_embedding": [0.1, ...], "x_vector_only_mode": true, "icl_mode": false,
     "ref_text": null, "ref_codes": null}

speaker_embedding is a flat list, or that list inside another one ([1, enc_dim]). The first three keys are required.
With x_vector_only_mode true the embedding alone is used, ref_text and ref_codes are not, as in the official package.
"""

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from qwen3tts.errors import VoiceError, nearest

FloatArray = npt.NDArray[np.float32]

REQUIRED_KEYS = ("speaker_embedding", "x_vector_only_mode", "icl_mode")
OPTIONAL_KEYS = ("ref_text", "ref_codes", "format", "version", "fingerprint")

MAX_FILE_BYTES = 16 << 20
"""a 2048-wide x-vector takes about 50 KB, a minute of reference codes about as much"""

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def read_x_vector(path: Path) -> FloatArray:
    """The embedding of a voice file, float32 [n], finite. VoiceError names the file and the key."""
    record = _read_object(path)
    known = (*REQUIRED_KEYS, *OPTIONAL_KEYS)
    for key in record:
        if key not in known:
            raise VoiceError(f"{path}: unknown key {key!r}.{nearest(key, known)} A voice file has {', '.join(known)}.")
    for key in REQUIRED_KEYS:
        if key not in record:
            raise VoiceError(f"{path}: the key {key!r} is missing; a voice file has {', '.join(REQUIRED_KEYS)}.")
    _check_mode(record, path)
    if not isinstance(record.get("ref_text"), str | None):
        raise VoiceError(f"{path}: ref_text is {_show(record['ref_text'])}, expected a string or null.")
    if not isinstance(record.get("ref_codes"), list | None):
        raise VoiceError(f"{path}: ref_codes is {_show(record['ref_codes'])}, expected a list or null.")
    return _embedding(record["speaker_embedding"], path)


def _check_mode(record: dict[str, Any], path: Path) -> None:
    for key in ("x_vector_only_mode", "icl_mode"):
        if not isinstance(record[key], bool):
            raise VoiceError(f"{path}: {key} is {_show(record[key])}, expected true or false.")
    if record["icl_mode"] or not record["x_vector_only_mode"]:
        only, icl = _show(record["x_vector_only_mode"]), _show(record["icl_mode"])
        raise VoiceError(
            f"{path}: x_vector_only_mode is {only} and icl_mode {icl}: "
            "prompts with reference codes are not supported in this version. x_vector_only_mode true with icl_mode "
            "false would use the embedding alone."
        )


def _embedding(value: object, path: Path) -> FloatArray:
    where, items = f"{path}: speaker_embedding", value
    if isinstance(items, list) and len(items) == 1 and isinstance(items[0], list):
        items = items[0]
    if not isinstance(items, list) or not items or isinstance(items[0], list):
        raise VoiceError(f"{where} is {_show(value)}, expected a list of numbers [n] or that inside one list [1, n].")
    for index, item in enumerate(items):
        if isinstance(item, bool) or not isinstance(item, int | float):
            raise VoiceError(f"{where}[{index}] is {_show(item)}, expected a number.")
        if not -_FLOAT32_MAX <= item <= _FLOAT32_MAX:  # false for what is not finite, exact for whole numbers
            raise VoiceError(f"{where}[{index}] is {_show(item)}, expected a finite float32 number.")
    return np.array(items, dtype=np.float32)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise VoiceError(f"{path}: the voice file cannot be read: {error.strerror or error}.") from error
    if len(data) > MAX_FILE_BYTES:
        raise VoiceError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB: not a voice file.")
    try:
        record = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise VoiceError(f"{path}: not UTF-8 at byte {error.start}: not a voice file, or damaged.") from None
    except (ValueError, RecursionError) as error:
        raise VoiceError(f"{path}: not valid JSON, or cut short: {error}.") from None
    if not isinstance(record, dict):
        raise VoiceError(f"{path}: expected a JSON object with {', '.join(REQUIRED_KEYS)}, found {_show(record)}.")
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key is there twice")
    return record


def _show(value: object) -> str:
    """A value as JSON, short enough for a message."""
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'object'} of {len(value)} items"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
