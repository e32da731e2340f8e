"""Two connected sockets joined, byte for byte, with back-pressure both ways.

One shared buffer and one `recv_into`, one `send` for each piece; what the peer does not take is the only copy. Bulk goes through a
pipe in the kernel (`splice`): 170 ns a KiB against 350.

Both sockets are flows of the broker's loop (`loop_host`): told of once for each edge, so that a small piece costs these two calls
and nothing else. A piece that fills what was asked for is read on; a short one is all that there was.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from saggar.egress.loop_host import ENDS, FAILED, READABLE, WRITABLE
from saggar.egress.shares_host import BYTE_NS, EVENT_NS, PACED_BYTES
from saggar.egress.wire_host import reset

if TYPE_CHECKING:
    from collections.abc import Callable

    from saggar.egress.loop_host import Loop
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
        "_ending",
        "_in_pipe",
        "_pipe",
        "_room",
        "_told_of_room",
        "back",
        "blocked",
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

    #: the other direction: what it sends goes into our source
    back: _Direction

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
        #: the sink does not take what was read: nothing more is read until it does
        self.blocked = False
        self.ended = False
        #: the source has ended or failed, behind what may still be unread
        self._ending = False
        self._told_of_room = False
        self._pipe: tuple[int, int] | None = None
        self._room = _PIPE_BYTES
        self._in_pipe = 0

    def on_event(self, mask: int) -> None:
        """Something is new with `source`."""
        if mask != READABLE:
            if mask & WRITABLE and self.back.blocked:
                self.back.on_writable()
            if mask == WRITABLE:
                return
            if mask & ENDS:
                self._ending = True
            if self.ended:
                if mask & FAILED:
                    self.splice.abort()
                return
        if not self.blocked:
            self.on_readable()

    def on_readable(self) -> None:
        share = self.share
        if share.spent:
            share.park_flow(self.splice.loop.flows, self.source_fd, self.on_readable)
            return
        if self._pipe is not None:
            self._on_bulk(self._pipe)
            return
        most = PACED_BYTES if share.paced else len(_BUFFER)
        try:
            size = self.recv_into(_BUFFER, most)
        except BlockingIOError:
            return
        except OSError:
            self.splice.abort()
            return
        if not size:
            self._end()
            return
        if self.may_pass is not None and not self.may_pass(size):
            self.splice.abort()
            return
        self.count += size
        share.take(EVENT_NS + BYTE_NS * size)
        try:
            sent = self.send(_BUFFER[:size])
        except BlockingIOError:
            sent = 0
        except OSError:
            self.splice.abort()
            return
        if sent < size:
            self.pending = bytes(_BUFFER[sent:size])
            self._block()
            return
        if size >= _LARGE_PIECE and self.count >= _BULK_BYTES:
            self._to_kernel()
            self._go_on()
        elif size == most:
            self._go_on()
        elif self._ending:
            self.on_readable()  # there is the end, or the error

    def _go_on(self) -> None:
        """There may be more that no event will tell of."""
        self.splice.loop.call_soon(self._again)

    def _again(self) -> None:
        if self.splice.open and not self.blocked and not self.ended:
            self.on_readable()

    def _block(self) -> None:
        self.blocked = True
        if not self._told_of_room:
            self._told_of_room = True
            self.splice.loop.flows.watch_room(self.sink_fd)

    def on_writable(self) -> None:
        """The sink may take more."""
        share = self.share
        if share.spent:
            share.park_flow(self.splice.loop.flows, self.sink_fd, self.on_writable, writing=True)
            return
        if self._pipe is not None and self._in_pipe:
            if not self._drain(self._pipe):
                return
        elif self.pending:
            try:
                sent = self.send(self.pending)
            except BlockingIOError:
                return
            except OSError:
                self.splice.abort()
                return
            share.take(EVENT_NS + BYTE_NS * sent)
            self.pending = self.pending[sent:]
            if self.pending:
                return
        self.blocked = False
        self._again()

    # -- bulk --------------------------------------------------------------------------------------------------------

    def _to_kernel(self) -> None:
        """From here on through a pipe, if one can be had."""
        try:
            pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return  # out of descriptors: copying goes on
        if self.may_pass is None and _Wide.count < _WIDE_PIPES:
            self._room = _WIDE_BYTES
            _Wide.count += 1
        with suppress(OSError):  # a pipe of 64 KiB will do where the user's pipes are used up
            fcntl.fcntl(pipe[1], _F_SETPIPE_SZ, self._room)
        self._pipe = pipe

    def _on_bulk(self, pipe: tuple[int, int]) -> None:
        share = self.share
        try:
            most = PACED_BYTES if share.paced else self._room
            size = os.splice(self.source_fd, pipe[1], most, flags=_SPLICE_FLAGS)
        except BlockingIOError:
            return
        except OSError:
            self.splice.abort()
            return
        if not size:
            self._end()
            return
        if self.may_pass is not None and not self.may_pass(size):
            self.splice.abort()
            return
        self.count += size
        share.take(EVENT_NS + BYTE_NS * size)
        self._in_pipe = size
        if self._drain(pipe):
            # a pipe holds pages, not bytes: a short piece may be all that fitted
            self._go_on()
        elif self.splice.open:
            self._block()

    def _drain(self, pipe: tuple[int, int]) -> bool:
        """The pipe to the sink; whether it is empty (and the splice not over)."""
        try:
            while self._in_pipe:
                moved = os.splice(pipe[0], self.sink_fd, self._in_pipe, flags=_SPLICE_FLAGS)
                self._in_pipe -= moved
                self.share.take(BYTE_NS * moved)
        except BlockingIOError:
            return False
        except OSError:
            self.splice.abort()
            return False
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
        if self.back.ended:
            self.splice.finish(abort=False)
            return
        with suppress(OSError):
            self.sink.shutdown(socket.SHUT_WR)


class Splice:
    """Join `client` and `upstream` until both directions ended or one side fails.

    on_done is called once, after both sockets are closed.
    """

    __slots__ = ("_on_done", "down", "loop", "open", "share", "up")

    def __init__(
        self,
        loop: Loop,
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
        self.down = self.up.back = _Direction(self, upstream, client, down)
        self.down.back = self.up
        self._on_done = on_done
        self.open = True

    def start(self) -> None:
        up, down = self.up, self.down
        self.loop.flows.watch(up.source_fd, up.on_event)
        self.loop.flows.watch(down.source_fd, down.on_event)
        up.on_readable()  # the first flight was peeked at: it is there

    @property
    def moved(self) -> int:
        """Bytes moved so far; one that does not change is idle."""
        return self.up.count + self.down.count

    @property
    def half_closed(self) -> bool:
        """One side has ended its direction, the other has not."""
        return self.up.ended or self.down.ended

    def abort(self) -> None:
        """End both sides with RST."""
        self.finish(abort=True)

    def finish(self, *, abort: bool) -> None:
        if not self.open:
            return
        self.open = False
        forget, share = self.loop.flows.forget, self.share
        for direction in (self.up, self.down):
            forget(direction.source_fd)
            share.drop(direction.source_fd)
        for direction in (self.up, self.down):
            direction.close_pipe()
            if abort:
                reset(direction.source)
            else:
                direction.source.close()
        self._on_done()
