"""A client's connection to a terminated host: how it begins, is refused, recorded and let go.

I1  What hangs on a connection (budget, upstream, task) is let go exactly once.
I2  A refusal is recorded before it is told; where the record cannot be written nothing more passes for the cell.
I3  After a refusal the connection ends in order: the client reads the page before it sees the end.
I4  What a connection moved is in the cell's books when it lets its upstream go, however that ends: `Cell.close` cuts every
    client before they are closed.
"""

from __future__ import annotations

import ssl
from asyncio import current_task
from typing import TYPE_CHECKING, Any

from saggar.egress.admit import refuse
from saggar.egress.answer import refusal_page
from saggar.egress.end_host import End
from saggar.egress.remedies import UPSTREAM_FAULTS
from saggar.egress.secrets_client_host import SecretsError

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from saggar.core.decision import Decision
    from saggar.egress.admit import Refused
    from saggar.egress.authorize import AuthorizedRequest
    from saggar.egress.budget import Refusal
    from saggar.egress.terminated_host import Termination
    from saggar.egress.terms import Terms
    from saggar.egress.upstream_host import Upstream

HEAD_S = 15.0
HANDSHAKE_S = 10.0
LINGER_S = 2.0

#: states of a connection: before TLS is up; a head is awaited; something is awaited that is not the client; a body goes
#: through; a body is collected; an answer is awaited or goes through; a WebSocket; the last words are out; gone
HELLO, HEAD, HOLD, BODY, COLLECT, WAIT, SOCKET, LINGER, DEAD = range(9)


class ClientEnd(End):
    """See the module. `Client` adds the requests."""

    __slots__ = (
        "admitted",
        "authorized",
        "buffer",
        "deadline",
        "heads",
        "meter",
        "on_gone",
        "owner",
        "persistent",
        "responding",
        "state",
        "task",
        "terms",
        "upstream",
        "via",
    )

    def __init__(self, owner: Termination, sock: socket.socket, authorized: AuthorizedRequest, terms: Terms) -> None:
        super().__init__(owner.loop, sock, owner.turn)
        self.share = owner.share
        self.owner = owner
        self.authorized = authorized
        self.terms = terms
        self.heads = owner.heads(authorized.destination, terms)
        self.state = HELLO
        self.deadline = owner.loop.time() + HANDSHAKE_S
        self.buffer = b""
        self.upstream: Upstream | None = None
        self.task: asyncio.Task[None] | None = None
        #: further requests on this connection are served
        self.persistent = True
        #: called once when the connection is gone
        self.on_gone: Callable[[], object] | None = None
        #: how the client came, for the records
        self.via = ""
        #: part of an answer was written
        self.responding = False
        #: facts of the request in work, for records
        self.admitted: dict[str, Any] = {}
        self.meter = owner.budget.host(authorized.destination.host, terms.limits, owner.loop.time())

    def begin(self) -> None:
        destination = self.authorized.destination
        refusal = self.owner.budget.open(self.meter, self.loop.time())
        if refusal is not None:
            # no HTTP yet: the connection ends, the record says why; it never counted, so nothing is given back
            self.state = DEAD
            detail = {"limit": refusal.limit, "scope": refusal.scope}
            self.note(refuse(refusal.reason, destination, refusal.public, detail=detail).decision)
            self.abort()
            self._bury()
            return
        if destination.scheme != "https":
            self.start(None, server_side=True)
            return
        context = self.owner.known_context(destination.host)
        if context is not None:
            self.start(context, server_side=True)
        else:
            self.task = self.loop.create_task(self._greet(destination.host))

    async def _greet(self, host: str) -> None:
        try:
            context = await self.owner.server_context(host)
        except (SecretsError, OSError, ssl.SSLError) as e:
            refused = refuse(
                "leaf_unavailable",
                self.authorized.destination,
                "no certificate could be made",
                detail={"cause": str(e)},
            )
            self.note(refused.decision)
            self.cut()
            return
        self.task = None
        if not self.closed:
            self.start(context, server_side=True)

    def ready(self) -> None:
        self.state = HEAD
        self.deadline = self.loop.time() + HEAD_S

    def stalled(self) -> None:
        if self.upstream is not None:
            self.upstream.pause()

    # the end

    def cut(self) -> None:
        """End at once, with RST: a client must not take what it has for whole."""
        self.abort()
        self.release()

    def depart(self) -> None:
        """End in order."""
        self.settle()
        self.close()
        self.release()

    def release(self) -> None:
        if self.state == DEAD:
            return
        self._bury()
        self.owner.budget.close(self.meter)
        if self.task is not None:
            self.task.cancel()
            self.task = None
        self.drop_upstream()

    def _bury(self) -> None:
        self.state = DEAD
        self.owner.clients.discard(self)
        gone, self.on_gone = self.on_gone, None
        if gone is not None:
            gone()

    def on_deadline(self) -> None:
        """The state that the connection is in has taken too long."""
        self.cut()

    def drop_upstream(self) -> None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            self.account(upstream)
            upstream.exchange = None
            upstream.abort()

    def account(self, upstream: Upstream) -> None:
        """Enter what `upstream` moved since it was last asked."""
        up, down = upstream.moved_up, upstream.moved_down
        upstream.moved_up = upstream.moved_down = 0
        if up or down:
            self.owner.port.moved(self.authorized.destination, up, down)

    def lost(self, error: Exception | None) -> None:
        if error is not None and not isinstance(error, OSError):
            # a fault of ours (TLS errors are OSErrors); a client that goes away needs no record
            detail = {**self.admitted, "type": type(error).__name__, "cause": str(error)[:200]}
            self.note(
                refuse("broker_fault", self.authorized.destination, "a fault of the broker", detail=detail).decision
            )
        self.release()

    # refusals

    def refuse(self, refused: Refused, status: int = 0, extra: str = "") -> None:
        """Record the refusal and tell it."""
        if refused.alert:
            refused.decision.detail["alert"] = True
        if self.note(refused.decision):
            decision = refused.decision
            head_only = decision.detail.get("method") == "HEAD"
            self.say_and_linger(
                refusal_page(
                    status or refused.status,
                    decision.reason,
                    decision.public,
                    rule=decision.rule or self.authorized.rule.id,
                    extra=extra,
                    head_only=head_only,
                )
            )

    def refuse_for(self, reason: str, public: str, *, status: int = 0, alert: bool = False, **detail: object) -> None:
        """The same, from its parts; the facts of the request in work go into the record."""
        facts = {**self.admitted, **detail}
        self.refuse(refuse(reason, self.authorized.destination, public, alert=alert, detail=facts), status)

    def give_up(self, reason: str, detail: str) -> None:
        """The upstream's side failed before an answer."""
        self.drop_upstream()
        status = {"upstream_timeout": 504, "address_refused": 403}.get(reason, 502)
        self.refuse_for(reason, UPSTREAM_FAULTS.get(reason, "the upstream failed"), status=status, cause=detail)

    def over(self, refusal: Refusal) -> None:
        """A budget is used up."""
        detail = {**self.admitted, "limit": refusal.limit, "scope": refusal.scope}
        extra = f"Retry-After: {refusal.retry_after_s}\r\n" if refusal.retry_after_s else ""
        self.refuse(
            refuse(refusal.reason, self.authorized.destination, refusal.public, detail=detail), refusal.status, extra
        )

    def note(self, decision: Decision) -> bool:
        """Record a refusal, or let nothing more pass."""
        if self.owner.port.refused(decision, self.via):
            return True
        self.cut()
        return False

    def record(self, decision: Decision) -> bool:
        """Record what is about to happen, before anything is sent that was written from here on; or let nothing more pass."""
        if self.owner.port.record(decision, self.authorized.destination, self.via):
            return True
        self.cut()
        return False

    def written(self) -> bool:
        """What was recorded is in the log, or this connection was cut: asked before an effect that is no `write`."""
        if self.owner.turn.commit():
            return True
        self.cut()
        return False

    def say_and_linger(self, page: bytes) -> None:
        if self.closed:
            self.release()
        elif self.responding:
            self.cut()
        else:
            self.responding = True
            self.write(page)
            self.linger()

    def linger(self) -> None:
        """Close in order: say so, then read away what is still coming, or a reset would overtake the last words."""
        if self.closed:
            self.release()
            return
        self.drop_upstream()
        # whoever still waits for a dial, a lease or a word waits for nothing; the task that says this is not ended by it
        task, self.task = self.task, None
        if task is not None and task is not current_task(self.loop):
            task.cancel()
        self.state = LINGER
        self.buffer = b""
        self.deadline = self.loop.time() + LINGER_S
        if not self.pending:
            self.finish()
        if self.eof:
            self.depart()
        else:
            self.resume()
