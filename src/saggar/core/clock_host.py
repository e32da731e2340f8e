"""The real clock, apart from the pure shape in `core.clock`."""

from __future__ import annotations

from time import monotonic as _monotonic
from time import time as _time


class SystemClock:
    """Reads the kernel's clocks."""

    __slots__ = ()

    def monotonic(self) -> float:
        return _monotonic()

    def wall(self) -> float:
        return _time()
