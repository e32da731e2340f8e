"""`http` of an allowlist entry, and `egress.budget`: their keys and types. What they mean is the egress wall's own business
(`egress.terms`), which looks again and more closely before anything starts.

I1  The value is a canonical JSON text: immutable, hashable, equal where the meaning is equal.
I2  Unknown keys and wrong types are refused here, by name.
"""

from __future__ import annotations

import json

from saggar.policy.values import WrongValue, kind_of, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TEXT, _FLAG, _TEXTS, _PAIRS, _BYTES = (
    "a string",
    "`true` or `false`",
    "an array of strings",
    "a table of strings",
    "a number",
)

_CREDENTIAL = {
    "source": _TEXT, "kind": _TEXT, "name": _TEXT, "scheme": _TEXT, "user": _TEXT, "env": _TEXT, "format": _TEXT,
    "require": _FLAG, "region": _TEXT, "service": _TEXT, "key_id": _TEXT, "session_token": _TEXT, "token_url": _TEXT,
    "client_id": _TEXT, "refresh_source": _TEXT, "scope": _TEXT, "audience": _TEXT, "in_body": _FLAG,
}  # fmt: skip
_RULE = {
    "id": _TEXT, "effect": _TEXT, "methods": _TEXTS, "paths": _TEXTS, "query": _PAIRS, "headers": _PAIRS,
    "content_types": _TEXTS, "max_body": _BYTES, "reason": _TEXT,
}  # fmt: skip
_BUDGET = {
    "requests": _BYTES, "bytes_up": _BYTES, "bytes_down": _BYTES, "rate": _BYTES, "connections": _BYTES, "hosts": _BYTES,
    "wall_s": _BYTES,
}  # fmt: skip
_FLAT = {
    "methods": _TEXTS, "websocket": _FLAG, "ca": _TEXT, "encoded_slash": _FLAG, "foreign": _TEXT, "foreign_keys": _TEXT, "set_headers": _PAIRS,
    "token_endpoint": _FLAG, "tokens_from": _TEXT,
}  # fmt: skip


def http(value: Any) -> str:
    """The canonical text of an `http` table. Raises `WrongValue`."""
    table = _table(value, "http")
    for name, member in table.items():
        if name == "profile":
            if type(member) is not str:
                _typed(member, _PAIRS, name)
        elif name == "credential":
            _members(member, name, _CREDENTIAL)
            if "source" not in member:
                raise WrongValue("`credential` has no `source`", 'write `source = "env:NAME"` or `"file:/path"`')
        elif name == "budget":
            _members(member, name, _BUDGET)
        elif name == "rules":
            if type(member) is not list:
                raise WrongValue(f"`rules`: expected an array of tables, not {kind_of(member)}")
            for i, rule in enumerate(member):
                _members(rule, f"rules[{i}]", _RULE)
        else:
            _known(name, "http", _FLAT, ("profile", "credential", "budget", "rules"))
            _typed(member, _FLAT[name], name)
    return _canonical(table)


def budget(value: Any) -> str:
    """The canonical text of an `egress.budget` table. Raises `WrongValue`."""
    _members(value, "budget", _BUDGET)
    return _canonical(value)


def shown(text: str) -> Any:
    """The table that a canonical text stands for, None for none."""
    return json.loads(text) if text else None


def _canonical(table: dict[str, Any]) -> str:
    return json.dumps(table, sort_keys=True, separators=(",", ":"))


def _table(value: Any, name: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise WrongValue(f"`{name}`: expected a table, not {kind_of(value)}")
    return value


def _members(value: Any, name: str, kinds: dict[str, str]) -> None:
    for key, member in _table(value, name).items():
        _known(key, name, kinds)
        _typed(member, kinds[key], f"{name}.{key}")


def _known(key: str, table: str, kinds: dict[str, str], others: tuple[str, ...] = ()) -> None:
    if key not in kinds:
        raise WrongValue(f"unknown key `{show(key)}` in `{table}`", "known: " + ", ".join(sorted([*kinds, *others])))


def _typed(value: Any, kind: str, name: str) -> None:
    right = {
        _TEXT: type(value) is str,
        _FLAG: type(value) is bool,
        _TEXTS: type(value) is list and all(type(v) is str for v in value),
        _PAIRS: type(value) is dict and all(type(v) is str for v in value.values()),
        _BYTES: type(value) in {int, float} and value > 0,
    }[kind]
    if not right:
        raise WrongValue(f"`{name}`: expected {kind}, not {kind_of(value)}")


def _object(kinds: dict[str, str]) -> dict[str, Any]:
    shapes: dict[str, dict[str, Any]] = {
        _TEXT: {"type": "string"},
        _FLAG: {"type": "boolean"},
        _TEXTS: {"type": "array", "items": {"type": "string"}},
        _PAIRS: {"type": "object", "additionalProperties": {"type": "string"}},
        _BYTES: {"type": "number", "exclusiveMinimum": 0},
    }
    return {"type": "object", "additionalProperties": False, "properties": {k: shapes[v] for k, v in kinds.items()}}


BUDGET_SCHEMA: dict[str, Any] = _object(_BUDGET)
HTTP_SCHEMA: dict[str, Any] = _object(_FLAT)
HTTP_SCHEMA["properties"] |= {
    "profile": {"oneOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]},
    "credential": {**_object(_CREDENTIAL), "required": ["source"]},
    "rules": {"type": "array", "items": _object(_RULE)},
    "budget": BUDGET_SCHEMA,
}
