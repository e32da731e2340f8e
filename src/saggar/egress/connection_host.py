"""One accepted connection: first flight, destination, decision, record, dial, splice.

I1  Nothing is resolved or dialled before the decision is in the audit log.
I2  What a connection is for is said once, by CONNECT, SOCKS or a synthetic address; a name inside that differs is
    refused (`name_mismatch`).
I3  A refused TLS client gets the alert `access_denied`, an HTTP client a status, a SOCKS client a code; whatever is not
    surely one of these is reset.
I4  Time and memory before the decision are bounded by `SNIFF_S` and the kernel's receive buffer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from socket import MSG_PEEK
from typing import TYPE_CHECKING, Any

from saggar.core.decision import Decision
from saggar.core.errors import ParseError
from saggar.egress import connect, eager, first_flight, http_head, proxy_greeting_host
from saggar.egress.alerts import ACCESS_DENIED, INTERNAL_ERROR
from saggar.egress.authorize import AuthorizedRequest, authorize, refuse
from saggar.egress.client_hello import MAX_HELLO, ClientHello
from saggar.egress.client_hello import parse as parse_hello
from saggar.egress.destination import Destination, parse_host
from saggar.egress.dial_host import DialError
from saggar.egress.http_host import HttpRelay
from saggar.egress.listeners import CAPTURED_PORTS
from saggar.egress.loop_host import running
from saggar.egress.splice_host import Splice
from saggar.egress.wire_host import Wire, consume, is_gone, peek, reset, say_and_close

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Coroutine

    from saggar.egress.budget import Refusal
    from saggar.egress.cell_host import Cell
    from saggar.egress.spend import Spend

SNIFF_S = 10.0
#: on a listed port other than 80 and 443 the server may speak first (SSH, MySQL): the client's silence is waited for
#: no longer than this
SERVER_FIRST_S = 0.3
#: minutes after which a tunnel is ended whose one direction is over while nothing moves in the other
HALF_CLOSED_SWEEPS = 5


TRANSPARENT, VIA_CONNECT, VIA_SOCKS = "transparent", "connect", "socks"


class Connection:
    """A client's connection, from accept to close. proxy: it came to the address of the explicit proxy."""

    __slots__ = (
        "_charged",
        "_idle_sweeps",
        "_last_moved",
        "_relay",
        "_splice",
        "_task",
        "address",
        "authorized",
        "cell",
        "fixed",
        "port",
        "proxy",
        "sock",
        "spend",
        "via",
    )

    def __init__(self, cell: Cell, sock: socket.socket, *, proxy: bool) -> None:
        self.cell = cell
        self.sock = sock
        self.proxy = proxy
        self.via = TRANSPARENT
        #: where the client meant to connect to
        self.address = ""
        self.port = 0
        #: the host that this connection is for, where that is known before its first byte
        self.fixed = ""
        self.authorized: AuthorizedRequest | None = None
        #: its hand on the task's budget, from the moment that it is allowed
        self.spend: Spend | None = None
        self._splice: Splice | None = None
        self._relay: HttpRelay | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_moved = 0
        #: bytes of the splice, each way, that the budget knows of
        self._charged = (0, 0)
        self._idle_sweeps = 0

    def start(self) -> None:
        self.cell.connections.add(self)
        paced = self.cell.share.paced
        hello = None if self.proxy or paced else self._hello_at_once()
        if hello is None:
            work = self._run(self._in_turns() if paced else self._serve())
            self._task = self.cell.loop.create_task(eager.metered(work, self.cell.share))
            return
        rest: Coroutine[Any, Any, None] | None = None
        try:
            rest = self._straight(hello)
        except Exception as e:  # noqa: BLE001  # as in `_run`
            self._failed(e)
        if rest is not None:
            self._task = eager.start(self.cell.loop, self._run(rest), self.cell.share)
        elif self._splice is None:
            self._over()

    def _hello_at_once(self) -> ClientHello | None:
        """The whole ClientHello, where it waits already; None where it does not, or is wrong in any way."""
        try:
            hello = parse_hello(self.sock.recv(MAX_HELLO, MSG_PEEK))
        except (OSError, ParseError):
            return None
        return hello if isinstance(hello, ClientHello) and hello.server_name is not None else None

    def _straight(self, hello: ClientHello) -> Coroutine[Any, Any, None] | None:
        """All of it at once, where this destination was allowed before and answers at once; else what is left to do."""
        self._locate()
        known = self.cell.known.get((hello.server_name, self.port))
        if known is None or hello.ech or (self.fixed and self.fixed != known.request.destination.host):
            return self._tls(hello)
        request = known.request
        if not self._may_open(request, INTERNAL_ERROR):
            return None
        if not self.cell.allowed_again(known):
            reset(self.sock)
            return None
        try:
            begun = self.cell.dialer.begin(request)
        except DialError as e:
            self._not_dialled(e, request, INTERNAL_ERROR)
            return None
        if begun is None:
            return self._join(self.cell.dialer.dial(request), request, INTERNAL_ERROR)
        if not begun.connected:
            return self._join(begun.wait(), request, INTERNAL_ERROR)
        self.splice(begun.sock)
        return None

    async def _in_turns(self) -> None:
        """The same for a paced cell: each step is a piece of work of its own, together they would keep the loop for half a millisecond."""
        await self.cell.share.turn()
        hello = None if self.proxy else self._hello_at_once()
        await self.cell.share.turn()
        if hello is None:
            await self._serve()
        else:
            self._locate()
            await self._tls(hello)

    def _locate(self) -> None:
        self.address, self.port = self.sock.getsockname()[:2]
        if not self.proxy and not self.fixed:
            self.fixed = self.cell.names.name_of(self.address)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (Exception, asyncio.CancelledError) as e:  # noqa: BLE001  # whatever is wrong with one connection, it ends and the others live on
            self._failed(e)
        finally:
            if self._splice is None:
                self._over()

    def _failed(self, error: BaseException) -> None:
        reset(self.sock)
        if not isinstance(error, OSError | asyncio.CancelledError):
            self.cell.note("egress.fault", reason="broker_fault", type=type(error).__name__, text=str(error)[:200])

    def _over(self) -> None:
        self.cell.connections.discard(self)
        if self.spend is not None:
            self.spend.close()

    # -- the first flight ------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self._locate()
        try:
            async with asyncio.timeout(SNIFF_S):
                kind = await self._sniff()
                if kind == first_flight.CONNECT and self.via == TRANSPARENT:
                    kind = await self._asked(proxy_greeting_host.read_connect, VIA_CONNECT)
                elif kind == first_flight.SOCKS and self.proxy and self.via == TRANSPARENT:
                    kind = await self._asked(proxy_greeting_host.read_socks, VIA_SOCKS)
                hello = await self._hello() if kind == first_flight.TLS else None
        except TimeoutError:
            self.turn_away(refuse("sniff_timeout"), None)
            return
        except ParseError as e:
            self.turn_away(refuse(e.reason, cause=str(e)), ACCESS_DENIED if e.reason == "malformed_hello" else None)
            return
        if kind == "":
            return
        if hello is not None and (hello.server_name is not None or not self._raw_ok()):
            await self._tls(hello)
        elif kind in (first_flight.HTTP, first_flight.CONNECT):
            self._relay = HttpRelay(self)
            await self._relay.run()
        elif self._raw_ok():
            await self._raw()
        elif kind == "silent":
            self.turn_away(refuse("no_first_flight"), None, told=False)
        else:
            self.turn_away(refuse("unknown_protocol"), None)

    def _raw_ok(self) -> bool:
        """Whether the destination is known without a name in the protocol, on a port of its own."""
        return bool(self.fixed) and self.port not in CAPTURED_PORTS

    async def _sniff(self) -> str:
        """The protocol, or `silent` where the client sent nothing and ended (or lets the server speak first)."""
        least = 1
        while True:
            if self._raw_ok() and least == 1:
                try:
                    async with asyncio.timeout(SERVER_FIRST_S):
                        data = await peek(self.sock, least, first_flight.MAX_LINE)
                except TimeoutError:
                    return "silent"
            else:
                data = await peek(self.sock, least, first_flight.MAX_LINE)
            if not data:
                return "silent"
            kind = first_flight.classify(data)
            if isinstance(kind, str):
                return kind
            if len(data) < least:  # it ended inside its first flight
                return first_flight.UNKNOWN
            least = kind.total

    async def _hello(self) -> ClientHello:
        least = 5
        while True:
            data = await peek(self.sock, least, MAX_HELLO)
            hello = parse_hello(data)
            if isinstance(hello, ClientHello):
                return hello
            if len(data) < least or hello.total > MAX_HELLO:
                raise ParseError("the hello is cut", reason="malformed_hello")
            least = hello.total

    # -- clients that insist on a proxy ----------------------------------------------------------------------------

    async def _asked(self, read: Callable[[Connection], Awaitable[connect.ConnectTarget | None]], via: str) -> str:
        """Answer a proxy's client; the protocol inside, or "" where the connection is over."""
        target = await read(self)
        return "" if target is None else await self._enter(target, via)

    async def _enter(self, target: connect.ConnectTarget, via: str) -> str:
        """Judge the target and let the client go on; the protocol that it then speaks, or "" where it was refused."""
        consume(self.sock, target.size)
        # on the captured ports the client has already said where to, by the address that it connected to
        if self.fixed and (target.host, target.port) != (self.fixed, self.port):
            result: AuthorizedRequest | Decision = authorize(
                self.cell.rules, Destination(target.host, target.port, "tcp")
            )
            if isinstance(result, AuthorizedRequest):
                result = refuse("name_mismatch", result.destination, expected=self.fixed)
        else:
            result = authorize(self.cell.rules, Destination(target.host, target.port, "tcp"))
        self.via = via
        if isinstance(result, Decision):
            words = http_head.refusal(result.reason, result.public) if via == VIA_CONNECT else connect.socks_reply(2)
            self.turn_away(result, words)
            return ""
        self.fixed, self.port = target.host, target.port
        self.sock.send(connect.ESTABLISHED if via == VIA_CONNECT else connect.socks_reply(connect.SOCKS_OK))
        return await self._sniff()

    # -- decisions -------------------------------------------------------------------------------------------------

    async def _tls(self, hello: ClientHello) -> None:
        if hello.server_name is None:
            self.turn_away(refuse("no_name", host=self.fixed, port=self.port), ACCESS_DENIED)
            return
        try:
            host = parse_host(hello.server_name)
        except ParseError as e:
            name = hello.server_name[:300].decode("latin-1")
            self.turn_away(refuse(e.reason, cause=str(e), name=name), ACCESS_DENIED)
            return
        result = self.judge(Destination(host, self.port, "https"))
        turn = self.cell.share.turn
        if isinstance(result, Decision):
            await turn()
            self.record_refused(result)
            await turn()
            say_and_close(self.sock, ACCESS_DENIED)
        elif result.rule.terminated:
            await self._terminate(result)
        elif hello.ech:
            # real or GREASE cannot be told apart from outside, and a real one hides another name
            self.turn_away(refuse("ech_unreadable", result.destination, rule=result.rule.id), ACCESS_DENIED)
        else:
            if self.via == TRANSPARENT:
                self.cell.remember(hello.server_name, self.port, result, self._words_of(result))
            await self._tunnel(result, INTERNAL_ERROR)

    def judge(self, destination: Destination) -> AuthorizedRequest | Decision:
        """The decision on a name found inside this connection (I2)."""
        result = authorize(self.cell.rules, destination)
        if isinstance(result, AuthorizedRequest) and self.fixed and destination.host != self.fixed:
            return refuse("name_mismatch", destination, expected=self.fixed)
        return result

    async def _terminate(self, request: AuthorizedRequest) -> None:
        self.authorized = request
        await asyncio.sleep(0)  # from here on in a task, whatever started us
        terminated = self.cell.terminated
        if terminated is None:
            self.turn_away(refuse("terminated_unavailable", request.destination, rule=request.rule.id), ACCESS_DENIED)
        else:
            await terminated.serve(self, request, Wire(self.sock))

    async def _raw(self) -> None:
        """A protocol without a name, on a port that the rules list for the host of this address."""
        result = self.judge(Destination(self.fixed, self.port, "tcp"))
        if isinstance(result, Decision):
            self.turn_away(result, None)
        elif result.rule.terminated:
            self.turn_away(refuse("unknown_protocol", result.destination, rule=result.rule.id), None)
        else:
            await self._tunnel(result, None)

    async def _tunnel(self, request: AuthorizedRequest, failure: bytes | None) -> None:
        if not self._may_open(request, failure):
            return
        if not self.record_allowed(request):
            reset(self.sock)
            return
        await self.cell.share.turn()
        await self._join(self.cell.dialer.dial(request), request, failure)

    def _may_open(self, request: AuthorizedRequest, failure: bytes | None) -> bool:
        """Whether the budget has room for the connection; it is refused where not."""
        self.authorized = request
        self.spend = spend = self.cell.spend(request.destination.host)
        over = spend.open() or spend.request()
        if over is not None:
            self.turn_away(self.cell.over_budget(over, request), ACCESS_DENIED if failure else None)
        return over is None

    async def _join(
        self, dialling: Coroutine[Any, Any, socket.socket], request: AuthorizedRequest, failure: bytes | None
    ) -> None:
        try:
            upstream = await dialling
        except DialError as e:
            self._not_dialled(e, request, failure)
        else:
            self.splice(upstream)

    def _not_dialled(self, error: DialError, request: AuthorizedRequest, failure: bytes | None) -> None:
        words = ACCESS_DENIED if error.reason == "address_refused" and failure else failure
        self.turn_away(refuse(error.reason, request.destination, rule=request.rule.id, **error.detail), words)

    # -- effects ---------------------------------------------------------------------------------------------------

    @staticmethod
    def is_terminated(request: AuthorizedRequest) -> bool:
        """Whether requests to the rule's host are read (credential or L7 rule), not only its name."""
        return request.rule.terminated

    def record_allowed(self, request: AuthorizedRequest, **detail: object) -> bool:
        """Record the allow, before any effect of it. False: nothing may follow."""
        return self.cell.allowed(request.decision, request.destination, **self._words_of(request), **detail)

    def _words_of(self, request: AuthorizedRequest) -> dict[str, object]:
        override = request.rule.connect_to
        return {"via": self.via, **({"connect_to": f"{override[0]}:{override[1]}"} if override is not None else {})}

    def record_refused(self, decision: Decision, *, told: bool = True) -> None:
        detail = {} if self.proxy or self.fixed else {"to": f"{self.address}:{self.port}"}
        self.cell.refused(decision, told=told, address=(self.address, self.port), via=self.via, **detail)

    def turn_away(self, decision: Decision, words: bytes | None, *, told: bool = True) -> None:
        """Record a refusal and end the connection: with `words`, or with RST where it is None."""
        self.record_refused(decision, told=told)
        if words is None:
            reset(self.sock)
        else:
            say_and_close(self.sock, words)

    @property
    def spliced(self) -> bool:
        """Whether both sockets belong to a splice by now."""
        return self._splice is not None

    def splice(self, upstream: socket.socket) -> None:
        """Join client and upstream; this connection then lives until the splice ends."""
        self._splice = Splice(running(), self.sock, upstream, self._on_spliced, share=self.cell.share)
        self._bind_bytes(self._splice)
        self._splice.start()

    def _bind_bytes(self, splice: Splice) -> None:
        """Have the budget asked for each piece, or not, as the limits now are."""
        spend = self.spend
        up = down = None
        if spend is not None and spend.counts_bytes:
            up, down = self._counted(spend.up), self._counted(spend.down)
        splice.up.may_pass, splice.down.may_pass = up, down

    def charge(self) -> None:
        """Tell the budget what passed while no limit counted it: before a limit comes that does, and at the end."""
        splice, spend = self._splice, self.spend
        if splice is None or spend is None:
            return
        moved = splice.up.count, splice.down.count
        if splice.up.may_pass is None:
            spend.up(moved[0] - self._charged[0])
            spend.down(moved[1] - self._charged[1])
        self._charged = moved

    def _counted(self, take: Callable[[int], Refusal | None]) -> Callable[[int], bool]:
        """For a splice: whether so many bytes more may pass; where not, why is recorded."""

        def may_pass(count: int) -> bool:
            over = take(count)
            if over is None or self.authorized is None:
                return over is None
            self.record_refused(self.cell.over_budget(over, self.authorized))
            return False

        return may_pass

    def _on_spliced(self) -> None:
        self.cell.connections.discard(self)
        self.charge()
        if self.spend is not None:
            self.spend.close()
        splice, authorized = self._splice, self.authorized
        if splice is not None and authorized is not None:
            self.cell.usage.add_bytes(authorized.destination, splice.up.count, splice.down.count)

    # -- the cell's orders -----------------------------------------------------------------------------------------

    def reconsider(self) -> None:
        """Cut this connection where the cell's rules no longer allow it."""
        if self.authorized is None:
            return
        result = authorize(self.cell.rules, self.authorized.destination)
        if isinstance(result, Decision):
            self.record_refused(refuse("revoked", self.authorized.destination, cause=result.reason))
            self.abort()
        elif result.rule != self.authorized.rule:
            # allowed still, but under other terms (another upstream, credentials, paths): it must connect anew
            self.abort()
        elif self._splice is not None:
            self._bind_bytes(self._splice)

    def cut(self, reason: str) -> None:
        """End it with RST, and record why."""
        if self.authorized is not None:
            self.record_refused(refuse(reason, self.authorized.destination, rule=self.authorized.rule.id))
            self.abort()

    def end_if_idle(self, sweeps: float) -> None:
        if self._splice is None:
            return
        moved = self._splice.moved
        self._idle_sweeps = self._idle_sweeps + 1 if moved == self._last_moved else 0
        self._last_moved = moved
        if self._splice.half_closed and (is_gone(self.sock) or self._idle_sweeps > HALF_CLOSED_SWEEPS):
            # the upstream did not answer the client's end with its own
            self._splice.abort()
        elif self._idle_sweeps > sweeps:
            self._splice.abort()

    def abort(self) -> None:
        """End with RST, at once."""
        if self._splice is not None:
            self._splice.abort()
        elif self._task is not None:
            if self._relay is not None:
                self._relay.stop()
            self._task.cancel()
        else:
            with suppress(OSError):
                reset(self.sock)
