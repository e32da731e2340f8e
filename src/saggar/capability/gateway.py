"""The only way to a tool.

I1  Order: token, arguments, capability, rules, labels, budget, approval, audit intent, call, audit outcome. A later
    step is not reached past a refusal of an earlier one.
I2  The intent is in the log before the body runs; a log that cannot be written stops the call. An intent without an
    outcome is a call whose end nobody saw.
I3  A one-shot id is spent with the budgets, under one lock, before the intent: a repeated id never runs twice.
I4  Every way out is an `Outcome`; what a model may read of a refusal is one constant line.
I5  An approval counts for the argument hash that it names; the call that runs after a wait is judged anew, its token
    minted afresh where the old one ran out while a human thought.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from saggar.capability.above import Above, own_accounts
from saggar.capability.budget import Account, Ledger, amount_of
from saggar.capability.builtin import Flow
from saggar.capability.call import BadCall, Call, prepare
from saggar.capability.card import question_for
from saggar.capability.declare import Tool
from saggar.capability.exact import exactly
from saggar.capability.finish_host import finished
from saggar.capability.grant import Grant, compile_capability
from saggar.capability.mint import DEFAULT_TTL_S, Issuer, Random
from saggar.capability.past import Past
from saggar.capability.record import argument_record, call_record
from saggar.capability.request import request_hash
from saggar.capability.rule import CallView
from saggar.capability.rules import ASKED, REFUSED, RuleSet, Verdict
from saggar.capability.steps import (
    Asked,
    Judged,
    Sink,
    answer_record,
    declared,
    granted,
    granting,
    measured,
    misfit,
    put_to,
    revived,
)
from saggar.capability.verify import Proof, Verifier, refusal
from saggar.core.approval import Approver, Question
from saggar.core.decision import ALLOW, ASK, DENY, Decision, strongest
from saggar.core.errors import Denied, UsageError
from saggar.core.tool import Budget, LabelLike, LabelRules, Outcome, SandboxBody, ToolDeclaration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.core.clock import Clock

FAILED = "the tool failed"
PARKED = "this call waits for approval"
MAX_IDS = 100_000
#: refusals of one task that are recorded one by one; a caller that only knocks must not fill the disk
MAX_REFUSALS = 10_000


class Gateway:
    """Guards the tools of one task. Safe among threads; one per task.

    verifier, issuer: of this task (issuer for in-process tokens and for approvals that outlast a token). rules: bound
    to the same tools. audit: a sink; there is no gateway without one. approver: without one every ask is parked.
    label_rules: L4's say. sandbox: runs bodies that declare `runs="sandbox"`. budget: of the whole task. above: of the
    task that started this one.
    """

    def __init__(
        self,
        task: str,
        tools: Iterable[Tool],
        *,
        rules: RuleSet,
        audit: Sink,
        verifier: Verifier,
        clock: Clock,
        random: Random,
        issuer: Issuer | None = None,
        approver: Approver | None = None,
        label_rules: LabelRules | None = None,
        sandbox: SandboxBody | None = None,
        budget: Budget | None = None,
        tool_timeout_s: float = 300.0,
        above: Above | None = None,
    ) -> None:
        self.task = task
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise UsageError(f"two tools are named `{tool.name}`")
            self._tools[tool.name] = tool
        self._rules = rules
        self._audit = audit
        self._verifier = verifier
        self._clock = clock
        self._random = random
        self._issuer = issuer
        self._approver = approver
        self._label_rules = label_rules
        self._sandbox = sandbox
        self._budget = budget or Budget()
        self._timeout_s = tool_timeout_s
        self._above = above
        self._prefix: Account = ("agent", task) if above else ()
        self._lock = above.lock if above else threading.Lock()
        self._ledger = above.ledger if above else Ledger()
        self._spent: set[str] = set()
        self._flow = Flow()
        self._on_record: set[str] | None = None
        self._refused = 0

    # -- what there is

    def declaration(self, tool: str) -> ToolDeclaration | None:
        found = self._tools.get(tool)
        return found.declaration if found else None

    def declarations(self) -> Mapping[str, ToolDeclaration]:
        return {name: tool.declaration for name, tool in self._tools.items()}

    @property
    def flow(self) -> Flow:
        """What this task has read so far."""
        return self._flow

    def grants(self, capabilities: Iterable[str]) -> tuple[Grant, ...]:
        """The grants of some capability texts. Raises `UsageError`."""
        known = [t.declaration for t in self._tools.values()]
        return tuple(g for text in capabilities for g in compile_capability(text, known))

    def token(self, capabilities: Iterable[str | Grant], *, ttl_s: int = DEFAULT_TTL_S, subject: str = "host") -> str:
        """Mint a token for use in this process and record it. Raises `UsageError`, and `OSError` of the log."""
        if self._issuer is None:
            raise UsageError("this gateway has no issuer")
        grants = self._grants_of(capabilities, subject=subject, ttl_s=ttl_s)
        return self._issuer.mint_local(grants, subject=subject, ttl_s=ttl_s)

    def token_for(
        self, holder: bytes, capabilities: Iterable[str | Grant], *, ttl_s: int = DEFAULT_TTL_S, subject: str = "worker"
    ) -> str:
        """A signed token for the process that holds the private half of `holder`. As `token` otherwise."""
        grants = self._grants_of(capabilities, subject=subject, ttl_s=ttl_s)
        if self._issuer is None:
            raise UsageError("this gateway has no issuer")
        return self._issuer.mint(grants, holder=holder, subject=subject, ttl_s=ttl_s)

    def _grants_of(self, capabilities: Iterable[str | Grant], *, subject: str, ttl_s: int) -> list[Grant]:
        found = list(capabilities)
        grants = [g for g in found if isinstance(g, Grant)]
        grants += self.grants(t for t in found if isinstance(t, str))
        self.open()
        detail = {"subject": subject, "ttl_s": ttl_s, "capabilities": [granted(g) for g in grants]}
        self._audit.append("capability.granted", layer="L3", effect=ALLOW, reason="minted", detail=detail)
        return grants

    def open(self) -> None:
        """Record the tools that the log does not have yet: a task taken up again is held to them. Raises `OSError`."""
        known = self._on_record or set()
        tools = {n: declared(t.declaration) for n, t in sorted(self._tools.items()) if n not in known}
        if tools or self._on_record is None:
            self._audit.append("capability.tools", layer="L3", effect=ALLOW, reason="declared", detail={"tools": tools})
            self._on_record = known | tools.keys()

    def restore(self, past: Past) -> None:
        """Take up a task where its log left it: spent ids, used budgets, and what was read."""
        with self._lock:
            self._spent |= past.spent
            # of a sub-agent its own accounts alone: its parent's are its parent's to restore
            self._ledger.restore({k: v for k, v in past.used.items() if k[: len(self._prefix)] == self._prefix})
        for name in past.tools:
            if name in self._tools:
                self._seen(self._tools[name].declaration)
        self._on_record = set(past.digests) if past.opened else None

    def above(self, grants: Iterable[Grant]) -> Above:
        """For the gateway of a sub-agent: its calls are charged to this task's accounts too. grants: this task's."""
        return Above(self._ledger, self._lock, tuple(grants), self._budget, self._prefix, self._above)

    def granted_to(self, token: str) -> frozenset[str]:
        """The tools that a token names; empty for one that is not believed."""
        try:
            return frozenset(held.grant.tool for held in self._verifier.verify(token).grants)
        except Denied:
            return frozenset()

    # -- calls

    def call(
        self,
        token: str,
        tool: str,
        args: Mapping[str, Any],
        *,
        labels: Mapping[str, LabelLike] | None = None,
        call_id: str = "",
        proof: Proof | None = None,
        outside: bool = False,
    ) -> Outcome:
        """As `core.tool.ToolGateway.call`. outside: the caller is another process. A signed token needs its proof
        wherever it comes from."""
        asked = Asked(token, tool, args, labels or {}, call_id, proof, outside)
        try:
            ready = self._judge(asked)
            if isinstance(ready, Judged):
                ready = self._approved(ready)
            if isinstance(ready, Judged):
                ready = self._commit(ready)
        except Exception as e:  # noqa: BLE001  # an engine that fails denies, with a reason of its own (I4)
            return self._broken(asked, e)
        if not isinstance(ready, Judged):
            return ready
        try:
            value = self._run(ready)
        except Exception as e:  # noqa: BLE001  # a tool's body may raise anything; the log hears the type, a model nothing
            return self._finish(ready, None, e)
        return self._finish(ready, value, None)

    async def acall(
        self,
        token: str,
        tool: str,
        args: Mapping[str, Any],
        *,
        labels: Mapping[str, LabelLike] | None = None,
        call_id: str = "",
        proof: Proof | None = None,
        outside: bool = False,
    ) -> Outcome:
        """`call` for an event loop: an async body is awaited, a human is waited for in a thread."""
        asked = Asked(token, tool, args, labels or {}, call_id, proof, outside)
        try:
            ready = self._judge(asked)
            if isinstance(ready, Judged) and ready.verdict.decision.effect == ASK:
                ready = await asyncio.to_thread(self._approved, ready)
            if isinstance(ready, Judged):
                ready = self._commit(ready)
        except Exception as e:  # noqa: BLE001  # as in `call`
            return self._broken(asked, e)
        if not isinstance(ready, Judged):
            return ready
        try:
            if ready.tool.is_async and ready.tool.declaration.runs == "host":
                value = await ready.tool.unguarded(**revived(ready.tool, ready.call.args))
            else:
                value = await asyncio.to_thread(self._run, ready)
        except Exception as e:  # noqa: BLE001  # as in `call`
            return self._finish(ready, None, e)
        return self._finish(ready, value, None)

    def explain(self, token: str, tool: str, args: Mapping[str, Any]) -> Decision:
        """What `call` would decide, without a record, a question or a charge."""
        try:
            judged = self._weighed(Asked(token, tool, args, {}))
        except Exception as e:  # noqa: BLE001  # as in `call`
            return refusal("engine_error", error=type(e).__name__)
        return judged if isinstance(judged, Decision) else judged.verdict.decision

    # -- the steps

    def _broken(self, asked: Asked, error: Exception) -> Outcome:
        decision = refusal("engine_error", error=type(error).__name__)
        return self._denied(decision, str(asked.tool), {}, call_id=str(asked.call_id)[:128])

    def _judge(self, asked: Asked) -> Judged | Outcome:
        found = self._weighed(asked)
        if isinstance(found, Judged):
            if found.verdict.decision.effect != DENY:
                return found
            return self._denied(found.verdict.decision, asked.tool, found.call.args, call_id=found.call_id)
        return self._denied(found, asked.tool, asked.args, call_id=asked.call_id)

    def _weighed(self, asked: Asked) -> Judged | Decision:
        call_id = asked.call_id
        try:
            verified = self._verifier.verify(asked.token)
            tool = self._tools.get(asked.tool)
            if tool is None:
                return refusal("tool_unknown")
            if not isinstance(asked.args, Mapping):
                return refusal("type_confusion")
            call = prepare(tool.declaration, asked.args, self.task)
            if asked.outside or verified.kind != "local":
                self._verifier.possess(verified, request_hash(self.task, asked.tool, asked.args), asked.proof)
                call_id = asked.proof.call_id if asked.proof else ""
        except Denied as e:
            return e.decision
        except BadCall as e:
            return refusal(e.reason, argument=e.argument)
        if len(call_id) > 128 or (asked.outside and not call_id):
            return refusal("call_id_form")
        if call_id and call_id in self._spent:
            return refusal("replayed", call_id=call_id)
        held = granting(verified, call)
        if isinstance(held, Decision):
            return held
        verdict = self._ruled(call, held.root, asked.labels)
        accounts = own_accounts(self._prefix, self._budget, call, held.charges)
        if self._above is not None:
            theirs = self._above.accounts(call)
            if theirs is None:
                return refusal("parent_not_granted")
            accounts += theirs
        if verdict.decision.effect != DENY:
            with self._lock:
                over = self._ledger.overrun(accounts, call)
            if over is not None:
                verdict = Verdict(refusal(over.reason, account=over.account, limit=over.limit))
        fresh = not call_id
        call_id = call_id or self._random(16).hex()
        return Judged(tool, call, verified, held, accounts, asked.labels, verdict, call_id, fresh)

    def _ruled(self, call: Call, grant: Grant, labels: Mapping[str, LabelLike]) -> Verdict:
        verdict = self._rules.decide(CallView(call.declaration, call.args, labels), grant, self._flow)
        if self._label_rules is None or verdict.decision.effect == DENY:
            return verdict
        try:
            word = self._label_rules.decide(call.declaration, call.args, labels)
        except Exception as e:  # noqa: BLE001  # an engine that fails denies
            word = Decision(DENY, "label_error", layer="L4", public=REFUSED, detail={"error": type(e).__name__})
        if word is None or strongest(verdict.decision, word) is verdict.decision:
            if word is not None and word.effect == ASK:
                return replace(verdict, asks=(*verdict.asks, (word.rule, word.reason)))
            return verdict
        asks = (*verdict.asks, (word.rule, word.reason)) if word.effect == ASK else ()
        return replace(verdict, decision=word, asks=asks)

    def _approved(self, judged: Judged) -> Judged | Outcome:
        decision = judged.verdict.decision
        if decision.effect == ALLOW:
            return judged
        question = question_for(
            judged.tool,
            judged.call,
            judged.labels,
            id=self._random(10).hex(),
            task=self.task,
            asks=judged.verdict.asks,
            human_only=judged.verdict.human_only,
        )
        about = {"question": question.id, "tool": question.tool, "args_hash": question.args_hash}
        self._append("approval.question", effect=ASK, reason=decision.reason, rule=question.rule, detail=about)
        answer, standing = put_to(self._approver, question)
        effect = {"approved": ALLOW, "denied": DENY}.get(answer.kind, ASK)
        noted = answer_record(question, answer, standing=standing)
        self._append("approval.answer", effect=effect, reason=answer.kind, rule=question.rule, detail=noted)
        if answer.kind == "timeout":
            return self._parked(judged, question)
        if answer.kind != "approved":
            return self._denied(
                Decision(DENY, "approval_denied", layer="approval", rule=decision.rule, public=REFUSED),
                judged.call.declaration.name,
                judged.call.args,
                call_id=judged.call_id,
            )
        wrong = misfit(question, answer)
        if wrong:
            refused = Decision(DENY, wrong, layer="approval", rule=decision.rule, public=REFUSED)
            return self._denied(refused, judged.call.declaration.name, judged.call.args, call_id=judged.call_id)
        return self._renewed(judged, question)

    def _renewed(self, judged: Judged, question: Question) -> Judged | Outcome:
        """After a wait nothing is as it was: look at the rules and the token again (I5); the budgets and the one-shot id
        come with the commit. What was approved is what was asked for, and no reason that came up since."""
        name, args = judged.call.declaration.name, judged.call.args
        token = judged.token
        now = self._ruled(judged.call, judged.held.root, judged.labels)
        if now.decision.effect == DENY:
            return self._denied(now.decision, name, args, call_id=judged.call_id)
        if not set(now.asks) <= set(judged.verdict.asks):
            outdated = Decision(DENY, "approval_outdated", layer="approval", rule=now.decision.rule, public=REFUSED)
            return self._denied(outdated, name, args, call_id=judged.call_id)
        try:
            token = self._verifier.verify(token.text)
        except Denied as e:
            if e.decision.reason != "expired" or self._issuer is None:
                return self._denied(e.decision, name, args, call_id=judged.call_id)
            try:
                token = self._verifier.verify(self._minted_for(judged))
            except Denied as again:
                return self._denied(again.decision, name, args, call_id=judged.call_id)
        return replace(judged, token=token, approval=question.id)

    def _minted_for(self, judged: Judged) -> str:
        if self._issuer is None:
            raise UsageError("this gateway has no issuer")
        if self._verifier.revocations.covers(judged.token):
            raise Denied(refusal("revoked"))
        grant = exactly(judged.held.grant, judged.call.args)
        return self._issuer.mint_local([grant], subject=judged.token.subject, max_depth=0)

    def _commit(self, judged: Judged) -> Judged | Outcome:
        call = judged.call
        with self._lock:
            if judged.call_id in self._spent:
                problem = refusal("replayed", call_id=judged.call_id)
            elif len(self._spent) >= MAX_IDS:
                problem = refusal("call_ids_exhausted")
            elif (over := self._ledger.overrun(judged.accounts, call)) is not None:
                problem = refusal(over.reason, account=over.account, limit=over.limit)
            else:
                if not judged.fresh:  # an id that we made ourselves comes only once
                    self._spent.add(judged.call_id)
                self._ledger.charge(judged.accounts, call)
                problem = None
        if problem is not None:
            return self._denied(problem, call.declaration.name, call.args, call_id=judged.call_id)
        detail = call_record(call, call_id=judged.call_id, holder=judged.token.subject, jti=judged.token.jtis[-1])
        detail["charged"] = {
            "accounts": [list(account) for account, _ in judged.accounts],
            "bytes": call.size,
            "amount": str(amount_of(call)),
        }
        if judged.verdict.accepted:
            detail["accepted"] = list(judged.verdict.accepted)
        if judged.approval:
            detail["approval"] = judged.approval
        verdict = judged.verdict.decision
        reason = "approved" if judged.approval else verdict.reason
        if not self._append("capability.intent", effect=ALLOW, reason=reason, rule=verdict.rule, detail=detail):
            return Outcome("denied", refusal("audit_unavailable"), call_id=judged.call_id, public=REFUSED)
        return judged

    def _run(self, judged: Judged) -> Any:
        tool = judged.tool
        if tool.declaration.runs == "sandbox":
            if self._sandbox is None:
                raise UsageError(f"the tool `{tool.name}` runs in a sandbox and the session has none")
            return self._sandbox.run(tool.declaration, tool.unguarded, judged.call.args, self._timeout_s)
        value = tool.unguarded(**revived(tool, judged.call.args))
        return finished(value) if tool.is_async else value

    def _finish(self, judged: Judged, value: Any, error: Exception | None) -> Outcome:
        declaration = judged.call.declaration
        self._seen(declaration)
        detail: dict[str, Any] = {"tool": declaration.name, "call_id": judged.call_id}
        reason = "done"
        size, error = measured(value, error)
        if error is not None:
            reason = "tool_raised"
            detail["error"] = type(error).__name__
        else:
            detail["bytes"] = size
            with self._lock:
                if not self._ledger.charge_result(judged.accounts, size):
                    reason = "budget_bytes"
        written = self._append("capability.outcome", effect=ALLOW, reason=reason, rule="", detail=detail)
        if not written:
            reason = "audit_unavailable"
        decision = judged.verdict.decision
        if reason == "done":
            allowed = (
                decision
                if decision.effect == ALLOW
                else Decision(ALLOW, "approved", layer="approval", rule=decision.rule)
            )
            return Outcome("done", allowed, value, judged.call_id, judged.approval)
        failed = Decision(ALLOW, reason, layer="L3", rule=decision.rule, public=FAILED, detail=detail)
        return Outcome("failed", failed, None, judged.call_id, judged.approval, FAILED)

    def _seen(self, declaration: ToolDeclaration) -> None:
        labels = [label for _, label in declaration.labels]
        private = self._flow.private or any(label.private and label.readers != "*" for label in labels)
        untrusted = self._flow.untrusted or any(label.integrity == "untrusted" for label in labels)
        self._flow = Flow(private, untrusted)

    def _denied(self, decision: Decision, tool: str, args: Mapping[str, Any], *, call_id: str) -> Outcome:
        found = self._tools.get(tool) if type(tool) is str else None
        detail = dict(decision.detail) | {"tool": str(tool)[:128], "call_id": call_id}
        if found is not None and isinstance(args, Mapping):
            detail["args"] = argument_record(found.declaration, dict(args))
        self._refused += 1
        if self._refused <= MAX_REFUSALS:
            self._append("capability.decision", effect=DENY, reason=decision.reason, rule=decision.rule, detail=detail)
        elif self._refused == MAX_REFUSALS + 1:
            self._append(
                "capability.flood", effect=DENY, reason="too_many_refusals", rule="", detail={"tool": str(tool)[:128]}
            )
        return Outcome("denied", decision, call_id=call_id, public=REFUSED)

    def _parked(self, judged: Judged, question: Question) -> Outcome:
        detail = call_record(
            judged.call, call_id=judged.call_id, holder=judged.token.subject, jti=judged.token.jtis[-1]
        ) | {"question": question.id}
        self._append("capability.parked", effect=ASK, reason="approval_timeout", rule=question.rule, detail=detail)
        waiting = Decision(ASK, "approval_timeout", layer="approval", rule=question.rule, public=ASKED)
        return Outcome("parked", waiting, None, judged.call_id, question.id, PARKED)

    def _append(self, kind: str, *, effect: str, reason: str, rule: str, detail: dict[str, Any]) -> bool:
        try:
            self._audit.append(kind, layer="L3", effect=effect, reason=reason, rule=rule, detail=detail)
        except OSError:
            return False
        return True
