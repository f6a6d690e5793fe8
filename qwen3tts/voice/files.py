"""Voice files: which kind one is, and the limits that hold for all of them.

    .json          the form other runtimes read and write, see json_file
    .safetensors   the same fields, compact, see compact_file
    .pt            saved prompts of the official package, read only, see official_file

Files are told apart by their contents, so a wrong ending does no harm when reading. A file can come from anywhere:
nothing in it is run, nothing is believed before it is checked, and the work it can cause is bounded by its size.
"""

import stat
from pathlib import Path

from qwen3tts.audio.atomic import replacing
from qwen3tts.errors import AudioError, VoiceError, shortened
from qwen3tts.voice import compact_file, json_file, official_file
from qwen3tts.voice.record import VoiceRecord

MAX_FILE_BYTES = 16 << 20
"""a 2048-wide x-vector takes about 50 KB as JSON, a minute of reference codes as much"""

MAX_SHOWN = 300
"""characters of a name in a message"""

ZIP = b"PK\x03\x04"
PICKLE = b"\x80"


def read_voices(path: Path) -> list[VoiceRecord]:
    """The voices of a file, at least one. VoiceError names the file and what is wrong with it."""
    data = _read(path)
    if data.startswith(ZIP):
        return official_file.parse(data, path)
    if data.startswith(PICKLE):
        raise VoiceError(f"{path}: an old-style pickle, which could run anything; save the prompt with torch.save.")
    if not data:
        raise VoiceError(f"{path}: not valid JSON, or cut short: the file is empty.")
    if compact_file.looks_like(data):
        return [compact_file.parse(data, path)]
    return [json_file.parse(data, path)]


def write_voice(path: Path, record: VoiceRecord, *, plain: bool = False) -> None:
    """Writes by the path's ending, whole or not at all. plain: JSON with the five common keys alone."""
    check_voice_path(path, plain=plain)
    as_json = path.suffix.lower() == ".json"
    data = json_file.dump(record, plain=plain) if as_json else compact_file.dump(record)
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except AudioError as error:
        raise VoiceError(str(error)) from error


def check_voice_path(path: Path, *, plain: bool = False) -> None:
    """Raises VoiceError if the ending is none that can be written."""
    endings = (".json",) if plain else (".json", ".safetensors")
    if path.suffix.lower() not in endings:
        raise VoiceError(f"cannot write {str(path)!r}: a voice file ends in {' or '.join(endings)}")


def _shown(path: Path) -> str:
    """Shortened where somebody passed the contents of a file for its name."""
    name = str(path)
    return name if len(name) <= MAX_SHOWN else f"{name[: MAX_SHOWN // 2]}... ({len(name):,} characters)"


def _read(path: Path) -> bytes:
    pipe = False
    try:
        pipe = not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()  # it would keep us waiting
        if not pipe:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise VoiceError(f"{_shown(path)}: the voice file cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # a NUL in the name
        raise VoiceError(f"{_shown(path)!r}: the voice file cannot be read: {shortened(error)}.") from None
    if pipe:
        raise VoiceError(f"{path}: the voice file cannot be read: not an ordinary file.")
    if len(data) > MAX_FILE_BYTES:
        raise VoiceError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB: not a voice file.")
    return data
