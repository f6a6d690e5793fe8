"""The text to speak: an argument, a file or stdin, as UTF-8 and nothing else."""

import sys
from pathlib import Path

from qwen3tts.errors import TextError


def read_text(argument: str | None, file: Path | None) -> str:
    """The text from exactly one of TEXT, "-" (stdin) and --text-file.

    Raises:
        TextError: none or two of them, a file that cannot be read, bytes that are not UTF-8.
    """
    if (argument is None) == (file is None):
        given = "both TEXT and --text-file were" if file is not None else "no text was"
        raise TextError(f"{given} given; give TEXT, '-' to read it from stdin, or --text-file FILE")
    if file is not None:
        try:
            return _decoded(file.read_bytes(), f"the text file {str(file)!r}")
        except OSError as error:
            raise TextError(f"the text file {str(file)!r} cannot be read: {error.strerror}") from error
    assert argument is not None
    if argument == "-":
        return _decoded(sys.stdin.buffer.read(), "stdin")
    # Python smuggles bytes of an argument that are not UTF-8 through as lone surrogates.
    return _decoded(argument.encode("utf-8", "surrogateescape"), "TEXT")


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise TextError(f"{what} is not UTF-8: byte 0x{byte:02x} at offset {error.start}; convert it first") from None
