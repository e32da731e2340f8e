"""The card of the plan wall: what a human is shown before a call that the labels do not settle.

I1  Words come from the declaration and from this file; values from the call; origins from labels. No model words it.
I2  The answer is bound to one call of one run (`args_hash`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from saggar.audit.canonical import encode
from saggar.core.approval import CardLine, Question
from saggar.core.decision import Decision
from saggar.core.label import MANY
from saggar.core.tool import ToolDeclaration
from saggar.core.why import why as words
from saggar.plan.node import Node, whole
from saggar.plan.provenance import sources


def args_hash(run: str, key: str, digest: str, tool: str, plain: Mapping[str, Any]) -> str:
    """Binds an answer to one call of one run: SHA-256 over canonical JSON (RFC 8785)."""
    return hashlib.sha256(
        encode({"run": run, "key": key, "declaration": digest, "tool": tool, "args": dict(plain)})
    ).hexdigest()


def strangers_first(names: list[str]) -> list[str]:
    """Sources for a card: what tools gave, or nobody knows any more who, before what the user, the planner and the
    worker added."""
    return sorted(names, key=lambda name: (name != str(MANY) and not name.startswith("tool "), name))


def question_for(
    declaration: ToolDeclaration,
    args: Mapping[str, Node],
    plain: Mapping[str, Any],
    *,
    why: Decision,
    run: str,
    key: str,
) -> Question:
    """The card: words from the declaration, values from the call, and where each came from."""
    lines = []
    for argument in declaration.arguments:
        if argument.name not in args:
            continue
        value = plain[argument.name]
        text = encode(value).decode()
        origin = sources(whole(args[argument.name]), limit=8)
        lines.append(CardLine(argument.name, argument.role, str(value), text, origin))
    reasons = tuple(
        f"`{x['name']}`: {words(x['reason'])} ({'; '.join(strangers_first(x['sources'])[:4])})"
        for x in why.detail.get("arguments", [])
    )  # fmt: skip
    return Question(
        id=f"{run}.{key}",
        task=run,
        tool=declaration.name,
        operation=f"{declaration.operation}:{declaration.resource}",
        effect=declaration.effect,
        reversible=declaration.reversible,
        lines=tuple(lines),
        reasons=reasons,
        rule=why.rule,
        args_hash=args_hash(run, key, declaration.digest, declaration.name, plain),
    )
