"""The budget of a task whose connections several processes serve: `budget.Budget`, its counters in shared memory.

I1  What `budget` decides about one process's counters, this decides about all of them: of N requests exactly N pass.
I2  A host for which there is no room gets no connection.
I3  Near a limit (`NEAR`, `NEAR_BYTES`), and for what is no mere sum (rates, connections, hosts), each question is asked and
    answered under the lock of the memory that holds the counters. Far from every limit no lock is taken: a process then
    counts in words that it alone writes, first, and looks at the sum of all second.

Why I3 gives I1: what a process counted by itself is part of every sum that is taken under the lock. Only what it has just
written may not be seen there yet, for as long as a processor's store waits, below a microsecond; the other processes
cannot use up `NEAR` in that time. Where the look says near, the count is taken back and the lock asked; whoever is refused
because of a count that was then taken back is refused in the place of the one that counted, which asks after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saggar.egress.budget import NONE, Budget, Limits, Meter, Refusal
from saggar.egress.shared_host import KINDS, MAX_PLACES, METER, TASK_AT

if TYPE_CHECKING:
    from saggar.egress.shared_host import Shared

REQUESTS, UP, DOWN = range(KINDS)
#: what is left of a limit from where on it is counted under the lock
NEAR = 256
NEAR_BYTES = 16 * 1024 * 1024


class SharedMeter(Meter):
    """The counters of one scope: those that are shared, as they were read last. at: where they are, -1: nowhere."""

    __slots__ = ("_apart", "_kinds", "_own", "_shared", "_words", "at")

    def __init__(self, limits: Limits, scope: str, now: float, shared: Shared, at: int) -> None:
        super().__init__(limits, scope, now)
        self._shared = shared
        self._words = shared.words
        self.at = at
        first = at // 8
        own = first + METER.size // 8
        self._own = own + KINDS * shared.index
        #: of each kind, the words whose sum it is
        self._kinds = [(first + k, *(own + KINDS * i + k for i in range(shared.count))) for k in range(KINDS)]
        #: of each kind, what the processes had counted by themselves when this was read
        self._apart = [0] * KINDS

    def count(self, kind: int, count: int) -> None:
        """Count by ourselves."""
        self._words[self._own + kind] += count

    def total(self, kind: int) -> int:
        words = self._words
        return sum([words[i] for i in self._kinds[kind]])

    def far(self, kind: int) -> bool:
        """Whether the limit of this kind is far, with what was counted just now."""
        limits = self.limits
        if kind == REQUESTS:
            return limits.requests is None or self.total(REQUESTS) + NEAR <= limits.requests
        most = limits.bytes_up if kind == UP else limits.bytes_down
        return most is None or self.total(kind) + NEAR_BYTES <= most

    def free(self, now: float) -> bool:
        """Whether no limit is near that a request is asked about."""
        limits = self.limits
        if limits.rate is not None or (limits.wall_s is not None and now - self.started >= limits.wall_s):
            return False
        return self.far(REQUESTS) and self.far(UP) and self.far(DOWN)

    def load(self) -> None:
        words = self._words
        self._apart = apart = [sum([words[i] for i in kind[1:]]) for kind in self._kinds]
        (
            requests,
            up,
            down,
            self.connections,
            self.names,
            self.started,
            self.tokens,
            self.touched,
        ) = self._shared.load(self.at)
        self.requests, self.bytes_up, self.bytes_down = requests + apart[0], up + apart[1], down + apart[2]

    def store(self) -> None:
        apart = self._apart
        self._shared.store(
            self.at,
            self.requests - apart[0],
            self.bytes_up - apart[1],
            self.bytes_down - apart[2],
            self.connections,
            self.names,
            self.started,
            self.tokens,
            self.touched,
        )


class SharedBudget(Budget):
    """One process's hand on the task's budget. The first of them makes the counters, before any other exists."""

    __slots__ = ("_meters", "_seen", "_shared", "_task")

    _meters: dict[str, SharedMeter]

    def __init__(self, limits: Limits, now: float, shared: Shared) -> None:
        super().__init__(limits, now)
        self._shared = shared
        self._meters = {}
        self._hosts = self._meters  # type: ignore[assignment]  # what the base looks through holds shared ones alone
        self._seen = 0
        self.task = self._task = SharedMeter(limits, "task", now, shared, TASK_AT)
        with shared:
            if shared.index == 0:
                self._task.store()
            else:
                self._task.load()

    def host(self, host: str, limits: Limits | None, now: float) -> Meter:
        meter = self._meters.get(host)
        if meter is None:
            with self._shared:
                meter = self._find(host, self._limits_of(host).strictest(limits or NONE), now)
        if limits is not None and meter.limits is not limits:
            meter.limits = meter.limits.strictest(limits)
        return meter

    def _find(self, host: str, limits: Limits, now: float) -> SharedMeter:
        for name, at in self._shared.places(self._seen):
            self._seen += 1
            known = self._meters[name] = SharedMeter(self._limits_of(name), "host", now, self._shared, at)
            known.load()
        found = self._meters.get(host)
        if found is None:
            at = self._shared.add_place(host)
            found = SharedMeter(limits, "host", now, self._shared, at)
            if at >= 0:
                self._meters[host] = found
                self._seen += 1
                found.store()
        return found

    def open(self, host: Meter, now: float) -> Refusal | None:
        if not isinstance(host, SharedMeter) or host.at < 0:
            return Refusal("budget_hosts", MAX_PLACES, "task")
        with self._shared:
            self._load(host)
            refusal = super().open(host, now)
            self._store(host)
        return refusal

    def close(self, host: Meter) -> None:
        if self._shared.fd < 0:
            return
        with self._shared:
            self._load(host)
            super().close(host)
            self._store(host)

    def request(self, host: Meter, now: float) -> Refusal | None:
        if not self._count(host, REQUESTS, 1):
            return None
        if host.free(now) and self._task.free(now):  # type: ignore[attr-defined]  # `host` gave no other
            return None
        self._count(host, REQUESTS, -1)
        with self._shared:
            self._load(host)
            refusal = super().request(host, now)
            self._store(host)
        return refusal

    def up(self, host: Meter, count: int) -> Refusal | None:
        if self._passes(host, UP, count):
            return None
        with self._shared:
            self._load(host)
            refusal = super().up(host, count)
            self._store(host)
        return refusal

    def down(self, host: Meter, count: int) -> Refusal | None:
        if self._passes(host, DOWN, count):
            return None
        with self._shared:
            self._load(host)
            refusal = super().down(host, count)
            self._store(host)
        return refusal

    def _passes(self, host: Meter, kind: int, count: int) -> bool:
        """Whether bytes are counted, far from their limits; else nothing was."""
        if not self._count(host, kind, count):
            return True
        if host.far(kind) and self._task.far(kind):  # type: ignore[attr-defined]
            return True
        self._count(host, kind, -count)
        return False

    def _count(self, host: Meter, kind: int, count: int) -> bool:
        """Count by ourselves; False where nothing is to be counted any more: the cell is gone, or the host has no place."""
        if self._shared.fd < 0 or host.at < 0:  # type: ignore[attr-defined]
            return False
        host.count(kind, count)  # type: ignore[attr-defined]
        self._task.count(kind, count)
        return True

    def _load(self, host: Meter) -> None:
        host.load()  # type: ignore[attr-defined]
        self._task.load()

    def _store(self, host: Meter) -> None:
        host.store()  # type: ignore[attr-defined]
        self._task.store()
