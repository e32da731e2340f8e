"""Types of arguments: from annotations, from JSON Schema, and the strict check of a value against one.

I1  A checked value has exactly the declared type: no coercion, no subclass, no bool for an int.
I2  An annotation or schema outside the closed set is a `UsageError` at load, never an unchecked argument.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

from saggar.capability.values import parse_decimal
from saggar.core.errors import ParseError, UsageError
from saggar.core.tool import TypeKind, TypeSpec

MAX_SAFE_INTEGER = 2**53 - 1
_PLAIN: dict[Any, TypeSpec] = {
    str: TypeSpec("string"),
    int: TypeSpec("integer"),
    float: TypeSpec("number"),
    bool: TypeSpec("boolean"),
    decimal.Decimal: TypeSpec("decimal"),
    dt.date: TypeSpec("string", format="date"),
    Any: TypeSpec("json"),
    type(None): TypeSpec("json", nullable=True),
    dict: TypeSpec("object"),
    list: TypeSpec("array", items=TypeSpec("json")),
}
_FORMATS = frozenset({"", "url", "path", "email", "ip", "date", "decimal"})


def from_annotation(annotation: Any, where: str) -> TypeSpec:
    """The type of a Python annotation. Raises `UsageError` for what the closed set does not have."""
    try:
        if annotation in _PLAIN:
            return _PLAIN[annotation]
    except TypeError:  # unhashable annotations exist (Annotated with a list in it)
        pass
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return from_annotation(args[0], where)
    if origin is typing.Literal and all(type(a) in (str, int) for a in args):
        return TypeSpec("integer" if type(args[0]) is int else "string", enum=tuple(args))
    if origin in (typing.Union, types.UnionType):
        rest = [a for a in args if a is not type(None)]
        if len(rest) == 1 and len(rest) < len(args):
            return _nullable(from_annotation(rest[0], where))
    if origin in (list, tuple) and args and (origin is list or args[-1] is Ellipsis):
        return TypeSpec("array", items=from_annotation(args[0], where))
    if origin is dict and args[0] is str:
        return TypeSpec("object")
    if isinstance(annotation, type):
        return _from_class(annotation, where)
    raise UsageError(
        f"{where} has the annotation `{annotation}`, which is none of the types that a tool may have",
        hint="str, int, float, bool, Decimal, date, Literal, Optional, list, dict, a TypedDict or a dataclass",
    )


def _nullable(spec: TypeSpec) -> TypeSpec:
    return TypeSpec(spec.kind, True, spec.format, spec.items, spec.enum, spec.fields, spec.required)


def _from_class(cls: type, where: str) -> TypeSpec:
    if issubclass(cls, enum.Enum) and all(type(m.value) in (str, int) for m in cls):
        values = tuple(m.value for m in cls)
        return TypeSpec("integer" if type(values[0]) is int else "string", enum=values)
    if typing.is_typeddict(cls) or hasattr(cls, "__dataclass_fields__") or hasattr(cls, "model_fields"):
        hints = typing.get_type_hints(cls)
        names = [n for n in hints if not n.startswith("_") and n != "model_config"]
        required = getattr(cls, "__required_keys__", frozenset(names))
        fields = tuple((n, from_annotation(hints[n], f"{where}, field `{n}`")) for n in names)
        return TypeSpec("object", fields=fields, required=tuple(n for n in names if n in required))
    raise UsageError(
        f"{where} has the annotation `{cls.__name__}`, which is none of the types that a tool may have",
        hint="str, int, float, bool, Decimal, date, Literal, Optional, list, dict, a TypedDict or a dataclass",
    )


def from_schema(schema: Any, where: str, depth: int = 0) -> TypeSpec:
    """The type of a JSON Schema in the closed subset. Keywords that narrow further (`pattern`, `maximum`) are the tool's
    own to check; a type outside the subset is a `UsageError`, a union of several is any JSON."""
    if depth > 8:
        raise UsageError(f"{where}: the schema is nested deeper than 8")
    if not isinstance(schema, Mapping):
        raise UsageError(f"{where}: a schema is an object")
    for union in ("anyOf", "oneOf"):
        if union in schema:
            options = [o for o in schema[union] if o != {"type": "null"}]
            if len(options) == 1 and len(schema[union]) == 2:
                return _nullable(from_schema(options[0], where, depth + 1))
            return TypeSpec("json", nullable=True)
    kind = schema.get("type")
    if isinstance(kind, list) and len(kind) == 2 and "null" in kind:
        other = next((k for k in kind if k != "null"), "null")
        return _nullable(from_schema({**schema, "type": other}, where, depth + 1))
    if kind is None and not schema.get("enum"):
        return TypeSpec("json", nullable=True)
    return _from_typed(kind or "string", schema, where, depth)


def _from_typed(kind: Any, schema: Mapping[str, Any], where: str, depth: int) -> TypeSpec:
    if kind == "array":
        return TypeSpec("array", items=from_schema(schema.get("items", {}), f"{where}, items", depth + 1))
    if kind == "object":
        properties = schema.get("properties", {})
        fields = tuple((n, from_schema(s, f"{where}, field `{n}`", depth + 1)) for n, s in properties.items())
        return TypeSpec("object", fields=fields, required=tuple(schema.get("required", ())))
    if kind not in ("string", "integer", "number", "boolean"):
        raise UsageError(f"{where}: the type `{kind}` is none that a tool may have")
    form = schema.get("format", "")
    enum_values = tuple(schema.get("enum", ()))
    if any(type(v) not in (str, int) for v in enum_values):
        raise UsageError(f"{where}: an `enum` holds texts or integers")
    if kind == "string" and form == "decimal":
        return TypeSpec("decimal")
    plain: TypeKind = kind
    known = {"uri": "url"}.get(form, form)
    return TypeSpec(plain, format=known if known in _FORMATS and kind == "string" else "", enum=enum_values)


def mismatch(spec: TypeSpec, value: Any, depth: int = 0) -> str:
    """Why `value` is not of type `spec`: a machine-readable reason, or "" when it is (I1)."""
    if depth > 16:
        return "depth"
    if value is None:
        return "" if spec.nullable or spec.kind == "json" else "type_confusion"
    kind = spec.kind
    actual = type(value)
    if kind == "string":
        wrong = "" if actual is str else "type_confusion"
    elif kind == "integer":
        wrong = _integer(value)
    elif kind == "number":
        wrong = _integer(value) if actual is int else _finite(value)
    elif kind == "boolean":
        wrong = "" if actual is bool else "type_confusion"
    elif kind == "decimal":
        wrong = _decimal(value)
    elif kind == "array":
        return _array(spec, value, depth)
    elif kind == "object":
        return _object(spec, value, depth)
    else:
        return _json(value, depth)
    if not wrong and spec.enum and value not in spec.enum:
        return "not_in_enum"
    return wrong


def _integer(value: Any) -> str:
    if type(value) is not int:
        return "type_confusion"
    return "" if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER else "number_form"


def _finite(value: Any) -> str:
    if type(value) is not float:
        return "type_confusion"
    return "" if value - value == 0 else "number_form"


def _decimal(value: Any) -> str:
    if type(value) is not str:
        return "type_confusion"
    try:
        parse_decimal(value)
    except ParseError as e:
        return e.reason
    return ""


def _array(spec: TypeSpec, value: Any, depth: int) -> str:
    if type(value) is not list:
        return "type_confusion"
    inner = spec.items or TypeSpec("json")
    return next((wrong for item in value if (wrong := mismatch(inner, item, depth + 1))), "")


def _object(spec: TypeSpec, value: Any, depth: int) -> str:
    if type(value) is not dict:
        return "type_confusion"
    if not spec.fields:
        return _json(value, depth)
    fields = dict(spec.fields)
    for key, item in value.items():
        if key not in fields:
            return "argument_unknown"
        if wrong := mismatch(fields[key], item, depth + 1):
            return wrong
    return "argument_missing" if any(name not in value for name in spec.required) else ""


def _json(value: Any, depth: int) -> str:
    if depth > 16:
        return "depth"
    actual = type(value)
    if actual is dict:
        if any(type(k) is not str for k in value):
            return "type_confusion"
        return next((wrong for item in value.values() if (wrong := _json(item, depth + 1))), "")
    if actual is list:
        return next((wrong for item in value if (wrong := _json(item, depth + 1))), "")
    if actual is int:
        return _integer(value)
    if actual is float:
        return _finite(value)
    return "" if actual in (str, bool, type(None)) else "type_confusion"
