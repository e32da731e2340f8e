"""A task's tools, guarded: gateway, audit log, book of approvals and their socket in one run directory.

I1  Nothing is called without a log and a book; both are in place before the first token.
I2  `resume` takes up a run that ended: its spent ids, budgets and approvals hold, its log goes on in the same chain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from saggar.approval.review_host import Channel, Review
from saggar.approval.socket_host import NAME as APPROVAL_SOCKET
from saggar.approval.socket_host import ApprovalSocket
from saggar.approval.store_host import FILE as APPROVALS
from saggar.approval.store_host import Store
from saggar.approval.terminal_host import Terminal
from saggar.audit import canonical
from saggar.audit.sink_host import AuditLog
from saggar.capability.declare import Tool
from saggar.capability.desk_host import Desk, Purse
from saggar.capability.gateway import Gateway
from saggar.capability.past import Past, past_of
from saggar.capability.rule import Rule, from_policy
from saggar.capability.rules import Tightening
from saggar.core.decision import DENY
from saggar.core.errors import UsageError
from saggar.core.tool import Budget, LabelLike, LabelRules, Outcome, SandboxBody
from saggar.isolation.state_host import RunDir, open_state
from saggar.policy.load import load_file
from saggar.policy.model import Policy
from saggar.runtime.ask_host import Unattended
from saggar.runtime.held import OnAsk
from saggar.runtime.starter import owned, starter

AUDIT = "audit.jsonl"


class ToolSession:
    """Tools behind a gateway, for one task.

        with ToolSession([send_email], capabilities=["send:email[to=*@example.com, max=3]"]) as session:
            outcome = session.call("send_email", to="bob@example.com", subject="hi", body="…")

    tools: declared with `saggar.tool`. capabilities and rules: in place of those of `policy` (a file's path or a
    `Policy`). channels: where questions go first, by default the controlling terminal; whatever they leave open waits
    `wait_s` for `saggar approvals`, then the call is parked. resume: the id of an ended run. sandbox: runs the bodies of
    tools that say `runs="sandbox"`, by default a cell of `policy` for each call. parent: of a sub-agent, the session
    that starts it: every call is charged to the parent's budgets too, and needs a capability of the parent's. on_ask: as in
    `saggar.run`, for what tools in such cells request of hosts.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        capabilities: Sequence[str] | None = None,
        rules: Sequence[Rule] | None = None,
        policy: str | Policy | None = None,
        channels: Sequence[Channel] | None = None,
        wait_s: float = 300.0,
        resume: str = "",
        label_rules: LabelRules | None = None,
        sandbox: SandboxBody | None = None,
        budget: Budget | None = None,
        outside: Sequence[Tightening] = (),
        parent: ToolSession | None = None,
        on_ask: OnAsk | Unattended = "refuse",
    ) -> None:
        """Raises `UsageError` for tools, capabilities or rules that do not fit, `OSError` without a place for state."""
        loaded = load_file(policy) if isinstance(policy, str) else policy
        if capabilities is None:
            capabilities = loaded.tools.capabilities if loaded else ()
        if rules is None and loaded is not None and loaded.tools.rule:
            rules = [from_policy(rule) for rule in loaded.tools.rule]
        if sandbox is None and any(t.declaration.runs == "sandbox" for t in tools):
            from saggar.runtime.tool_body_host import CellBody

            sandbox = CellBody(loaded, on_ask=on_ask)
        parent = starter() if parent is None else parent
        if parent is not None and parent.ended:
            raise UsageError(
                "the session whose tool started this one has ended: it has no budgets any more to charge",
                hint="a task that outlives a tool's body gets a context of its own: `contextvars.Context()`",
            )
        self._run, past = _run_directory(resume)
        self.id = self._run.id
        self.directory = self._run.path
        self.capabilities = tuple(capabilities)
        #: percent, for the plan wall
        self.amount_drift = loaded.tools.amount_drift_percent if loaded else 0
        self._ended = False
        try:
            self._assemble(
                past, tools, capabilities, rules, channels, wait_s, label_rules, sandbox, budget, outside, parent
            )
        except BaseException:
            self._run.end("not_started")
            self._run.close()
            raise

    def _assemble(  # noqa: PLR0917  # the second half of the constructor, within whose guard it runs
        self,
        past: Past,
        tools: Sequence[Tool],
        capabilities: Sequence[str],
        rules: Sequence[Rule] | None,
        channels: Sequence[Channel] | None,
        wait_s: float,
        label_rules: LabelRules | None,
        sandbox: SandboxBody | None,
        budget: Budget | None,
        outside: Sequence[Tightening],
        parent: ToolSession | None,
    ) -> None:
        self.audit = AuditLog(os.path.join(self._run.path, AUDIT), self.id)
        _refuse_changed(self.audit, past, tools)
        self.approvals = Store(os.path.join(self._run.path, APPROVALS))
        self.approvals.park_all()
        review = Review(self.approvals, [Terminal()] if channels is None else channels, timeout_s=wait_s)
        self.approver = review
        self._desk = Desk(
            self.id,
            owned(tools, self),
            audit=self.audit,
            rules=rules,
            capabilities=capabilities,
            approver=review,
            label_rules=label_rules,
            sandbox=sandbox,
            budget=budget,
            outside=outside,
            above=parent.gateway.above(parent.gateway.grants(parent.capabilities)) if parent else None,
        )
        self.gateway: Gateway = self._desk.gateway
        self.gateway.restore(past)
        # before anything is planned, asked or answered about them
        self.gateway.open()
        self._purse = Purse(self.gateway, capabilities) if capabilities else None
        self._socket = ApprovalSocket(review, os.path.join(self._run.path, APPROVAL_SOCKET))

    @property
    def ended(self) -> bool:
        return self._ended

    def token(self) -> str:
        """A token for this process that is good for at least 30 seconds."""
        if self._purse is None:
            raise UsageError("this session has no capabilities", hint='capabilities=["operation:resource[…]"]')
        return self._purse.token()

    def call(self, tool: str, /, **args: Any) -> Outcome:
        """Call a tool with this session's capabilities."""
        return self.gateway.call(self.token(), tool, args)

    def call_labelled(self, tool: str, args: Mapping[str, Any], labels: Mapping[str, LabelLike]) -> Outcome:
        return self.gateway.call(self.token(), tool, args, labels=labels)

    def revoke(self) -> None:
        """End every token of the task at once, those of worker processes included."""
        self._desk.revoke()
        self.audit.append("capability.revoked", layer="L3", effect="deny", reason="task_revoked")

    def close(self, cause: str = "done") -> None:
        if self._ended:
            return
        self._ended = True
        self._socket.close()
        self._run.end(cause)
        self.audit.close()
        self.approvals.close()
        self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_changed(audit: AuditLog, past: Past, tools: Sequence[Tool]) -> None:
    """For I3. Closes the log of a run that it refuses. Raises `UsageError`."""
    changed = past.changed(t.declaration for t in tools)
    if not changed:
        return
    detail = {"tools": changed}
    audit.append("capability.decision", layer="L3", effect=DENY, reason="declaration_changed", detail=detail)
    audit.close()
    raise UsageError(
        f"the declaration of `{changed[0]}` is not the one that the run began with",
        hint="what was planned, asked and answered was about that one; begin a new run",
    )


def _run_directory(resume: str) -> tuple[RunDir, Past]:
    state = open_state(os.environ)
    if not resume:
        run = state.new_run()
        run.update(argv=["(tools)"], mode="none", workspace="")
        return run, Past()
    run = state.open_run(resume)
    if not run.acquire():
        raise UsageError(f"the run `{run.id}` is alive", hint="only an ended run is taken up again")
    with open(os.path.join(run.path, AUDIT), "rb") as f:
        past = past_of(canonical.decode(line) for line in f)
    if not past.opened:
        run.close()
        raise UsageError(
            f"the log of `{run.id}` does not say which tools the run began with",
            hint="nothing can be held to them; begin a new run",
        )
    return run, past
