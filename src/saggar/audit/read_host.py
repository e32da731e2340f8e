"""Reading audit logs: a stable snapshot of a file that others append to, and its later growth."""

from __future__ import annotations

import os
import stat
from fcntl import LOCK_SH, LOCK_UN, flock

from saggar.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PART = 256 * 1024


class LogReader:
    """Lines of one log, in order. Each call of `lines` goes on where the last one ended."""

    __slots__ = ("_at", "_fd", "_rest", "name")

    def __init__(self, path: str, *, dir_fd: int | None = None, name: str = "") -> None:
        self.name = name or path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
        except (OSError, ValueError) as e:
            cause = getattr(e, "strerror", None) or str(e)
            raise UsageError(f"cannot read the audit log: {cause.lower()}", file=self.name) from None
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise UsageError("cannot read the audit log: not a regular file", file=self.name)
        self._at = 0
        self._rest = b""

    def lines(self, *, last: bool = True) -> Iterator[bytes]:
        """Lines with their newline, as far as the log reaches now.

        last: give bytes after the last newline as well; without it they wait for the rest of their line.
        """
        # writers hold the lock over a whole line, so the size under it is never in the middle of one of theirs
        flock(self._fd, LOCK_SH)
        try:
            end = os.fstat(self._fd).st_size
        finally:
            flock(self._fd, LOCK_UN)
        while self._at < end:
            part = os.pread(self._fd, min(_PART, end - self._at), self._at)
            if not part:
                break
            self._at += len(part)
            *whole, self._rest = (self._rest + part).split(b"\n")
            for line in whole:
                yield line + b"\n"
        if last and self._rest:
            rest, self._rest = self._rest, b""
            yield rest

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
