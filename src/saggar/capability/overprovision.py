"""What a task was granted against what it used: a number, and the smallest policy that would have done.

I1  The smallest policy allows every call that the log shows as made, and no tool that it does not.
I2  Content is not narrowed: it is `*` in the grammar's own sense, because tomorrow's text is not today's.

Overprovision of tools is tools given ÷ tools used (arXiv 2604.11839 measures it so). Of scopes it is arguments that a
grant left open ÷ arguments that the smallest policy leaves open, content apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

MAX_VALUES = 16


@dataclass(slots=True)
class _Use:
    calls: int = 0
    amount: Decimal = Decimal(0)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """Of one task. granted: capability texts, as minted. smallest: texts that would have done. refused: calls that were
    not made. wanted: what those would have needed, each with the reason of the refusal; not part of `smallest`, because
    a refused call may have been an attack. open_calls: intents without an outcome. ratio is None where nothing was used."""

    task: str
    tools: tuple[str, ...]
    used: tuple[str, ...]
    granted: tuple[str, ...]
    smallest: tuple[str, ...]
    granted_tools: tuple[str, ...]
    refused: int
    open_calls: tuple[str, ...]
    wanted: tuple[tuple[str, str], ...] = ()

    @property
    def ratio(self) -> float | None:
        """Tools that the task could see ÷ tools that it used."""
        return len(self.tools) / len(self.used) if self.used else None

    @property
    def granted_ratio(self) -> float | None:
        """Tools that capabilities allowed ÷ tools that it used."""
        return len(self.granted_tools) / len(self.used) if self.used else None

    def diff(self) -> str:
        """The policy's `capabilities`, from what they were to the smallest that would have done."""
        gone = [f"-  {json.dumps(text, ensure_ascii=False)}," for text in self.granted if text not in self.smallest]
        new = [f"+  {json.dumps(text, ensure_ascii=False)}," for text in self.smallest if text not in self.granted]
        same = [f"   {json.dumps(text, ensure_ascii=False)}," for text in self.granted if text in self.smallest]
        return "\n".join(
            ["--- saggar.toml", "+++ saggar.toml", " [tools]", " capabilities = [", *same, *gone, *new, " ]"]
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "tools": list(self.tools),
            "used": list(self.used),
            "granted": list(self.granted),
            "smallest": list(self.smallest),
            "ratio": self.ratio,
            "granted_ratio": self.granted_ratio,
            "refused": self.refused,
            "open_calls": list(self.open_calls),
            "wanted": [{"capability": text, "refused": reason} for text, reason in self.wanted],
        }


def report(records: Iterable[Mapping[str, Any]], task: str = "") -> Report:
    """records: of one task's log, in order. Raises `KeyError` for a record that is not one of ours."""
    tools: dict[str, Mapping[str, Any]] = {}
    granted: dict[str, None] = {}
    granted_tools: set[str] = set()
    uses: dict[str, _Use] = {}
    waiting: dict[str, None] = {}
    refused = 0
    wanted: list[tuple[dict[str, Any], str]] = []
    for record in records:
        kind, detail = record["kind"], record["detail"]
        task = task or record.get("task", "")
        if kind == "capability.tools":
            tools.update(detail["tools"])
        elif kind == "capability.granted" and record.get("reason") != "narrowed":
            granted.update(dict.fromkeys(c["text"] for c in detail["capabilities"]))
            granted_tools |= {c["tool"] for c in detail["capabilities"]}
        elif kind == "capability.intent":
            _use(uses.setdefault(detail["tool"], _Use()), detail)
            waiting[detail["call_id"]] = None
        elif kind == "capability.outcome":
            waiting.pop(detail["call_id"], None)
        elif kind in ("capability.decision", "capability.parked"):
            refused += 1
            wanted.append((dict(detail), record.get("reason", "")))
    return Report(
        task=task,
        tools=tuple(sorted(tools or uses)),
        used=tuple(sorted(uses)),
        granted=tuple(granted),
        smallest=tuple(_text(tools.get(name, {}), use) for name, use in sorted(uses.items())),
        granted_tools=tuple(sorted(granted_tools)),
        refused=refused,
        open_calls=tuple(waiting),
        wanted=tuple(dict.fromkeys(_wanted(tools, detail, reason) for detail, reason in wanted if detail.get("args"))),
    )


def _wanted(tools: Mapping[str, Any], detail: dict[str, Any], reason: str) -> tuple[str, str]:
    declared = tools.get(detail["tool"], {})
    use = _Use()
    _use(use, detail | {"capability": declared.get("capability", detail["tool"])})
    return _text(declared, use), reason


def _use(use: _Use, detail: Mapping[str, Any]) -> None:
    use.calls += 1
    try:
        use.amount += Decimal(detail["charged"]["amount"])
    except (KeyError, InvalidOperation):
        pass
    use.values.setdefault("", {})[""] = detail["capability"]
    for name, value in detail["args"].items():
        use.values.setdefault(name, {})[json.dumps(value, sort_keys=True)] = value


def _text(declared: Mapping[str, Any], use: _Use) -> str:
    roles = declared.get("roles", {})
    capability = use.values[""][""]
    parts = []
    for name, seen in use.values.items():
        values = list(seen.values())
        if not name or roles.get(name) == "content" or all(v is None for v in values):
            continue
        parts.append(f"{name}={_term(roles.get(name, ''), values)}")
    parts.append(f"max={use.calls}")
    if use.amount:
        parts.append(f"max_amount={use.amount:f}")
    return f"{capability}[{', '.join(parts)}]"


def _term(role: str, values: list[Any]) -> str:
    given = [v for v in values if v is not None]
    if role == "amount":
        return f"..{max((Decimal(str(v)) for v in given), default=Decimal(0)):f}"
    if any(isinstance(v, dict) for v in given):
        return "*"  # recorded by digest only
    lists = any(isinstance(v, list) for v in given)
    items = [i for v in given for i in (v if isinstance(v, list) else [v])]
    texts = sorted({_literal(i) for i in items})
    if lists and not texts:
        return "len<=0"
    if len(texts) > MAX_VALUES:
        return _common(items)
    return texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else json.dumps(value)


def _common(items: list[Any]) -> str:
    """Many values: what they have in common, as a domain, a directory or a range."""
    if all(isinstance(i, str) for i in items):
        domains = {i.rpartition("@")[2] for i in items}
        if len(domains) == 1 and all("@" in i for i in items):
            return f"*@{domains.pop()}"
        directories = {i.rpartition("/")[0] for i in items}
        if len(directories) == 1 and all(i.startswith("/") for i in items):
            return f"under({json.dumps(directories.pop() or '/')})"
        return "*"
    if all(type(i) in (int, float) for i in items):
        return f"{min(items)}..{max(items)}"
    return "*"
