"""The one place that turns a destination into the right to dial it.

I1  Only `authorize` makes an `AuthorizedRequest`; dialling, resolving and giving a secret take nothing else.
I2  One cause has one reason, whichever protocol asked: DNS, CONNECT, SOCKS, plain HTTP and TLS all come through here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saggar.core.decision import ALLOW, DENY, Decision
from saggar.core.errors import InvariantBroken
from saggar.egress.remedies import explain

if TYPE_CHECKING:
    from saggar.egress.destination import Destination
    from saggar.egress.match import RuleSet
    from saggar.policy.model import EgressRule

_SEAL = object()


class AuthorizedRequest:
    """The right to dial one destination under one rule. Made by `authorize` alone (I1)."""

    __slots__ = ("decision", "destination", "rule")

    def __init__(self, destination: Destination, rule: EgressRule, decision: Decision, *, seal: object) -> None:
        if seal is not _SEAL:
            raise InvariantBroken("an authorised request was made outside `authorize`")
        self.destination = destination
        self.rule = rule
        self.decision = decision


def authorize(rules: RuleSet, destination: Destination) -> AuthorizedRequest | Decision:
    """The right to dial `destination`, or the decision that refuses it."""
    rule, reason = rules.find(destination.host, destination.port)
    if rule is None:
        return refuse(reason, destination)
    decision = Decision(ALLOW, "listed", layer="L2", rule=rule.id, detail=_detail(destination))
    return AuthorizedRequest(destination, rule, decision, seal=_SEAL)


def refuse(reason: str, destination: Destination | None = None, *, rule: str = "", **detail: object) -> Decision:
    """A refusal, with the one line that may be shown inside. `detail` goes to the audit log alone."""
    facts = _detail(destination) if destination is not None else {}
    facts.update(detail)
    return Decision(DENY, reason, layer="L2", rule=rule, public=public_text(reason, destination), detail=facts)


def _detail(destination: Destination) -> dict[str, object]:
    return {"host": destination.host, "port": destination.port, "scheme": destination.scheme}


def public_text(reason: str, destination: Destination | None = None) -> str:
    """One line for the program inside: what was refused and what mends it; never an address, a path or a secret."""
    return explain(reason, destination)
