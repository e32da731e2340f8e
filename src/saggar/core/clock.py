"""Time and randomness as parameters: decision code never reads either by itself."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Clock(Protocol):
        def monotonic(self) -> float:
            """Seconds, never going back; only differences mean anything."""
            ...

        def wall(self) -> float:
            """Seconds since 1970-01-01T00:00:00Z."""
            ...


class ManualClock:
    """A clock that tests move by hand; both hands may be moved apart to show skew."""

    __slots__ = ("_monotonic", "_wall")

    def __init__(self, monotonic: float = 0.0, wall: float = 1_800_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        self._monotonic += seconds
        self._wall += seconds

    def step_wall(self, seconds: float) -> None:
        self._wall += seconds
