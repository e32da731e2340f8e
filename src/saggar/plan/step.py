"""The plan: eight kinds of step, as values.

I1  A plan is immutable data; nothing in it can be executed by Python.
I2  Every loop has a bound, every text a cap, and the whole plan a budget of calls: it always ends.
I3  Each step has an id, unique in the plan and stable over a restart, and the source line it came from (0: JSON).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from saggar.core.tool import TypeSpec
from saggar.plan.expression import Expr

MAX_STEPS = 400
MAX_BODY = 200
MAX_NESTING = 8
MAX_BOUND = 200
DEFAULT_BOUND = 50
MAX_CALLS = 500
MAX_FRAGMENTS = 12
MAX_TEXT_CAP = 20_000
DEFAULT_TEXT_CAP = 4_000

#: `all` elements, the `first`, or the `one` that must be the only one
Take = Literal["all", "first", "one"]
TAKES: tuple[Take, ...] = ("all", "first", "one")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call; `out` names its result, "" drops it."""

    id: str
    tool: str
    args: tuple[tuple[str, Expr], ...]
    out: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Extract:
    """The worker fills `schema` from `data`; it sees nothing else but the instruction."""

    id: str
    data: Expr
    schema: TypeSpec
    instruction: str
    out: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Summarise:
    """The worker writes text about `data`, at most `max_chars` long, links defanged."""

    id: str
    data: Expr
    instruction: str
    out: str
    max_chars: int = DEFAULT_TEXT_CAP
    line: int = 0


@dataclass(frozen=True, slots=True)
class Select:
    """Deterministic: filter and sort `source` (each element under the name `var`) and take some; or, with neither
    filter nor sort, just the value of an expression. One element or none or many is `not enough` for take `one`."""

    id: str
    source: Expr
    out: str
    var: str = "item"
    where: Expr | None = None
    sort: Expr | None = None
    descending: bool = False
    take: Take = "all"
    pure: bool = False
    line: int = 0


@dataclass(frozen=True, slots=True)
class ForEach:
    """At most `bound` rounds; more elements than that end the plan with `LimitExceeded`, never in silence.
    collect: value of each round, gathered into the list `out`; keep: tested
    before the round, which is skipped where it is not true."""

    id: str
    var: str
    source: Expr
    body: tuple[Step, ...]
    bound: int = DEFAULT_BOUND
    collect: Expr | None = None
    keep: Expr | None = None
    out: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class If:
    id: str
    test: Expr
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class AskUser:
    """A question to the user; the answer is the user's word. With `fragments` it is the one bounded re-plan: the user
    picks which of the planner's own fragments runs (or none); `suggest` is shown as what the data proposes."""

    id: str
    question: str
    out: str = ""
    options: tuple[str, ...] = ()
    fragments: tuple[str, ...] = ()
    suggest: Expr | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """Part of the answer to the user; several replies are joined by newlines."""

    id: str
    text: Expr
    line: int = 0


Step = Call | Extract | Summarise | Select | ForEach | If | AskUser | Reply


@dataclass(frozen=True, slots=True)
class Fragment:
    """Steps that the planner wrote before the start for a turn that the data may suggest."""

    name: str
    when: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """request: the user's words, which literals point into. max_calls: tool calls of the whole run."""

    request: str
    steps: tuple[Step, ...]
    fragments: tuple[Fragment, ...] = ()
    max_calls: int = MAX_CALLS
    replans: int = field(default=1)

    def fragment(self, name: str) -> Fragment | None:
        return next((f for f in self.fragments if f.name == name), None)


def walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Every step, outer before inner, in source order."""
    for step in steps:
        yield step
        if isinstance(step, ForEach):
            yield from walk(step.body)
        elif isinstance(step, If):
            yield from walk(step.then)
            yield from walk(step.otherwise)


def all_steps(plan: Plan) -> Iterator[Step]:
    yield from walk(plan.steps)
    for fragment in plan.fragments:
        yield from walk(fragment.steps)


def expressions(step: Step) -> tuple[Expr, ...]:
    """The step's own expressions, not those of steps inside it."""
    if isinstance(step, Call):
        return tuple(e for _, e in step.args)
    if isinstance(step, Extract | Summarise):
        return (step.data,)
    if isinstance(step, Select):
        return tuple(e for e in (step.source, step.where, step.sort) if e is not None)
    if isinstance(step, ForEach):
        return tuple(e for e in (step.source, step.collect, step.keep) if e is not None)
    if isinstance(step, If):
        return (step.test,)
    if isinstance(step, AskUser):
        return () if step.suggest is None else (step.suggest,)
    return (step.text,)


def assigned(steps: tuple[Step, ...], fragments: tuple[Fragment, ...]) -> frozenset[str]:
    """Every name that the steps may set, those of the fragments that they let the user choose from among them: a branch
    not taken says something about them, too."""
    by_name = {f.name: f for f in fragments}
    found: set[str] = set()
    left, seen = [steps], set[str]()
    while left:
        for step in walk(left.pop()):
            found.update(
                n
                for n in (getattr(step, "out", ""), getattr(step, "var", "") if isinstance(step, ForEach) else "")
                if n
            )
            fresh = [n for n in getattr(step, "fragments", ()) if n in by_name and n not in seen]
            seen.update(fresh)
            left.extend(by_name[n].steps for n in fresh)
    return frozenset(found)
