"""One connection's hand on its task's budget.

I1  `open` and `close` balance, however often `close` is called.
I2  Where nothing limits bytes, `counts_bytes` is false, and the byte paths need not ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from saggar.egress.budget import Budget, Refusal


class Spend:
    """Of a connection to `name`. clock: monotonic seconds, the budget's own."""

    __slots__ = ("_budget", "_clock", "_meter", "_open")

    def __init__(self, budget: Budget, name: str, clock: Callable[[], float]) -> None:
        self._budget = budget
        self._clock = clock
        self._meter = budget.host(name, None, clock())
        self._open = False

    def open(self) -> Refusal | None:
        """One more connection, for one request at least."""
        now = self._clock()
        refusal = self._budget.open(self._meter, now)
        if refusal is None:
            self._open = True
        return refusal

    def request(self) -> Refusal | None:
        return self._budget.request(self._meter, self._clock())

    @property
    def counts_bytes(self) -> bool:
        scopes = (self._meter.limits, self._budget.task.limits)
        return any(s.bytes_up is not None or s.bytes_down is not None for s in scopes)

    def up(self, count: int) -> Refusal | None:
        """`count` bytes towards the upstream; on a refusal they must not be sent."""
        return self._budget.up(self._meter, count)

    def down(self, count: int) -> Refusal | None:
        return self._budget.down(self._meter, count)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._budget.close(self._meter)
