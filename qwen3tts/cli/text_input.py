"""The text to speak: an argument, a file or stdin, as UTF-8 and nothing else."""

import sys
from pathlib import Path
from typing import BinaryIO

from qwen3tts.errors import TextError


def read_text(argument: str | None, file: Path | None, name: str = "TEXT") -> str:
    """The text from exactly one of TEXT (in messages: `name`), "-" (stdin) and --text-file.

    A named pipe without a writer is waited for, as by any program that reads one.

    Raises:
        TextError: none or two of them, a file that cannot be read, bytes that are not UTF-8, too many of them.
    """
    if (argument is None) == (file is None):
        given = f"both {name} and --text-file were" if file is not None else "no text was"
        raise TextError(f"{given} given; give {name}, '-' to read it from stdin, or --text-file FILE")
    if file is not None:
        what = f"the text file {str(file)!r}"
        try:
            with file.open("rb") as stream:
                return _decoded(_read(stream, what), what)
        except (OSError, ValueError) as error:  # a ValueError for the character NUL in a name
            if isinstance(error, TextError):
                raise
            raise TextError(f"{what} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    assert argument is not None
    if argument == "-":
        if sys.stdin is None:
            raise TextError("stdin is closed, so no text can be read from it")
        try:
            return _decoded(_read(sys.stdin.buffer, "stdin"), "stdin")
        except OSError as error:
            raise TextError(f"stdin cannot be read: {error.strerror or error}") from error
    # Python smuggles bytes of an argument that are not UTF-8 through as lone surrogates.
    return _decoded(argument.encode("utf-8", "surrogateescape"), name)


def _read(stream: BinaryIO, what: str) -> bytes:
    """All of it, but no more than the longest text has: a device or a pipe may never end."""
    from qwen3tts.text.tokenizer import MAX_TEXT_CHARS

    longest = 4 * MAX_TEXT_CHARS  # UTF-8 takes up to 4 bytes a character
    data = stream.read(longest + 1)
    if len(data) > longest:
        raise TextError(f"{what} has more than {longest} bytes; at most {MAX_TEXT_CHARS} characters are read. Split it")
    return data


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise TextError(f"{what} is not UTF-8: byte 0x{byte:02x} at offset {error.start}; convert it first") from None
