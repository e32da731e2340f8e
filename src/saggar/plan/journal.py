"""What a run has done so far, so that a restart repeats nothing.

I1  An effect's intent is written before it, its outcome after; an intent without an outcome is never tried again.
I2  Replaying the same plan over the same journal takes the same path: every value that came from outside is in it.
I3  Reading gives a journal or `ParseError`; a journal of another plan is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from saggar.core.errors import ParseError
from saggar.core.label import Label
from saggar.plan.node import MAX_DEPTH, NOT_ENOUGH, Node

INTENT = "intent"
DONE = "done"


class Journal(Protocol):
    def get(self, key: str) -> Mapping[str, Any] | None:
        """The last entry for a step and round: `{"state": "intent"}` or `{"state": "done", "value": …}`."""
        ...

    def put(self, key: str, entry: Mapping[str, Any]) -> None:
        """Durable when it returns. Raises `OSError`, on which the run stops before the effect."""
        ...


class MemoryJournal:
    """For runs that need not outlive their process."""

    __slots__ = ("entries",)

    def __init__(self, entries: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.entries: dict[str, Mapping[str, Any]] = dict(entries or {})

    def get(self, key: str) -> Mapping[str, Any] | None:
        return self.entries.get(key)

    def put(self, key: str, entry: Mapping[str, Any]) -> None:
        self.entries[key] = entry


def dump_node(node: Node) -> dict[str, Any]:
    """A node as JSON; labels are kept in a table, since thousands of leaves share one."""
    table: dict[Label, int] = {}

    def walk(n: Node) -> list[Any]:
        at = table.setdefault(n.label, len(table))
        marks: list[Any] = [n.writer, n.names]
        if n.settled is not None:
            marks.append(table.setdefault(n.settled, len(table)))
        if isinstance(n.data, tuple):
            return [at, marks, "l", [walk(c) for c in n.data]]
        if isinstance(n.data, Mapping):
            return [at, marks, "o", {k: walk(c) for k, c in n.data.items()}]
        return [at, marks, "n"] if n.data is NOT_ENOUGH else [at, marks, "s", n.data]

    tree = walk(node)
    return {"labels": [x.to_json() for x in table], "tree": tree}


def load_node(raw: object) -> Node:
    """The node that `dump_node` wrote. Raises `ParseError`."""
    if not isinstance(raw, dict) or set(raw) != {"labels", "tree"} or not isinstance(raw["labels"], list):
        raise ParseError("not a stored value", reason="journal_value")
    return _load(raw["tree"], [Label.from_json(x) for x in raw["labels"]], 0)


def _load(raw: object, labels: list[Label], depth: int) -> Node:
    fits = isinstance(raw, list) and len(raw) in (3, 4) and depth <= MAX_DEPTH
    if not fits or not isinstance(raw, list):
        raise ParseError("not a stored value", reason="journal_value")
    at, marks, kind = raw[:3]
    if type(at) is not int or not 0 <= at < len(labels) or not (isinstance(marks, list) and len(marks) in (2, 3)):
        raise ParseError("a stored value has no such label", reason="journal_value")
    writer, names = marks[:2]
    settled = marks[2] if len(marks) == 3 else None
    if not (writer is None or isinstance(writer, str)) or not isinstance(names, bool):
        raise ParseError("a stored value has unknown marks", reason="journal_value")
    if settled is not None and not (type(settled) is int and 0 <= settled < len(labels)):
        raise ParseError("a stored value has unknown marks", reason="journal_value")
    held = raw[3] if len(raw) == 4 else None
    data: Any = NOT_ENOUGH
    if kind == "l" and isinstance(held, list):
        data = tuple(_load(x, labels, depth + 1) for x in held)
    elif kind == "o" and isinstance(held, dict):
        data = {str(k): _load(v, labels, depth + 1) for k, v in held.items()}
    elif kind == "s" and len(raw) == 4 and (held is None or isinstance(held, str | int | float | bool)):
        data = held
    elif kind != "n" or len(raw) != 3:
        raise ParseError("a stored value of unknown kind", reason="journal_value")
    return Node(data, labels[at], writer, names, None if settled is None else labels[settled])
