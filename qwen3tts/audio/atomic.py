"""Output files that are either whole or not there."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from qwen3tts.errors import AudioError


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The file that `path` stands for, after checking that a file can be put there.

    Nothing is written, so that a caller can ask before it spends minutes on the contents.

    Raises:
        AudioError: the folder does not exist or cannot be written, or `path` is no ordinary file.
    """
    # A link is followed, or the rename would replace the link and leave the file it names as it was.
    target = Path(os.path.realpath(path))
    folder = target.parent

    def refuse(reason: str) -> NoReturn:
        raise AudioError(f"cannot write {os.fspath(path)!r}: {reason}")

    if not os.path.exists(folder):
        refuse(f"the folder {str(folder)!r} does not exist; make it first")
    if not os.path.isdir(folder):
        refuse(f"{str(folder)!r} is not a folder")
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        pass
    except OSError as error:
        refuse(error.strerror or str(error))
    else:
        if stat.S_ISDIR(mode):
            refuse("that is a folder; give the name of a file")
        if not stat.S_ISREG(mode):
            refuse("that is not an ordinary file")
    if not os.access(folder, os.W_OK | os.X_OK):
        refuse(f"no permission to write in the folder {str(folder)!r}")
    return target


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary name in the folder of `path`; what the block leaves there takes the name `path` at the end.

    On any exception, KeyboardInterrupt included, the temporary file is removed and a file already at `path` stays.

    Raises:
        AudioError: the file cannot be written there (folder, permission, space).
    """
    target = check_writable(path)
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    except AudioError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise AudioError(f"cannot write {os.fspath(path)!r}: {reason}; no file was left there") from error
    finally:
        temporary.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    # A file system may report "no space" only now; after a rename it would be too late.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
