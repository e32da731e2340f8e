"""The one audit log of a task, appended to by several processes.

I1  A record is in the file, whole, before `append` returns; where it cannot be, `append` raises `OSError`, the file is
    as it was, and the caller must not do what it meant to record.
I2  Writers exclude each other with `flock`; the chain has one order whatever they do.
I3  What a killed writer left is kept: a torn last line gets its newline and a record that names its digest.
I4  A log that was unlinked, or whose last record was tampered with, takes no more records.
I5  What a sandbox makes us write never fills the file system: once `ROOM` is all that is left, only ends are recorded.
I6  A deferred record stands before every record appended after it; until a `commit` or `append` has returned it is not
    written, and one that could not be written stays deferred: the next of them tries it again, or raises.

An append is four system calls (flock, fstat, write, flock) while nobody else has written, however many deferred records
go with it: the tail is remembered and valid as long as the size is what we left. Not fsynced: the log survives the death of every process, not of the power.
"""

from __future__ import annotations

import errno
import os
from _thread import allocate_lock
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from time import gmtime
from time import time as wall_time

from saggar.audit.chain import TORN, resume, torn_detail
from saggar.audit.record import GENESIS, MAX_LINE, Form, build, render
from saggar.core.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from saggar.audit.chain import Position

    class Tail(Protocol):
        """What several processes of one program know together of a log's end, kept under the log's lock."""

        def log_end(self) -> tuple[int, int, str]:
            """(size of the file, seq and hash of its last record)."""
            ...

        def set_log_end(self, size: int, seq: int, digest: str) -> None: ...


#: bytes of growth between two looks at the free space, and what has to be left of it
STEP = 4 * 1024 * 1024
ROOM = 64 * 1024 * 1024
#: what is recorded in any case: few, and none that a sandbox can ask for
_ENDS = frozenset({TORN, "run.end"})

#: tries before a busy log's writer sleeps: a record takes 10 to 20 us, to sleep and be woken costs as much and more
_SPINS = 30

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def open_log(path: str) -> int:
    """A descriptor of the log, as `AuditLog` needs it. Each writer has its own: one that two share locks out neither. Raises `OSError`."""
    return os.open(path, _FLAGS, 0o600)


class AuditLog:
    """Appends chained records to `path` for `task`. Safe among threads, processes and across `fork`.

    wall: seconds since the epoch, for tests. fd: a descriptor of the file, opened with `open_log` for this log alone, which it owns from here
    on: for a process that may not open files. tail: spares reading back what another process wrote, where both have it.
    Raises `OSError` where the file cannot be opened; never follows a symlink.
    """

    __slots__ = (
        "_deferred",
        "_fd",
        "_hash",
        "_looked",
        "_mutex",
        "_pid",
        "_second",
        "_seq",
        "_size",
        "_stamp",
        "_tail",
        "_wall",
        "path",
        "task",
    )

    def __init__(
        self,
        path: str,
        task: str,
        *,
        wall: Callable[[], float] = wall_time,
        fd: int = -1,
        tail: Tail | None = None,
    ) -> None:
        self.path = path
        self.task = task
        self._tail = tail
        self._wall = wall
        self._second = -1
        self._stamp = ""
        self._open(fd)

    def _open(self, fd: int = -1) -> None:
        self._fd = fd if fd >= 0 else open_log(self.path)
        self._pid = os.getpid()
        self._mutex = allocate_lock()
        self._seq, self._hash = -1, GENESIS
        self._size = -1
        self._looked = 0
        self._deferred: list[tuple[Form, str]] = []

    def append(
        self,
        kind: str,
        *,
        layer: str,
        effect: str = "",
        reason: str = "",
        rule: str = "",
        detail: dict[str, Any] | None = None,
    ) -> tuple[int, str]:
        """Write one record; its (seq, hash). Raises `OSError` (I1, I4)."""
        if self._pid != os.getpid():
            # flock belongs to the open file: after a fork parent and child would share one lock
            self._open()
        fd = self._fd
        detail = detail or {}
        body = render(detail)
        with self._mutex:
            _lock(fd)
            try:
                self._catch_up()
                if self._deferred:
                    self._write_deferred()
                return self._write(kind, layer=layer, effect=effect, reason=reason, rule=rule, detail=detail, body=body)
            finally:
                flock(fd, LOCK_UN)

    def form(
        self, kind: str, *, layer: str, effect: str = "", reason: str = "", rule: str = "", detail: dict[str, Any]
    ) -> Form:
        """A record that may recur, for `defer`."""
        return Form(task=self.task, layer=layer, kind=kind, effect=effect, reason=reason, rule=rule, detail=detail)

    def defer(self, form: Form) -> None:
        """Keep one record, with this moment's time, for the next `commit`: what it tells of must not happen before that."""
        self._deferred.append((form, self._now()))

    def commit(self) -> None:
        """Write the deferred records, in order, with one `write`. Raises `OSError` (I1, I4, I6)."""
        if not self._deferred:
            return
        if self._pid != os.getpid():
            self._open()  # a parent's records are the parent's to write
        fd = self._fd
        with self._mutex:
            _lock(fd)
            try:
                self._catch_up()
                self._write_deferred()
            finally:
                flock(fd, LOCK_UN)

    def head(self) -> tuple[int, str]:
        """(seq, hash) of the last record, -1 and zeros where there is none."""
        if self._pid != os.getpid():
            self._open()
        with self._mutex:
            _lock(self._fd)
            try:
                self._catch_up()
                return self._seq, self._hash
            finally:
                flock(self._fd, LOCK_UN)

    def close(self) -> None:
        """Give the descriptor back; appending afterwards raises `OSError`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _catch_up(self) -> None:
        status = os.fstat(self._fd)
        if not status.st_nlink:
            raise OSError(errno.ENOENT, "the audit log was removed", self.path)
        size = status.st_size
        if size == self._size:
            return
        if self._tail is not None:
            known, seq, hash_ = self._tail.log_end()
            if size and known == size:
                self._seq, self._hash, self._size = seq, hash_, size
                return
        position = self._read_position(size)
        self._seq, self._hash, self._size = position.seq, position.hash, size
        if position.torn:
            before = b"" if position.ended else b"\n"
            self._write(TORN, layer="audit", reason="writer_died", detail=torn_detail(position.torn), before=before)
        elif not position.ended:
            # the writer died between a whole record and its newline
            self._size = self._put(b"\n")

    def _read_position(self, size: int) -> Position:
        want = 8 * 1024
        while True:
            want = min(want, size)
            window = os.pread(self._fd, want, size - want) if want else b""
            if len(window) != want:
                raise OSError(errno.EIO, "the audit log shrank while it was read", self.path)
            try:
                position = resume(window, whole=want == size)
            except ParseError as e:
                raise OSError(errno.EBADMSG, f"the audit log is damaged: {e}", self.path) from None
            if position is not None:
                return position
            if want > 2 * MAX_LINE:
                raise OSError(errno.EBADMSG, "the audit log is damaged: a line is too long", self.path)
            want *= 4

    def _write(
        self,
        kind: str,
        *,
        layer: str,
        detail: dict[str, Any],
        effect: str = "",
        reason: str = "",
        rule: str = "",
        before: bytes = b"",
        body: str | None = None,
    ) -> tuple[int, str]:
        if self._size - self._looked > STEP and kind not in _ENDS:
            self._look_for_room()
        seq = self._seq + 1
        line, hash_ = build(
            seq=seq,
            time=self._now(),
            task=self.task,
            layer=layer,
            kind=kind,
            effect=effect,
            reason=reason,
            rule=rule,
            detail=detail,
            prev=self._hash,
            body=body,
        )
        size = self._put(before + line)
        # in this order: an interrupt between the two must leave a size that makes the next append look again
        self._seq, self._hash = seq, hash_
        self._size = size
        if self._tail is not None:
            self._tail.set_log_end(size, seq, hash_)
        return seq, hash_

    def _write_deferred(self) -> None:
        records = self._deferred
        if self._size - self._looked > STEP:
            self._look_for_room()
        seq, hash_ = self._seq, self._hash
        lines: list[bytes] = []
        for form, time in records:
            seq += 1
            line, hash_ = form.line(seq, time, hash_)
            lines.append(line)
        size = self._put(b"".join(lines))
        self._seq, self._hash = seq, hash_
        self._size = size
        if self._tail is not None:
            self._tail.set_log_end(size, seq, hash_)
        del records[: len(lines)]

    def _look_for_room(self) -> None:
        space = os.fstatvfs(self._fd)
        if space.f_bavail * space.f_frsize < ROOM:
            raise OSError(errno.ENOSPC, "the audit log leaves too little room on its file system", self.path)
        self._looked = self._size

    def _put(self, data: bytes) -> int:
        size, self._size = self._size, -1
        try:
            written = os.write(self._fd, data)
        except OSError:
            os.ftruncate(self._fd, size)
            raise
        if written != len(data):
            # a full disk takes part of a write first; what is missing gets no second try
            os.ftruncate(self._fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        return size + written

    def _now(self) -> str:
        now = self._wall()
        second = int(now)
        if second != self._second:
            t = gmtime(second)
            self._stamp = f"{t[0]:04d}-{t[1]:02d}-{t[2]:02d}T{t[3]:02d}:{t[4]:02d}:{t[5]:02d}"
            self._second = second
        return f"{self._stamp}.{int((now - second) * 1e6):06d}Z"


def _lock(fd: int) -> None:
    for _ in range(_SPINS):
        try:
            flock(fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            continue
        return
    flock(fd, LOCK_EX)
