"""Monitor mode round an ordinary tool-calling loop: a gateway in front of the gateway. HEURISTIC, see `plan.monitor`.

    inner = saggar.ToolSession(tools, capabilities=…, label_rules=Carried())
    gateway = MonitoredGateway(inner.gateway, Monitor(request, inner.gateway.declarations(), granted))
    loop = saggar.ToolLoop(gateway, inner.token)

I1  What monitor mode denies never reaches the gateway behind; what it asks about reaches it with the verdict in its
    labels, so that the gateway's own card carries it (with `Carried` among its label rules), or is refused here where
    nobody says that the gateway asks.
I2  Only what a call really returned is observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saggar.core.decision import ASK, DENY, Decision
from saggar.core.label import UNTRUSTED
from saggar.core.tool import LabelLike, Outcome, ToolDeclaration, ToolGateway
from saggar.plan.calling import CallLabel
from saggar.plan.flow import PUBLIC
from saggar.plan.monitor import Monitor
from saggar.plan.state import Recorder


def _silent(kind: str, **fields: Any) -> None:
    """For gateways without a log of their own (tests)."""


@dataclass(slots=True)
class MonitoredGateway:
    """Implements `core.tool.ToolGateway`. asks: the gateway behind has `Carried` and asks; else what asks is refused."""

    gateway: ToolGateway
    monitor: Monitor
    record: Recorder = _silent
    asks: bool = True

    def call(
        self,
        token: str,
        tool: str,
        args: Mapping[str, Any],
        *,
        labels: Mapping[str, LabelLike] | None = None,
        call_id: str = "",
    ) -> Outcome:
        decision = self.monitor.decide(tool, args)
        # without an argument there is no label for the verdict to travel on, and nobody would ask
        refused = decision.effect == DENY or (decision.effect == ASK and not (self.asks and args))
        self.record(
            "plan.monitor",
            effect=DENY if refused else decision.effect,
            reason=decision.reason,
            rule=decision.rule,
            detail=decision.detail | {"heuristic": True},
        )
        if refused:
            word = Decision(
                DENY, decision.reason, layer="L4", rule=decision.rule, public=PUBLIC, detail=decision.detail
            )
            return Outcome("denied", word, call_id=call_id, public=PUBLIC)
        self.monitor.spend(tool)
        shown = dict(labels or {})
        if decision.effect == ASK:
            # over whatever the caller says of its arguments: a label of its own is no answer to the question
            shown = {name: _carrying(decision, shown.get(name)) for name in args}
        outcome = self.gateway.call(
            token, tool, self.monitor.prepare(tool, args), labels=shown or None, call_id=call_id
        )
        if outcome.done:
            self.monitor.observe(tool, outcome.value)
        return outcome

    def declaration(self, tool: str) -> ToolDeclaration | None:
        return self.gateway.declaration(tool)

    def declarations(self) -> Mapping[str, ToolDeclaration]:
        return self.gateway.declarations()


def _carrying(decision: Decision, own: LabelLike | None) -> CallLabel:
    """The verdict as a label; what the caller said of the argument stays, but for its integrity."""
    sources = frozenset({"monitor mode"}) | (own.sources if own is not None else frozenset())
    return CallLabel(UNTRUSTED, sources, own.readers if own is not None else None, decision)
