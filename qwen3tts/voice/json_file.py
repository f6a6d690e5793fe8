"""Voice files in JSON, the form that other runtimes share:

    {"speaker_embedding": [0.1, ...], "x_vector_only_mode": true, "icl_mode": false,
     "ref_text": null, "ref_codes": null}

speaker_embedding is a flat list, or that list inside another one ([1, enc_dim]); ref_codes frames of 16 codes each.
The first three keys are required. With x_vector_only_mode true the embedding alone is used, ref_text and ref_codes are
not, as in the official package; with icl_mode true both must be there. Optional: format, version, fingerprint. A byte
order mark at the start of the file is skipped.
"""

import codecs
import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from qwen3tts.errors import VoiceError, nearest, shortened
from qwen3tts.voice.record import CODEBOOKS, CodeArray, FloatArray, VoiceRecord, make_record

FORMAT, VERSION = "qwen3tts-voice", 1
REQUIRED_KEYS = ("speaker_embedding", "x_vector_only_mode", "icl_mode")
OPTIONAL_KEYS = ("ref_text", "ref_codes", "format", "version", "fingerprint")

MAX_JSON_BYTES = 2 << 20
"""parsed, hostile JSON takes up to thirty times its size"""

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_CODE_MAX = int(np.iinfo(np.int16).max)


def dump(record: VoiceRecord, *, plain: bool = False) -> bytes:
    """The file's contents. Every float32 comes back as it was: it is written with the digits of a double."""
    contents: dict[str, Any] = {
        "speaker_embedding": record.x_vector.tolist(),
        "x_vector_only_mode": record.ref_codes is None,
        "icl_mode": record.ref_codes is not None,
        "ref_text": record.ref_text,
        "ref_codes": None if record.ref_codes is None else record.ref_codes.tolist(),
    }
    if not plain:
        contents |= {"format": FORMAT, "version": VERSION}
        if record.fingerprint is not None:
            contents["fingerprint"] = record.fingerprint
    return (json.dumps(contents, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def parse(data: bytes, path: Path) -> VoiceRecord:
    """The voice of a JSON file; VoiceError names the file and the key."""
    record = _object(data, path)
    known = (*REQUIRED_KEYS, *OPTIONAL_KEYS)
    for key in record:
        if key not in known:
            hint = nearest(key, known)
            raise VoiceError(f"{path}: unknown key {quoted(key)}.{hint} A voice file has {', '.join(known)}.")
    for key in REQUIRED_KEYS:
        if key not in record:
            raise VoiceError(f"{path}: the key {key!r} is missing; a voice file has {', '.join(REQUIRED_KEYS)}.")
    for key in ("ref_text", "fingerprint"):
        if not isinstance(record.get(key), str | None):
            raise VoiceError(f"{path}: {key} is {_show(record[key])}, expected a string or null.")
    if not isinstance(record.get("ref_codes"), list | None):
        raise VoiceError(f"{path}: ref_codes is {_show(record['ref_codes'])}, expected a list or null.")
    check_format(record.get("format"), record.get("version"), path)
    embedding = _embedding(record["speaker_embedding"], path)
    text, codes = None, None
    if uses_reference(record["x_vector_only_mode"], record["icl_mode"], path):
        text, codes = record.get("ref_text"), record.get("ref_codes")
        if text is None or codes is None:
            missing = "ref_text" if text is None else "ref_codes"
            raise VoiceError(f"{path}: icl_mode is true, but {missing} is missing or null.")
    try:
        return make_record(embedding, None if codes is None else _codes(codes, path), text, record.get("fingerprint"))
    except VoiceError as error:
        raise _about(path, error) from None


def check_format(name: object, version: object, path: Path) -> None:
    """Both may be absent; VoiceError for other formats and later versions."""
    if name not in (None, FORMAT):
        raise VoiceError(f"{path}: format is {_show(name)}, expected {FORMAT!r} or none.")
    if version is not None and (type(version) is not int or version != VERSION):
        raise VoiceError(
            f"{path}: version is {_show(version)}; this version of qwen3tts reads {VERSION}. Update it, or save the "
            "voice with this one."
        )


def uses_reference(x_vector_only: object, icl: object, path: Path) -> bool:
    """Whether the two flags ask for the recording; VoiceError if they contradict each other."""
    for key, value in (("x_vector_only_mode", x_vector_only), ("icl_mode", icl)):
        if not isinstance(value, bool):
            raise VoiceError(f"{path}: {key} is {_show(value)}, expected true or false.")
    if x_vector_only == icl:
        raise VoiceError(
            f"{path}: x_vector_only_mode and icl_mode are both {_show(icl)}. true and false use the embedding alone, "
            "false and true the recording as well."
        )
    return bool(icl)


def _about(path: Path, error: VoiceError) -> VoiceError:
    message = str(error)
    return error if message.startswith(f"{path}: ") else VoiceError(f"{path}: {message}")


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


def _codes(frames: list[Any], path: Path) -> CodeArray:
    where = f"{path}: ref_codes"
    if not frames:
        raise VoiceError(f"{where} is a list of 0 items, expected frames of {CODEBOOKS} codes.")
    for index, frame in enumerate(frames):
        if not isinstance(frame, list) or len(frame) != CODEBOOKS:
            raise VoiceError(f"{where}[{index}] is {_show(frame)}, expected a list of {CODEBOOKS} codes.")
        for book, code in enumerate(frame):
            if type(code) is not int or not 0 <= code <= _CODE_MAX:
                raise VoiceError(f"{where}[{index}][{book}] is {_show(code)}, expected a whole number from 0 up.")
    return np.array(frames, dtype=np.int16)


def _object(data: bytes, path: Path) -> dict[str, Any]:
    if len(data) > MAX_JSON_BYTES:
        raise VoiceError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB: not a voice file.")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        record = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise VoiceError(f"{path}: not UTF-8 at byte {error.start}: not a voice file, or damaged.") from None
    except (ValueError, RecursionError) as error:
        raise VoiceError(f"{path}: not valid JSON, or cut short: {shortened(error)}.") from None
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


def quoted(name: str) -> str:
    """A name from a file in quotes, short enough for a message."""
    return repr(name) if len(name) <= 40 else f"{name[:37]!r}..."


def _show(value: object) -> str:
    """A value as JSON, short enough for a message."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)} items"
    if not isinstance(value, str | int | float | None):  # from a file of another form
        return f"of type {type(value).__name__}"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
