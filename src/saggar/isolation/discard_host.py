"""Remove a directory tree that a hostile program left, by descriptor.

I1  No symbolic link is followed and no other file system entered.
I2  Modes do not matter (overlayfs leaves `work/work` at mode 000, a program anything): directories get 0700 first.
I3  Depth does not matter: a directory deeper than LEVELS is moved to the top and emptied from there, so that at most
    LEVELS descriptors are open and no path grows.
"""

from __future__ import annotations

import errno
import os
from stat import S_ISDIR

LEVELS = 32
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(name: str, dir_fd: int) -> None:
    """Remove `name` (a directory or anything else) below `dir_fd`. Absent is fine. Raises OSError for what stays."""
    try:
        status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=dir_fd)
        return
    fd = open_any(name, dir_fd)
    try:
        _Removal(fd, status.st_dev).run()
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=dir_fd)


def open_any(name: str, dir_fd: int) -> int:
    """Open a directory of ours for reading and changing whatever its mode is: it gets owner permissions if it lacks them."""
    handle = os.open(name, _PATH, dir_fd=dir_fd)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            # fchmod refuses an O_PATH descriptor (fchmodat2 came with 6.6); its /proc name is the descriptor, not a path
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(".", _DIRECTORY, dir_fd=handle)
    finally:
        os.close(handle)


class _Removal:
    """The state of one removal below `top`: a counter for the names of directories that were moved up."""

    __slots__ = ("_device", "_moved", "_top")

    def __init__(self, top: int, device: int) -> None:
        self._top = top
        self._device = device
        self._moved = 0

    def run(self) -> None:
        while True:
            before = self._moved
            self._empty(self._top, 1)
            if self._moved == before:
                return

    def _empty(self, fd: int, level: int) -> None:
        with os.scandir(fd) as entries:
            names = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        for name, is_dir in names:
            if not is_dir:
                os.unlink(name, dir_fd=fd)
                continue
            below = open_any(name, fd)
            try:
                if os.fstat(below).st_dev != self._device:
                    raise OSError(errno.EXDEV, "a mount point is in the way", name)
                if level >= LEVELS:
                    self._move_up(name, fd)
                    continue
                self._empty(below, level + 1)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=fd)

    def _move_up(self, name: str, fd: int) -> None:
        while True:
            self._moved += 1
            try:
                os.rename(name, f".moved-{self._moved}", src_dir_fd=fd, dst_dir_fd=self._top)
            except OSError as e:
                # a directory of the program's with this very name
                if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                return
