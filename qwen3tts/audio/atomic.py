"""Output files that are either whole or not there."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from qwen3tts.errors import AudioError


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The file that `path` stands for, after checking that a file can be put there.

    Nothing is written, so that a caller can ask before it spends minutes on the contents.

    Raises:
        AudioError: the folder does not exist or cannot be written, `path` is no ordinary file, or no valid name.
    """

    def refuse(reason: str) -> NoReturn:
        raise AudioError(f"cannot write {os.fspath(path)!r}: {reason}")

    if "\0" in os.fspath(path):
        refuse("a name cannot contain the character NUL")
    try:
        # A link is followed, or the rename would replace the link and leave the file it names as it was.
        target = Path(os.path.realpath(path))
        str(target).encode()
    except UnicodeEncodeError:  # other bytes are lone surrogates in Python, which the encoders do not know
        refuse("the name is not valid UTF-8; choose another")
    folder = target.parent
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


class Batch:
    """Files that appear together: each is complete under a temporary name before the first takes its own.

    Pass it to several `replacing`; the files take their names as the `with` block of the batch ends. On any exception
    none does.
    """

    def __init__(self) -> None:
        self._complete: list[tuple[Path, Path]] = []

    def add(self, temporary: Path, target: Path) -> None:
        """Takes a complete file that shall be called `target`."""
        self._complete.append((temporary, target))

    def __enter__(self) -> "Batch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        made: list[Path] = []
        try:
            if kind is None:
                for temporary, target in self._complete:
                    is_new = not target.exists()
                    os.replace(temporary, target)
                    made += [target] if is_new else []
                made.clear()
        except OSError as failure:
            raise AudioError(f"cannot write {str(target)!r}: {failure.strerror or failure}") from failure
        finally:
            for path in [*made, *(temporary for temporary, _ in self._complete)]:
                _remove(path)


@contextmanager
def replacing(path: str | os.PathLike[str], batch: Batch | None = None) -> Iterator[Path]:
    """Yields a temporary name in the folder of `path`; what the block leaves there takes the name `path` at the end.

    On any exception, KeyboardInterrupt included, the temporary file is removed and a file already at `path` stays.
    With `batch`, the file takes its name when the batch ends.

    Raises:
        AudioError: the file cannot be written there (folder, permission, space).
    """
    target = check_writable(path)
    # Short, because the name of the target may be as long as the file system allows.
    temporary = target.with_name(f".{secrets.token_hex(8)}.part")
    kept = False
    try:
        yield temporary
        _flush_to_disk(temporary)
        if batch is None:
            os.replace(temporary, target)
        else:
            batch.add(temporary, target)
            kept = True
    except AudioError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise AudioError(f"cannot write {os.fspath(path)!r}: {reason}; no file was left there") from error
    finally:
        if not kept:
            _remove(temporary)


def _remove(path: Path) -> None:
    # What went wrong before is what the caller has to hear of, not that the rest could not be cleared away.
    with suppress(OSError):
        path.unlink()


def _flush_to_disk(path: Path) -> None:
    # A file system may report "no space" only now; after a rename it would be too late.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
