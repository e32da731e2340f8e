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
from typing import Any

from saggar.audit.canonical import encode
from saggar.core.approval import Approver
from saggar.core.decision import ALLOW, ASK, Decision
from saggar.core.errors import LimitExceeded, ParseError
from saggar.core.label import DIRECTORY, NEUTRAL, USER, Label, Source, join
from saggar.core.tool import ToolDeclaration, ToolGateway
from saggar.plan import expression, flow, journal, parse
from saggar.plan import node as nodes
from saggar.plan import step as steps
from saggar.plan.choose import choose
from saggar.plan.defang import defang
from saggar.plan.invoke import Invoking
from saggar.plan.journal import Journal, MemoryJournal
from saggar.plan.node import Node, missing, raw, whole
from saggar.plan.output import Owner
from saggar.plan.provenance import Event
from saggar.plan.state import Capabilities, Made, Parked, Person, Recorder
from saggar.plan.step import AskUser, Call, Extract, ForEach, If, Plan, Reply, Select, Step, Summarise
from saggar.plan.worker import Worker, WorkerRequest, ask_worker


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


class _Run(Invoking):
    __slots__ = ()

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
