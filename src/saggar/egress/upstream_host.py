"""Connections to upstreams of terminated hosts: verified, pooled per cell, never mixed.

I1  A secret or request goes out only after the upstream's certificate was verified for the destination's name.
I2  A pool belongs to one cell; inside it a connection serves one key alone: destination, rule, credential and its version.
I3  A connection is used again only when its last answer ended exactly, nothing unsolicited came, and both sides keep alive. That is
    looked at when it is given back, when it is taken, and once more in front of the first byte of the next request.
I4  What came before the first byte of a request was sent is no answer to it. Whoever sent such a thing once gets one connection
    for each request from then on, until the task ends: bytes that arrive between that last look and the request's own answer
    cannot be told from the answer by anybody between.
"""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import TYPE_CHECKING

from saggar.core.errors import ParseError
from saggar.egress.end_host import End
from saggar.egress.http_body import ChunkedReader, CloseReader, LengthReader
from saggar.egress.http_head import find_end
from saggar.egress.known import Answers

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable
    from typing import Protocol

    from saggar.egress.http_head import ResponseHead
    from saggar.egress.turn_host import Turn

    class Exchange(Protocol):
        """Whom an upstream answers to."""

        def on_upstream_ready(self) -> None: ...
        def on_informational(self, head: ResponseHead) -> None: ...
        def on_response(self, head: ResponseHead, pieces: list[bytes], *, done: bool) -> None: ...
        def on_body(self, pieces: list[bytes], *, done: bool) -> None: ...
        def on_switched(self, data: bytes) -> None: ...
        def on_upstream_end(self) -> None: ...
        def on_upstream_lost(self, reason: str, detail: str) -> None: ...
        def on_upstream_stalled(self) -> None: ...
        def on_upstream_drained(self) -> None: ...


#: servers close idle connections from 5 s on; a request that meets the close cannot always be sent again
IDLE_S = 4.0
IDLE_LIMIT = 32
#: places that are remembered for having sent what nobody asked for; with more no connection of the cell is used again
MAX_LIARS = 1024
_MAX_INTERIM = 16

Key = tuple[object, ...]


class Upstream(End):
    """One connection. `begin` gives it to an exchange; it comes back by `Pool.give`."""

    __slots__ = (
        "_buffer",
        "_interim",
        "_method",
        "_reader",
        "answers",
        "exchange",
        "fresh",
        "idle_since",
        "key",
        "moved_down",
        "moved_up",
        "pool",
        "responded",
        "reusable",
        "switched",
        "trailers",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        turn: Turn,
        key: Key,
        answers: Answers | None = None,
    ) -> None:
        super().__init__(loop, sock, turn)
        self.key = key
        #: the cell's
        self.answers = answers or Answers()
        self.exchange: Exchange | None = None
        #: where it comes back to, and who hears of what it sent unasked
        self.pool: Pool | None = None
        self.fresh = True
        self.idle_since = 0.0
        #: bytes of HTTP that went each way and are in no book yet (`ClientEnd.account`)
        self.moved_up = 0
        self.moved_down = 0
        self.reusable = True
        self.responded = False
        self.switched = False
        #: fields behind the body of the answer, once it is complete
        self.trailers: list[tuple[bytes, bytes]] = []
        self._buffer = b""
        self._interim = 0
        self._method = ""
        self._reader: ChunkedReader | LengthReader | CloseReader | None = None

    def begin(self, exchange: Exchange, method: str) -> None:
        """The answer to a request of `method` goes to `exchange`."""
        self.exchange = exchange
        self.sent = False
        self.responded = False
        self.trailers = []
        self._interim = 0
        self._method = method
        self._reader = None

    def ready(self) -> None:
        if self.exchange is not None:
            self.exchange.on_upstream_ready()

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.moved_up += len(data)
        super().write(data)

    def data(self, data: bytes) -> None:
        self.moved_down += len(data)
        exchange = self.exchange
        if exchange is None:
            # whoever sends ahead of a request could answer the next one
            self._unsolicited()
            self.close()
            return
        if not self.fresh and not self.sent:
            self._unsolicited()
            self._break("upstream_closed", "it answered before it was asked")
            return
        if self.switched:
            exchange.on_switched(data)
            return
        self.responded = True
        try:
            if self._reader is None:
                self._head(exchange, data)
            else:
                pieces = self._reader.feed(data)
                self._settle()
                exchange.on_body(pieces, done=self._reader is None)
        except ParseError as e:
            self._break("bad_response", str(e))

    def _head(self, exchange: Exchange, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        while True:
            end = find_end(data)
            if end < 0:
                self._buffer = data
                return
            head = self.answers.read(data[:end], self._method)
            data = data[end:]
            if head.status == 101:
                self.switched = True
                self.reusable = False
                exchange.on_response(head, [data] if data else [], done=False)
                return
            if head.status >= 200:
                break
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                raise ParseError("too many interim responses", reason="bad_response")
            exchange.on_informational(head)
            if self.exchange is not exchange:
                return
        self._open_body(head)
        pieces = self._reader.feed(data) if self._reader is not None and data else []
        if self._reader is None and data:
            self._unsolicited()
        self._settle()
        exchange.on_response(head, pieces, done=self._reader is None)

    def _open_body(self, head: ResponseHead) -> None:
        body = head.body
        if not head.keep_alive:
            self.reusable = False
        if body.kind == "chunked":
            self._reader = ChunkedReader()
        elif body.kind == "close":
            self._reader = CloseReader()
            self.reusable = False
        elif body.length:
            self._reader = LengthReader(body.length)

    def _settle(self) -> None:
        """Take note when the answer is complete."""
        reader = self._reader
        if reader is not None and reader.done:
            if reader.rest:
                self._unsolicited()
            if isinstance(reader, ChunkedReader) and reader.trailers:
                self.trailers = reader.trailers
            self._reader = None

    def _unsolicited(self) -> None:
        self.reusable = False
        if self.pool is not None:
            self.pool.distrust(self.key)

    def look(self) -> None:
        """Read what waits on an idle connection: an end, TLS's own messages, or what nobody asked for."""
        try:
            self._read()
        except Exception as e:  # noqa: BLE001  # as in `End._on_readable`
            self._fail(e)

    def send_now(self) -> None:
        # in front of a request's first byte (I3)
        if not (self.fresh or self.sent or self.pending or self.closed or self.is_quiet()):
            self.look()
        super().send_now()

    def _break(self, reason: str, detail: str) -> None:
        self.close()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.on_upstream_lost(reason, detail)

    def stalled(self) -> None:
        if self.exchange is not None:
            self.exchange.on_upstream_stalled()

    def drained(self) -> None:
        if self.exchange is not None:
            self.exchange.on_upstream_drained()

    def ended(self) -> None:
        exchange = self.exchange
        if exchange is None:
            self.close()
        elif self.switched:
            exchange.on_upstream_end()
        elif isinstance(self._reader, CloseReader) and self.clean:
            self._reader = None
            exchange.on_body([], done=True)
        else:
            self._break("upstream_closed", "the upstream closed before the end of its answer")

    def lost(self, error: Exception | None) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        if isinstance(error, ssl.SSLCertVerificationError):
            exchange.on_upstream_lost("upstream_certificate", error.verify_message)
        elif isinstance(error, ssl.SSLError):
            exchange.on_upstream_lost("upstream_tls", error.reason or "TLS failed")
        elif not self.open:
            exchange.on_upstream_lost("upstream_tls", "the upstream closed during the handshake")
        else:
            exchange.on_upstream_lost("upstream_closed", type(error).__name__ if error else "closed")


class Pool:
    """Idle connections of one cell. on_liar: called once for each host and port that sent what nobody asked for, with a key of theirs."""

    __slots__ = ("_idle", "_loop", "_no_reuse", "_on_liar")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_liar: Callable[[Key], object] | None = None) -> None:
        self._loop = loop
        self._on_liar = on_liar
        self._idle: dict[Key, list[Upstream]] = {}
        #: (host, port) that get one connection for each request (I4)
        self._no_reuse: set[Key] = set()

    def distrust(self, key: Key) -> None:
        """An upstream of `key` sent what nobody asked for."""
        place = key[:2]
        if place in self._no_reuse or len(self._no_reuse) >= MAX_LIARS:
            return
        self._no_reuse.add(place)
        if self._on_liar is not None:
            self._on_liar(key)
        for other in [k for k in self._idle if not self._may_reuse(k)]:
            for upstream in self._idle.pop(other):
                upstream.close()

    def _may_reuse(self, key: Key) -> bool:
        return key[:2] not in self._no_reuse and len(self._no_reuse) < MAX_LIARS

    def take(self, key: Key) -> Upstream | None:
        """The idle connection that was used last, or None."""
        idle = self._idle.get(key)
        while idle:
            upstream = idle.pop()
            # its end may have come since the event loop last looked
            if self._loop.time() - upstream.idle_since < IDLE_S:
                if upstream.is_quiet():
                    return upstream
                upstream.look()
            upstream.close()
        return None

    def give(self, upstream: Upstream) -> None:
        """Take back a connection whose answer is complete."""
        upstream.exchange = None
        key = upstream.key
        if not upstream.reusable or upstream.closed or upstream.eof or upstream.unsent or not self._may_reuse(key):
            upstream.close()
            return
        idle = self._idle.setdefault(key, [])
        if len(idle) >= IDLE_LIMIT:
            upstream.close()
            return
        upstream.fresh = False
        upstream.idle_since = self._loop.time()
        upstream.resume()
        idle.append(upstream)

    def sweep(self) -> None:
        """Close what has been idle too long."""
        now = self._loop.time()
        for key, idle in list(self._idle.items()):
            alive = []
            for upstream in idle:
                if upstream.closed or now - upstream.idle_since >= IDLE_S:
                    upstream.close()
                else:
                    alive.append(upstream)
            if alive:
                self._idle[key] = alive
            else:
                del self._idle[key]

    def close(self) -> None:
        for idle in self._idle.values():
            for upstream in idle:
                upstream.close()
        self._idle.clear()


@lru_cache(maxsize=64)
def client_context(ca_pem: str) -> ssl.SSLContext:
    """For dialling: the host's roots and what the policy names, HTTP/1.1 only, no client certificate ever.

    Costs 50 ms with the system's roots, so one serves every cell: it holds public certificates, and no session is kept.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if ca_pem:
        context.load_verify_locations(cadata=ca_pem)
    return context
