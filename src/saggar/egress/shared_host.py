"""What several processes that serve one cell must count and know together, in memory that they share.

I1  Whatever is read and changed is so under one lock of the kernel's, which the death of its holder releases.
I2  A count of open connections has one writer each, needs no lock, and may be read late but never wrong for long.
I3  Memory is bounded: `MAX_PLACES` hosts, and what `issued` is given.

A record lock (fcntl(2), F_SETLKW) belongs to the process, so the descriptor that came over a socket serves; taking and
releasing it costs 1.4 us. It is held for 2 us or so: whoever finds it taken tries again a few times before it sleeps.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

#: processes that may serve one cell
MAX_PROCESSES = 4
#: hosts with a meter of their own; one more is refused like a host beyond the budget's `hosts`
MAX_PLACES = 4096
NAME_BYTES = 256
#: of eight bytes each
_HELD, _ISSUED, _ISSUED_BYTES, _PLACES = 4, 5, 6, 7
_BUCKET_AT = 8 * 8
_LOG_AT = 10 * 8
TASK_AT = 32 * 8
#: requests, bytes up, bytes down, connections, names; started, tokens, touched
METER = Struct("=5q3d")
#: behind it, of each process: what it counted of the first three by itself (`shared_budget_host`)
KINDS = 3
_OWN_BYTES = MAX_PROCESSES * KINDS * 8
_BUCKET = Struct("=2d")
_LOG = Struct("=2q64s")
_SPINS = 20
_PLACES_AT = 4096
_NAME_AT = METER.size + _OWN_BYTES
_PLACE_BYTES = _NAME_AT + NAME_BYTES
_SIZE = _PLACES_AT + MAX_PLACES * _PLACE_BYTES
#: what was issued follows, as JSON, in the part that is not mapped
_ISSUED_AT = (_SIZE + 4095) // 4096 * 4096


class Shared:
    """One cell's shared memory, as the process number `index` of `count` sees it. A context manager: the lock."""

    __slots__ = ("_map", "count", "fd", "index", "seen", "words")

    def __init__(self, fd: int, index: int, count: int) -> None:
        """Takes `fd` over. Raises OSError, ValueError."""
        self.fd = fd
        self.index = index
        self.count = count
        self._map = mmap.mmap(fd, _SIZE)
        #: all of it, in units of eight bytes
        self.words = memoryview(self._map).cast("q")
        #: the state of `issued` that this process knows
        self.seen = 0

    @classmethod
    def make(cls, count: int) -> Shared:
        """New and empty, for the process that all others get it from. Raises OSError."""
        fd = os.memfd_create("saggar-shared", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, _ISSUED_AT)
            return cls(fd, 0, count)
        except BaseException:
            os.close(fd)
            raise

    def __enter__(self) -> None:
        for _ in range(_SPINS):
            try:
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # fcntl(2): EAGAIN or EACCES
                continue
            return
        fcntl.lockf(self.fd, fcntl.LOCK_EX)

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """The cell is gone. Connections that end after it have nothing to give back; no other question may come."""
        if self.fd >= 0:
            self.words.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1

    # -- open connections --------------------------------------------------------------------------------------------

    def ended(self, index: int) -> int:
        """How many of the connections that were given to a process have ended (I2)."""
        return self.words[index]

    def end_one(self) -> None:
        """One of this process's own has."""
        if self.fd >= 0:
            self.words[self.index] += 1

    # -- meters (`shared_budget_host`) -------------------------------------------------------------------------------

    def load(self, at: int) -> tuple[int, int, int, int, int, float, float, float]:
        return METER.unpack_from(self._map, at)

    def store(self, at: int, *values: float) -> None:
        METER.pack_into(self._map, at, *values)

    def places(self, start: int) -> list[tuple[str, int]]:
        """(host, where its meter is) of the places from number `start` on; under the lock."""
        found = []
        for number in range(start, self.words[_PLACES]):
            at = _PLACES_AT + number * _PLACE_BYTES
            name = self._map[at + _NAME_AT : at + _PLACE_BYTES].rstrip(b"\0").decode("ascii")
            found.append((name, at))
        return found

    def add_place(self, name: str) -> int:
        """Where the meter of one more host is, -1 where there is no room; under the lock."""
        number = self.words[_PLACES]
        raw = name.encode("ascii")
        if number >= MAX_PLACES or len(raw) > NAME_BYTES:
            return -1
        at = _PLACES_AT + number * _PLACE_BYTES
        self._map[at + _NAME_AT : at + _NAME_AT + len(raw)] = raw
        self.words[_PLACES] = number + 1
        return at

    # -- the end of the audit log (`sink_host.Tail`) ------------------------------------------------------------------

    def log_end(self) -> tuple[int, int, str]:
        size, seq, digest = _LOG.unpack_from(self._map, _LOG_AT)
        return size, seq, digest.decode()

    def set_log_end(self, size: int, seq: int, digest: str) -> None:
        _LOG.pack_into(self._map, _LOG_AT, size, seq, digest.encode())

    # -- records of refusals -----------------------------------------------------------------------------------------

    def may_record(self, now: float, *, burst: float, rate: float) -> bool:
        """Take one from the bucket that all processes take their records of refusals from."""
        if self.fd < 0:
            return False
        with self:
            tokens, stamp = _BUCKET.unpack_from(self._map, _BUCKET_AT)
            tokens = min(burst, tokens + (now - stamp) * rate) if stamp else burst
            may = tokens >= 1
            _BUCKET.pack_into(self._map, _BUCKET_AT, tokens - may, now)
        return may

    # -- requests that wait for a person -----------------------------------------------------------------------------

    def hold(self, most: int) -> bool:
        """Whether one more may wait; then `let_go` ends it."""
        with self:
            if self.words[_HELD] >= most:
                return False
            self.words[_HELD] += 1
        return True

    def let_go(self) -> None:
        if self.fd >= 0:
            with self:
                self.words[_HELD] -= 1

    # -- tokens that token endpoints issued --------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """Whether another process issued tokens that this one has not read."""
        return self.words[_ISSUED] != self.seen

    def issued(self) -> dict[str, tuple[str, str]]:
        """Placeholder to (token, rule), oldest first."""
        with self:
            return self._read_issued()

    def issue(self, fresh: dict[str, tuple[str, str]], most: int) -> dict[str, tuple[str, str]]:
        """Add to them, before a client can know the placeholders; all that are kept, `most` of them."""
        with self:
            issued = {**self._read_issued(), **fresh}
            while len(issued) > most:
                del issued[next(iter(issued))]
            text = json.dumps(issued).encode()
            os.ftruncate(self.fd, _ISSUED_AT)  # what no longer counts is gone, not only beyond the length
            if os.pwrite(self.fd, text, _ISSUED_AT) != len(text):
                raise OSError("the issued tokens could not be kept")
            self.words[_ISSUED_BYTES] = len(text)
            self.words[_ISSUED] += 1
            self.seen = self.words[_ISSUED]
        return issued

    def _read_issued(self) -> dict[str, tuple[str, str]]:
        self.seen = self.words[_ISSUED]
        size = self.words[_ISSUED_BYTES]
        if not size:
            return {}
        kept = json.loads(os.pread(self.fd, size, _ISSUED_AT))
        return {placeholder: (token, rule) for placeholder, (token, rule) in kept.items()}
