"""The broker's event loop: asyncio's own, on an epoll whose answers are called straight.

A *flow* is a connected socket whose bytes are only passed on: it is watched with one system call for its whole life (edges, and
closing it forgets it). What `add_reader` and `add_writer` watch is level-triggered as everywhere, and called the same way: asyncio's
handle, context and queue for each event cost as much as the event.

I1  An event reaches whom it was meant for: not who has taken the descriptor's number since the kernel told of it.
I2  A flow's events are edges: who leaves bytes unread because it stopped early has to come back by itself.
I3  A callback that fails is reported to the loop, and the others are called.
I4  Whatever a callback asks of asyncio (`call_soon`, a timer, a task's next step) is done after the events of one `epoll_wait`.
"""

from __future__ import annotations

import asyncio
import select
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, SelectorKey
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVarTuple

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Coroutine, Mapping

    from _typeshed import FileDescriptorLike

_Ts = TypeVarTuple("_Ts")

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
#: the peer has ended its direction, or the connection is over
ENDS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
FAILED = select.EPOLLERR
_FLOW = READABLE | select.EPOLLRDHUP | select.EPOLLET
#: events taken from the kernel at once: it has room for these made with each call
_MOST = 128


class _Watch:
    """Who is called for a descriptor that `add_reader` or `add_writer` was told of. mask: what the kernel was told."""

    __slots__ = ("mask", "reader", "writer")

    def __init__(self) -> None:
        self.mask = 0
        self.reader: Callable[[], object] | None = None
        self.writer: Callable[[], object] | None = None

    def on_event(self, mask: int) -> None:
        # an error or an end is told to whoever watches
        if mask != WRITABLE and self.reader is not None:
            self.reader()
        if mask & ~READABLE and self.writer is not None:
            self.writer()


class Flows(BaseSelector):
    """asyncio's selector, with what is called straight."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._keys: dict[int, SelectorKey] = {}
        self._flows: dict[int, Callable[[int], None]] = {}
        self._watches: dict[int, _Watch] = {}
        #: watched since the events at hand were told: these are of whoever had the number before (I1)
        self._fresh: set[int] = set()
        self.failed: Callable[[Exception], None] = _raise
        #: asyncio has something to do besides: a callback, or another timer
        self.due = False

    # -- flows -----------------------------------------------------------------------------------------------------

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

    def reader(self, fd: int, callback: Callable[[], object] | None) -> bool:
        """Level-triggered: call `callback` while `fd` can be read, nothing with None. Whether there was a callback before."""
        watch = self._watches.get(fd)
        had = watch is not None and watch.reader is not None
        if watch is None:
            if callback is None:
                return False
            watch = self._watches[fd] = _Watch()
        watch.reader = callback
        self._tell_kernel(fd, watch)
        return had

    def writer(self, fd: int, callback: Callable[[], object] | None) -> bool:
        """The same for writing."""
        watch = self._watches.get(fd)
        had = watch is not None and watch.writer is not None
        if watch is None:
            if callback is None:
                return False
            watch = self._watches[fd] = _Watch()
        watch.writer = callback
        self._tell_kernel(fd, watch)
        return had

    def _tell_kernel(self, fd: int, watch: _Watch) -> None:
        mask = (READABLE if watch.reader is not None else 0) | (WRITABLE if watch.writer is not None else 0)
        if mask == watch.mask:
            return
        known, watch.mask = watch.mask, mask
        if not mask:
            del self._watches[fd], self._flows[fd]
            with suppress(OSError):  # closed by its owner: the kernel has forgotten it
                self._epoll.unregister(fd)
            return
        if known:
            try:
                self._epoll.modify(fd, mask)
            except FileNotFoundError:
                pass  # closed, and the number given out again
            else:
                return
        self._epoll.register(fd, mask)
        self._flows[fd] = watch.on_event
        self._fresh.add(fd)

    def forget(self, fd: int) -> None:
        """Before the last descriptor of the socket is closed, which makes the kernel forget it."""
        self._flows.pop(fd, None)

    # -- asyncio's side ----------------------------------------------------------------------------------------------

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Call the flows that have something, until there is something for asyncio or its next timer is due."""
        found: list[tuple[SelectorKey, int]] = []
        flows, keys, fresh = self._flows, self._keys, self._fresh
        ends = None if timeout is None else monotonic() + timeout
        self.due = timeout is not None and timeout <= 0
        while True:
            fresh.clear()
            for fd, mask in self._poll(timeout, _MOST):
                if fd in fresh:
                    continue
                flow = flows.get(fd)
                if flow is not None:
                    try:
                        flow(mask)
                    except Exception as e:  # noqa: BLE001  # whatever is wrong with one connection, the others live on (I3)
                        self.failed(e)
                elif fd in keys:
                    key = keys[fd]
                    # an error or an end is told to whoever watches, as asyncio's own selector does
                    ready = (mask & ~READABLE and EVENT_WRITE) | (mask & ~WRITABLE and EVENT_READ)
                    if ready & key.events:
                        found.append((key, ready & key.events))
            if found or self.due:
                return found
            if ends is not None:
                timeout = ends - monotonic()
                if timeout <= 0:
                    return found

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        fd = _number(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fd} is watched already")
        key = SelectorKey(fileobj, fd, events, data)
        self._epoll.register(fd, _mask(events))
        self._keys[fd] = key
        self._fresh.add(fd)
        return key

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        fd = _number(fileobj)
        old = self._keys[fd]
        if old.events != events:
            self._epoll.modify(fd, _mask(events))
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> SelectorKey:
        fd = _number(fileobj)
        key = self._keys.pop(fd)
        with suppress(OSError):  # as above
            self._epoll.unregister(fd)
        return key

    def get_key(self, fileobj: FileDescriptorLike) -> SelectorKey:
        return self._keys[_number(fileobj)]

    def get_map(self) -> Mapping[FileDescriptorLike, SelectorKey]:
        return self._keys  # type: ignore[return-value]  # asyncio asks by descriptor

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
        self._flows.clear()
        self._watches.clear()


def _number(fileobj: FileDescriptorLike) -> int:
    return fileobj if isinstance(fileobj, int) else fileobj.fileno()


def _mask(events: int) -> int:
    return (READABLE if events & EVENT_READ else 0) | (WRITABLE if events & EVENT_WRITE else 0)


def _raise(error: Exception) -> None:
    raise error


class Loop(asyncio.SelectorEventLoop):
    """asyncio's loop with `flows`."""

    def __init__(self) -> None:
        self.flows = Flows()
        super().__init__(self.flows)
        self.flows.failed = self._on_failed

    def add_reader(self, fd: FileDescriptorLike, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        self.flows.reader(_number(fd), partial(callback, *args) if args else callback)

    def remove_reader(self, fd: FileDescriptorLike) -> bool:
        return self.flows.reader(_number(fd), None)

    def add_writer(self, fd: FileDescriptorLike, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        self.flows.writer(_number(fd), partial(callback, *args) if args else callback)

    def remove_writer(self, fd: FileDescriptorLike) -> bool:
        return self.flows.writer(_number(fd), None)

    # whatever is asked of asyncio ends a round of events (I4)

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        self.flows.due = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        self.flows.due = True
        return super().call_at(when, callback, *args, context=context)

    def stop(self) -> None:
        self.flows.due = True
        super().stop()

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
