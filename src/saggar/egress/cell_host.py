"""One cell as the broker sees it: its sockets, rules, names, audit log, counters and open connections.

I1  A decision is in the audit log before its effect; where it cannot be written, nothing is resolved or dialled and the
    supervisor is told to kill the cell.
I2  The descriptor that a connection arrived on is the cell's identity. Cells share no state but the process.
I3  Memory is bounded: open connections, names, places in the closing records, records of refusals and
    events each have a limit.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from saggar.egress.authorize import refuse
from saggar.egress.budget import Budget, Limits
from saggar.egress.connection_host import Connection
from saggar.egress.dial_host import Dialer
from saggar.egress.dns_host import DnsTcp, DnsUdp
from saggar.egress.host_limits import HostLimits
from saggar.egress.listeners import CAPTURED_PORTS, PROXY_PORT, RESOLVER_ADDRESS, RESOLVER_PORT
from saggar.egress.match import RuleSet
from saggar.egress.names import SyntheticNames
from saggar.egress.packet_host import PacketWatch
from saggar.egress.shares_host import ACCEPT_NS
from saggar.egress.spend import Spend
from saggar.egress.usage import Usage, moved, parts
from saggar.egress.wire_host import reset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from saggar.audit.record import Form
    from saggar.audit.sink_host import AuditLog
    from saggar.core.decision import Decision
    from saggar.egress.authorize import AuthorizedRequest
    from saggar.egress.budget import Refusal
    from saggar.egress.destination import Destination
    from saggar.egress.listeners import ListenerSpec
    from saggar.egress.shared_host import Shared
    from saggar.egress.shares_host import Share
    from saggar.egress.terminated_path import TerminatedPath
    from saggar.egress.workers_host import Spread
    from saggar.policy.model import EgressRule

    class Served(Protocol):
        """What a cell keeps of each open connection."""

        def charge(self) -> None: ...
        def reconsider(self) -> None: ...
        def cut(self, reason: str) -> None: ...
        def end_if_idle(self, sweeps: float) -> None: ...
        def abort(self) -> None: ...


MAX_CONNECTIONS = 1024
#: refusals recorded in a burst, and each second after it; what is beyond is counted and told in the next record
RECORD_BURST = 1000.0
RECORD_RATE = 20.0
MAX_EVENTS = 100
#: destinations that are remembered
MAX_KNOWN = 256
#: accepted in one go, so that one cell's flood leaves the others their turn
_ACCEPT_BATCH = 2
#: a spliced connection that moved nothing for this long is ended
IDLE_S = 3600.0
_SWEEP_S = 60.0


class Known:
    """What every further connection to an allowed destination has in common with the first, as long as the rules are these."""

    __slots__ = ("form", "place", "request")

    def __init__(self, request: AuthorizedRequest, form: Form, place: str) -> None:
        self.request = request
        #: of the record of the allow
        self.form = form
        #: in `Usage`
        self.place = place


class Cell:
    """A cell being served. emit sends an event to the supervisor; fatal asks it to kill the cell."""

    def __init__(
        self,
        *,
        id: str,  # noqa: A002  # the control protocol's own word
        rules: Sequence[EgressRule],
        audit: AuditLog,
        pool: ThreadPoolExecutor,
        emit: Callable[[dict[str, object]], None],
        share: Share,
        limits: Limits | None = None,
        shared: Shared | None = None,
    ) -> None:
        """shared: what several processes that serve the cell count together; None where one serves it alone."""
        self.id = id
        self.rules = RuleSet(rules)
        self.names = SyntheticNames(rules)
        self.audit = audit
        self.dialer = Dialer(pool)
        self.usage = Usage()
        #: serves the hosts with a credential or an L7 rule; without it they are refused
        self.terminated: TerminatedPath | None = None
        self.connections: set[Served] = set()
        #: by the name that a client said and the port that it came to; of these rules alone
        self.known: dict[tuple[bytes | None, int], Known] = {}
        #: (name, reason) of refused names that are recorded already
        self.dns_seen: set[tuple[str, str]] = set()
        self.loop = asyncio.get_running_loop()
        self.share = share
        share.held = self.connections
        self.shared = shared
        #: who gets which connection, in the first of several processes
        self.spread: Spread | None = None
        self.budget = self._budget(limits or Limits())
        self.budget.limit(limits or Limits(), HostLimits(self.rules))
        self._wall: asyncio.TimerHandle | None = None
        self._watch_wall()
        self._emit = emit
        self._sockets: list[socket.socket] = []
        self._watch: PacketWatch | None = None
        self._events = 0
        self._tokens = RECORD_BURST
        self._stamp = self.loop.time()
        self._suppressed = 0
        self._sweep = self.loop.call_later(_SWEEP_S, self._sweep_idle)
        self.closed = False

    # -- sockets ---------------------------------------------------------------------------------------------------

    def adopt(self, spec: ListenerSpec, sock: socket.socket) -> None:
        """Serve one socket of the launcher's plan."""
        self._sockets.append(sock)
        sock.setblocking(False)
        kind = spec["kind"]
        if kind == "packet":
            self._watch = PacketWatch(self, sock)
            return
        if kind == "udp":
            udp = DnsUdp(self, sock)
            self.loop.add_reader(sock.fileno(), udp.on_readable)
            return
        # accepted sockets inherit both
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # an urgent byte is left out of the stream until another one comes, then it is in it: what was peeked at and
        # judged would not be what is passed on
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        address, port = spec["address"], spec["port"]
        if (address, port) == (RESOLVER_ADDRESS, RESOLVER_PORT):
            serve: Callable[[socket.socket], None] = self._serve_dns
        else:
            proxy = (address, port) == (RESOLVER_ADDRESS, PROXY_PORT)
            if port in CAPTURED_PORTS or proxy:
                # the client speaks first on these: not woken before its first bytes are there
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
            serve = self._serve_proxy if proxy else self._serve
        self.loop.add_reader(sock.fileno(), self._accept, sock, serve)

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        for _ in range(_ACCEPT_BATCH):
            if self.closed:
                return
            if self.share.spent:
                self.share.park(listener.fileno(), self._accept, listener, serve)
                return
            self.share.take(ACCEPT_NS)
            try:
                sock, _peer = listener.accept()
            except BlockingIOError:
                return
            except OSError as e:
                self._out_of_descriptors(listener, serve, e)
                return
            sock.setblocking(False)
            open_ = len(self.connections) if self.spread is None else self.spread.open
            if open_ >= MAX_CONNECTIONS or self.share.full():
                self.refused(refuse("too_many_connections"), via="accept")
                reset(sock)
                continue
            serve(sock)

    def _out_of_descriptors(
        self, listener: socket.socket, serve: Callable[[socket.socket], None], error: OSError
    ) -> None:
        """Stand back for a moment: the queue stays in the kernel, and the loop must not spin on it."""
        self.refused(refuse("out_of_descriptors", cause=str(error)), via="accept")
        self.loop.remove_reader(listener.fileno())

        def again() -> None:
            if not self.closed:
                self.loop.add_reader(listener.fileno(), self._accept, listener, serve)

        self.loop.call_later(0.1, again)

    def _serve(self, sock: socket.socket) -> None:
        if self.spread is None or not self.spread.give(sock, proxy=False):
            Connection(self, sock, proxy=False).start()

    def _serve_proxy(self, sock: socket.socket) -> None:
        if self.spread is None or not self.spread.give(sock, proxy=True):
            Connection(self, sock, proxy=True).start()

    def _serve_dns(self, sock: socket.socket) -> None:
        DnsTcp(self, sock).start()

    # -- records ---------------------------------------------------------------------------------------------------

    def allowed(self, decision: Decision, destination: Destination, **detail: object) -> bool:
        """Record an allow; False where it could not be, and then nothing may follow (I1)."""
        if not self._append("egress.decision", decision, detail):
            return False
        self.usage.add_allowed(str(destination))
        return True

    def form(self, decision: Decision, destination: Destination, **detail: object) -> tuple[Form, str]:
        """What `allowed_soon` needs to know of a decision, as often as it is made."""
        form = self.audit.form(
            "egress.decision",
            layer="L2",
            effect=decision.effect,
            reason=decision.reason,
            rule=decision.rule,
            detail={**decision.detail, **detail},
        )
        return form, str(destination)

    def remember(self, name: bytes, port: int, request: AuthorizedRequest, words: dict[str, object]) -> None:
        """Have further connections by that name allowed by `allowed_again`. words: of the record, besides the decision's own."""
        if len(self.known) >= MAX_KNOWN:
            self.known.clear()
        self.known[name, port] = Known(request, *self.form(request.decision, request.destination, **words))

    def allowed_again(self, known: Known) -> bool:
        """`allowed`, of what is known."""
        self.audit.defer(known.form)
        if not self.commit():
            return False
        self.usage.add_allowed(known.place)
        return True

    def allowed_soon(self, form: Form, place: str) -> bool:
        """The same for an effect that waits for `commit`: many records of one round are written together."""
        if self.closed:
            return False
        self.audit.defer(form)
        self.usage.add_allowed(place)
        return True

    def commit(self) -> bool:
        """Write what `allowed_soon` was told; False where it could not be, and then nothing may follow (I1)."""
        try:
            self.audit.commit()
        except OSError as e:
            self.fatal(f"audit_failed: {e.strerror}")
        return not self.closed

    def refused(
        self,
        decision: Decision,
        *,
        kind: str = "egress.decision",
        told: bool = True,
        address: tuple[str, int] = ("", 0),
        **detail: object,
    ) -> None:
        """Record a refusal, within the rate, and tell the supervisor.

        told: it counts for the one-line summary. address: where the client connected to, said where no host is known.
        """
        host, port = str(decision.detail.get("host", "")), decision.detail.get("port", 0)
        if not host:
            host, port = address
        where = f"{host}:{port}" if port else host
        self.usage.add_refused(where, decision.reason, told=told)
        if told:
            self.tell(decision.reason, host, port)
        if not self._may_record():
            self._suppressed += 1
            return
        if self._suppressed:
            detail["suppressed_before"] = self._suppressed
            self._suppressed = 0
        self._append(kind, decision, detail)

    def note(self, kind: str, *, reason: str, **detail: object) -> None:
        """Record a fact that is no decision, and that nothing follows from."""
        with suppress(OSError):
            self.audit.append(kind, layer="L2", reason=reason, detail=detail)

    def told(self, kind: str, *, reason: str, **detail: object) -> bool:
        """The same for a fact that something follows from; False: it could not be written, and nothing may (I1)."""
        try:
            self.audit.append(kind, layer="L2", reason=reason, detail=detail)
        except OSError as e:
            self.fatal(f"audit_failed: {e.strerror}")
        return not self.closed

    def _append(self, kind: str, decision: Decision, detail: dict[str, object]) -> bool:
        try:
            self.audit.append(
                kind,
                layer="L2",
                effect=decision.effect,
                reason=decision.reason,
                rule=decision.rule,
                detail={**decision.detail, **detail},
            )
        except OSError as e:
            self.fatal(f"audit_failed: {e.strerror}")
            return False
        return True

    def _may_record(self) -> bool:
        now = self.loop.time()
        if self.shared is not None:
            return self.shared.may_record(now, burst=RECORD_BURST, rate=RECORD_RATE)
        self._tokens = min(RECORD_BURST, self._tokens + (now - self._stamp) * RECORD_RATE)
        self._stamp = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def tell(self, reason: str, host: str, port: object) -> None:
        """Tell the supervisor of a refusal, as long as it was not told of many."""
        self._events += 1
        if self._events <= MAX_EVENTS:
            self._emit({"event": "refused", "cell": self.id, "reason": reason, "host": host, "port": port})

    def pass_on(self, event: dict[str, object]) -> None:
        """Another process's word for the supervisor."""
        self._emit(event)

    def fatal(self, cause: str) -> None:
        """The cell cannot be served as promised: its sockets are closed at once, the supervisor kills it."""
        if not self.closed:
            self._emit({"event": "fatal", "cell": self.id, "cause": cause})
            self.close()

    # -- life ------------------------------------------------------------------------------------------------------

    def _budget(self, limits: Limits) -> Budget:
        if self.shared is None:
            return Budget(limits, self.loop.time())
        from saggar.egress.shared_budget_host import SharedBudget

        return SharedBudget(limits, self.loop.time(), self.shared)

    def update(self, rules: Sequence[EgressRule], limits: Limits) -> None:
        """Swap the rules; connections that the new ones refuse are cut. What was used of the budget stays used."""
        self.rules = RuleSet(rules)
        self.known.clear()
        self.dialer.forget()
        for connection in tuple(self.connections):
            connection.charge()
        self.budget.limit(limits, HostLimits(self.rules))
        self._watch_wall()
        for connection in tuple(self.connections):
            connection.reconsider()

    def spend(self, host: str) -> Spend:
        """A new connection's hand on the budget."""
        return Spend(self.budget, host, self.loop.time)

    def over_budget(self, refusal: Refusal, request: AuthorizedRequest) -> Decision:
        """The decision that a used-up budget makes of an allowed request."""
        return refuse(
            refusal.reason, request.destination, rule=request.rule.id, limit=refusal.limit, scope=refusal.scope
        )

    def _watch_wall(self) -> None:
        """Open connections end with the time that the task may use the network."""
        if self._wall is not None:
            self._wall.cancel()
            self._wall = None
        wall_s = self.budget.task.limits.wall_s
        if wall_s is not None:
            self._wall = self.loop.call_at(self.budget.task.started + wall_s, self._wall_over)

    def _wall_over(self) -> None:
        for connection in tuple(self.connections):
            connection.cut("budget_wall")

    def _sweep_idle(self) -> None:
        for connection in tuple(self.connections):
            connection.end_if_idle(IDLE_S / _SWEEP_S)
        self._sweep = self.loop.call_later(_SWEEP_S, self._sweep_idle)

    def close(self) -> None:
        """Stop serving: every socket closed, every connection reset."""
        if self.closed:
            return
        self.closed = True
        if self.spread is not None:
            self.spread.stop()
        self._sweep.cancel()
        if self._wall is not None:
            self._wall.cancel()
        self.share.close()
        if self._watch is not None:
            self._watch.close()
        for sock in self._sockets:
            self.loop.remove_reader(sock.fileno())
            sock.close()
        for connection in tuple(self.connections):
            connection.abort()
        if self.terminated is not None:
            self.terminated.close()

    def summaries(self) -> Iterator[dict[str, object]]:
        """The task's egress record, as the details of records that each fit: totals, then declared, used, refused.

        A list that the cell can fill never stands in one record with another: it could blank both by growing too long.
        """
        usage = self.usage
        yield {
            "total": {"count": usage.allowed, "bytes_up": usage.bytes_up, "bytes_down": usage.bytes_down},
            "used_elsewhere": moved(usage.others),
            "refused_total": sum(usage.refusals.values()) + usage.refusals_left_out,
            "refused_left_out": usage.refusals_left_out,
        }
        declared = {r.id: {"host": r.host, "ports": list(r.ports), "id": r.id} for r in self.rules.rules}
        for part in parts(declared):
            yield {"declared": list(part.values())}
        for part in parts({where: moved(entry) for where, entry in usage.hosts.items()}):
            yield {"used": part}
        for part in parts(usage.refusals):
            yield {"refused": part}
