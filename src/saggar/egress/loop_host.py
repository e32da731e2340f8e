"""The broker's event loop: uvloop's, with a second epoll inside for the sockets whose bytes are only passed on.

Such a socket is a *flow*: it is watched with one system call for its whole life (edges, and closing it forgets it). uvloop
asks the kernel again for each change of mind, tells of a reset behind unread bytes once or never, and its handle, context
and queue for each event cost as much as the event. Everything else is uvloop's.

I1  An event reaches whom it was meant for: not who has taken the descriptor's number since the kernel told of it.
I2  A flow's events are edges: who leaves bytes unread because it stopped early has to come back by itself.
I3  A callback that fails is reported to the loop, and the others are called.
I4  A round of flows is bounded: timers and tasks have their turn behind it.
"""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING, Any

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
#: the peer has ended its direction, or the connection is over
ENDS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
FAILED = select.EPOLLERR
_FLOW = READABLE | select.EPOLLRDHUP | select.EPOLLET
#: events taken from the kernel at once: it has room for these made with each call
_MOST = 128


class Flows:
    """The flows of a loop. failed: told of what a callback raised."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._flows: dict[int, Callable[[int], None]] = {}
        #: watched since the events at hand were told: these are of whoever had the number before (I1)
        self._fresh: set[int] = set()
        self._failed = failed

    def fileno(self) -> int:
        """Readable while a flow has something."""
        return self._epoll.fileno()

    def watch(self, fd: int, callback: Callable[[int], None]) -> None:
        """Call `callback` with the events of `fd`, from now on until `forget`. What is there already is told first."""
        self._epoll.register(fd, _FLOW)
        self._flows[fd] = callback
        self._fresh.add(fd)

    def watch_room(self, fd: int) -> None:
        """Tell of `fd` as well whenever it takes bytes again (once it did not)."""
        self._epoll.modify(fd, _FLOW | WRITABLE)

    def pause(self, fd: int) -> None:
        """Tell of failures alone, until the next `resume`."""
        self._epoll.modify(fd, select.EPOLLET)

    def resume(self, fd: int) -> None:
        """Tell of everything again, and of what came meanwhile."""
        self._epoll.modify(fd, _FLOW | WRITABLE)

    def forget(self, fd: int) -> None:
        """Before the last descriptor of the socket is closed, which makes the kernel forget it."""
        self._flows.pop(fd, None)

    def turn(self) -> None:
        """Call the flows that have something."""
        flows, fresh = self._flows, self._fresh
        fresh.clear()
        for fd, mask in self._poll(0, _MOST):
            if fd in fresh:
                continue
            flow = flows.get(fd)
            if flow is None:
                continue
            try:
                flow(mask)
            except Exception as e:  # noqa: BLE001  # whatever is wrong with one connection, the others live on (I3)
                self._failed(e)

    def close(self) -> None:
        self._epoll.close()
        self._flows.clear()


class Loop(uvloop.Loop):
    """uvloop's loop with `flows`."""

    def __init__(self) -> None:
        super().__init__()
        self.flows = Flows(self._on_failed)
        self.add_reader(self.flows.fileno(), self.flows.turn)

    def close(self) -> None:
        if not self.is_closed():
            self.remove_reader(self.flows.fileno())
            self.flows.close()
        super().close()

    def _on_failed(self, error: Exception) -> None:
        self.call_exception_handler({"message": "a flow's callback failed", "exception": error})


def running() -> Loop:
    """The loop that calls us. Raises RuntimeError where it is another kind."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, Loop):
        raise RuntimeError("flows need the broker's own event loop")  # noqa: TRY004  # as asyncio says where there is none
    return loop


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """As `asyncio.run`, on this loop."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)
