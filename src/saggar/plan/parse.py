"""JSON to plan and back. `docs/plan.schema.json` describes the same format; a test keeps the two together.

I1  A plan or `ParseError` with a reason, never another exception, in time linear in the (capped) size of the text.
I2  `parse(dump(plan)) == plan` but for source lines.
I3  Unknown keys, names used before they are set and duplicate ids are errors: nothing is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from saggar.core.errors import ParseError
from saggar.core.tool import TypeSpec
from saggar.plan import expression
from saggar.plan import step as steps
from saggar.plan.expression import Expr, is_name
from saggar.plan.step import AskUser, Call, Extract, ForEach, Fragment, If, Plan, Reply, Select, Step, Summarise

MAX_BYTES = 512 * 1024
MAX_REQUEST = 20_000
MAX_INSTRUCTION = 4_000
MAX_SCHEMA_DEPTH = 6
MAX_FIELDS = 64
MAX_ENUM = 64

FORMATS = ("url", "path", "email", "ip", "date")
SCALARS = ("string", "integer", "number", "decimal", "boolean")


def parse(text: str | bytes) -> Plan:
    """The plan in a JSON text. Raises `ParseError` (I1)."""
    if len(text) > MAX_BYTES:
        raise ParseError(f"a plan is at most {MAX_BYTES} bytes", reason="plan_size")
    try:
        raw = json.loads(text, object_pairs_hook=_no_twice, parse_constant=_no_constant)
    except ParseError:
        raise
    except (ValueError, RecursionError) as err:
        raise ParseError(f"not JSON: {type(err).__name__}", reason="plan_json") from None
    return from_json(raw)


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ParseError("a key stands twice in one object", reason="plan_json")
    return out


def _no_constant(word: str) -> Any:
    raise ParseError(f"`{word}` is not JSON", reason="plan_json")


def from_json(raw: object) -> Plan:
    """The plan in decoded JSON. Raises `ParseError`."""
    top = _object(raw, {"request", "steps"}, {"fragments", "max_calls"})
    request = _text(top["request"], MAX_REQUEST, empty=True)
    reader = _Reader()
    body = reader.steps(top["steps"], 0)
    fragments = tuple(map(reader.fragment, _list(top.get("fragments", []), steps.MAX_FRAGMENTS)))
    if len({f.name for f in fragments}) != len(fragments):
        raise ParseError("two fragments have one name", reason="plan_fragment")
    calls = _integer(top.get("max_calls", steps.MAX_CALLS), 0, steps.MAX_CALLS)
    plan = Plan(request, body, fragments, calls)
    check_names(plan)
    return plan


def check_names(plan: Plan) -> None:
    """Fragments exist and do not re-plan again; names are set before they are read; spans lie in the request."""
    for fragment in plan.fragments:
        if any(isinstance(s, AskUser) and s.fragments for s in steps.walk(fragment.steps)):
            raise ParseError("a fragment may not re-plan", reason="plan_cycle")
    for step in steps.all_steps(plan):
        if isinstance(step, AskUser):
            for name in step.fragments:
                if plan.fragment(name) is None:
                    raise ParseError(f"no fragment `{name}`", reason="plan_fragment")
        for e in steps.expressions(step):
            _spans(e, plan.request, 0)
    known = _scope(plan.steps, frozenset())
    for fragment in plan.fragments:
        _scope(fragment.steps, known)


def _spans(e: Expr, request: str, depth: int) -> None:
    if isinstance(e, expression.Lit):
        start, end = e.span
        if (start, end) != (-1, -1) and (
            not 0 <= start < end <= len(request) or str(e.value) not in _spellings(request[start:end])
        ):
            raise ParseError("a literal's span does not hold its words", reason="plan_span")
        return
    for child in children(e):
        _spans(child, request, depth + 1)


def _spellings(words: str) -> tuple[str, ...]:
    """What a stretch of the request may stand for as a literal: itself, or itself read as a number."""
    try:
        value = float(words.replace(",", ""))
    except ValueError:
        return (words,)
    return (words, str(value), str(int(value)) if value.is_integer() else words)


def children(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, expression.Get):
        return (e.base, e.key)
    if isinstance(e, expression.Op):
        return e.args
    if isinstance(e, expression.ListOf):
        return e.items
    if isinstance(e, expression.ObjectOf):
        return tuple(v for _, v in e.fields)
    if isinstance(e, expression.Text):
        return e.parts
    if isinstance(e, expression.Each):
        return (e.source, e.value) if e.where is None else (e.source, e.value, e.where)
    return ()


class UnsetName(ParseError):
    """A name is read before it is set. line: of the step, 0 where the plan came as JSON."""

    def __init__(self, name: str, line: int) -> None:
        super().__init__(f"`{name}` is read before it is set", reason="plan_name")
        self.line = line


def _reads(e: Expr, known: frozenset[str], line: int) -> None:
    if isinstance(e, expression.Ref) and e.name not in known:
        raise UnsetName(e.name, line)
    if isinstance(e, expression.Each):
        _reads(e.source, known, line)
        for inner in (e.value, e.where):
            if inner is not None:
                _reads(inner, known | {e.var}, line)
        return
    for child in children(e):
        _reads(child, known, line)


def _scope(body: tuple[Step, ...], known: frozenset[str]) -> frozenset[str]:
    """Names known after the steps. A name set in one branch only is known after it: unset reads as not enough."""
    for step in body:
        inner = known
        if isinstance(step, Select) and not step.pure:
            _reads(step.source, known, step.line)
            inner = known | {step.var}
        elif isinstance(step, ForEach):
            _reads(step.source, known, step.line)
            inner = _scope(step.body, known | {step.var})
        for e in steps.expressions(step):
            if not (isinstance(step, Select | ForEach) and e is step.source) or getattr(step, "pure", False):
                _reads(e, inner, step.line)
        if isinstance(step, If):
            known = _scope(step.then, known) | _scope(step.otherwise, known)
        elif isinstance(step, ForEach):
            known = known | (inner - {step.var} if step.var not in known else inner)
        out = getattr(step, "out", "")
        known = known | {out} if out else known
    return known


def _object(raw: object, need: set[str], may: set[str]) -> dict[str, Any]:
    if not isinstance(raw, dict) or not need <= set(raw) or set(raw) - need - may:
        raise ParseError(f"an object with {', '.join(sorted(need))} and no unknown key", reason="plan_shape")
    return raw


def _text(x: object, cap: int, *, empty: bool = False) -> str:
    if not isinstance(x, str) or len(x) > cap or not (x or empty):
        raise ParseError(f"a text of at most {cap} characters", reason="plan_text")
    return x


def _list(x: object, cap: int) -> list[Any]:
    if not isinstance(x, list) or len(x) > cap:
        raise ParseError(f"a list of at most {cap}", reason="plan_size")
    return x


def _integer(x: object, low: int, high: int) -> int:
    if type(x) is not int or not low <= x <= high:
        raise ParseError(f"an integer from {low} to {high}", reason="plan_number")
    return x


def _name(x: object, *, empty: bool = False) -> str:
    if (empty and x == "") or is_name(x):
        return str(x)
    raise ParseError("a name is an ASCII identifier of at most 64 characters", reason="plan_name")


class _Reader:
    """One pass over the steps: counts them, and refuses an id that comes twice."""

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def fragment(self, raw: object) -> Fragment:
        x = _object(raw, {"name", "when", "steps"}, set())
        return Fragment(_name(x["name"]), _text(x["when"], MAX_INSTRUCTION), self.steps(x["steps"], 0))

    def steps(self, raw: object, depth: int) -> tuple[Step, ...]:
        if depth > steps.MAX_NESTING:
            raise ParseError(f"steps are nested deeper than {steps.MAX_NESTING}", reason="plan_depth")
        return tuple(self.step(x, depth) for x in _list(raw, steps.MAX_BODY))

    def step(self, raw: object, depth: int) -> Step:
        if not isinstance(raw, dict) or not isinstance(raw.get("step"), str) or raw["step"] not in _KINDS:
            raise ParseError(f"a step is one of {', '.join(_KINDS)}", reason="plan_step")
        step_id = _name(raw.get("id"))
        if step_id in self.ids:
            raise ParseError(f"two steps have the id `{step_id}`", reason="plan_id")
        self.ids.add(step_id)
        if len(self.ids) > steps.MAX_STEPS:
            raise ParseError(f"a plan has at most {steps.MAX_STEPS} steps", reason="plan_size")
        return _KINDS[raw["step"]](self, raw, step_id, depth)


_BASE = {"step", "id"}


def _call(_: _Reader, raw: object, step_id: str, __: int) -> Step:
    x = _object(raw, _BASE | {"tool", "args"}, {"out"})
    if not isinstance(x["args"], dict) or len(x["args"]) > MAX_FIELDS:
        raise ParseError("`args` is an object", reason="plan_shape")
    args = tuple((_text(k, 64), expression.from_json(v)) for k, v in x["args"].items())
    return Call(step_id, _text(x["tool"], 128), args, _name(x.get("out", ""), empty=True))


def _extract(_: _Reader, raw: object, step_id: str, __: int) -> Step:
    x = _object(raw, _BASE | {"data", "schema", "instruction", "out"}, set())
    instruction = _text(x["instruction"], MAX_INSTRUCTION)
    return Extract(step_id, expression.from_json(x["data"]), schema(x["schema"]), instruction, _name(x["out"]))


def _summarise(_: _Reader, raw: object, step_id: str, __: int) -> Step:
    x = _object(raw, _BASE | {"data", "instruction", "out"}, {"max_chars"})
    instruction = _text(x["instruction"], MAX_INSTRUCTION)
    cap = _integer(x.get("max_chars", steps.DEFAULT_TEXT_CAP), 1, steps.MAX_TEXT_CAP)
    return Summarise(step_id, expression.from_json(x["data"]), instruction, _name(x["out"]), cap)


def _optional(x: dict[str, Any], key: str) -> Expr | None:
    return expression.from_json(x[key]) if key in x else None


def _select(_: _Reader, raw: object, step_id: str, __: int) -> Step:
    if isinstance(raw, dict) and "value" in raw:
        x = _object(raw, _BASE | {"value", "out"}, set())
        return Select(step_id, expression.from_json(x["value"]), _name(x["out"]), pure=True)
    x = _object(raw, _BASE | {"from", "out"}, {"var", "where", "sort", "descending", "take"})
    take, descending = x.get("take", "all"), x.get("descending", False)
    if take not in steps.TAKES or not isinstance(descending, bool):
        raise ParseError("`take` is all, first or one; `descending` a boolean", reason="plan_select")
    return Select(
        step_id,
        expression.from_json(x["from"]),
        _name(x["out"]),
        _name(x.get("var", "item")),
        _optional(x, "where"),
        _optional(x, "sort"),
        descending,
        take,
    )


def _for_each(reader: _Reader, raw: object, step_id: str, depth: int) -> Step:
    x = _object(raw, _BASE | {"var", "in", "body"}, {"bound", "collect", "keep", "out"})
    out = _name(x.get("out", ""), empty=True)
    if bool(out) != ("collect" in x) or ("keep" in x and not out):
        raise ParseError("`collect` and `out` belong together", reason="plan_shape")
    return ForEach(
        step_id,
        _name(x["var"]),
        expression.from_json(x["in"]),
        reader.steps(x["body"], depth + 1),
        _integer(x.get("bound", steps.DEFAULT_BOUND), 1, steps.MAX_BOUND),
        _optional(x, "collect"),
        _optional(x, "keep"),
        out,
    )


def _if(reader: _Reader, raw: object, step_id: str, depth: int) -> Step:
    x = _object(raw, _BASE | {"test", "then"}, {"else"})
    then = reader.steps(x["then"], depth + 1)
    return If(step_id, expression.from_json(x["test"]), then, reader.steps(x.get("else", []), depth + 1))


def _ask_user(_: _Reader, raw: object, step_id: str, __: int) -> Step:
    x = _object(raw, _BASE | {"question"}, {"out", "options", "fragments", "suggest"})
    options = tuple(_text(o, 200) for o in _list(x.get("options", []), MAX_FIELDS))
    fragments = tuple(_name(o) for o in _list(x.get("fragments", []), steps.MAX_FRAGMENTS))
    question = _text(x["question"], MAX_INSTRUCTION)
    return AskUser(step_id, question, _name(x.get("out", ""), empty=True), options, fragments, _optional(x, "suggest"))


def _reply(_: _Reader, raw: object, step_id: str, __: int) -> Step:
    return Reply(step_id, expression.from_json(_object(raw, _BASE | {"text"}, set())["text"]))


_KINDS: dict[str, Callable[[_Reader, object, str, int], Step]] = {
    "call": _call,
    "extract": _extract,
    "summarise": _summarise,
    "select": _select,
    "for_each": _for_each,
    "if": _if,
    "ask_user": _ask_user,
    "reply": _reply,
}


def schema(raw: object, depth: int = 0) -> TypeSpec:
    """The type that a worker must fill: the same closed subset of JSON Schema that declarations use."""
    if depth > MAX_SCHEMA_DEPTH or not isinstance(raw, dict):
        raise ParseError(f"a schema is an object, at most {MAX_SCHEMA_DEPTH} deep", reason="plan_schema")
    kind = raw.get("type")
    if kind == "array" and set(raw) == {"type", "items"}:
        return TypeSpec("array", items=schema(raw["items"], depth + 1))
    if kind == "object" and set(raw) == {"type", "properties"} and isinstance(raw["properties"], dict):
        if not 0 < len(raw["properties"]) <= MAX_FIELDS:
            raise ParseError("an object schema has some properties, at most 64", reason="plan_schema")
        fields = tuple((_name(k), schema(v, depth + 1)) for k, v in raw["properties"].items())
        return TypeSpec("object", fields=fields, required=tuple(k for k, _ in fields))
    if kind in SCALARS and set(raw) <= {"type", "format", "enum"}:
        words, form = raw.get("enum", []), raw.get("format", "")
        fits = isinstance(words, list) and len(words) <= MAX_ENUM and all(isinstance(w, str) for w in words)
        if (
            fits
            and isinstance(form, str)
            and (not form or form in FORMATS)
            and (kind == "string" or set(raw) == {"type"})
        ):
            return TypeSpec(kind, format=form, enum=tuple(words))
    raise ParseError("an unknown schema", reason="plan_schema")


def dump_schema(spec: TypeSpec) -> dict[str, Any]:
    out: dict[str, Any] = {"type": spec.kind}
    if spec.kind == "array" and spec.items is not None:
        return out | {"items": dump_schema(spec.items)}
    if spec.kind == "object":
        return out | {"properties": {k: dump_schema(v) for k, v in spec.fields}}
    return out | ({"format": spec.format} if spec.format else {}) | ({"enum": list(spec.enum)} if spec.enum else {})


def dump(plan: Plan) -> dict[str, Any]:
    """The plan as JSON (I2)."""
    out: dict[str, Any] = {"request": plan.request, "steps": [dump_step(s) for s in plan.steps]}
    if plan.fragments:
        out["fragments"] = [
            {"name": f.name, "when": f.when, "steps": [dump_step(s) for s in f.steps]} for f in plan.fragments
        ]
    return out if plan.max_calls == steps.MAX_CALLS else out | {"max_calls": plan.max_calls}


def dump_step(s: Step) -> dict[str, Any]:
    e = expression.to_json
    out: dict[str, Any] = {"step": "", "id": s.id}
    name = getattr(s, "out", "")
    if name:
        out["out"] = name
    if isinstance(s, Call):
        return out | {"step": "call", "tool": s.tool, "args": {k: e(v) for k, v in s.args}}
    if isinstance(s, Extract):
        spec = dump_schema(s.schema)
        return out | {"step": "extract", "data": e(s.data), "schema": spec, "instruction": s.instruction}
    if isinstance(s, Summarise):
        return out | {"step": "summarise", "data": e(s.data), "instruction": s.instruction, "max_chars": s.max_chars}
    if isinstance(s, Select):
        return out | _dump_select(s)
    if isinstance(s, ForEach):
        out |= {"step": "for_each", "var": s.var, "in": e(s.source), "bound": s.bound}
        out |= {"body": [dump_step(x) for x in s.body]}
        return out | {k: e(v) for k, v in (("collect", s.collect), ("keep", s.keep)) if v is not None}
    if isinstance(s, If):
        out |= {"step": "if", "test": e(s.test), "then": [dump_step(x) for x in s.then]}
        return out | ({"else": [dump_step(x) for x in s.otherwise]} if s.otherwise else {})
    if isinstance(s, AskUser):
        out |= {"step": "ask_user", "question": s.question}
        out |= {k: list(v) for k, v in (("options", s.options), ("fragments", s.fragments)) if v}
        return out | ({"suggest": e(s.suggest)} if s.suggest is not None else {})
    return out | {"step": "reply", "text": e(s.text)}


def _dump_select(s: Select) -> dict[str, Any]:
    e = expression.to_json
    if s.pure:
        return {"step": "select", "value": e(s.source)}
    out: dict[str, Any] = {"step": "select", "from": e(s.source), "var": s.var, "take": s.take}
    out |= {k: e(v) for k, v in (("where", s.where), ("sort", s.sort)) if v is not None}
    return out | ({"descending": True} if s.descending else {})
