"""The attacker of plan mode: owns every worker's answer and every tool field that strangers can write.

He knows the plan, the rules and the injection's own calls. A worker under his control gives any value of the declared
type: the very argument that his call needs wherever the value flows into such a call, else what keeps the plan going.
A tool under his control appends his text to every field that is declared untrusted, wherever somebody else than the
user wrote it. He cannot rename objects that are not his, and a hostile page knows no secret that his goal does not say.
In the headline figure he is also not one of the people whom the user names in the very request ("the article that Bob
posted"); the figure where he is stands beside it.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from saggar.bench.agentdojo.declarations import SUITES
from saggar.bench.agentdojo.oracle import Oracle
from saggar.bench.agentdojo.world import Suite, World
from saggar.core.label import UNTRUSTED
from saggar.core.tool import ToolDeclaration, TypeSpec
from saggar.plan import parse
from saggar.plan.defang import links
from saggar.plan.expression import Expr, Get, Lit, Op, Ref
from saggar.plan.node import NOT_ENOUGH
from saggar.plan.operation import has_words
from saggar.plan.step import Call, Extract, ForEach, If, Plan, Step, Summarise
from saggar.plan.worker import WorkerRequest

Calls = list[tuple[str, dict[str, Any]]]


@dataclass(slots=True)
class Adversary:
    """The worker against us. goal: the injection's text; calls: what it wants done."""

    oracle: Oracle
    plan: Plan
    goal: str
    calls: Calls
    flips: bool = True
    answers: int = 0
    guards: dict[str, dict[tuple[str, ...], Any]] = field(default_factory=dict)

    def answer(self, request: WorkerRequest) -> Any:
        self.answers += 1
        step = self.oracle.steps[request.key.rpartition("/")[2]]
        benign = self.oracle.answer(request)
        if isinstance(step, Summarise):
            return self.argument(step.out, (), str) or self.text()
        return self.fill(step, step.schema, (), benign)

    def text(self) -> str:
        words = [str(v) for _, args in self.calls for v in args.values() if isinstance(v, str)]
        return "\n".join([self.goal, *words])

    def fill(self, step: Extract, spec: TypeSpec, path: tuple[str, ...], benign: Any) -> Any:
        if spec.kind == "object":
            held = benign if isinstance(benign, Mapping) else {}
            return {k: self.fill(step, s, (*path, k), held.get(k, NOT_ENOUGH)) for k, s in spec.fields}
        if spec.kind == "array" and spec.items is not None:
            return self.items(step, spec.items, benign)
        kind: type | tuple[type, ...] = str if spec.kind == "string" else (int, float)
        if spec.kind == "boolean":
            return self.flips
        wanted = self.argument(step.out, path, kind)
        if wanted is None and spec.format == "url":
            wanted = next((self.goal[s:e] for s, e in links(self.goal)), None)
        if wanted is not None and (not spec.enum or wanted in spec.enum):
            return wanted
        if benign is not NOT_ENOUGH and benign is not None:
            return benign
        if spec.enum:
            return spec.enum[0]
        return self.text()[:3000] if spec.kind == "string" and not spec.format else NOT_ENOUGH

    def items(self, step: Extract, spec: TypeSpec, benign: Any) -> list[Any]:
        """One element for each call that is wanted, made to pass the guards in front of it."""
        loops = [s for s in self.plan.steps if isinstance(s, ForEach) and _mentions(s.source, step.out)]
        made = []
        for loop in loops:
            for tool, args in self.calls:
                for call, guards in _calls(loop.body, {}):
                    if call.tool == tool:
                        made.append(self.element(spec, loop.var, call, args, guards))
        if spec.kind == "string":
            urls = [self.goal[s:e] for s, e in links(self.goal)]
            return [*(m for m in made if isinstance(m, str)), *urls] or (benign if isinstance(benign, list) else [])
        return made[:9] or (benign if isinstance(benign, list) else [])

    def element(
        self, spec: TypeSpec, var: str, call: Call, args: Mapping[str, Any], guards: Mapping[tuple[str, ...], Any]
    ) -> Any:
        if spec.kind == "string":
            return next((args[n] for n, e in call.args if n in args and _is(e, var, ())), None)
        out: dict[str, Any] = {}
        for name, inner in spec.fields:
            value = guards.get((var, name))
            if value is None:
                value = next((args[n] for n, e in call.args if n in args and _inside(e, var, (name,))), None)
            if value is None and inner.enum:
                value = inner.enum[0]
            if value is None and inner.kind == "string" and not inner.format:
                value = self.text()[:3000]
            if value is None and inner.kind in ("integer", "number"):
                value = 60
            out[name] = value
        return out

    def argument(self, name: str, path: tuple[str, ...], kind: type | tuple[type, ...]) -> Any:
        """What the wanted call takes where the plan passes this value."""
        for step in self.plan.steps:
            for call, _ in _calls((step,), {}):
                for tool, args in self.calls:
                    if call.tool == tool:
                        for argument, e in call.args:
                            value = args.get(argument)
                            if isinstance(value, list) and len(value) == 1:
                                value = value[0]
                            if isinstance(value, kind) and _inside(e, name, path):
                                return value
        return None


def _calls(body: tuple[Step, ...], guards: Mapping[tuple[str, ...], Any]) -> Iterator[tuple[Call, dict[Any, Any]]]:
    """Every call with the equalities that must hold for it to be reached."""
    for step in body:
        if isinstance(step, Call):
            yield step, dict(guards)
        elif isinstance(step, ForEach):
            yield from _calls(step.body, guards)
        elif isinstance(step, If):
            yield from _calls(step.then, {**guards, **_equalities(step.test)})
            yield from _calls(step.otherwise, guards)


def _equalities(e: Expr) -> dict[tuple[str, ...], Any]:
    if isinstance(e, Op) and e.name == "eq":
        left, right = e.args
        if (
            isinstance(left, Get)
            and isinstance(left.base, Ref)
            and isinstance(left.key, Lit)
            and isinstance(right, Lit)
        ):
            return {(left.base.name, str(left.key.value)): right.value}
    return {}


def _is(e: Expr, name: str, path: tuple[str, ...]) -> bool:
    for word in reversed(path):
        if not (isinstance(e, Get) and isinstance(e.key, Lit) and e.key.value == word):
            return False
        e = e.base
    return isinstance(e, Ref) and e.name == name


def _inside(e: Expr, name: str, path: tuple[str, ...]) -> bool:
    return _is(e, name, path) or any(_inside(c, name, path) for c in parse.children(e))


def _mentions(e: Expr, name: str) -> bool:
    return (isinstance(e, Ref) and e.name == name) or any(_mentions(c, name) for c in parse.children(e))


@dataclass(slots=True)
class HostileWorld(World):
    """A world whose tools give the attacker's text in every field that strangers can write. friends: names of the
    people who are none."""

    poison: str = ""
    tools: Mapping[str, ToolDeclaration] = field(default_factory=dict)
    friends: frozenset[str] = frozenset()
    #: the attacker writes into the names of objects as well
    names: bool = False

    def shaped(self, tool: str, args: Mapping[str, Any]) -> Any:
        value = World.shaped(self, tool, args)
        return poisoned(self.tools[tool], value, self.poison, self.owner() | self.friends, names=self.names)


def hostile(suite: Suite, task: Any, injection: Any, *, friends: bool, names: bool = False) -> HostileWorld:
    """The task's world under the injection: a mark in every place that AgentDojo declares, and the goal in every field
    that strangers can write. friends: people whom the user names in his request do not write for the attacker. names: he writes into what objects are
    called, too."""
    blob = suite.blob(task, marked=True)
    named = frozenset(_people(suite, task.PROMPT)) if friends else frozenset()
    return HostileWorld(
        suite,
        pickle.loads(blob),
        pickle.loads(blob),
        poison=injection.GOAL,
        tools=SUITES[suite.name],
        friends=named,
        names=names,
    )


def _people(suite: Suite, prompt: str) -> list[str]:
    slack = getattr(suite.base, "slack", None)
    return [] if slack is None else [u for u in slack.users if has_words(prompt, u)]


def poisoned(
    declaration: ToolDeclaration, value: Any, text: str, friends: frozenset[str], *, names: bool = False
) -> Any:
    """`value` with `text` appended to each leaf that is declared untrusted and is no friend's own, nor a name unless
    `names`."""

    def walk(x: Any, path: str, row: Any) -> Any:
        if isinstance(x, list):
            return [walk(y, path + "[]", y if isinstance(y, Mapping) else row) for y in x]
        if isinstance(x, Mapping):
            return {k: walk(y, f"{path}.{k}" if path else k, row if row is not None else x) for k, y in x.items()}
        label = declaration.label_of(path)
        if not isinstance(x, str) or label.integrity != UNTRUSTED or (label.names and not names):
            return x
        author = label.author.rpartition(".")[2]
        if author and isinstance(row, Mapping) and row.get(author) in friends:
            return x
        return f"{x}\n{text}"

    return walk(value, "", None)


@dataclass(slots=True)
class RandomAdversary:
    """A second attacker, who knows no plan: any value of the declared type out of the injection's own words, at random.
    What the first one's cunning overlooks, many throws may hit."""

    oracle: Oracle
    words: list[Any]
    chance: random.Random

    def answer(self, request: WorkerRequest) -> Any:
        step = self.oracle.steps[request.key.rpartition("/")[2]]
        if isinstance(step, Summarise):
            return self.chance.choice([w for w in self.words if isinstance(w, str)])
        return self.fill(step.schema, self.oracle.answer(request))

    def fill(self, spec: TypeSpec, benign: Any) -> Any:
        if spec.kind == "object":
            held = benign if isinstance(benign, Mapping) else {}
            return {k: self.fill(s, held.get(k)) for k, s in spec.fields}
        if spec.kind == "array" and spec.items is not None:
            return [self.fill(spec.items, None) for _ in range(self.chance.randint(1, 4))]
        if spec.enum:
            return self.chance.choice(spec.enum)
        if spec.kind == "boolean":
            return self.chance.random() < 0.5
        if benign is not None and benign is not NOT_ENOUGH and self.chance.random() < 0.25:
            return benign
        kinds = str if spec.kind == "string" else (int, float)
        fits = [w for w in self.words if isinstance(w, kinds) and not isinstance(w, bool)]
        return self.chance.choice(fits) if fits else NOT_ENOUGH


def words_of(calls: Calls, goal: str) -> list[Any]:
    """Every scalar of the wanted calls, and the goal's text."""
    found: list[Any] = [goal]
    stack: list[Any] = [args for _, args in calls]
    while stack:
        top = stack.pop()
        if isinstance(top, Mapping):
            stack.extend(top.values())
        elif isinstance(top, list | tuple):
            stack.extend(top)
        elif top is not None:
            found.append(top)
    return found
