"""The terminated path as the broker's cells use it: their records, their counters, their approvals.

I1  What the cell's record says is written before the effect; where it cannot be, the cell is ended by `Cell.fatal`.
I2  A question for a human names canonical things alone; no answer in time is a no.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from saggar.core.decision import ALLOW
from saggar.core.errors import ParseError
from saggar.egress.approved import Approval
from saggar.egress.authorize import refuse
from saggar.egress.hold_host import APPROVAL_S
from saggar.egress.terminated_host import Termination
from saggar.egress.terms import Terms
from saggar.egress.wire_host import reset

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from saggar.audit.record import Form
    from saggar.core.decision import Decision
    from saggar.egress.authorize import AuthorizedRequest
    from saggar.egress.cell_host import Cell
    from saggar.egress.connection_host import Connection
    from saggar.egress.destination import Destination
    from saggar.egress.secrets_client_host import SecretsClient
    from saggar.egress.wire_host import Wire
    from saggar.policy.model import EgressRule

MAX_QUESTIONS = 100
#: records that recur with the heads that do (`known`)
_MAX_FORMS = 256
#: what of a request the question shows
_SHOWN = frozenset({"host", "port", "method", "path", "query", "grant"})


class BrokerPort:
    """`terminated_host.CellPort` over a broker's cell."""

    __slots__ = ("_cell", "_emit", "_forms", "_next", "_step", "_waiting", "budget", "dialer", "id", "share", "shared")

    def __init__(self, cell: Cell, emit: Callable[[dict[str, object]], None]) -> None:
        self._cell = cell
        self._emit = emit
        self.shared = cell.shared
        # the processes of a cell number their questions apart
        self._next, self._step = (0, 1) if self.shared is None else (self.shared.index, self.shared.count)
        self._waiting: dict[str, asyncio.Future[str]] = {}
        #: by the decision's identity, which lasts as long as it is kept here: what is recorded of it each time
        self._forms: dict[int, tuple[Decision, str, Form, str]] = {}
        self.id = cell.id
        self.dialer = cell.dialer
        self.budget = cell.budget
        self.share = cell.share

    def record(self, decision: Decision, destination: Destination, via: str) -> bool:
        """What is about to happen, for the next `commit`; False: it must not. A question is written at once."""
        if decision.effect != ALLOW:
            return self._cell.told("egress.ask", reason=decision.reason, rule=decision.rule, via=via, **decision.detail)
        known = self._forms.get(id(decision))
        if known is None or known[0] is not decision or known[1] != via:
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            known = self._forms[id(decision)] = (decision, via, *self._cell.form(decision, destination, via=via))
        return self._cell.allowed_soon(known[2], known[3])

    def commit(self) -> bool:
        return self._cell.commit()

    def refused(self, decision: Decision, via: str) -> bool:
        self._cell.refused(decision, via=via)
        return not self._cell.closed

    def moved(self, destination: Destination, up: int, down: int) -> None:
        self._cell.usage.add_bytes(destination, up, down)

    def unsolicited(self, host: str, port: int, rule: str) -> None:
        self._cell.note("egress.upstream", reason="unsolicited_answer", host=host, port=port, rule=rule)

    async def approve(self, decision: Decision) -> str:
        """`approved`, `denied`, `timeout`, `unattended` or `crowded`."""
        if not self._may_wait():
            return "crowded"
        self._next += self._step
        number = f"{self.id}.{self._next}"
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        shown: dict[str, object] = {k: v for k, v in decision.detail.items() if k in _SHOWN}
        self._emit(
            {"event": "ask", "cell": self.id, "id": number, "rule": decision.rule, "timeout_s": APPROVAL_S, **shown}
        )
        try:
            async with asyncio.timeout(APPROVAL_S):
                return await answer
        except TimeoutError:
            return "timeout"
        except asyncio.CancelledError:
            # the client ended its side, or was cut: an answer that comes now has nothing to act on
            if not self._cell.closed:
                self._cell.note("egress.ask", reason="withdrawn", rule=decision.rule, **decision.detail)
            raise
        finally:
            del self._waiting[number]
            if self.shared is not None:
                self.shared.let_go()
            self._emit({"event": "unheld", "cell": self.id, "id": number})

    def _may_wait(self) -> bool:
        if self.shared is not None:
            return self.shared.hold(MAX_QUESTIONS)
        return len(self._waiting) < MAX_QUESTIONS

    def answer(self, number: str, verdict: str) -> None:
        """The supervisor's answer to a question; anything but `approved` is a no."""
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(verdict if verdict in ("approved", "unattended") else "denied")


class Terminated:
    """`terminated_path.TerminatedPath` for one cell."""

    def __init__(self, port: BrokerPort, secrets: SecretsClient, egress: dict[str, Any]) -> None:
        self.port = port
        #: by rule and text: ids that a text leaves out come from the rule
        self._terms: dict[tuple[str, str], Terms] = {}
        self._path = Termination(
            asyncio.get_running_loop(),
            port,
            secrets,
            placeholders=egress.get("placeholders") or (),
            share=port.share,
        )
        self._path.budget = port.budget  # one for the task, whichever path its bytes take
        self._path.shared = port.shared
        self._path.turn.yields = port.shared is not None
        self._approve(egress)

    def update(self, egress: dict[str, Any]) -> None:
        """New placeholders; what was counted stays counted. Idle connections to upstreams are closed."""
        self._path.expect(egress.get("placeholders") or ())
        self._path.pool.close()
        self._terms.clear()
        self._approve(egress)

    def _approve(self, egress: dict[str, Any]) -> None:
        self._path.approve_for_task(Approval.parse(a) for a in egress.get("approved") or ())

    def close(self) -> None:
        self._path.close()

    def _terms_of(self, rule: EgressRule) -> Terms:
        key = (rule.id, rule.http)
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = Terms.parse(json.loads(rule.http), rule.id)
        return found

    async def serve(self, connection: Connection, request: AuthorizedRequest, wire: Wire) -> None:
        """Serve one client connection to its end, and close its socket."""
        try:
            terms = self._terms_of(request.rule)
        except (ParseError, ValueError, KeyError) as e:
            connection.record_refused(
                refuse("terms_unreadable", request.destination, rule=request.rule.id, cause=str(e))
            )
            reset(wire.sock)
            return
        done = asyncio.Event()
        client = self._path.accept(
            wire.sock,
            request,
            terms,
            first=bytes(wire.buffer),
            # through a proxy address one connection may carry requests to many hosts: each is judged from its start
            persistent=request.destination.scheme == "https" or bool(connection.fixed) or not connection.proxy,
            via=connection.via,
            on_gone=done.set,
        )
        try:
            await done.wait()
        finally:
            client.cut()
