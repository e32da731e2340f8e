"""The real clock, apart from the pure shape in `core.clock`."""

from __future__ import annotations

from time import CLOCK_BOOTTIME, clock_gettime
from time import time as _time


class SystemClock:
    """Reads the kernel's clocks. monotonic: CLOCK_BOOTTIME, which goes on while the machine sleeps: a token of 60 seconds
    must not be alive after a night in a bag."""

    __slots__ = ()

    def monotonic(self) -> float:
        return clock_gettime(CLOCK_BOOTTIME)

    def wall(self) -> float:
        return _time()
