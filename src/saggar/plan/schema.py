"""The JSON schema of a plan, made from the same tables that the parser and the compiler read. `docs/plan.schema.json`
is its output; a test keeps the two together."""

from __future__ import annotations

from typing import Any

from saggar.plan import operation, parse
from saggar.plan import step as steps
from saggar.plan.expression import MAX_LITERAL, MAX_PARTS

_NAME = {"type": "string", "pattern": "^(?!__)[A-Za-z_][A-Za-z0-9_]{0,63}$"}
_OUT = {"type": "string", "pattern": "^$|^(?!__)[A-Za-z_][A-Za-z0-9_]{0,63}$"}
_SPAN = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_E = {"$ref": "#/$defs/expression"}
_BODY = {"type": "array", "items": {"$ref": "#/$defs/step"}, "maxItems": steps.MAX_BODY}


def _text(cap: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": cap}


def _object(need: dict[str, Any], may: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": need | (may or {}),
        "required": sorted(need),
        "additionalProperties": False,
    }


def _step(kind: str, need: dict[str, Any], may: dict[str, Any] | None = None) -> dict[str, Any]:
    return _object({"step": {"const": kind}, "id": _NAME, **need}, may)


def _several(cap: int = MAX_PARTS) -> dict[str, Any]:
    return {"type": "array", "items": _E, "maxItems": cap}


def _expression() -> dict[str, Any]:
    literal = {"anyOf": [_cap(), {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}
    fields = {"type": "object", "additionalProperties": _E, "maxProperties": MAX_PARTS}
    each = _object({"var": _NAME, "in": _E, "value": _E}, {"where": _E})
    pair = {"type": "array", "items": _E, "minItems": 2, "maxItems": 2}
    return {
        "oneOf": [
            _object({"lit": literal}, {"span": _SPAN}),
            _object({"ref": _NAME}),
            _object({"get": pair}),
            _object({"op": {"enum": sorted(operation.ARITY)}, "args": _several()}),
            _object({"list": _several()}),
            _object({"text": _several()}),
            _object({"object": fields}),
            _object({"each": each}),
        ]
    }


def _cap() -> dict[str, Any]:
    return {"type": "string", "maxLength": MAX_LITERAL}


def _worker_schema() -> dict[str, Any]:
    inner = {"$ref": "#/$defs/schema"}
    words = {"type": "array", "items": {"type": "string"}, "maxItems": parse.MAX_ENUM}
    text = _object({"type": {"const": "string"}}, {"format": {"enum": list(parse.FORMATS)}, "enum": words})
    fields = {"type": "object", "additionalProperties": inner, "minProperties": 1, "maxProperties": parse.MAX_FIELDS}
    return {
        "oneOf": [
            text,
            _object({"type": {"enum": [s for s in parse.SCALARS if s != "string"]}}),
            _object({"type": {"const": "array"}, "items": inner}),
            _object({"type": {"const": "object"}, "properties": fields}),
        ]
    }


def _steps() -> list[dict[str, Any]]:
    instruction = _text(parse.MAX_INSTRUCTION)
    args = {"type": "object", "additionalProperties": _E, "maxProperties": parse.MAX_FIELDS}
    cap = {"type": "integer", "minimum": 1, "maximum": steps.MAX_TEXT_CAP}
    bound = {"type": "integer", "minimum": 1, "maximum": steps.MAX_BOUND}
    options = {"type": "array", "items": _text(200), "maxItems": parse.MAX_FIELDS}
    fragments = {"type": "array", "items": _NAME, "maxItems": steps.MAX_FRAGMENTS}
    chosen = {"var": _NAME, "where": _E, "sort": _E, "descending": {"type": "boolean"}}
    return [
        _step("call", {"tool": _text(128), "args": args}, {"out": _OUT}),
        _step(
            "extract",
            {"data": _E, "schema": {"$ref": "#/$defs/schema"}, "instruction": instruction, "out": _NAME},
        ),
        _step("summarise", {"data": _E, "instruction": instruction, "out": _NAME}, {"max_chars": cap}),
        _step("select", {"value": _E, "out": _NAME}),
        _step("select", {"from": _E, "out": _NAME}, {**chosen, "take": {"enum": list(steps.TAKES)}}),
        _step(
            "for_each",
            {"var": _NAME, "in": _E, "body": _BODY},
            {"bound": bound, "collect": _E, "keep": _E, "out": _OUT},
        ),
        _step("if", {"test": _E, "then": _BODY}, {"else": _BODY}),
        _step(
            "ask_user",
            {"question": instruction},
            {"out": _OUT, "options": options, "fragments": fragments, "suggest": _E},
        ),
        _step("reply", {"text": _E}),
    ]


def plan_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a plan. The parser refuses more than it can say: names read before they are set, ids
    that come twice, spans that do not hold their words, nesting."""
    fragment = _object({"name": _NAME, "when": _text(parse.MAX_INSTRUCTION), "steps": _BODY})
    top = _object(
        {"request": {"type": "string", "maxLength": parse.MAX_REQUEST}, "steps": _BODY},
        {
            "fragments": {"type": "array", "items": fragment, "maxItems": steps.MAX_FRAGMENTS},
            "max_calls": {"type": "integer", "minimum": 0, "maximum": steps.MAX_CALLS},
        },
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A plan of Saggar",
        **top,
        "$defs": {"expression": _expression(), "schema": _worker_schema(), "step": {"oneOf": _steps()}},
    }
