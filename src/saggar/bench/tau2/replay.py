"""Replays reference actions through monitor mode.

No tool is run, and most look-ups are not among the reference actions. What the agent will have seen is taken from the
domain's database: the records that the customer's own words identify, and what can be reached from them by id. A call
that makes something gives back one new id. Roles come from argument names by the patterns below, one table for all three domains.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from saggar.bench.tau2.data_host import Domain
from saggar.core.label import SYSTEM
from saggar.core.tool import ArgumentDeclaration, FieldLabel, Role, ToolDeclaration, ToolEffect, TypeSpec
from saggar.plan.monitor import Monitor
from saggar.plan.operation import folded

READS = ("get_", "find_", "search_", "list_", "calculate", "unlock_", "give_", "think")
MAKES = ("open_", "order_", "create_", "submit_", "book_", "apply_", "file_", "initiate_")
#: end of an argument's name to its role; the first that fits
PATTERNS: tuple[tuple[str, Role], ...] = (
    ("_id", "target"),
    ("_ids", "target"),
    ("email", "recipient"),
    ("phone", "recipient"),
    ("amount", "amount"),
    ("_number", "target"),
)
RECORD = FieldLabel(SYSTEM)


def role_of(name: str) -> Role:
    return next((role for end, role in PATTERNS if name.endswith(end)), "content")


def declare(name: str, arguments: Mapping[str, Any]) -> ToolDeclaration:
    effect: ToolEffect = "read" if name.startswith(READS) else "write"
    made = tuple(ArgumentDeclaration(a, TypeSpec("json"), role_of(a)) for a in sorted(arguments))
    return ToolDeclaration(name, effect, name, effect, made, TypeSpec("json"), (("*", RECORD),))


@dataclass(slots=True)
class Index:
    """Which records of the database hold which identifying values."""

    #: identifying value, folded, to the records that hold it
    holds: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    marks: list[list[str]] = field(default_factory=list)
    #: the identifying values as they are written
    written: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, key: str, record: Any) -> None:
        at = len(self.marks)
        names = [" ".join(pair) for pair in _names(record)]
        marks = {folded(t) for t in (key, *_texts(record), *names) if identifies(t) or t in names}
        self.marks.append(sorted(marks))
        self.written.append(tuple({*(t for t in (key, *_texts(record)) if identifies(t)), key, *_ids(record)}))
        for mark in marks:
            self.holds[mark].append(at)

    def told(self, text: str) -> list[int]:
        """The records that the words of a text identify."""
        words = folded(text).split()
        grams = {" ".join(words[i : i + n]) for n in range(1, 6) for i in range(len(words) - n + 1)}
        return sorted({at for g in grams for at in self.holds.get(g, [])})

    def reach(self, start: list[int], hops: int = 3, most: int = 2000) -> set[str]:
        """Identifying values of all that can be looked up from some records: the profile, its orders, their items."""
        found = dict.fromkeys(start[:most])
        edge = list(found)
        for _ in range(hops):
            following: dict[int, None] = {}
            for at in edge:
                for mark in self.marks[at]:
                    held = self.holds[mark]
                    if len(held) <= 60:
                        following.update((x, None) for x in held if x not in found)
            edge = list(following)[: most - len(found)]
            found.update(dict.fromkeys(edge))
        return {text for at in found for text in self.written[at]}


def identifies(text: str) -> bool:
    """Whether a value is one that records are looked up by: an id, an address, a number of some length."""
    fits = 5 <= len(text) <= 64 and " " not in text and any(c.isdigit() or c in "_@" for c in text)
    # dates, times and prices are in every record and look nothing up
    date = text[:4].isdigit() and text[4:5] == "-" and text[7:8] == "-"
    return (fits and not date and "/" not in text and ":" not in text and not text.replace(".", "").isdigit()) or (
        fits and text.isdigit() and len(text) >= 8
    )


def _ids(value: Any, key: str = "") -> Iterator[str]:
    """Values of fields that are called ids or numbers, short ones too."""
    if isinstance(value, Mapping):
        for k, v in value.items():
            yield from _ids(v, str(k))
    elif isinstance(value, list):
        for v in value:
            yield from _ids(v, key)
    elif value is not None and role_of(key) in ("target", "recipient"):
        yield str(value)


def _names(value: Any) -> Iterator[tuple[str, str]]:
    """First and last names, which customers identify themselves by."""
    if isinstance(value, Mapping):
        first, last = value.get("first_name"), value.get("last_name")
        if isinstance(first, str) and isinstance(last, str):
            yield first, last
        name = value.get("name")
        if isinstance(name, str) and name.count(" ") == 1:
            a, _, b = name.partition(" ")
            yield a, b
        for v in value.values():
            yield from _names(v)


def index_of(database: Any) -> Index:
    out = Index()
    for table in database.values() if isinstance(database, dict) else []:
        rows = table.get("data", table) if isinstance(table, dict) else table
        if isinstance(rows, dict):
            for key, record in rows.items():
                out.add(str(key), record)
        elif isinstance(rows, list):
            for n, record in enumerate(rows):
                out.add(str(n), record)
    return out


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for k, v in value.items():
            yield str(k)
            yield from _texts(v)
    elif isinstance(value, list):
        for v in value:
            yield from _texts(v)
    elif value is not None:
        yield str(value)


def told(task: Mapping[str, Any]) -> str:
    """Everything that the simulated user knows and may say."""
    scenario = task.get("user_scenario") or {}
    return " ".join(_texts(scenario))


def actions(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    criteria = task.get("evaluation_criteria") or {}
    return list(criteria.get("actions") or [])


def inner(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A call to a discoverable tool is a call to the tool that it names."""
    if "discoverable" in name and name.startswith("call_"):
        called = str(arguments.get("agent_tool_name") or arguments.get("discoverable_tool_name") or name)
        text = arguments.get("arguments")
        try:
            found = json.loads(text) if isinstance(text, str) else text
        except ValueError:
            found = None
        return called, dict(found) if isinstance(found, Mapping) else {}
    return name, dict(arguments)


def unknown(monitor: Monitor, declaration: ToolDeclaration, args: Mapping[str, Any]) -> list[str]:
    guarded = [args.get(a.name) for a in monitor.guarded(declaration)]
    texts = dict.fromkeys(t for value in guarded for t in _texts(value))
    return [t for t in texts if monitor.origin(t) == "made_up"]


def replay(domain: Domain) -> dict[str, Any]:
    """Counts of verdicts, the reasons of what was not allowed, and the tasks that had no question."""
    index = index_of(domain.database)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    denied: list[str] = []
    quiet = 0
    for task in domain.tasks:
        seen = Counter[str]()
        calls = [inner(str(a["name"]), a.get("arguments") or {}) for a in actions(task)]
        tools = {name: declare(name, args) for name, args in calls}
        monitor = Monitor(told(task), tools, dict(Counter(name for name, _ in calls)))
        monitor.know(index.reach(index.told(told(task))))
        monitor.know(_texts(task.get("initial_state") or {}))
        made = 0
        for name, args in calls:
            tools[name] = declare(name, args)
            # a call that makes something gives back its id, which no database holds yet: one new value for each
            for new in unknown(monitor, tools[name], args)[:made]:
                monitor.know([new])
                made -= 1
            decision = monitor.decide(name, args)
            made += name.startswith(MAKES)
            seen[decision.effect] += 1
            if decision.effect != "allow":
                reasons[decision.reason] += 1
            if decision.effect == "deny":
                denied.append(f"{task.get('id')}: {name} {decision.detail.get('origins')}")
            monitor.spend(name)
            monitor.know(index.reach(index.told(" ".join(_texts(args))), hops=1))
        counts += seen
        quiet += not seen["ask"] and not seen["deny"]
    return {
        "tasks": len(domain.tasks),
        "actions": counts.total(),
        "allow": counts["allow"],
        "ask": counts["ask"],
        "deny": counts["deny"],
        "reasons": dict(reasons),
        "tasks_with_no_question": quiet,
        "denied": denied,
    }
