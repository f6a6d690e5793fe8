"""Opens files that come from anywhere: only ordinary ones, so that a pipe or a device cannot hang or never end."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading in binary, links followed.

    Raises OSError, whose strerror says what `path` is if it is no regular file.
    """
    # Without O_NONBLOCK, opening a named pipe waits for a writer; on a regular file it does nothing.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file", str(path))
    return os.fdopen(descriptor, "rb")
