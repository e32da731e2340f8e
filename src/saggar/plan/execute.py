"""Runs a plan: one step after the other, every value under its label, every effect behind the gateway.

I1  No call leaves but through the gateway, with a capability minted for exactly it, after its record was written.
I2  A call with side effects happens at most once per step and round, over all restarts of the run.
I3  Branches and rounds count: what a step sets carries the label of every condition and loop around it, and a name
    that a branch could have set carries it even where the branch was not taken.
I4  Whatever a tool, a worker or the data does, a step gives a value (`NOT_ENOUGH` among them); only a spent limit, a
    park or a record that cannot be written ends the run.
I5  A refusal tells neither model nor tool why (`flow.PUBLIC`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from saggar.audit.canonical import encode
from saggar.core.approval import Approver
from saggar.core.decision import ALLOW, ASK, DENY, Decision
from saggar.core.errors import Denied, LimitExceeded, ParseError, PeerError, UsageError
from saggar.core.label import DIRECTORY, NEUTRAL, UNTRUSTED, USER, Label, Source, join
from saggar.core.tool import AUTHORITY_ROLES, LabelLike, Outcome, ToolDeclaration, ToolGateway
from saggar.plan import audience, expression, flow, journal, parse
from saggar.plan import node as nodes
from saggar.plan import step as steps
from saggar.plan.calling import asking, call_label, named_by
from saggar.plan.card import question_for
from saggar.plan.choose import choose
from saggar.plan.defang import defang
from saggar.plan.expression import Expr, Meter, evaluate
from saggar.plan.journal import Journal, MemoryJournal
from saggar.plan.node import Node, complete, missing, raw, whole
from saggar.plan.output import Owner, label_output
from saggar.plan.provenance import Event
from saggar.plan.step import AskUser, Call, Extract, ForEach, If, Plan, Reply, Select, Step, Summarise
from saggar.plan.worker import Worker, WorkerRequest, ask_worker

#: life of the capability of one call
CAPABILITY_TTL_S = 60.0
#: what hostile data can make a gateway raise (I4); a spent limit or a record that cannot be written (`OSError`) is not among it
UNFIT = (ParseError, PeerError, UsageError, Denied, ValueError, TypeError, ArithmeticError, RecursionError, LookupError)


class Capabilities(Protocol):
    """Where a call's capability comes from (L3). The token is opaque here."""

    def mint(self, tool: str, args: Mapping[str, Any], ttl_s: float) -> str: ...


class Person(Protocol):
    """The user, for the questions that a plan asks. None: not answered yet, so the run is parked."""

    def answer(self, key: str, question: str, options: tuple[str, ...], suggest: str) -> str | None: ...


class Recorder(Protocol):
    """The audit log; raises `OSError`, on which nothing happens."""

    def __call__(self, kind: str, **fields: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Made:
    """One call that was let through: what the tool really got."""

    key: str
    tool: str
    args: Mapping[str, Any]
    asked: bool
    status: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """status: `done`, `parked` (waits for a human at step `waiting`) or `limit`. reply: the text for the user, under
    `label`. asks: questions put to a human, ask_user included."""

    status: str
    reply: str
    label: Label
    events: tuple[Event, ...]
    calls: tuple[Made, ...]
    asks: int
    waiting: str = ""
    reason: str = ""


class Parked(Exception):  # not an error: the run waits
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _silent(kind: str, **fields: Any) -> None:
    """For runs without an audit log (tests, benchmarks)."""


@dataclass(slots=True)
class Executor:
    """Everything that a run needs from outside. run_id: unique per run, the same on resume; it makes one-shot ids."""

    tools: Mapping[str, ToolDeclaration]
    gateway: ToolGateway
    capabilities: Capabilities
    worker: Worker
    approver: Approver
    person: Person
    owner: Owner = field(default_factory=Owner)
    record: Recorder = _silent
    journal: Journal = field(default_factory=MemoryJournal)
    run_id: str = "run"
    progress: Callable[[Event], None] | None = None
    decide: Callable[..., Decision] = flow.decide
    #: the gateway has `Carried` among its rules and asks for this wall too; else the executor asks by itself
    gateway_asks: bool = False
    #: how far a worker may move an amount from a trusted one (`near`), by policy
    drift_percent: float = 0.0

    def run(self, plan: Plan) -> RunResult:
        """Run, or go on with, the plan. Raises `OSError` where a record or the journal cannot be written, and
        `ParseError` for a journal that belongs to another plan."""
        run = _Run(self, plan)
        run.open()
        status, waiting, reason = "done", "", ""
        try:
            run.block(plan.steps, "")
        except Parked as parked:
            status, waiting = "parked", parked.key
        except LimitExceeded as err:
            status, reason = "limit", err.limit
        self.record("plan.end", effect=ALLOW, reason=status, detail={"run": self.run_id, "asks": run.asks})
        text = "\n".join(run.replies)
        return RunResult(status, text, run.reply_label, tuple(run.events), tuple(run.made), run.asks, waiting, reason)


class _Run:
    __slots__ = (
        "asks", "calls", "events", "made", "meter", "origin", "outer", "pc", "pc_keys", "plan", "replans", "replies",
        "reply_label", "scope", "x",
    )  # fmt: skip

    def __init__(self, executor: Executor, plan: Plan) -> None:
        self.x = executor
        self.plan = plan
        self.scope: dict[str, Node] = {}
        self.origin: dict[str, tuple[str, ...]] = {}
        self.pc: Label = NEUTRAL
        self.pc_keys: tuple[str, ...] = ()
        self.meter = Meter(plan.request)
        self.events: list[Event] = []
        self.made: list[Made] = []
        self.replies: list[str] = []
        self.reply_label: Label = NEUTRAL
        self.asks = 0
        self.calls = 0
        self.replans = 0
        self.outer: tuple[Label, tuple[str, ...]] = (NEUTRAL, ())

    def open(self) -> None:
        digest = hashlib.sha256(encode(parse.dump(self.plan))).hexdigest()
        held = self.x.journal.get("plan")
        if held is not None and held.get("digest") != digest:
            raise ParseError("the journal belongs to another plan", reason="journal_plan")
        self.x.record("plan.start", effect=ALLOW, reason="resumed" if held else "started", detail={"plan": digest})
        if held is None:
            self.x.journal.put("plan", {"digest": digest})

    def block(self, body: tuple[Step, ...], prefix: str) -> None:
        for step in body:
            self.step(step, prefix)

    def step(self, step: Step, prefix: str) -> None:
        key = prefix + step.id
        if isinstance(step, Call):
            self.call(step, key)
        elif isinstance(step, Extract | Summarise):
            self.ask_worker(step, key)
        elif isinstance(step, Select):
            self.select(step, key)
        elif isinstance(step, ForEach):
            self.for_each(step, key)
        elif isinstance(step, If):
            self.branch(step, key, prefix)
        elif isinstance(step, AskUser):
            self.ask_user(step, key)
        else:
            self.reply(step, key)

    # values and their history

    def value(self, e: Expr) -> Node:
        return evaluate(e, self.scope, self.meter)

    def uses(self, *es: Expr) -> tuple[str, ...]:
        found: dict[str, None] = dict.fromkeys(self.pc_keys)
        stack = list(es)
        while stack:
            e = stack.pop()
            if isinstance(e, expression.Ref):
                found.update(dict.fromkeys(self.origin.get(e.name, ())))
            stack.extend(parse.children(e))
        return tuple(found)

    def put(self, name: str, value: Node, key: str) -> None:
        if name:
            self.scope[name] = value.under(self.pc)
            self.origin[name] = (key,)

    def event(self, event: Event) -> None:
        self.events.append(event)
        self.x.record(
            "plan.step",
            effect=event.effect or ALLOW,
            reason=event.reason or event.kind,
            rule=event.rule,
            detail=event.to_json() | {"run": self.x.run_id},
        )
        if self.x.progress is not None:
            self.x.progress(event)

    # calls

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
        decision = self.x.decide(declaration, args, self.pc, self.plan.request, self.x.tools, self.x.drift_percent)
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
        shown = self.labels(declaration, args, why)
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
        self, declaration: ToolDeclaration, args: Mapping[str, Node], why: Decision | None
    ) -> dict[str, LabelLike]:
        """What the gateway is told. A human who approved this very call has endorsed its arguments; one whom the user
        named (or approved) is a reader from here on."""
        asks = why is not None and why.effect == ASK
        told = [] if asks else audience.addressed(declaration, args)
        let_in = {str(x.data) for x in told if why is None or audience.let_in(x.label, self.pc)}
        return {
            name: call_label(
                node.under(self.pc),
                endorsed=why is None or self.within_bound(declaration, name, node),
                let_in=let_in | {str(x.data) for x in told if audience.may_be_told(node, x, self.pc)},
                decision=why if asks else None,
            )
            for name, node in args.items()
        }

    def within_bound(self, declaration: ToolDeclaration, name: str, node: Node) -> bool:
        """Whether the policy's bound, not its source, is what vouches for this amount: to the gateway it is trusted."""
        argument = declaration.argument(name)
        paid = argument is not None and argument.role == "amount" and declaration.effect == "pay"
        return paid and flow.within_bound(node, self.pc, self.x.tools, self.x.drift_percent)

    # the worker

    def ask_worker(self, step: Extract | Summarise, key: str) -> None:
        data = self.value(step.data).under(self.pc)
        held = self.x.journal.get(key)
        if held is not None and held.get("state") == journal.DONE:
            result = journal.load_node(held.get("value"))
        elif not data.known:
            result = missing(whole(data))
        else:
            schema = step.schema if isinstance(step, Extract) else None
            cap = step.max_chars if isinstance(step, Summarise) else steps.DEFAULT_TEXT_CAP
            request = WorkerRequest(key, step.instruction, raw(data), schema, cap)
            result = ask_worker(self.x.worker, request, data, self.pc, self.plan.request)
            self.x.journal.put(key, {"state": journal.DONE, "value": journal.dump_node(result)})
        kind = "extract" if isinstance(step, Extract) else "summarise"
        self.event(Event(key, kind, step.out, self.uses(step.data), whole(result), line=step.line))
        self.put(step.out, result, key)

    # pure steps

    def select(self, step: Select, key: str) -> None:
        uses = self.uses(*steps.expressions(step))
        result = self.value(step.source)
        if not step.pure:
            result = choose(step, result, self.scope, self.meter)
        self.event(Event(key, "select", step.out, uses, whole(result), line=step.line))
        self.put(step.out, result, key)

    def for_each(self, step: ForEach, key: str) -> None:
        source = self.value(step.source).under(self.pc)
        uses = self.uses(step.source)
        self.event(Event(key, "for_each", step.var, uses, source.label, line=step.line))
        items = source.items()
        if len(items) > step.bound:
            raise LimitExceeded(
                "a loop has more rounds than its bound",
                limit="plan.rounds",
                value=step.bound,
                hint="write `for x in bounded(list, n):`",
            )
        held, held_keys = self.pc, self.pc_keys
        shape = join(held, source.label)
        gathered: list[Node] = []
        kept_label = shape
        for i, item in enumerate(items):
            self.pc, self.pc_keys = shape, (*held_keys, key)
            self.put(step.var, item, key)
            if step.keep is not None:
                test = self.value(step.keep)
                kept_label = join(kept_label, whole(test))
                self.pc = join(shape, whole(test))
                if test.data is not True:
                    continue
            self.block(step.body, f"{key}[{i}]/")
            if step.collect is not None:
                gathered.append(self.value(step.collect).under(self.pc))
        self.pc, self.pc_keys = held, held_keys
        self.leave(steps.assigned(step.body, self.plan.fragments) | {step.var}, kept_label, key)
        if step.collect is not None:
            made = Node(tuple(gathered), kept_label)
            self.put(step.out, made if isinstance(source.data, tuple) else missing(whole(source)), key)

    def leave(self, names: frozenset[str], label: Label, key: str) -> None:
        """I3: what a block could have set says something about the block's condition."""
        for name in names:
            self.scope[name] = self.scope.get(name, missing()).under(label)
            self.origin[name] = tuple(dict.fromkeys((*self.origin.get(name, ()), key)))

    def branch(self, step: If, key: str, prefix: str) -> None:
        test = self.value(step.test).under(self.pc)
        label = whole(test)
        self.event(Event(key, "if", "", self.uses(step.test), label, line=step.line))
        held, held_keys = self.pc, self.pc_keys
        self.pc, self.pc_keys = join(held, label), (*held_keys, key)
        if test.data is True:
            self.block(step.then, prefix)
        elif test.data is False:
            self.block(step.otherwise, prefix)
        self.pc, self.pc_keys = held, held_keys
        self.leave(steps.assigned((step,), self.plan.fragments), label, key)

    # people

    def ask_user(self, step: AskUser, key: str) -> None:
        shown = self.value(step.suggest) if step.suggest is not None else missing()
        suggest = defang(str(raw(shown)), self.plan.request)[:2000] if shown.known else ""
        options = step.fragments or step.options
        held = self.x.journal.get(key)
        answer = held.get("answer") if held is not None else None
        self.asks += 1
        if not isinstance(answer, str):
            answer = self.x.person.answer(key, step.question, options, suggest)
            if answer is None:
                self.x.record("plan.parked", effect=ASK, reason="ask_user", detail={"key": key})
                raise Parked(key)
            self.x.journal.put(key, {"answer": answer})
        label = Label([Source("user", "answer", call=key)], integrity=USER)
        uses = self.uses(step.suggest) if step.suggest is not None else self.pc_keys
        self.event(Event(key, "ask_user", step.out, uses, label, line=step.line))
        if step.fragments:
            self.replan(step, answer, key)
        else:
            fits = not options or answer in options
            self.put(step.out, Node(answer if fits else nodes.NOT_ENOUGH, label), key)

    def replan(self, step: AskUser, answer: str, key: str) -> None:
        """The one bounded re-plan: a fragment that the planner wrote before the start, and the user picked now."""
        fragment = self.plan.fragment(answer) if answer in step.fragments else None
        if fragment is None:
            return
        self.replans += 1
        if self.replans > self.plan.replans:
            raise LimitExceeded("the plan was changed once already", limit="plan.replans", value=self.plan.replans)
        self.block(fragment.steps, f"{key}/{fragment.name}/")

    def reply(self, step: Reply, key: str) -> None:
        parts = step.text.parts if isinstance(step.text, expression.Text) else (step.text,)
        values = [self.value(p).under(self.pc) for p in parts]
        label = join(NEUTRAL, *(whole(v) for v in values))
        self.replies.append("".join(self.shown(v) for v in values))
        self.reply_label = join(self.reply_label, label)
        self.event(Event(key, "reply", "", self.uses(step.text), label, line=step.line))

    def shown(self, node: Node) -> str:
        """A value as the user reads it. A link stands only where it is a whole leaf, as somebody wrote it."""
        data = node.data
        if isinstance(data, tuple):
            return ", ".join(self.shown(c) for c in node.items())
        if isinstance(data, Mapping):
            return "; ".join(f"{k}: {self.shown(c.under(node.label))}" for k, c in data.items())
        if data is nodes.NOT_ENOUGH:
            return "(not enough information)"
        if isinstance(data, str) and node.writer is None and not node.label.at_least(DIRECTORY):
            return defang(data, self.plan.request)
        return str(data)
