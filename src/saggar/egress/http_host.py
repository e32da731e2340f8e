"""Plain HTTP, request by request: each has its own decision, none is ever spliced.

I1  A request is decided and recorded before its body is read and before anything is resolved or dialled.
I2  What goes upstream, and back, is written anew from what was parsed.
I3  An upstream connection serves one client connection and one destination; it is not used again after an unclean
    message, unsolicited bytes, or when either side asked to close.
I4  Heads, bodies and trailers count as what they are, bytes towards the upstream; what went is in the cell's books when the
    upstream's connection goes, and when the cell closes.
I5  A client learns of a cut response by RST, never by an orderly end.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from saggar.core.decision import Decision
from saggar.core.errors import ParseError
from saggar.egress import http_head
from saggar.egress.authorize import AuthorizedRequest, authorize, public_text, refuse
from saggar.egress.destination import Destination
from saggar.egress.dial_host import DialError
from saggar.egress.eager import metered
from saggar.egress.http_body import LAST_CHUNK, ChunkedReader, CloseReader, LengthReader, chunk, last_chunk
from saggar.egress.http_head import NO_BODY, Body, RequestHead, ResponseHead
from saggar.egress.remedies import remedy
from saggar.egress.trailers import is_harmless
from saggar.egress.wire_host import Wire, is_ended, is_gone, reset, say_and_close

if TYPE_CHECKING:
    from collections.abc import Callable

    from saggar.egress.budget import Refusal
    from saggar.egress.connection_host import Connection

HEAD_S = 10.0
KEEP_ALIVE_S = 75.0
#: an upstream may think this long before its response begins
RESPONSE_S = 300.0
#: and be silent this long within it (server-sent events ping more often)
SILENCE_S = 900.0
_MAX_INTERIM = 16
#: how often a client that waits is looked at, and how long one that has ended its direction is still answered: some end
#: theirs on purpose after a request, most are gone
_LOOK_S = 5.0
HALF_CLOSED_S = 30.0

_WEBSOCKET = ((b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"))


class _Cut(Exception):
    """The exchange cannot go on; the client is told by RST."""


def _reader(body: Body) -> ChunkedReader | LengthReader | CloseReader:
    if body.kind == "chunked":
        return ChunkedReader()
    if body.kind == "close":
        return CloseReader()
    return LengthReader(body.length)


def _end(reader: ChunkedReader | LengthReader | CloseReader) -> bytes:
    """The end of a chunked body, with what may stand behind it."""
    if not isinstance(reader, ChunkedReader):
        return LAST_CHUNK
    return last_chunk([t for t in reader.trailers if is_harmless(t[0])])


class HttpRelay:
    """Serves the requests of one client connection, until one side ends it."""

    __slots__ = ("_answered", "_client", "_connection", "_upstream", "_upstream_for", "_upstream_used")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = Wire(connection.sock, connection.cell.share)
        self._upstream: Wire | None = None
        self._upstream_for: AuthorizedRequest | None = None
        self._upstream_used = False
        #: the client has seen the head of a final response to the current request
        self._answered = False

    async def run(self) -> None:
        try:
            first = True
            while await self._one(first):
                first = False
            if not self._handed_over():
                self._client.sock.close()
        except (_Cut, OSError):
            reset(self._client.sock)
        finally:
            if not self._handed_over():
                self._drop_upstream()

    def _handed_over(self) -> bool:
        return self._connection.spliced

    # -- one request -----------------------------------------------------------------------------------------------

    async def _one(self, first: bool) -> bool:
        """Serve the next request; whether another may follow."""
        head = await self._read_head(first)
        if head is None:
            return False
        connection = self._connection
        default_port = 80
        try:
            request = http_head.parse_request(head, default_port=default_port)
            result = self._judge(request)
        except ParseError as e:
            return self._refuse(refuse(e.reason, cause=str(e)), head_only=head.startswith(b"HEAD "))
        if isinstance(result, Decision):
            return self._refuse(result, head_only=request.method == "HEAD")
        connection.authorized = result
        terminated = connection.cell.terminated
        if connection.is_terminated(result) and terminated is not None:
            self._drop_upstream()
            self._client.unread(head)
            await terminated.serve(connection, result, self._client)
            return False
        over = self._over_budget(result, len(head))
        if over is not None:
            decision = connection.cell.over_budget(over, result)
            text = f"{result.destination}: {over.public}; {remedy(over.reason)}"
            return self._refuse(decision, head_only=request.method == "HEAD", public=text)
        path = request.target.partition(b"?")[0][:512].decode()
        if not connection.record_allowed(result, method=request.method, path=path):
            raise _Cut
        try:
            await self._connect(result)
        except DialError as e:
            decision = refuse(e.reason, result.destination, rule=result.rule.id, **e.detail)
            return self._refuse(decision, head_only=request.method == "HEAD")
        return await self._exchange(request, result)

    def _over_budget(self, request: AuthorizedRequest, head: int) -> Refusal | None:
        """Whether the task's budget has room for this request, whose head takes so many bytes, and for a connection where it
        needs another one."""
        connection = self._connection
        current = self._upstream_for
        if connection.spend is None or current is None or current.destination.host != request.destination.host:
            if connection.spend is not None:
                connection.spend.close()
            connection.spend = connection.cell.spend(request.destination.host)
            over = connection.spend.open()
            if over is not None:
                return over
        return connection.spend.request() or connection.spend.up(head)

    def _passes(self, take: Callable[[int], Refusal | None], count: int) -> None:
        """Raises _Cut where `count` bytes more are too many."""
        over = take(count)
        request = self._upstream_for
        if over is not None and request is not None:
            self._connection.record_refused(self._connection.cell.over_budget(over, request))
            raise _Cut

    async def _read_head(self, first: bool) -> bytes | None:
        """One head; None where the client ended instead of sending one."""
        buffer = self._client.buffer
        try:
            if not buffer:
                async with asyncio.timeout(HEAD_S if first else KEEP_ALIVE_S):
                    if not await self._client.fill():
                        return None
            async with asyncio.timeout(HEAD_S):
                seen = 0
                # RFC 9112, section 2.2: one empty line before a request is let pass
                if buffer[:2] == b"\r\n":
                    del buffer[:2]
                while (end := http_head.find_end(buffer, seen)) < 0:
                    seen = len(buffer)
                    if not await self._client.fill():
                        if buffer:
                            self._refuse(refuse("malformed_request", cause="the head is cut"))
                        return None
        except TimeoutError:
            if not first and not buffer:
                return None
            self._refuse(refuse("sniff_timeout"))
            return None
        except ParseError as e:
            self._refuse(refuse(e.reason, cause=str(e)))
            return None
        head = bytes(buffer[:end])
        del buffer[:end]
        return head

    def _judge(self, request: RequestHead) -> AuthorizedRequest | Decision:
        connection = self._connection
        destination = Destination(request.host, request.port, "http")
        if request.upgrade == b"h2c":
            return refuse("h2_refused", destination)
        if request.absolute and not connection.fixed:
            # a client that takes us for its proxy: the target alone says where to
            result = authorize(connection.cell.rules, destination)
        elif connection.proxy and not connection.fixed:
            return refuse("malformed_request", cause="a request to the proxy without an absolute target")
        elif request.port != connection.port:
            result = authorize(connection.cell.rules, destination)
            if isinstance(result, AuthorizedRequest):
                return refuse("name_mismatch", destination, connected_port=connection.port)
        else:
            result = connection.judge(destination)
        if isinstance(result, Decision):
            return result
        # a terminated host's own terms say more about upgrades
        if request.upgrade and not connection.is_terminated(result):
            return refuse("upgrade_refused", destination, rule=result.rule.id)
        if connection.is_terminated(result) and connection.cell.terminated is None:
            return refuse("terminated_unavailable", destination, rule=result.rule.id)
        return result

    def _refuse(self, decision: Decision, *, head_only: bool = False, public: str = "") -> bool:
        self._connection.record_refused(decision)
        public = public or decision.public or public_text(decision.reason)
        say_and_close(
            self._client.sock, http_head.refusal(decision.reason, public, rule=decision.rule, head_only=head_only)
        )
        return False

    # -- upstream --------------------------------------------------------------------------------------------------

    async def _connect(self, request: AuthorizedRequest) -> None:
        current = self._upstream_for
        if (
            self._upstream is not None
            and current is not None
            and current.destination == request.destination
            and current.rule == request.rule
            and self._upstream.is_quiet()
        ):
            self._upstream_used = True
            return
        self._drop_upstream()
        cell = self._connection.cell
        self._upstream = Wire(await cell.dialer.dial(request), cell.share)
        self._upstream_for = request
        self._upstream_used = False

    def _drop_upstream(self) -> None:
        if self._upstream is not None:
            self._account()
            self._upstream.sock.close()
            self._upstream = None

    def _account(self) -> None:
        """Enter what the upstream's connection moved since this was last asked."""
        wire, request = self._upstream, self._upstream_for
        if wire is not None and request is not None:
            self._connection.cell.usage.add_bytes(request.destination, wire.bytes_out, wire.bytes_in)
            wire.bytes_out = wire.bytes_in = 0

    def stop(self) -> None:
        """The connection is about to be cancelled: nothing passes from here on, and what did is in the books."""
        self._account()
        if self._upstream is not None:
            # not closed: whoever waits for the descriptor is still to let it go
            with suppress(OSError):
                self._upstream.sock.shutdown(socket.SHUT_RDWR)

    async def _exchange(self, request: RequestHead, authorized: AuthorizedRequest) -> bool:
        upgrade = _WEBSOCKET if request.upgrade else ()
        head = http_head.write_request(request, authorized.destination.authority, extra=upgrade)
        for _ in range(2):
            upstream = self._upstream
            if upstream is None:
                raise _Cut
            used = self._upstream_used
            try:
                if request.body.kind != "none":
                    return await self._both_ways(upstream, head, request)
                with suppress(OSError):  # the receiving side sees why
                    await upstream.write(head)
                return await self._answer(upstream, request, None)
            except _Stale:
                # a kept connection that the upstream closed just now: once more on a new one, if nothing was lost and it may
                # happen twice
                if not used or request.body.kind != "none" or request.method not in http_head.IDEMPOTENT:
                    return self._refuse(refuse("bad_response", authorized.destination, cause="no response"))
            self._drop_upstream()
            try:
                await self._connect(authorized)
            except DialError as e:
                return self._refuse(refuse(e.reason, authorized.destination, rule=authorized.rule.id, **e.detail))
        raise _Cut

    async def _both_ways(self, upstream: Wire, head: bytes, request: RequestHead) -> bool:
        """Send the body while the response may already come: the upstream may refuse it early, or stream."""
        share = self._connection.cell.share
        pump = asyncio.ensure_future(metered(self._send(upstream, head, request.body), share))
        answer: asyncio.Future[bool] = asyncio.ensure_future(metered(self._answer(upstream, request, pump), share))
        try:
            await asyncio.wait((pump, answer), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and isinstance(error := pump.exception(), (ParseError, _Cut)):
                # the upstream must not take what it has for a whole request
                answer.cancel()
                await asyncio.wait((answer,))
                reset(upstream.sock)
                if isinstance(error, ParseError) and not self._answered:
                    return self._refuse(refuse(error.reason, self._destination(), cause=str(error)))
                raise _Cut
            return await answer
        finally:
            for task in (pump, answer):
                task.cancel()
            await asyncio.wait((pump, answer))

    async def _send(self, upstream: Wire, head: bytes, body: Body) -> None:
        """The request to the upstream. Raises ParseError where the body breaks its framing."""
        await upstream.write(head)
        reader = _reader(body)
        spend = self._connection.spend
        while not reader.done:
            piece = self._read_with(reader, await self._more())
            if spend is not None:
                self._passes(spend.up, len(piece))
            await upstream.write(chunk(piece) if body.kind == "chunked" else piece)
        if isinstance(reader, ChunkedReader):
            end = _end(reader)
            if spend is not None:
                self._passes(spend.up, len(end) - len(LAST_CHUNK))
            await upstream.write(end)
        if reader.rest:
            self._client.unread(reader.rest)

    def _read_with(self, reader: ChunkedReader | LengthReader | CloseReader, data: bytes) -> bytes:
        """What of a body is in `data`, in one piece: a sender of small chunks costs one write for each read, as others do.

        Raises ParseError.
        """
        share = self._connection.cell.share
        began, work = share.clock(), share.work
        pieces = reader.feed(data)
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        share.settle(began, work, 0, len(data))
        return piece

    async def _more(self) -> bytes:
        data = await self._client.read()
        if not data:
            raise _Cut
        return data

    async def _answer(self, upstream: Wire, request: RequestHead, pump: asyncio.Future[None] | None) -> bool:
        self._answered = False
        try:
            response = await self._response_head(upstream, request)
        except ParseError as e:
            reason = e.reason if e.reason in ("bad_response", "bad_framing") else "bad_response"
            return self._refuse(refuse(reason, self._destination(), cause=str(e)))
        except TimeoutError:
            return self._refuse(refuse("upstream_timeout", self._destination()))
        if response is None:
            return False
        return await self._relay(upstream, request, response, pump)

    def _destination(self) -> Destination | None:
        return self._upstream_for.destination if self._upstream_for is not None else None

    async def _response_head(self, upstream: Wire, request: RequestHead) -> ResponseHead | None:
        """The final response head; None where the connection was upgraded and handed over. Raises ParseError, OSError."""
        for _ in range(_MAX_INTERIM):
            seen = 0
            deadline = self._connection.cell.loop.time() + RESPONSE_S
            while (end := http_head.find_end(upstream.buffer, seen)) < 0:
                seen = len(upstream.buffer)
                try:
                    more = await self._fill(upstream, deadline)
                except TimeoutError:
                    raise
                except OSError:
                    more = False
                if not more:
                    if upstream.buffer:
                        raise ParseError("the response head is cut", reason="bad_response")
                    raise _Stale
            head = bytes(upstream.buffer[:end])
            del upstream.buffer[:end]
            response = http_head.parse_response(head, request.method)
            if response.status == 101:
                await self._upgraded(upstream, request, response)
                return None
            if response.status >= 200:
                return response
            if request.version == 1:
                await self._client.write(http_head.write_response(response, body=NO_BODY, keep_alive=True))
        raise ParseError("too many interim responses", reason="bad_response")

    async def _read(self, upstream: Wire) -> bytes:
        if not upstream.buffer and not await self._fill(upstream, self._connection.cell.loop.time() + SILENCE_S):
            return b""
        return await upstream.read()

    async def _fill(self, upstream: Wire, deadline: float) -> bool:
        """More from the upstream, while the client is there to take it. Raises TimeoutError, _Cut, OSError."""
        loop = self._connection.cell.loop
        ended_at = 0.0
        while True:
            try:
                async with asyncio.timeout(max(0.0, min(_LOOK_S, deadline - loop.time()))):
                    return await upstream.fill()
            except TimeoutError:
                now = loop.time()
                if now >= deadline:
                    raise
            if is_gone(self._client.sock):
                raise _Cut
            if is_ended(self._client.sock):
                ended_at = ended_at or now
                if now - ended_at >= HALF_CLOSED_S:
                    raise _Cut

    async def _upgraded(self, upstream: Wire, request: RequestHead, response: ResponseHead) -> None:
        agreed = next((v for n, v in response.fields if n.lower() == b"upgrade"), b"")
        if request.upgrade != b"websocket" or agreed.lower() != b"websocket":
            raise ParseError("a protocol switch that nobody asked for", reason="bad_response")
        head = http_head.write_response(response, body=NO_BODY, keep_alive=True)
        extra = b"".join(b"%s: %s\r\n" % field for field in _WEBSOCKET)
        await self._client.write(head[:-2] + extra + b"\r\n" + bytes(upstream.buffer))
        if self._client.buffer:
            await upstream.write(bytes(self._client.buffer))
        self._connection.splice(upstream.sock)

    async def _relay(
        self, upstream: Wire, request: RequestHead, response: ResponseHead, pump: asyncio.Future[None] | None
    ) -> bool:
        """The response to the client; whether the client's connection goes on."""
        reader = _reader(response.body)
        body = response.body
        if body.kind == "close" and request.version == 1:
            body = Body("chunked")
        elif body.kind == "chunked" and request.version == 0:
            body = Body("close")
        keep = request.keep_alive and body.kind != "close" and (pump is None or pump.done())
        self._answered = True
        spend = self._connection.spend
        head_only = request.method == "HEAD" or response.status == 304
        await self._client.write(http_head.write_response(response, body=body, keep_alive=keep, head_only=head_only))
        try:
            while not reader.done:
                data = await self._read(upstream)
                if not data:
                    if not isinstance(reader, CloseReader):
                        raise _Cut
                    reader.done = True
                piece = self._read_with(reader, data) if data else b""
                if spend is not None:
                    self._passes(spend.down, len(piece))
                await self._client.write(chunk(piece) if body.kind == "chunked" else piece)
        except ParseError:
            raise _Cut from None
        if body.kind == "chunked":
            await self._client.write(_end(reader))
        clean = response.keep_alive and not reader.rest and not upstream.buffer
        if not keep or (pump is not None and (pump.cancelled() or pump.exception() is not None)):
            return False
        if not clean:
            self._drop_upstream()
        return True


class _Stale(Exception):
    """The upstream ended before the first byte of a response."""
