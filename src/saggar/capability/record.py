"""What the audit log gets to know about a call.

I1  Arguments of role `content` and `credential` are recorded by digest and size, never by value.
I2  Values of other roles are recorded whole up to `MAX_VALUE` characters: who was written to is what an audit asks.
"""

from __future__ import annotations

import hashlib
from typing import Any

from saggar.audit.canonical import MAX_INTEGER, encode, encode_text
from saggar.capability.call import Call
from saggar.core.errors import ParseError
from saggar.core.tool import ToolDeclaration

MAX_VALUE = 256
_HIDDEN = frozenset({"content", "credential"})


def argument_record(declaration: ToolDeclaration, args: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for argument in declaration.arguments:
        if argument.name not in args:
            continue
        value = args[argument.name]
        if value is None or type(value) is bool or (type(value) is int and abs(value) <= MAX_INTEGER):
            out[argument.name] = value
        elif argument.role in _HIDDEN:
            out[argument.name] = _digest(value)
        else:
            out[argument.name] = value if _fits(value) else _digest(value)
    return out


def _fits(value: Any) -> bool:
    """Short, and something that the log's canonical JSON can say: a refused call may hold anything."""
    try:
        return len(value if type(value) is str else encode_text(value)) <= MAX_VALUE and bool(encode(value))
    except ParseError:
        return False


def _digest(value: Any) -> dict[str, Any]:
    raw = _text(value).encode("utf-8", "surrogatepass")
    return {"sha256": hashlib.sha256(raw).hexdigest()[:32], "bytes": len(raw)}


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    try:
        return encode_text(value)
    except ParseError:
        return repr(type(value))


def call_record(call: Call, *, call_id: str, holder: str, jti: str) -> dict[str, Any]:
    """The detail of an intent; an outcome names the same `call_id`."""
    return {
        "tool": call.declaration.name,
        "capability": f"{call.declaration.operation}:{call.declaration.resource}",
        "tool_effect": call.declaration.effect,
        "tool_hash": call.declaration.digest,
        "args": argument_record(call.declaration, call.args),
        "args_hash": call.args_hash,
        "call_id": call_id,
        "holder": holder,
        "token": jti,
    }
