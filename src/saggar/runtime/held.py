"""A held request of a sandbox, and a person's verdict on it: types, words, and what a verdict becomes. Pure.

I1  What the sandbox chose (host, method, path, query) is shown escaped, bounded and marked as its choice.
I2  A verdict for the task covers one host, port and method, and the exact canonical path unless the pattern of the asking rule was
    chosen; it never covers more than was shown.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from saggar.audit.human import harmless
from saggar.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

Scope = Literal["once", "task", "policy"]
SCOPES: tuple[Scope, ...] = ("once", "task", "policy")
#: characters of a path that the broker tells (`egress.admit`): one that long may go on
PATH_TOLD = 512
_SHOWN = 240


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that waits. host, method, path and query were chosen by the sandbox: data, never instructions; `str(ask)` is one
    line of them, escaped and bounded.

    run: the task's id. rule: the rule that asks; patterns: its own paths, which a verdict may be widened to (`/**` where it names none).
    timeout_s: how long the request waits in all.
    """

    run: str
    id: str
    host: str
    port: int
    method: str
    path: str
    query: str
    rule: str
    patterns: tuple[str, ...]
    timeout_s: float

    def __str__(self) -> str:
        query = f"?{self.query}" if self.query else ""
        return f"{shown(self.method)} {shown(self.host)}:{self.port}{shown(self.path + query)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A person's word. scope: `once`; `task`: requests like it need no further word in this task; `policy`: the same, and a change for
    the policy file is proposed. pattern: like it are all paths of the asking rule's patterns, not this path alone."""

    approved: bool
    scope: Scope = "once"
    pattern: bool = False

    @classmethod
    def once(cls) -> Verdict:
        return cls(approved=True)

    @classmethod
    def task(cls, *, pattern: bool = False) -> Verdict:
        return cls(approved=True, scope="task", pattern=pattern)

    @classmethod
    def policy(cls, *, pattern: bool = False) -> Verdict:
        return cls(approved=True, scope="policy", pattern=pattern)

    @classmethod
    def deny(cls) -> Verdict:
        return cls(approved=False)


OnAsk = Callable[[Ask], Awaitable[Verdict]]


def shown(text: str) -> str:
    """What a sandbox chose, fit for a terminal (I1)."""
    safe = harmless(text)
    return safe if len(safe) <= _SHOWN else f"{safe[:_SHOWN]}… ({len(safe) - _SHOWN} more characters)"


def ask_of(message: Mapping[str, Any], run: str, rules: Mapping[str, str]) -> Ask:
    """From the broker's event. rules: the `http` text of each terminated entry, by the entry's id."""
    rule = str(message.get("rule", ""))
    return Ask(
        run=run,
        id=str(message["id"]),
        host=str(message["host"]),
        port=int(message["port"]),
        method=str(message.get("method", "")),
        path=str(message.get("path", "")),
        query=str(message.get("query", "")),
        rule=rule,
        patterns=_patterns(rule, str(message.get("grant", "")), rules),
        timeout_s=float(message.get("timeout_s", 0.0)),
    )


def _patterns(rule: str, grant: str, rules: Mapping[str, str]) -> tuple[str, ...]:
    text = rules.get(grant)
    for i, entry in enumerate(json.loads(text)["rules"] if text else ()):
        if (entry.get("id") or f"{grant}.rules[{i}]") == rule:
            return tuple(entry.get("paths") or ("/**",))
    return ()


def approval(ask: Ask, verdict: Verdict, number: int) -> dict[str, Any]:
    """What the broker is told of a verdict for the task (`egress.approved`). Raises UsageError where the request's own words are
    not enough to say it by."""
    made: dict[str, Any] = {"id": f"held[{number}]", "host": ask.host, "port": ask.port, "method": ask.method}
    if verdict.pattern:
        if not ask.patterns:
            raise UsageError(f"the rule `{shown(ask.rule)}` has no pattern to approve", hint="approve this path alone")
        return {**made, "paths": list(ask.patterns)}
    if len(ask.path) >= PATH_TOLD:
        raise UsageError("the path is too long to be approved for the task", hint="approve it once")
    return {**made, "path": ask.path}


def described(entry: Mapping[str, Any]) -> str:
    """One line about an approval for the task."""
    paths = [entry["path"]] if "path" in entry else entry["paths"]
    return f"{shown(entry['method'])} {shown(entry['host'])}:{entry['port']}{' '.join(shown(p) for p in paths)}"


def parse_verdict(data: Mapping[str, Any]) -> Verdict:
    """From a request on the run's socket. Raises UsageError."""
    word, scope, pattern = data.get("verdict"), data.get("scope", "once"), data.get("pattern", False)
    if word not in ("approved", "denied") or scope not in SCOPES or not isinstance(pattern, bool):
        raise UsageError("not a verdict")
    if pattern and scope == "once":
        raise UsageError("a pattern is for the task or the policy, not for one request")
    return Verdict(word == "approved", scope, pattern)
