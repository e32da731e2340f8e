"""A request that waits for a person's word: asked, kept alive, answered or withdrawn.

I1  Nothing of a held request is sent, and its body is not read, before the word is there and the approval is on record.
I2  A client that ends its side withdraws its request: an approval never has an effect that nobody waits for.
I3  Whatever is not `approved` is a refusal, each with its own reason.
I4  Nobody is asked about a request whose path and query cannot be told whole.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from saggar.core.decision import ALLOW, Decision
from saggar.egress.approved import Asked, standing
from saggar.egress.client_end_host import HOLD, ClientEnd

if TYPE_CHECKING:
    from saggar.egress.admit import Admitted
    from saggar.egress.http_head import RequestHead

APPROVAL_S = 300.0
#: seconds after which the client is told that its request is still in work. RFC 9110 section 15.2: a client must take interim
#: answers that it did not ask for, as many as come; Go's takes five, and no client but Python's own takes a 102
KEEP_ALIVE_S = (10.0, 40.0, 100.0, 200.0)
#: characters of a path and of a query that a question tells: what is longer is refused, not cut (I4)
MAX_PATH = 512
MAX_QUERY = 1024

_REFUSALS = {
    "denied": ("approval_denied", "the operator did not approve the request"),
    "timeout": ("approval_timeout", "nobody approved the request in time"),
    "unattended": ("approval_unattended", "the request needs a person's approval, and nobody is there to be asked"),
    "crowded": ("approval_crowded", "too many requests of this task wait for a person already"),
}


class Holding(ClientEnd):
    """A client's connection that may hold its request."""

    __slots__ = ("asking",)

    def standing(self, admitted: Admitted) -> Admitted:
        """`admitted`, allowed where a person approved its like for the rest of the task."""
        if not self.owner.approved:
            return admitted
        to = self.authorized.destination
        path, query = _texts(admitted)
        asked = Asked(self.authorized.rule.id, admitted.decision.rule, to.host, to.port, admitted.method, path, query)
        found = standing(self.owner.approved, asked)
        if not found:
            return admitted
        self.admitted["approval"] = found
        return _allowed(admitted, "approved_for_task")

    async def ask(self, admitted: Admitted, head: RequestHead | None) -> Admitted | None:
        """The request, allowed, once a person has said so; None where it was refused, and that was told."""
        path, query = _texts(admitted)
        if len(path) > MAX_PATH or len(query) > MAX_QUERY:
            self.task = None
            self.refuse_for(
                "approval_too_long",
                f"nobody is asked about more than a path of {MAX_PATH} and a query of {MAX_QUERY} characters",
                path_chars=len(path),
                query_chars=len(query),
                sha256=hashlib.sha256(admitted.target.raw).hexdigest(),
            )
            return None
        if query:
            self.admitted["query"] = query
        if not self.record(admitted.decision):
            return None
        self.deadline = self.loop.time() + APPROVAL_S + 5
        self.asking = True
        # a client that waits for `100 Continue` would send its body, which is not to be read yet
        silent = head is None or head.expects_continue or head.version == 0
        timers = [] if silent else [self.loop.call_later(s, self._still_here) for s in KEEP_ALIVE_S]
        try:
            verdict = await self.owner.port.approve(admitted.decision)
        finally:
            self.asking = False
            for timer in timers:
                timer.cancel()
        if verdict == "approved":
            return _allowed(admitted, "approved")
        self.task = None
        self.refuse_for(*_REFUSALS.get(verdict, _REFUSALS["denied"]))
        return None

    def _still_here(self) -> None:
        if self.state == HOLD and not self.closed:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _texts(admitted: Admitted) -> tuple[str, str]:
    """Path and query as they would be sent; the query "" where there is none, or an empty one."""
    return admitted.target.path.decode("ascii"), (admitted.target.query or b"").decode("latin-1")


def _allowed(admitted: Admitted, reason: str) -> Admitted:
    asked = admitted.decision
    return replace(admitted, decision=Decision(ALLOW, reason, layer="L2", rule=asked.rule, detail=asked.detail))
