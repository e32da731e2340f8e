"""Standard streams of a contained command: which pass straight through, which are relayed, and captures with an end.

I1  A regular file, a pipe or a socket of the host is never itself a stream inside: through /proc/self/fd a program could read what
    was there before, cut it, or write where it may only read. Bytes go through a pipe of our own instead.
I2  A terminal and /dev/null pass straight through: job control and window size need the real terminal.
I3  A capture keeps at most its size (head and tail), counts every byte, and never stops draining.
"""

from __future__ import annotations

import os
from select import POLLERR, POLLHUP, POLLIN, POLLOUT
from stat import S_ISCHR, S_ISREG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from saggar.runtime.poll_host import Loop

_CHUNK = 64 * 1024
#: A pipe that polls as writable takes this much without blocking (pipe(7), PIPE_BUF).
_ATOMIC = 4096
_NULL = os.makedev(1, 3)


def passes_through(fd: int) -> bool:
    """Whether the cell may hold `fd` itself (I1, I2)."""
    status = os.fstat(fd)
    if not S_ISCHR(status.st_mode):
        return False
    return status.st_rdev == _NULL or os.isatty(fd)


def own_pipe(owner: int) -> tuple[int, int]:
    """A pipe whose inode belongs to host uid `owner` (-1: ours), so that /dev/stdout can be opened inside."""
    read, write = os.pipe()
    if owner >= 0:
        os.fchown(read, owner, owner)
    return read, write


class Capture:
    """The head and the tail of a stream.

    keep: bytes kept at most, half at each end once it is exceeded. total: bytes seen.
    """

    __slots__ = ("_head", "_head_size", "_keep", "_tail", "_tail_size", "total")

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._head: list[bytes] = []
        self._head_size = 0
        self._tail: list[bytes] = []
        self._tail_size = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._keep - self._keep // 2 - self._head_size
        if room > 0:
            part = data[:room]
            self._head.append(part)
            self._head_size += len(part)
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        limit = self._keep // 2
        while self._tail and self._tail_size - len(self._tail[0]) >= limit:
            self._tail_size -= len(self._tail.pop(0))

    def bytes(self) -> bytes:
        head = b"".join(self._head)
        limit = self._keep // 2
        tail = b"".join(self._tail)
        if len(tail) > limit:
            tail = tail[len(tail) - limit :]
        return head + tail


class Drain:
    """Reads a pipe of the cell to its end, into `sink`."""

    __slots__ = ("_loop", "_on_end", "_sink", "fd")

    def __init__(self, loop: Loop, fd: int, sink: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._loop = loop
        self._sink = sink
        self._on_end = on_end
        self.fd = fd
        os.set_blocking(fd, False)
        loop.add(fd, POLLIN, self.ready)

    def ready(self, _events: int) -> None:
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._sink(data)
        else:
            self.close()

    def rest(self) -> None:
        """Everything that is still in the pipe: the writers are gone."""
        while self.fd >= 0:
            try:
                data = os.read(self.fd, _CHUNK)
            except OSError:
                break
            if not data:
                break
            self._sink(data)
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            self._loop.remove(self.fd)
            os.close(self.fd)
            self.fd = -1
            self._on_end()


class Feed:
    """Writes bytes into the cell's stdin, then ends it."""

    __slots__ = ("_data", "_loop", "_on_end", "fd")

    def __init__(self, loop: Loop, fd: int, data: bytes, on_end: Callable[[], None]) -> None:
        self._loop = loop
        self._data = memoryview(data)
        self._on_end = on_end
        self.fd = fd
        if not data:
            self.close()
            return
        os.set_blocking(fd, False)
        loop.add(fd, POLLOUT, self.ready)

    def ready(self, _events: int) -> None:
        try:
            self._data = self._data[os.write(self.fd, self._data) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not self._data:
            self.close()

    def rest(self) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            self._loop.remove(self.fd)
            os.close(self.fd)
            self.fd = -1
            self._on_end()


class Relay:
    """Bytes from one descriptor to another, one chunk in flight. `ours` is the pipe end that belongs to us and is closed at the end;
    the other end is the caller's and stays open, blocking as we found it. gauge: for a file as stdin, the pipe's other end: what is in
    it when the cell has ended goes back to the file's offset, for whoever reads it next."""

    __slots__ = ("_buffer", "_gauge", "_inward", "_loop", "_on_end", "_pollable", "_reading", "ours", "theirs")

    def __init__(
        self, loop: Loop, ours: int, theirs: int, *, inward: bool, on_end: Callable[[], None], gauge: int = -1
    ) -> None:
        self._loop = loop
        self._gauge = gauge
        self.ours = ours
        self.theirs = theirs
        self._inward = inward
        self._on_end = on_end
        self._buffer = memoryview(b"")
        # poll says that a regular file is always ready, and it is
        self._pollable = not S_ISREG(os.fstat(theirs).st_mode)
        self._reading = True
        os.set_blocking(ours, False)
        self._arm()

    @property
    def _source(self) -> int:
        return self.theirs if self._inward else self.ours

    @property
    def _target(self) -> int:
        return self.ours if self._inward else self.theirs

    def _arm(self) -> None:
        for fd in (self.ours, self.theirs):
            self._loop.remove(fd)
        if self._reading:
            self._loop.add(self._source, POLLIN, self.ready)
            if self._inward:
                # a cell that closed its stdin (or ended) shows as POLLERR on our end
                self._loop.add(self.ours, 0, self._closed_inside)
        else:
            self._loop.add(self._target, POLLOUT, self.ready)

    def _closed_inside(self, events: int) -> None:
        if events & (POLLERR | POLLHUP):
            self.close()

    def ready(self, _events: int) -> None:
        if self._reading:
            self._read()
        else:
            self._write()

    def _read(self) -> None:
        try:
            data = os.read(self._source, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._buffer = memoryview(data)
        self._reading = False
        self._write()
        if self.ours >= 0:
            self._arm()

    def _write(self) -> None:
        try:
            # the caller's end blocks: only what surely fits, unless it is a file
            piece = self._buffer if self._inward or not self._pollable else self._buffer[:_ATOMIC]
            self._buffer = self._buffer[os.write(self._target, piece) :]
        except BlockingIOError:
            return
        except OSError:
            # nobody reads any more: the writer inside gets its SIGPIPE when our end closes
            self.close()
            return
        if not self._buffer:
            self._reading = True
            if self.ours >= 0:
                self._arm()

    def rest(self) -> None:
        """The cell has ended: what is left of its output still goes out."""
        if not self._inward:
            while self.ours >= 0:
                if not self._buffer:
                    try:
                        self._buffer = memoryview(os.read(self.ours, _CHUNK))
                    except OSError:
                        break
                    if not self._buffer:
                        break
                try:
                    self._buffer = self._buffer[os.write(self.theirs, self._buffer) :]
                except OSError:
                    break
        self.close()
        self._give_back()

    def close(self) -> None:
        if self.ours >= 0:
            self._loop.remove(self.ours)
            self._loop.remove(self.theirs)
            os.close(self.ours)
            self.ours = -1
            self._on_end()

    def _give_back(self) -> None:
        if self._gauge < 0:
            return
        left = len(self._buffer) + unread(self._gauge)
        os.close(self._gauge)
        self._gauge = -1
        if left:
            try:
                os.lseek(self.theirs, -left, os.SEEK_CUR)
            except OSError:
                return


def unread(fd: int) -> int:
    """Bytes in a pipe that nobody has read."""
    from fcntl import ioctl
    from struct import unpack
    from termios import FIONREAD

    try:
        (count,) = unpack("i", ioctl(fd, FIONREAD, b"\0\0\0\0"))
    except OSError:
        return 0
    return int(count)
