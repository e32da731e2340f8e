"""One end of a terminated connection: a raw socket, with or without TLS, and back-pressure.

I1  At most what one `recv` brought and one encryption made of it is buffered; who writes to an end with `pending` bytes
    (it hears `stalled`) stops reading from its own side until `drained`.
I2  Data reaches `data` only after the handshake; a failed handshake or a broken record ends the end.
I3  `lost` or `ended` is called once; after `close` nothing is called.
I4  Bytes leave through the cell's `Turn` alone: after the records of the round in which they were written.

TLS runs over memory BIOs in this class and not in uvloop's transport: a first flight that was peeked at is simply read
here, reading can be stopped before the handshake, and what goes out with one `send` is decided here.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

from saggar.egress.shares_host import CLEAR_BYTE_NS, MOST_BYTES, PACED_BYTES, REQUEST_NS
from saggar.egress.wire_host import is_silent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio

    from saggar.egress.shares_host import Share
    from saggar.egress.turn_host import Turn

#: one for the process: callbacks never overlap, and data is copied out before the next `recv`
_BUFFER = memoryview(bytearray(MOST_BYTES))
_RECORD = 16 * 1024
#: what `_BUFFER` and a record begun before it hold once decrypted
_PLAIN = memoryview(bytearray(len(_BUFFER) + 2 * _RECORD))


class End:
    """Subclasses say what happens: `ready`, `data`, `drained`, `ended` (orderly), `lost` (not)."""

    __slots__ = ("_fd", "_incoming", "_outgoing", "_plain", "_reading", "_recv_into", "_send", "_speaking", "_tls", "_turn", "_writing",
                 "clean", "closed", "eof", "loop", "open", "pending", "sent", "share", "sock")  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, turn: Turn) -> None:
        self.loop = loop
        self._turn = turn
        #: something waits for the end of this round: in `_outgoing` with TLS, in `_plain` without
        self._speaking = False
        self._plain: list[bytes] = []
        self.sock = sock
        self._fd = sock.fileno()
        self._recv_into = sock.recv_into
        self._send = sock.send
        #: the cell's, where it waits for its turn with others
        self.share: Share | None = None
        self._tls: ssl.SSLObject | None = None
        self._incoming: ssl.MemoryBIO | None = None
        self._outgoing: ssl.MemoryBIO | None = None
        self._reading = False
        self._writing = False
        self.pending = b""
        #: the kernel took some of what was written (since whoever asks set it to False)
        self.sent = False
        self.open = False
        self.closed = False
        self.eof = False
        #: the peer said that it sends no more (close_notify); with TLS a mere FIN may be a cut by somebody between
        self.clean = False

    def start(self, context: ssl.SSLContext | None, *, server_side: bool, hostname: str | None = None) -> None:
        """Begin: with TLS where there is a context, plain else."""
        if context is None:
            self.open = True
            self.resume()
            self.ready()
            return
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=hostname)
        self.resume()
        if not server_side:
            # a client speaks first
            self._handshake()

    # what subclasses do

    def ready(self) -> None:
        """The handshake is done (at once without TLS)."""

    def data(self, data: bytes) -> None:
        raise NotImplementedError

    def stalled(self) -> None:
        """The kernel did not take all: there are `pending` bytes."""

    def drained(self) -> None:
        """`pending` is empty again."""

    def ended(self) -> None:
        """The peer sends no more."""

    def lost(self, error: Exception | None) -> None:
        """The connection failed. error: an SSLError, OSError, or None."""

    # reading

    def pause(self) -> None:
        if self._reading:
            self._reading = False
            self.loop.remove_reader(self._fd)
            if self.share is not None:
                self.share.drop_reader(self._fd)

    def resume(self) -> None:
        if not self._reading and not self.closed and not self.eof:
            self._reading = True
            self.loop.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        if self.share is not None and self.share.spent:
            self.share.park(self._fd, self._on_readable)
            return
        try:
            self._read()
        except Exception as e:  # noqa: BLE001  # a fault of ours ends this connection, and nothing passes
            self._fail(e)

    def _read(self) -> None:
        share = self.share
        try:
            most = 0 if share is None else min(share.piece, PACED_BYTES) if share.paced else share.piece
            count = self._recv_into(_BUFFER, most)
        except BlockingIOError:
            return
        except OSError as e:
            self._fail(e)
            return
        if not count:
            self._end()
            return
        if share is None:
            self._came(count)
            return
        began, work = share.clock(), share.work
        try:
            self._came(count)
        finally:
            share.settle(began, work, REQUEST_NS + CLEAR_BYTE_NS * count, count)

    def _came(self, count: int) -> None:
        """`count` bytes are in `_BUFFER`."""
        # with a reset that came behind these bytes the event loop (libuv) stops watching and never tells
        gone = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if self._incoming is None:
            self.data(bytes(_BUFFER[:count]))
        else:
            self._incoming.write(_BUFFER[:count])
            if self.open or self._handshake():
                self._decrypt()
        if gone:
            self._fail(ConnectionResetError())

    def _handshake(self) -> bool:
        """Whether it is done and the end still there."""
        try:
            self._tls.do_handshake()  # type: ignore[union-attr]  # only called with TLS
        except ssl.SSLWantReadError:
            self._speak()
            return False
        except (ssl.SSLError, ValueError) as e:
            # the alert that says why
            self.settle()
            self._fail(e)
            return False
        if self._outgoing.pending:  # type: ignore[union-attr]  # set together with `_tls`
            self._speak()
        self.open = True
        self.ready()
        return not self.closed

    def _decrypt(self) -> None:
        tls, incoming = self._tls, self._incoming
        size = 0
        ended = False
        try:
            # all that came fits: the plaintext is shorter than its records, of which less than one was left over before
            while incoming.pending:  # type: ignore[union-attr]  # only called with TLS
                count: int = tls.read(_RECORD, _PLAIN[size:])  # type: ignore[union-attr, assignment]
                if not count:
                    ended = True
                    break
                size += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as e:
            self._fail(e)
            return
        if self._outgoing.pending:  # type: ignore[union-attr]  # a key update
            self._speak()
        if size:
            self.data(bytes(_PLAIN[:size]))
        if ended and not self.closed:
            self.clean = True
            self._end()

    def _end(self) -> None:
        self.eof = True
        self.pause()
        if not self.open and self._tls is not None:
            self._fail(None)
        elif not self.closed:
            self.clean = self.clean or self._tls is None
            self.ended()

    def _fail(self, error: Exception | None) -> None:
        if not self.closed:
            self.close()
            self.lost(error)

    # writing

    def write(self, data: bytes) -> None:
        """Send at the end of this round; what the kernel then does not take at once is kept in `pending`."""
        if self.closed:
            return
        if self._tls is None:
            self._plain.append(data)
        else:
            try:
                self._tls.write(data)
            except ssl.SSLError as e:
                self._fail(e)
                return
        if not self._speaking:
            self._speaking = True
            self._turn.add(self)

    def _speak(self) -> None:
        if not self._speaking:
            self._speaking = True
            self._turn.add(self)

    @property
    def unsent(self) -> bool:
        """Whether something that was written has not left."""
        return bool(self.pending) or self._speaking

    def settle(self) -> None:
        """Send now what waits for the end of this round, after the records that wait."""
        if (self._speaking or (self._outgoing is not None and self._outgoing.pending)) and self._turn.commit():
            self.send_now()

    def send_now(self) -> None:
        """The round is over, its records are written."""
        self._speaking = False
        if self.closed:
            return
        if self._outgoing is not None:
            data = self._outgoing.read()
        else:
            data = b"".join(self._plain)
            self._plain.clear()
        if not data:
            return
        if self.pending:
            self.pending += data
            return
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError as e:
            self._fail(e)
            return
        self.sent = self.sent or sent > 0
        if sent < len(data):
            self.pending = data[sent:]
            self._writing = True
            self.loop.add_writer(self._fd, self._on_writable)
            try:
                self.stalled()
            except Exception as e:  # noqa: BLE001  # as in `_on_readable`
                self._fail(e)

    def _on_writable(self) -> None:
        if self.share is not None and self.share.spent:
            self.share.park_writer(self._fd, self._on_writable)
            return
        try:
            sent = self._send(self.pending)
        except BlockingIOError:
            return
        except OSError as e:
            self._fail(e)
            return
        self.sent = True
        self.pending = self.pending[sent:]
        if not self.pending:
            self._writing = False
            self.loop.remove_writer(self._fd)
            try:
                self.drained()
            except Exception as e:  # noqa: BLE001  # as in `_on_readable`
                self._fail(e)

    def finish(self) -> None:
        """Say that no more comes (close_notify, FIN); reading goes on. Call with nothing pending."""
        if self.closed:
            return
        if self._tls is not None and self.open:
            with suppress(ssl.SSLError):
                self._tls.unwrap()
        self.settle()
        if not self.closed and not self.pending:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)

    def is_quiet(self) -> bool:
        """Whether an idle end is still there and nothing unsolicited waits to be read. One system call."""
        if self.closed or self.eof:
            return False
        return is_silent(self.sock)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.pause()
        if self._writing:
            self._writing = False
            self.loop.remove_writer(self._fd)
            if self.share is not None:
                self.share.drop(self._fd)
        self.pending = b""
        self._plain.clear()
        self.sock.close()

    def abort(self) -> None:
        """Close with RST: the peer must not take what it has for a whole message."""
        if not self.closed:
            with suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            self.close()

    def failed(self, error: Exception) -> None:
        """A fault of ours while it spoke: this end is over, and what hangs on it."""
        self._fail(error)
        self.cut()

    def cut(self) -> None:
        """End at once, with all that hangs on it: the record of what it was to say could not be written."""
        self.abort()
