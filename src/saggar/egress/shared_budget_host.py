"""The budget of a task whose connections several processes serve: `budget.Budget`, its counters in shared memory.

I1  What `budget` decides about one process's counters, this decides about all of them: each question is asked and
    answered under the lock of the memory that holds the counters.
I2  What no limit counts is added late, with the next question that one does, and needs no lock.
I3  A host for which there is no room gets no connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saggar.egress.budget import NONE, Budget, Limits, Meter, Refusal, no_limits
from saggar.egress.shared_host import MAX_PLACES, TASK_AT

if TYPE_CHECKING:
    from collections.abc import Callable

    from saggar.egress.shared_host import Shared


class SharedMeter(Meter):
    """The counters of one scope: those that are shared, as they were read last. at: where they are, -1: nowhere."""

    __slots__ = ("_shared", "at", "late_down", "late_requests", "late_up")

    def __init__(self, limits: Limits, scope: str, now: float, shared: Shared, at: int) -> None:
        super().__init__(limits, scope, now)
        self._shared = shared
        self.at = at
        self.late_requests = 0
        self.late_up = 0
        self.late_down = 0

    def load(self) -> None:
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
        self.requests = requests + self.late_requests
        self.bytes_up, self.bytes_down = up + self.late_up, down + self.late_down
        self.late_requests = self.late_up = self.late_down = 0

    def store(self) -> None:
        self._shared.store(
            self.at,
            self.requests,
            self.bytes_up,
            self.bytes_down,
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

    def limit(self, limits: Limits, limits_of: Callable[[str], Limits] = no_limits) -> None:
        # what was counted late, here and in every other process that is told the same, counts for them
        with self._shared:
            for meter in (*self._meters.values(), self._task):
                meter.load()
                meter.store()
        super().limit(limits, limits_of)

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
            self._meters[name] = SharedMeter(self._limits_of(name), "host", now, self._shared, at)
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
        if host.limits == self.task.limits == NONE:
            for meter in (host, self._task):
                meter.late_requests += 1  # type: ignore[attr-defined]  # `host` gave no other
            return None
        with self._shared:
            self._load(host)
            refusal = super().request(host, now)
            self._store(host)
        return refusal

    def up(self, host: Meter, count: int) -> Refusal | None:
        if host.limits.bytes_up is None and self.task.limits.bytes_up is None:
            for meter in (host, self._task):
                meter.late_up += count  # type: ignore[attr-defined]  # `host` gave no other
            return None
        with self._shared:
            self._load(host)
            refusal = super().up(host, count)
            self._store(host)
        return refusal

    def down(self, host: Meter, count: int) -> Refusal | None:
        if host.limits.bytes_down is None and self.task.limits.bytes_down is None:
            for meter in (host, self._task):
                meter.late_down += count  # type: ignore[attr-defined]
            return None
        with self._shared:
            self._load(host)
            refusal = super().down(host, count)
            self._store(host)
        return refusal

    def _load(self, host: Meter) -> None:
        host.load()  # type: ignore[attr-defined]
        self._task.load()

    def _store(self, host: Meter) -> None:
        host.store()  # type: ignore[attr-defined]
        self._task.store()
