"""A run's state: what its names stand for, which steps that came from, and what has been recorded.

I1  What a step sets carries the label of every condition and loop around it (`put`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from saggar.core.decision import ALLOW
from saggar.core.label import NEUTRAL, Label
from saggar.plan import expression, parse
from saggar.plan.expression import Expr, Meter, evaluate
from saggar.plan.node import Node
from saggar.plan.provenance import Event
from saggar.plan.step import Plan

if TYPE_CHECKING:
    from saggar.plan.execute import Executor


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


class Parked(Exception):  # not an error: the run waits
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class State:
    """Of one run of one plan. pc: the label of the branches and loops around the step at hand."""

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
