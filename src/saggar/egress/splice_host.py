"""Two connected sockets joined, byte for byte, with back-pressure both ways.

One shared buffer and one `recv_into`, one `send` for each piece: at 16 to 20 us of CPU a request (both directions, most
of it the kernel's TCP) this is level with uvloop's own Protocols, and what the peer does not take is the only copy. Bulk
goes through a pipe in the kernel (`splice`): 170 ns a KiB against 350.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from saggar.egress.shares_host import BYTE_NS, EVENT_NS, PACED_BYTES
from saggar.egress.wire_host import reset

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from saggar.egress.shares_host import Share

#: one for the process: callbacks never overlap, and what cannot be sent at once is copied out
_BUFFER = memoryview(bytearray(256 * 1024))

#: a direction that moved this much in large pieces goes through a pipe in the kernel: half the CPU for each byte
_BULK_BYTES = 1024 * 1024
_LARGE_PIECE = 32 * 1024
_PIPE_BYTES = 256 * 1024
#: what the first `_WIDE_PIPES` of the process move at once, unless a budget counts: 64 MiB of pipes is all that the kernel
#: gives one user before every new pipe of hers has two pages, so most stay narrow
_WIDE_BYTES = 1024 * 1024
_WIDE_PIPES = 16
_F_SETPIPE_SZ = 1031
_SPLICE_FLAGS = 3  # SPLICE_F_MOVE | SPLICE_F_NONBLOCK


class _Wide:
    """How many wide pipes the process has."""

    count = 0


class _Direction:
    """Bytes of `source` to `sink`."""

    __slots__ = (
        "_in_pipe",
        "_pipe",
        "_room",
        "count",
        "ended",
        "may_pass",
        "pending",
        "recv_into",
        "send",
        "share",
        "sink",
        "sink_fd",
        "source",
        "source_fd",
        "splice",
    )

    def __init__(
        self, splice: Splice, source: socket.socket, sink: socket.socket, may_pass: Callable[[int], bool] | None
    ) -> None:
        self.splice = splice
        #: asked before bytes are passed on, where a budget counts them
        self.may_pass = may_pass
        self.share = splice.share
        self.source = source
        self.sink = sink
        self.source_fd = source.fileno()
        self.sink_fd = sink.fileno()
        self.recv_into = source.recv_into
        self.send = sink.send
        self.pending = b""
        self.count = 0
        self.ended = False
        self._pipe: tuple[int, int] | None = None
        self._room = _PIPE_BYTES
        self._in_pipe = 0

    def on_readable(self) -> None:
        if self.share.spent:
            self.share.park(self.source_fd, self.on_readable)
            return
        try:
            size = self.recv_into(_BUFFER, PACED_BYTES if self.share.paced else 0)
        except BlockingIOError:
            return
        except OSError:
            self.splice.abort()
            return
        if not size:
            self._end()
            return
        # with a reset that came behind these bytes the event loop (libuv) stops watching and never tells
        gone = self.source.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if self.may_pass is not None and not self.may_pass(size):
            self.splice.abort()
            return
        self.count += size
        self.share.take(EVENT_NS + BYTE_NS * size)
        try:
            sent = self.send(_BUFFER[:size])
        except BlockingIOError:
            sent = 0
        except OSError:
            self.splice.abort()
            return
        if sent < size:
            self.pending = bytes(_BUFFER[sent:size])
            self.splice.loop.remove_reader(self.source_fd)
            self.splice.loop.add_writer(self.sink_fd, self._on_writable)
        elif gone:
            self._end()
        elif size >= _LARGE_PIECE and self.count >= _BULK_BYTES:
            self._to_kernel()

    def _on_writable(self) -> None:
        if self.share.spent:
            self.share.park_writer(self.sink_fd, self._on_writable)
            return
        try:
            sent = self.send(self.pending)
        except BlockingIOError:
            return
        except OSError:
            self.splice.abort()
            return
        self.share.take(EVENT_NS + BYTE_NS * sent)
        self.pending = self.pending[sent:]
        if not self.pending:
            self.splice.loop.remove_writer(self.sink_fd)
            self.splice.loop.add_reader(self.source_fd, self.on_readable)

    # -- bulk --------------------------------------------------------------------------------------------------------

    def _to_kernel(self) -> None:
        """From here on through a pipe, if one can be had."""
        try:
            self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return  # out of descriptors: copying goes on
        if self.may_pass is None and _Wide.count < _WIDE_PIPES:
            self._room = _WIDE_BYTES
            _Wide.count += 1
        with suppress(OSError):  # a pipe of 64 KiB will do where the user's pipes are used up
            fcntl.fcntl(self._pipe[1], _F_SETPIPE_SZ, self._room)
        self.splice.loop.remove_reader(self.source_fd)
        self.splice.loop.add_reader(self.source_fd, self._on_bulk)

    def _on_bulk(self) -> None:
        if self.share.spent:
            self.share.park(self.source_fd, self._on_bulk)
            return
        if self._pipe is None:
            return
        try:
            most = PACED_BYTES if self.share.paced else self._room
            size = os.splice(self.source_fd, self._pipe[1], most, flags=_SPLICE_FLAGS)
        except BlockingIOError:
            return
        except OSError:
            self.splice.abort()
            return
        if not size:
            self._end()
            return
        gone = self.source.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # as above
        if self.may_pass is not None and not self.may_pass(size):
            self.splice.abort()
            return
        self.count += size
        self.share.take(EVENT_NS + BYTE_NS * size)
        self._in_pipe = size
        if self._drain():
            if gone:
                self._end()
            return
        self.splice.loop.remove_reader(self.source_fd)
        self.splice.loop.add_writer(self.sink_fd, self._on_bulk_writable)

    def _on_bulk_writable(self) -> None:
        if self.share.spent:
            self.share.park_writer(self.sink_fd, self._on_bulk_writable)
            return
        if self._drain() and self.splice.open:
            self.splice.loop.remove_writer(self.sink_fd)
            self.splice.loop.add_reader(self.source_fd, self._on_bulk)

    def _drain(self) -> bool:
        """The pipe to the sink; whether it is empty (or the splice is over)."""
        if self._pipe is None:
            return True
        try:
            while self._in_pipe:
                moved = os.splice(self._pipe[0], self.sink_fd, self._in_pipe, flags=_SPLICE_FLAGS)
                self._in_pipe -= moved
                self.share.take(BYTE_NS * moved)
        except BlockingIOError:
            return False
        except OSError:
            self.splice.abort()
        return True

    def close_pipe(self) -> None:
        if self._pipe is not None:
            for fd in self._pipe:
                os.close(fd)
            self._pipe = None
            _Wide.count -= self._room == _WIDE_BYTES

    def _end(self) -> None:
        """The source is done: tell the sink, keep the other direction."""
        self.ended = True
        self.splice.loop.remove_reader(self.source_fd)
        with suppress(OSError):
            self.sink.shutdown(socket.SHUT_WR)
        self.splice.on_end()


class Splice:
    """Join `client` and `upstream` until both directions ended or one side fails.

    on_done is called once, after both sockets are closed.
    """

    __slots__ = ("_on_done", "down", "loop", "open", "share", "up")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: socket.socket,
        upstream: socket.socket,
        on_done: Callable[[], None],
        *,
        share: Share,
        up: Callable[[int], bool] | None = None,
        down: Callable[[int], bool] | None = None,
    ) -> None:
        """up, down: asked before so many bytes pass that way; a no ends both sides. `may_pass` of a direction changes it."""
        self.loop = loop
        self.share = share
        self.up = _Direction(self, client, upstream, up)
        self.down = _Direction(self, upstream, client, down)
        self._on_done = on_done
        self.open = True

    def start(self) -> None:
        self.loop.add_reader(self.up.source_fd, self.up.on_readable)
        self.loop.add_reader(self.down.source_fd, self.down.on_readable)
        self.up.on_readable()  # the first flight was peeked at: it is there

    @property
    def moved(self) -> int:
        """Bytes moved so far; one that does not change is idle."""
        return self.up.count + self.down.count

    @property
    def half_closed(self) -> bool:
        """One side has ended its direction, the other has not."""
        return self.up.ended or self.down.ended

    def on_end(self) -> None:
        if self.up.ended and self.down.ended:
            self._finish(abort=False)

    def abort(self) -> None:
        """End both sides with RST."""
        self._finish(abort=True)

    def _finish(self, *, abort: bool) -> None:
        if not self.open:
            return
        self.open = False
        for direction in (self.up, self.down):
            self.loop.remove_reader(direction.source_fd)
            self.loop.remove_writer(direction.source_fd)
            self.share.drop(direction.source_fd)
        for direction in (self.up, self.down):
            direction.close_pipe()
            if abort:
                reset(direction.source)
            else:
                direction.source.close()
        self._on_done()
