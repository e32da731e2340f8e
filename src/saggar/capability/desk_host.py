"""A gateway with its keys, clock and randomness from this host: what `runtime` and small programs start from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from saggar.capability.above import Above
from saggar.capability.declare import Tool
from saggar.capability.gateway import Gateway
from saggar.capability.grant import Grant, compile_capability
from saggar.capability.keys import PrivateKey
from saggar.capability.mint import Issuer
from saggar.capability.rule import Rule
from saggar.capability.rules import RuleSet, Tightening
from saggar.capability.steps import Sink
from saggar.capability.verify import Revocations, Verifier
from saggar.core.approval import Approver
from saggar.core.clock_host import SystemClock
from saggar.core.tool import Budget, LabelRules, SandboxBody, ToolDeclaration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.core.clock import Clock


def rules_for(capabilities: Iterable[str], declarations: Iterable[ToolDeclaration]) -> list[Rule]:
    """An allow rule for each tool that the capabilities name: the grant bounds the arguments, and the built-in rules,
    which ask, still apply. What a policy with capabilities and no rules of its own means."""
    known = list(declarations)
    tools: dict[str, str] = {}
    for text in capabilities:
        for grant in compile_capability(text, known):
            tools.setdefault(grant.tool, text)
    return [Rule(id=f"capability.{tool}", effect="allow", tool=tool, reason=text) for tool, text in tools.items()]


class Desk:
    """One task's gateway, issuer and verifier. `revoke()` ends every token of the task at once."""

    __slots__ = ("gateway", "issuer", "revocations", "verifier")

    def __init__(
        self,
        task: str,
        tools: Sequence[Tool],
        *,
        audit: Sink,
        rules: Sequence[Rule] | None = None,
        capabilities: Sequence[str] = (),
        approver: Approver | None = None,
        label_rules: LabelRules | None = None,
        sandbox: SandboxBody | None = None,
        budget: Budget | None = None,
        outside: Sequence[Tightening] = (),
        above: Above | None = None,
        clock: Clock | None = None,
    ) -> None:
        """rules: the policy's; without any, one allow for each tool that `capabilities` name. above: of the task that
        started this one. Raises `UsageError`."""
        clock = clock or SystemClock()
        declarations = [t.declaration for t in tools]
        words = list(rules) if rules is not None else rules_for(capabilities, declarations)
        self.issuer = Issuer(
            task, key=PrivateKey(os.urandom(32)), secret=os.urandom(32), clock=clock, random=os.urandom
        )
        self.revocations = Revocations()
        self.verifier = Verifier(
            task,
            roots=[self.issuer.public],
            clock=clock,
            secret=self.issuer.secret,
            minted=self.issuer.minted,
            revocations=self.revocations,
        )
        self.gateway = Gateway(
            task,
            tools,
            rules=RuleSet(words, declarations, outside=outside),
            audit=audit,
            verifier=self.verifier,
            clock=clock,
            random=os.urandom,
            issuer=self.issuer,
            approver=approver,
            label_rules=label_rules,
            sandbox=sandbox,
            budget=budget,
            above=above,
        )

    def revoke(self) -> None:
        self.revocations.revoke_task(self.issuer.task)


class Purse:
    """Capabilities for a loop that outlives 60 seconds: a fresh token whenever the last has less than half its life."""

    __slots__ = ("_born", "_capabilities", "_clock", "_gateway", "_text", "_ttl_s")

    def __init__(
        self, gateway: Gateway, capabilities: Sequence[str | Grant], *, ttl_s: int = 60, clock: Clock | None = None
    ) -> None:
        """Raises `UsageError` at once where a capability fits no tool."""
        grants = [g for g in capabilities if isinstance(g, Grant)]
        self._capabilities = (*grants, *gateway.grants(t for t in capabilities if isinstance(t, str)))
        self._gateway = gateway
        self._clock = clock or SystemClock()
        self._ttl_s = ttl_s
        self._text = ""
        self._born = 0.0

    def token(self) -> str:
        now = self._clock.monotonic()
        if not self._text or now - self._born > self._ttl_s / 2:
            self._text = self._gateway.token(self._capabilities, ttl_s=self._ttl_s)
            self._born = now
        return self._text
