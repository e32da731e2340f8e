"""Non-blocking sockets as the broker uses them: wait, peek, read, write, end.

The broker keeps raw sockets rather than transports: a first flight is peeked at and stays in the kernel, so whoever
takes over (a splice, the HTTP path, a TLS server) starts with an untouched connection and memory is bounded by the
kernel's buffer. uvloop's transports cannot do that, and ignore `pause_reading` in `connection_made`.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from contextlib import suppress

from saggar.egress.shares_host import BYTE_NS, EVENT_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.egress.shares_host import Share

_LINGER_RESET = struct.pack("ii", 1, 0)
_CHUNK = 64 * 1024
_MAX_DRAINED = 16


async def wait_readable(sock: socket.socket) -> None:
    """Until `sock` has bytes (at least its SO_RCVLOWAT), its end, or an error."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    fd = sock.fileno()
    loop.add_reader(fd, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def wait_writable(sock: socket.socket, timeout_s: float = 0.0) -> None:
    """Until `sock` takes bytes, is connected, or has an error. timeout_s: 0 waits for ever. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    fd = sock.fileno()
    # a timer of its own, not asyncio.timeout: that needs a task, and `eager` may run us without one
    timer = loop.call_later(timeout_s, _expire, ready) if timeout_s else None
    loop.add_writer(fd, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_writer(fd)
        if timer is not None:
            timer.cancel()


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _expire(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_exception(TimeoutError())


async def peek(sock: socket.socket, least: int, most: int) -> bytes:
    """At least `least` bytes from the front of the connection, which stay there; fewer only where it has ended.

    SO_RCVLOWAT makes the kernel hold back the wake-up, so a client that drips single bytes costs nothing.
    Raises OSError.
    """
    raised = False
    try:
        while True:
            try:
                data = sock.recv(most, socket.MSG_PEEK)
            except BlockingIOError:
                await wait_readable(sock)
                continue
            if len(data) >= least or not data:
                return data
            if raised:
                return data
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            raised = True
            await wait_readable(sock)
    finally:
        if raised:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


#: since Linux 2.6.17: the peer will send no more
_POLLRDHUP = 0x2000


def is_gone(sock: socket.socket) -> bool:
    """Whether the connection is over in both directions: reset, or ended by both sides."""
    return bool(_poll(sock) & (select.POLLERR | select.POLLHUP | select.POLLNVAL))


def is_ended(sock: socket.socket) -> bool:
    """Whether the peer has ended its direction; what it sent before may still be unread."""
    return bool(_poll(sock) & _POLLRDHUP)


def _poll(sock: socket.socket) -> int:
    poller = select.poll()
    poller.register(sock, _POLLRDHUP)
    ready = poller.poll(0)
    return ready[0][1] if ready else 0


def consume(sock: socket.socket, size: int) -> None:
    """Take `size` bytes that a peek has seen."""
    while size > 0:
        got = len(sock.recv(size))
        if not got:
            return
        size -= got


def reset(sock: socket.socket) -> None:
    """End the connection with RST: the other side must not take it for an orderly end."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    sock.close()


def say_and_close(sock: socket.socket, last_words: bytes) -> None:
    """Send what the kernel takes at once, then close. What was received is read first: closing over unread bytes
    would be a reset, which can overtake the words."""
    with suppress(OSError):
        # not to the end of what a client sends without end: that would hold everybody else up
        for _ in range(_MAX_DRAINED):
            if not sock.recv(_CHUNK):
                break
    with suppress(OSError):
        sock.send(last_words)
    sock.close()


def is_silent(sock: socket.socket) -> bool:
    """Whether a non-blocking socket's peer is still there and has sent nothing that waits to be read. One system call."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class Wire:
    """Buffered reading and back-pressured writing on one connected socket."""

    __slots__ = ("buffer", "bytes_in", "bytes_out", "ended", "ran", "share", "sock")

    def __init__(self, sock: socket.socket, share: Share | None = None) -> None:
        """share: the cell's, where what is read is to wait for its turn."""
        self.sock = sock
        self.share = share
        self.buffer = bytearray()
        self.bytes_in = 0
        self.bytes_out = 0
        self.ended = False
        #: the last bytes were there at once
        self.ran = False

    async def fill(self) -> bool:
        """More bytes into `buffer`; False at the end of the stream. Raises OSError."""
        if self.ended:
            return False
        share = self.share
        if self.ran:
            # a peer that is faster than we are would keep us from ever waiting, and with us the whole loop
            self.ran = False
            await asyncio.sleep(0)
        at_once = True
        while True:
            if share is not None and share.spent:
                await share.turn()
            try:
                data = self.sock.recv(_CHUNK if share is None else min(_CHUNK, share.piece))
            except BlockingIOError:
                at_once = False
                await wait_readable(self.sock)
                continue
            self.ran = at_once
            if share is not None:
                share.take(EVENT_NS + BYTE_NS * len(data))
            if not data:
                self.ended = True
                return False
            self.bytes_in += len(data)
            self.buffer += data
            return True

    async def read(self) -> bytes:
        """What is buffered, or else what comes next; b"" at the end."""
        if not self.buffer and not await self.fill():
            return b""
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    def unread(self, data: bytes) -> None:
        """Put back bytes that belong to what comes next."""
        self.buffer[:0] = data

    async def write(self, data: bytes) -> None:
        """All of `data`, waiting for the peer as long as it takes. Raises OSError."""
        view = memoryview(data)
        while view:
            try:
                sent = self.sock.send(view)
            except BlockingIOError:
                await wait_writable(self.sock)
                continue
            self.bytes_out += sent
            view = view[sent:]

    def is_quiet(self) -> bool:
        """Whether an idle connection is still open and nothing unsolicited came on it."""
        if self.buffer or self.ended:
            return False
        return is_silent(self.sock)
