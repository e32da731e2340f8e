"""One call of a plan: judged by its labels, asked about where they do not settle it, made behind the gateway.

I1  No call leaves but through the gateway, with a capability minted for exactly it, after its record was written.
I2  A call with side effects happens at most once per step and round, over all restarts of the run.
I3  A refusal tells neither model nor tool why (`flow.PUBLIC`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saggar.core.decision import ALLOW, ASK, DENY, Decision
from saggar.core.errors import Denied, LimitExceeded, ParseError, PeerError, UsageError
from saggar.core.label import DIRECTORY, UNTRUSTED, Label, Source, join
from saggar.core.tool import AUTHORITY_ROLES, LabelLike, Outcome, ToolDeclaration
from saggar.plan import audience, flow, journal
from saggar.plan import node as nodes
from saggar.plan.calling import asking, call_label, named_by
from saggar.plan.card import question_for
from saggar.plan.defang import defang
from saggar.plan.node import Node, complete, missing, raw, whole
from saggar.plan.output import label_output
from saggar.plan.provenance import Event
from saggar.plan.state import Made, Parked, State
from saggar.plan.step import Call

#: life of the capability of one call
CAPABILITY_TTL_S = 60.0
#: the journal's entry for the one call that may pass by the policy's bound on amounts; no step has such an id
DRIFTED = "plan.drift"
#: what hostile data can make a gateway raise (I4); a spent limit or a record that cannot be written (`OSError`) is not among it
UNFIT = (ParseError, PeerError, UsageError, Denied, ValueError, TypeError, ArithmeticError, RecursionError, LookupError)


class Invoking(State):
    __slots__ = ()

    def call(self, step: Call, key: str) -> None:
        declaration = self.x.tools.get(step.tool)
        args = {name: self.value(e) for name, e in step.args}
        uses = self.uses(*(e for _, e in step.args))
        # whether the call runs, and whether it succeeds, depends on every argument: one that comes to nothing skips it
        ran = join(self.pc, *map(whole, args.values()))
        unknown = declaration is None or any(declaration.argument(n) is None for n in args)
        if declaration is None or unknown or not all(map(complete, args.values())):
            reason = "unknown_tool_or_argument" if unknown else "argument_not_known"
            self.event(Event(key, "call", step.tool, uses, ran, "skip", reason, line=step.line))
            self.put(step.out, missing(ran), key)
            return
        self.calls += 1
        if self.calls > self.plan.max_calls:
            raise LimitExceeded("the plan makes too many calls", limit="plan.calls", value=self.plan.max_calls)
        args = {name: nodes.settled(node) for name, node in args.items()}
        base = join(self.pc, *(whole(args[n]) for n in asking(declaration, args)))
        drift = self.drift_left(key)
        decision = self.x.decide(declaration, args, self.pc, self.plan.request, self.x.tools, drift)
        if decision.effect == ALLOW and drift and flow.drifts(declaration, args, self.pc, self.x.tools, drift):
            self.x.journal.put(DRIFTED, {"key": key})
        plain = self.plain(declaration, args)
        result = missing(ran)
        asks = decision.effect == ASK
        if asks and self.x.gateway_asks and args:
            # only what ran was approved: the gateway refuses or parks the rest
            self.asks += 1
            result, approved = self.through(step, key, declaration, args, plain, base=(base, ran), why=decision)
        else:
            approved = asks and self.approve(declaration, args, plain, why=decision, key=key)
            if decision.effect == ALLOW or approved:
                why = None if approved else decision
                result, _ = self.through(step, key, declaration, args, plain, base=(base, ran), why=why)
        self.event(
            Event(
                key, "call", step.tool, uses, whole(result), decision.effect, decision.reason, decision.rule, approved,
                step.line,
            )
        )  # fmt: skip
        self.put(step.out, result, key)

    def drift_left(self, key: str) -> float:
        """The policy's bound, once a request: whoever moved an amount by it has moved what the next one would be held
        against. In the journal before the call, so that a restart gives no second one."""
        held = self.x.journal.get(DRIFTED)
        return self.x.drift_percent if held is None or held.get("key") == key else 0.0

    def plain(self, declaration: ToolDeclaration, args: Mapping[str, Node]) -> dict[str, Any]:
        """The bare arguments; links of strangers in what goes out to others are made inert."""
        goes_out = declaration.has_side_effect and bool(declaration.with_role("recipient", "destination"))
        out: dict[str, Any] = {}
        for name, node in args.items():
            argument = declaration.argument(name)
            inert = goes_out and argument is not None and argument.role not in AUTHORITY_ROLES
            out[name] = raw(self.inert(node)) if inert else raw(node)
        return out

    def inert(self, node: Node) -> Node:
        if isinstance(node.data, tuple):
            return Node(tuple(self.inert(c) for c in node.items()), node.label)
        if isinstance(node.data, Mapping):
            return Node({k: self.inert(c.under(node.label)) for k, c in node.data.items()}, node.label)
        if isinstance(node.data, str) and not node.label.at_least(DIRECTORY):
            return Node(defang(node.data, self.plan.request), node.label)
        return node

    def approve(
        self,
        declaration: ToolDeclaration,
        args: Mapping[str, Node],
        plain: Mapping[str, Any],
        *,
        why: Decision,
        key: str,
    ) -> bool:
        """Whether a human wants this very call. Raises `Parked` where nobody has answered."""
        question = question_for(declaration, args, plain, why=why, run=self.x.run_id, key=key)
        held = self.x.journal.get(f"{key}?")
        if held is not None and held.get("hash") == question.args_hash:
            self.asks += 1
            return held.get("answer") == "approved"
        self.asks += 1
        answer = self.x.approver.standing(question) or self.x.approver.ask(question)
        if answer.kind == "timeout":
            self.x.record("plan.parked", effect=ASK, reason=why.reason, rule=why.rule, detail={"key": key})
            raise Parked(key)
        said = "approved" if answer.kind == "approved" and answer.args_hash == question.args_hash else "denied"
        self.x.record(
            "plan.answer",
            effect=ALLOW if said == "approved" else DENY,
            reason=said,
            rule=why.rule,
            detail={"key": key, "hash": question.args_hash, "reviewer": answer.reviewer, "question": why.detail},
        )
        self.x.journal.put(f"{key}?", {"hash": question.args_hash, "answer": said})
        return said == "approved"

    def through(
        self,
        step: Call,
        key: str,
        declaration: ToolDeclaration,
        args: Mapping[str, Node],
        plain: dict[str, Any],
        *,
        base: tuple[Label, Label],
        why: Decision | None,
    ) -> tuple[Node, bool]:
        """The result, and whether the call ran. base: what has a say in the result, and in there being one. why: this
        wall's verdict; None for a call that a human approved."""
        failed = missing(base[1], Label([Source("tool", step.tool, call=key)], integrity=UNTRUSTED))
        held = self.x.journal.get(key)
        if held is not None and held.get("state") == journal.DONE:
            self.made.append(Made(key, step.tool, plain, why is None, "replayed"))
            return journal.load_node(held.get("value")), held.get("ran") is not False
        if held is not None and held.get("state") == journal.INTENT and declaration.has_side_effect:
            # the run died between intent and outcome: the effect may have happened, so it is not tried again (I2)
            self.made.append(Made(key, step.tool, plain, why is None, "unknown"))
            return failed, True
        try:
            token = self.x.capabilities.mint(step.tool, plain, CAPABILITY_TTL_S)
        except UNFIT as err:
            # arguments that no capability can be made for; nothing has happened, so nothing is journalled as begun
            self.x.record(
                "plan.call", effect=DENY, reason="no_capability", detail={"key": key, "why": type(err).__name__}
            )
            self.made.append(Made(key, step.tool, plain, why is None, "failed"))
            self.x.journal.put(key, {"state": journal.DONE, "value": journal.dump_node(failed), "ran": False})
            return failed, False
        self.x.record("plan.call", effect=ALLOW, reason="intent", detail={"key": key, "tool": step.tool})
        self.x.journal.put(key, {"state": journal.INTENT})
        shown = self.labels(declaration, args, why, key)
        try:
            outcome = self.x.gateway.call(token, step.tool, plain, labels=shown, call_id=f"{self.x.run_id}.{key}")
        except UNFIT as err:
            self.x.record(
                "plan.call", effect=DENY, reason="gateway_failed", detail={"key": key, "why": type(err).__name__}
            )
            outcome = Outcome("failed", Decision(DENY, "gateway_failed", layer="L4", public=flow.PUBLIC))
        if outcome.status == "parked":
            # the gateway asked a human of its own; nothing ran, so the intent is taken back by the resume
            self.x.journal.put(key, {"state": "parked"})
            raise Parked(key)
        result = failed
        if outcome.done:
            try:
                span = named_by(declaration, args)
                result = label_output(declaration, outcome.value, key, self.x.owner, base=base[0], span=span)
                result = result if base[1].flows_to(base[0]) else nodes.exists(result, base[1])
            except PeerError:
                result = failed
        self.made.append(Made(key, step.tool, plain, why is None, outcome.status))
        ran = outcome.status in ("done", "failed")
        self.x.journal.put(key, {"state": journal.DONE, "value": journal.dump_node(result), "ran": ran})
        return result, ran

    def labels(
        self, declaration: ToolDeclaration, args: Mapping[str, Node], why: Decision | None, key: str
    ) -> dict[str, LabelLike]:
        """What the gateway is told. A human who approved this very call has endorsed its arguments; one whom the user
        named (or approved) is a reader from here on."""
        asks = why is not None and why.effect == ASK
        told = [] if asks else audience.addressed(declaration, args)
        let_in = {str(x.data) for x in told if why is None or audience.let_in(x.label, self.pc)}
        return {
            name: call_label(
                node.under(self.pc),
                endorsed=why is None or self.within_bound(declaration, name, node, key),
                let_in=let_in | {str(x.data) for x in told if audience.may_be_told(node, x, self.pc)},
                decision=why if asks else None,
            )
            for name, node in args.items()
        }

    def within_bound(self, declaration: ToolDeclaration, name: str, node: Node, key: str) -> bool:
        """Whether the policy's bound, not its source, is what vouches for this amount: to the gateway it is trusted."""
        argument = declaration.argument(name)
        paid = argument is not None and argument.role == "amount" and declaration.effect == "pay"
        return paid and flow.within_bound(node, self.pc, self.x.tools, self.drift_left(key))
