"""poll(2), with a handler for each descriptor."""

from __future__ import annotations

from select import poll

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """poll(2) with one handler a descriptor."""

    __slots__ = ("_handlers", "_poll")

    def __init__(self) -> None:
        self._poll = poll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def add(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def remove(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def turn(self, timeout_s: float | None) -> None:
        """One round: every ready descriptor's handler once."""
        wait = None if timeout_s is None else max(0.0, timeout_s * 1000)
        for fd, events in self._poll.poll(wait):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
