"""The question that a human is asked, made from declarations and the call alone (I1 of `core.approval`).

I1  Every argument is on the card with its exact value; the human name stands beside it, never in its place.
I2  Where a value came from is said for each argument; "the model" where nobody tracked it.
I3  A template leaves one argument open, of role content, selector or option: never an authority argument or an amount.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from saggar.audit.canonical import encode_text
from saggar.capability.call import Call
from saggar.capability.declare import Tool
from saggar.core.approval import CardLine, Question
from saggar.core.errors import ParseError
from saggar.core.tool import LabelLike, Role, ToolDeclaration

MAX_RAW = 2000
MAX_SOURCES = 5
_OPEN_ROLES: tuple[Role, ...] = ("content", "selector", "option")


def question_for(
    tool: Tool,
    call: Call,
    labels: Mapping[str, LabelLike],
    *,
    id: str,  # noqa: A002  # the question's own field
    task: str,
    asks: Sequence[tuple[str, str]],
    human_only: bool,
    expires_s: float = 300.0,
) -> Question:
    declaration = call.declaration
    axis = template_axis(declaration)
    return Question(
        id=id,
        task=task,
        tool=declaration.name,
        operation=f"{declaration.operation}:{declaration.resource}",
        effect=declaration.effect,
        reversible=declaration.reversible,
        lines=tuple(
            CardLine(
                name=a.name,
                role=a.role,
                shown=_shown(tool, a.name, call.args[a.name]),
                raw=_raw(call.args[a.name]),
                origin=origin(labels.get(a.name)),
            )
            for a in declaration.arguments
        ),
        reasons=tuple(reason for _, reason in asks),
        rule=asks[0][0] if asks else "",
        args_hash=call.args_hash,
        template_hash=template_hash(task, declaration, call.args, axis) if axis else "",
        template_axis=axis,
        human_only=human_only,
        expires_s=expires_s,
    )


def template_axis(declaration: ToolDeclaration) -> str:
    """The argument that a template approval leaves open, or "" where there is no such (I3)."""
    for role in _OPEN_ROLES:
        found = declaration.with_role(role)
        if found:
            return found[0].name
    return ""


def template_hash(task: str, declaration: ToolDeclaration, args: Mapping[str, Any], axis: str) -> str:
    """SHA-256 (hex) of the call with the value of `axis` left out."""
    rest = {name: value for name, value in args.items() if name != axis}
    body = encode_text([task, declaration.name, declaration.digest, axis, rest]).encode()
    return hashlib.sha256(b"saggar-template-v1\0" + body).hexdigest()


def origin(label: LabelLike | None) -> str:
    """Where a value came from, for a human."""
    if label is None:
        return "the model (not tracked)"
    names = sorted(str(source) for source in label.sources)
    more = f" and {len(names) - MAX_SOURCES} more" if len(names) > MAX_SOURCES else ""
    return visible(f"{label.integrity}: {', '.join(names[:MAX_SOURCES]) or 'nowhere'}{more}")


def _shown(tool: Tool, name: str, value: Any) -> str:
    describe = tool.describe.get(name)
    if describe is None or value is None:
        return ""
    try:
        text = str(describe(value))
    except Exception:  # noqa: BLE001  # somebody's describe(); the exact value is on the card all the same
        return ""
    return visible(text)[:200]


def _raw(value: Any) -> str:
    try:
        text = encode_text(value)
    except ParseError:
        text = repr(value)
    shown = visible(text)
    return shown if len(shown) <= MAX_RAW else f"{shown[:MAX_RAW]} … ({len(shown)} characters)"


def visible(text: str) -> str:
    """Text that cannot move the cursor, hide, or turn the reading direction: what does not print is escaped."""
    return "".join(ch if ch.isprintable() or ch == " " else ch.encode("unicode_escape").decode() for ch in text)
