"""Put one entry into a directory of the host, by the directory's descriptor: make it, fill it, give it its name.

I1  A name that exists is never overwritten by `place_file` or `move_new`; `exchange` keeps both entries.
I2  `Trail` walks by single names without following links, and each directory must be the expected inode.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import contextmanager
from stat import S_ISLNK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOREPLACE, _EXCHANGE = 1, 2


class Raced(Exception):  # internal: ends one apply, becomes a Refusal
    """The host or the layer changed between the check and the write."""

    def __init__(self, path: bytes, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


class Trail:
    """The open directories from a top down to the last one asked for. expected: (device, inode) of a path that ends in
    `/` (the top is ""), None where anything will do."""

    __slots__ = ("_expected", "_open")

    def __init__(self, top_fd: int, expected: Callable[[bytes], tuple[int, int] | None]) -> None:
        self._open: list[tuple[bytes, int]] = [(b"", os.open(b".", _DIRECTORY, dir_fd=top_fd))]
        self._expected = expected

    def directory(self, path: bytes) -> int:
        """The descriptor of a directory, valid until the next call. Raises Raced and OSError."""
        while not path.startswith(self._open[-1][0]):
            os.close(self._open.pop()[1])
        at, fd = self._open[-1]
        for name in path[len(at) :].split(b"/")[:-1]:
            at += name + b"/"
            try:
                fd = os.open(name, _DIRECTORY, dir_fd=fd)
            except OSError as e:
                if e.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise Raced(at[:-1], "symlinked_parent") from None
                if e.errno == errno.ENOENT:
                    raise Raced(at[:-1], "host_deleted") from None
                raise
            self._open.append((at, fd))
            expected = self._expected(at)
            status = os.fstat(fd)
            if expected is not None and expected != (status.st_dev, status.st_ino):
                raise Raced(at[:-1], "host_directory_replaced")
        return fd

    def close(self) -> None:
        """Give the descriptors back."""
        while self._open:
            os.close(self._open.pop()[1])


@contextmanager
def place_file(dir_fd: int, name: bytes) -> Iterator[int]:
    """A new file to be filled, named `name` when the block ends well. Raises FileExistsError when the name is taken.

    The file has no name until then (O_TMPFILE) where the file system can do so; else it is removed on an error.
    """
    try:
        fd = os.open(b".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    except OSError as e:
        if e.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        with _named_file(dir_fd, name) as fd:
            yield fd
        return
    try:
        yield fd
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=dir_fd, follow_symlinks=True)
    finally:
        os.close(fd)


@contextmanager
def _named_file(dir_fd: int, name: bytes) -> Iterator[int]:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        yield fd
    except BaseException:
        os.unlink(name, dir_fd=dir_fd)
        raise
    finally:
        os.close(fd)


def make_directory(dir_fd: int, name: bytes, owner: tuple[int, int] | None, mode: int) -> tuple[int, int]:
    """A new directory with the owner's permissions added to `mode`, until what is below is written; its (device, inode).

    Raises FileExistsError when the name is taken, and Raced when somebody exchanged the directory before it was opened: root
    gives nothing away but what it has just made, or an empty directory of its own like it.
    """
    os.mkdir(name, 0o700, dir_fd=dir_fd)
    fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or os.listdir(fd):
            raise Raced(name, "host_changed")
        if owner:
            os.fchown(fd, *owner)
        os.fchmod(fd, mode | 0o700)
        return status.st_dev, status.st_ino
    finally:
        os.close(fd)


def make_link(dir_fd: int, name: bytes, target: bytes, owner: tuple[int, int] | None) -> None:
    """A new symbolic link. Raises FileExistsError when the name is taken, and Raced as `make_directory` does."""
    os.symlink(target, name, dir_fd=dir_fd)
    if not owner:
        return
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        status = os.fstat(fd)
        if not S_ISLNK(status.st_mode) or status.st_uid != os.geteuid() or os.readlink(b"", dir_fd=fd) != target:
            raise Raced(name, "host_changed")
        # through the descriptor: the /proc name leads to the link itself, which the kernel does not follow further
        os.chown(f"/proc/self/fd/{fd}", *owner)
    finally:
        os.close(fd)


def _renameat2(dir_fd: int, old: bytes, new: bytes, flags: int) -> bool:
    """renameat2(2) within one directory; False where the file system or libc cannot do these flags."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(ctypes.c_int(dir_fd), old, ctypes.c_int(dir_fd), new, ctypes.c_uint(flags)) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number), old)


def exchange(dir_fd: int, one: bytes, other: bytes) -> None:
    """Swap two entries of a directory in one step; in three where the file system cannot (NFS, some FUSE)."""
    if _renameat2(dir_fd, one, other, _EXCHANGE):
        return
    aside = one + b"~"
    os.rename(other, aside, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    os.rename(one, other, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    os.rename(aside, one, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def move_new(dir_fd: int, old: bytes, new: bytes) -> None:
    """Rename within a directory to a name that must be free. Raises FileExistsError."""
    if _renameat2(dir_fd, old, new, _NOREPLACE):
        return
    try:
        os.stat(new, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
