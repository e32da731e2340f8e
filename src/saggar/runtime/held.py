"""A held request of a sandbox, and a person's verdict on it: types, words, and what a verdict becomes. Pure.

I1  What the sandbox chose (host, method, path, query) is shown escaped, bounded and marked as its choice.
I2  A verdict for the task is one for the rule that asks: it covers one host, port and method, and the exact canonical path and query
    unless the pattern of that rule was chosen; it never covers more than was shown.
I3  What is too long for a line is shown by its start, its end, its true length and its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from saggar.audit.human import harmless
from saggar.core.errors import UsageError
from saggar.egress.glob import PathPattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Scope = Literal["once", "task", "policy"]
SCOPES: tuple[Scope, ...] = ("once", "task", "policy")
#: characters that a line shows of a text: all, or this many of its start and of its end
_SHOWN, _START, _END = 240, 160, 60
#: what a rule asks for beside method and path
_CONDITIONS = ("query", "headers", "content_types", "max_body")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that waits. host, method, path and query were chosen by the sandbox: data, never instructions; `str(ask)` is one
    line of them, escaped and bounded.

    run: the task's id. rule: the rule that asks, in the entry `grant`; patterns: its own paths, which a verdict may be widened to (`/**` where it names none).
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
    grant: str = ""

    @property
    def sha256(self) -> str:
        """Of path and query, as they would be sent."""
        return digest(self.path + (f"?{self.query}" if self.query else ""))

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
    """What a sandbox chose, fit for a terminal (I1, I3)."""
    safe = harmless(text)
    if len(safe) <= _SHOWN:
        return safe
    return f"{safe[:_START]} … {safe[-_END:]} ({len(text)} characters, sha256 {digest(text)})"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def ask_of(message: Mapping[str, Any], run: str, rules: Mapping[str, str]) -> Ask:
    """From the broker's event. rules: the `http` text of each terminated entry, by the entry's id."""
    rule, grant = str(message.get("rule", "")), str(message.get("grant", ""))
    return Ask(
        run=run,
        id=str(message["id"]),
        host=str(message["host"]),
        port=int(message["port"]),
        method=str(message.get("method", "")),
        path=str(message.get("path", "")),
        query=str(message.get("query", "")),
        rule=rule,
        patterns=tuple((_asking(rule, grant, rules)[0] or {"paths": ()}).get("paths") or ()),
        timeout_s=float(message.get("timeout_s", 0.0)),
        grant=grant,
    )


def _asking(rule: str, grant: str, rules: Mapping[str, str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The rule that asks as the terms have it, with its paths and id, and the asking ones before it; `{}` where it is not known."""
    text = rules.get(grant)
    before: list[dict[str, Any]] = []
    for i, entry in enumerate(json.loads(text)["rules"] if text else ()):
        if entry.get("effect") != "ask":
            continue
        named = {**entry, "id": entry.get("id") or f"{grant}.rules[{i}]", "paths": entry.get("paths") or ["/**"]}
        if named["id"] == rule:
            return named, before
        before.append(named)
    return {}, before


def conditions(ask: Ask, rules: Mapping[str, str], *, pattern: bool) -> dict[str, Any]:
    """What a rule that answers the asking rule's questions must ask for beside method and path, so that it answers no others.

    Raises UsageError where that cannot be said: the rule is not known, or one before it asks about some of the same requests.
    """
    asking, before = _asking(ask.rule, ask.grant, rules)
    if not asking:
        raise UsageError(f"the rule `{shown(ask.rule)}` is not known", hint="approve the request for the task")
    paths = ask.patterns if pattern else (ask.path,)
    for other in before:
        if (not other.get("methods") or ask.method in other["methods"]) and _meet(other["paths"], paths, pattern):
            raise UsageError(
                f"the rule `{shown(other['id'])}` asks about some of the same requests, and would be answered too",
                hint="approve the request for the task",
            )
    return {key: asking[key] for key in _CONDITIONS if key in asking}


def _meet(patterns: Iterable[str], paths: Iterable[str], pattern: bool) -> bool:
    """Whether some path may be under one of each. Two patterns that are both no plain path may always be."""
    ours = [PathPattern.parse(p) if pattern else PathPattern(p, p, ()) for p in paths]
    return any(
        theirs.matches(own.literal)
        if own.literal is not None
        else theirs.literal is None or own.matches(theirs.literal)
        for theirs in map(PathPattern.parse, patterns)
        for own in ours
    )


def approval(ask: Ask, verdict: Verdict, number: int) -> dict[str, Any]:
    """What the broker is told of a verdict for the task (`egress.approved`). Raises UsageError where the request's own words are
    not enough to say it by."""
    if not ask.grant or not ask.rule:
        raise UsageError("the rule that asks is not known", hint="approve it once")
    made: dict[str, Any] = {"id": f"held[{number}]", "grant": ask.grant, "rule": ask.rule}
    made |= {"host": ask.host, "port": ask.port, "method": ask.method}
    if verdict.pattern:
        if not ask.patterns:
            raise UsageError(f"the rule `{shown(ask.rule)}` has no pattern to approve", hint="approve this path alone")
        return {**made, "paths": list(ask.patterns)}
    return {**made, "path": ask.path, "query": ask.query}


def described(entry: Mapping[str, Any]) -> str:
    """One line about an approval for the task."""
    paths = entry.get("paths") or [entry["path"] + (f"?{entry['query']}" if entry["query"] else "")]
    where = f"{shown(entry['method'])} {shown(entry['host'])}:{entry['port']}{' '.join(shown(p) for p in paths)}"
    return f"{where}  {shown(entry['rule'])}"


def parse_verdict(data: Mapping[str, Any]) -> Verdict:
    """From a request on the run's socket. Raises UsageError."""
    word, scope, pattern = data.get("verdict"), data.get("scope", "once"), data.get("pattern", False)
    if word not in ("approved", "denied") or scope not in SCOPES or not isinstance(pattern, bool):
        raise UsageError("not a verdict")
    if pattern and scope == "once":
        raise UsageError("a pattern is for the task or the policy, not for one request")
    return Verdict(word == "approved", scope, pattern)
