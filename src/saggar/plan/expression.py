"""What a plan may compute between its steps: a small typed tree, evaluated over labelled nodes.

I1  Evaluation is total: a node comes back, `NOT_ENOUGH` where the data does not fit; only a spent meter raises.
I2  The result's label is the join of the labels of everything that was looked at, conditions included.
I3  One exception, and it is declared: an object that the user named. Comparing a field that the tool declares as a
    name, or a text whose writer the user named, with words of the user counts as `directory`: the user did the
    choosing (DESIGN, L4).
I4  `to_json` and `from_json` are inverse; parsing is bounded and gives an expression or `ParseError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saggar.core.errors import LimitExceeded, ParseError
from saggar.core.label import DIRECTORY, NEUTRAL, PLANNED, RANK, USER, Label, Source, join
from saggar.plan import node as nodes
from saggar.plan import operation
from saggar.plan.naming import named_in
from saggar.plan.node import Node, Picked, missing, whole

MAX_LITERAL = 8192
MAX_PARTS = 64
MAX_DEPTH = 24


@dataclass(frozen=True, slots=True)
class Lit:
    """A literal of the planner's. span: where the user's request has these words; (-1, -1) where it does not."""

    value: str | int | float | bool | None
    span: tuple[int, int] = (-1, -1)


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Get:
    """Field or element of `base`; the key is an expression, so that `prices[hotel]` works."""

    base: Expr
    key: Expr


@dataclass(frozen=True, slots=True)
class Op:
    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class ObjectOf:
    fields: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """An f-string: literal pieces and expressions in turn."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Each:
    """`[value for var in source if where]`."""

    var: str
    source: Expr
    value: Expr
    where: Expr | None = None


Expr = Lit | Ref | Get | Op | ListOf | ObjectOf | Text | Each


class Meter:
    """Counts evaluated nodes of a whole run, so that no plan computes for ever. request: the user's words (I3)."""

    __slots__ = ("left", "request")

    def __init__(self, request: str = "", steps: int = 500_000) -> None:
        self.left = steps
        self.request = request

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise LimitExceeded("the plan computes too much", limit="plan.evaluation", hint="narrow the data first")


Scope = Mapping[str, Node]
#: what comes of a container's shape, which the planner may have written: a key or a length is in no words of the request
BY_SHAPE = frozenset({"len", "keys"})


def literal_label(span: tuple[int, int]) -> Label:
    """Words of the user's request are the user's; what the planner made up is ours."""
    if span == (-1, -1):
        return PLANNED
    return Label([Source("user", span=span)], integrity=USER)


def evaluate(e: Expr, scope: Scope, meter: Meter) -> Node:
    """The labelled value of `e`. Raises `LimitExceeded` alone (I1)."""
    meter.spend()
    if isinstance(e, Lit):
        return Node(e.value, literal_label(e.span))
    if isinstance(e, Ref):
        return scope.get(e.name) or missing()
    if isinstance(e, Get):
        key = evaluate(e.key, scope, meter)
        found = evaluate(e.base, scope, meter)
        if not isinstance(key.data, str | int):
            return missing(found.label, whole(key))
        got = found.get(key.data)
        return got if isinstance(e.key, Lit) else got.under(key.label)
    if isinstance(e, ListOf):
        return Node(tuple(evaluate(x, scope, meter) for x in e.items))
    if isinstance(e, ObjectOf):
        return Node({name: evaluate(x, scope, meter) for name, x in e.fields})
    if isinstance(e, Text):
        return _text(e, scope, meter)
    if isinstance(e, Each):
        return _each(e, scope, meter)
    if e.name in operation.STRUCTURAL:
        return _structural(e, scope, meter)
    args = [evaluate(x, scope, meter) for x in e.args]
    return _apply(e.name, args, meter)


def _apply(name: str, args: list[Node], meter: Meter) -> Node:
    if name == "add" and all(isinstance(a.data, tuple) for a in args):
        return _concat(args)
    # a length is the container's own business: what its elements say has no part in it
    labels = [a.label if name == "len" else whole(a) for a in args]
    if name in ("eq", "matches") and _named(args, meter.request):
        labels = [_lift(x) for x in labels]
    label = join(*labels, PLANNED) if name in BY_SHAPE else join(*labels)
    if not all(a.known if name == "len" else nodes.complete(a) for a in args):
        return missing(label)
    plain = [nodes.raw(a) for a in args]
    meter.spend(sum(len(p) // 64 if isinstance(p, str | list | dict) else 0 for p in plain))
    made = operation.apply(name, plain)
    if isinstance(made, list):
        meter.spend(len(made))
    out = nodes.of(made, label)
    if name == "near":
        return _near(out, args)
    mark = _picked(args)
    return out if mark is None else nodes.marked(out, picked=mark)


def _picked(args: list[Node]) -> Picked | None:
    """The mark of what was computed from one choice's element and things that no choice gave (I4 of `node`)."""
    marks = [a.picked for a in args if a.picked is not None]
    if not marks or any(m.by is not marks[0].by for m in marks):
        return None
    labels = (whole(a) if a.picked is None else a.picked.label for a in args)
    whole_ones = all(a.picked is None or not isinstance(a.data, tuple | Mapping) for a in args)
    return Picked(marks[0].by, join(*labels), copied=False) if whole_ones else None


def _near(value: Node, args: list[Node]) -> Node:
    """The mark of an amount that stands within a bound of another, where nobody but the user, we and the records said
    what that other and the bound are."""
    _, reference, percent = args
    fits = value.known and whole(reference).at_least(DIRECTORY) and whole(percent).at_least(DIRECTORY)
    bound = nodes.raw(percent)
    return nodes.marked(value, drift=float(bound)) if fits and operation.near(*map(nodes.raw, args)) else value


def _named(args: list[Node], request: str) -> bool:
    """I3: one side is a declared name (or was written by somebody whom the user named), the other is the user's own
    words."""
    a, b = args
    return (_a_name(a, request) and _words(b)) or (_a_name(b, request) and _words(a))


def _a_name(node: Node, request: str) -> bool:
    return node.names or bool(node.writer and named_in(request, node.writer))


def _words(node: Node) -> bool:
    return node.label.own_words


def _lift(label: Label) -> Label:
    return label if label.at_least(DIRECTORY) else label.replace(integrity=DIRECTORY)


def _text(e: Text, scope: Scope, meter: Meter) -> Node:
    parts = [evaluate(x, scope, meter) for x in e.parts]
    label = join(NEUTRAL, *(whole(p) for p in parts))
    if not all(map(nodes.complete, parts)):
        return missing(label)
    plain = [nodes.raw(p) for p in parts]
    if not all(isinstance(p, str | int | float | bool) or p is None for p in plain):
        return missing(label)
    text = "".join(map(operation.shown, plain))
    meter.spend(len(text) // 64)
    out, mark = nodes.of(operation.bounded(text), label), _picked(parts)
    return out if mark is None else nodes.marked(out, picked=mark)


def _each(e: Each, scope: Scope, meter: Meter) -> Node:
    source = evaluate(e.source, scope, meter)
    if not isinstance(source.data, tuple):
        return missing(whole(source))
    kept, chosen = [], source.label
    for item in source.items():
        inner = {**scope, e.var: item}
        if e.where is not None:
            verdict = evaluate(e.where, inner, meter)
            chosen = join(chosen, whole(verdict))
            if verdict.data is not True:
                continue
        kept.append(evaluate(e.value, inner, meter))
    return Node(tuple(kept), chosen)


def _structural(e: Op, scope: Scope, meter: Meter) -> Node:
    if e.name in ("and", "or"):
        return _logic(e, scope, meter)
    if e.name == "if":
        test = evaluate(e.args[0], scope, meter)
        if not isinstance(test.data, bool):
            return missing(whole(test))
        return evaluate(e.args[1] if test.data else e.args[2], scope, meter).under(whole(test))
    args = [evaluate(x, scope, meter) for x in e.args]
    first = args[0]
    if e.name == "known":
        return Node(nodes.complete(first), whole(first))
    if e.name == "concat":
        return _concat(args)
    if e.name == "values":
        held = first.data
        return (
            Node(tuple(held[k] for k in sorted(held)), first.label)
            if isinstance(held, Mapping)
            else missing(first.label)
        )
    if not isinstance(first.data, tuple):
        return missing(whole(first))
    meter.spend(len(first.data))
    if e.name == "flatten":
        return _flatten(first)
    return _unique(first, meter) if e.name == "unique" else _tally(first, meter)


def _logic(e: Op, scope: Scope, meter: Meter) -> Node:
    stop = e.name == "or"
    label = NEUTRAL
    for arg in e.args:
        got = evaluate(arg, scope, meter)
        label = join(label, whole(got))
        if not isinstance(got.data, bool):
            return missing(label)
        if got.data is stop:
            return Node(stop, label)
    return Node(not stop, label)


def _concat(args: list[Node]) -> Node:
    if not all(isinstance(a.data, tuple) for a in args):
        return missing(*(whole(a) for a in args))
    return Node(tuple(x for a in args for x in a.items()), join(*(a.label for a in args)))


def _flatten(first: Node) -> Node:
    lists = first.items()
    if not all(isinstance(x.data, tuple) for x in lists):
        return missing(whole(first))
    return Node(tuple(y for x in lists for y in x.items()), join(first.label, *(x.label for x in lists)))


def _unique(first: Node, meter: Meter) -> Node:
    kept: list[Node] = []
    for item in first.items():
        meter.spend(len(kept))
        if not any(nodes.same(item, other) for other in kept):
            kept.append(item)
    return Node(tuple(kept), whole(first))


def _tally(first: Node, meter: Meter) -> Node:
    """`[{key, count, rank}]`, most frequent first, ties by key: who or what occurs how often."""
    label = whole(first)
    counts: dict[str, int] = {}
    for item in first.items():
        if not isinstance(item.data, str):
            return missing(label)
        counts[item.data] = counts.get(item.data, 0) + 1
    meter.spend(len(counts))
    ranked = sorted(counts.items(), key=lambda kv: (-kv[1], kv[0]))
    return nodes.of([{"key": k, "count": n, "rank": i} for i, (k, n) in enumerate(ranked, 1)], label)


def least(*labels: Label) -> int:
    return min(RANK[x.integrity] for x in labels)


def to_json(e: Expr) -> Any:
    if isinstance(e, Lit):
        return {"lit": e.value} | ({"span": list(e.span)} if e.span != (-1, -1) else {})
    if isinstance(e, Ref):
        return {"ref": e.name}
    if isinstance(e, Get):
        return {"get": [to_json(e.base), to_json(e.key)]}
    if isinstance(e, Op):
        return {"op": e.name, "args": [to_json(a) for a in e.args]}
    if isinstance(e, ListOf):
        return {"list": [to_json(a) for a in e.items]}
    if isinstance(e, ObjectOf):
        return {"object": {k: to_json(v) for k, v in e.fields}}
    if isinstance(e, Text):
        return {"text": [to_json(p) for p in e.parts]}
    out = {"var": e.var, "in": to_json(e.source), "value": to_json(e.value)}
    return {"each": out | ({"where": to_json(e.where)} if e.where is not None else {})}


def is_name(x: object) -> bool:
    return isinstance(x, str) and x.isascii() and x.isidentifier() and len(x) <= 64 and not x.startswith("__")


def from_json(x: object, depth: int = 0) -> Expr:
    """The expression that `to_json` wrote, or `ParseError` (I4)."""
    if depth > MAX_DEPTH:
        raise ParseError(f"an expression is nested deeper than {MAX_DEPTH}", reason="plan_depth")
    if not isinstance(x, dict):
        raise ParseError("an expression is an object", reason="plan_expression")
    keys = set(x)
    if keys in ({"lit"}, {"lit", "span"}):
        return _lit(x)
    if keys == {"ref"} and is_name(x["ref"]):
        return Ref(x["ref"])
    if keys == {"op", "args"}:
        args = _list(x["args"], depth)
        low, high = operation.ARITY.get(x["op"] if isinstance(x["op"], str) else "", (-1, -1))
        if not low <= len(args) <= high:
            raise ParseError("an unknown operation, or a wrong number of arguments", reason="plan_operation")
        return Op(x["op"], args)
    if keys == {"get"}:
        pair = _list(x["get"], depth)
        if len(pair) == 2:
            return Get(pair[0], pair[1])
    if keys == {"list"}:
        return ListOf(_list(x["list"], depth))
    if keys == {"text"}:
        return Text(_list(x["text"], depth))
    if keys == {"object"} and isinstance(x["object"], dict) and _field_names(x["object"]):
        return ObjectOf(tuple((k, from_json(v, depth + 1)) for k, v in x["object"].items()))
    if keys == {"each"} and isinstance(x["each"], dict):
        each = x["each"]
        if set(each) <= {"var", "in", "value", "where"} and is_name(each.get("var")):
            where = from_json(each["where"], depth + 1) if "where" in each else None
            return Each(
                each["var"], from_json(each.get("in"), depth + 1), from_json(each.get("value"), depth + 1), where
            )
    raise ParseError("not an expression of a plan", reason="plan_expression")


def _field_names(x: dict[Any, Any]) -> bool:
    return len(x) <= MAX_PARTS and all(isinstance(k, str) and len(k) <= 64 for k in x)


def _list(x: object, depth: int) -> tuple[Expr, ...]:
    if not isinstance(x, list) or len(x) > MAX_PARTS:
        raise ParseError(f"a list of at most {MAX_PARTS} expressions", reason="plan_expression")
    return tuple(from_json(y, depth + 1) for y in x)


def _lit(x: dict[str, Any]) -> Lit:
    value, span = x["lit"], x.get("span", [-1, -1])
    fits = value is None or isinstance(value, str | int | float | bool)
    if (
        not fits
        or (isinstance(value, str) and len(value) > MAX_LITERAL)
        or operation.bounded(value) is nodes.NOT_ENOUGH
    ):
        raise ParseError("a literal is a bounded text, number, boolean or null", reason="plan_literal")
    if not (isinstance(span, list) and len(span) == 2 and all(type(n) is int for n in span)):
        raise ParseError("`span` is two integers", reason="plan_literal")
    return Lit(value, (span[0], span[1]))
