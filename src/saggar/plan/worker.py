"""The planner and the quarantined worker, as the executor sees them, and what is believed of a worker's answer.

I1  A worker sees one piece of data, one instruction and one schema; it has no name for any tool or other value.
I2  What it gives is checked against the schema, capped, freed of control and invisible characters; anything else is
    `NOT_ENOUGH`. It never raises through to the plan.
I3  A link survives only in a field of format `url`, and only where it stands verbatim in the data shown.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from saggar.core.errors import PeerError
from saggar.core.label import UNTRUSTED, Label, Source, join
from saggar.core.tool import ToolDeclaration, TypeSpec
from saggar.plan import node as nodes
from saggar.plan.defang import defang, links
from saggar.plan.node import NOT_ENOUGH, Node, leaves, whole
from saggar.plan.operation import bounded
from saggar.plan.step import DEFAULT_TEXT_CAP

MAX_ITEMS = 200
MAX_LEAVES = 2_000
TEXT = TypeSpec("string")


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """All that a worker is told. schema None: free text of at most `max_chars`. key: the step and its round."""

    key: str
    instruction: str
    data: Any
    schema: TypeSpec | None = None
    max_chars: int = DEFAULT_TEXT_CAP


class Worker(Protocol):
    """A quarantined model. Gives a JSON value (or `NOT_ENOUGH`); raises `PeerError` alone, within its own deadline."""

    def answer(self, request: WorkerRequest) -> Any: ...


class Planner(Protocol):
    """A model that sees the user's words and the declarations, never a tool's output."""

    def plan(self, request: str, tools: Mapping[str, ToolDeclaration], fault: str = "") -> str:
        """Source text of a plan (restricted Python or JSON). fault: why the last one was refused, for one more try."""
        ...


class ScriptedWorker:
    """Answers from a table of step ids (or of step ids with rounds, `s6[0]/s7`), or from a function."""

    __slots__ = ("answers", "seen")

    def __init__(self, answers: Mapping[str, Any] | Callable[[WorkerRequest], Any]) -> None:
        self.answers = answers
        self.seen: list[WorkerRequest] = []

    def answer(self, request: WorkerRequest) -> Any:
        self.seen.append(request)
        if callable(self.answers):
            return self.answers(request)
        step = request.key.rpartition("/")[2]
        return self.answers.get(request.key, self.answers.get(step, NOT_ENOUGH))


class ScriptedPlanner:
    """Gives the plans that it was made with, by request; an unknown request is a `PeerError`."""

    __slots__ = ("plans",)

    def __init__(self, plans: Mapping[str, str]) -> None:
        self.plans = plans

    def plan(self, request: str, tools: Mapping[str, ToolDeclaration], fault: str = "") -> str:  # noqa: ARG002
        if request not in self.plans:
            raise PeerError("the scripted planner has no plan for this request")
        return self.plans[request]


def ask_worker(worker: Worker, request: WorkerRequest, data: Node, pc: Label, permitted: str) -> Node:
    """The worker's answer as a labelled node (I2). permitted: the user's words, whose links may stand."""
    # a model can be wrong (or turned) on trusted data as well: it transforms and never endorses
    source = Source("worker", "extract" if request.schema else "summarise")
    label = join(whole(data), pc, Label([source], integrity=UNTRUSTED))
    try:
        answer = worker.answer(request)
    except PeerError:
        return Node(NOT_ENOUGH, label)
    if request.schema is None:
        if not isinstance(answer, str) or not answer:
            return Node(NOT_ENOUGH, label)
        return Node(defang(clean(answer[: request.max_chars]), permitted), label)
    # only text as a tool gave it: in a text that the plan put together, two writers' halves could make one link
    shown = [
        (leaf.data, leaf.writer) for leaf in leaves(data) if isinstance(leaf.data, str) and leaf.writer is not None
    ]
    return _Filler(label, shown, permitted).fill(answer, request.schema)


def clean(text: str) -> str:
    """NFC, without control, format, private and surrogate characters (newline and tab stay)."""
    text = unicodedata.normalize("NFC", text)
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Co", "Cs", "Cn"))


class _Filler:
    """Holds an answer against its schema; the first thing that does not fit makes that leaf `NOT_ENOUGH`."""

    __slots__ = ("label", "left", "permitted", "shown")

    def __init__(self, label: Label, shown: list[tuple[str, str]], permitted: str) -> None:
        self.label = label
        self.shown = shown
        self.permitted = permitted
        self.left = MAX_LEAVES

    def fill(self, value: Any, spec: TypeSpec) -> Node:
        self.left -= 1
        if self.left < 0 or value is None or value is NOT_ENOUGH:
            return Node(NOT_ENOUGH, self.label)
        if spec.kind == "object":
            known = {k for k, _ in spec.fields}
            if not isinstance(value, Mapping) or set(value) - known:
                return Node(NOT_ENOUGH, self.label)
            return Node({k: self.fill(value.get(k), s) for k, s in spec.fields}, self.label)
        if spec.kind == "array":
            if not isinstance(value, list) or len(value) > MAX_ITEMS or spec.items is None:
                return Node(NOT_ENOUGH, self.label)
            return Node(tuple(self.fill(v, spec.items) for v in value), self.label)
        if spec.kind == "string" and isinstance(value, str):
            return self.text(value, spec)
        fits = {
            "boolean": isinstance(value, bool),
            "integer": type(value) is int,
            "number": isinstance(value, int | float) and not isinstance(value, bool),
            "decimal": isinstance(value, str) and _is_decimal(value),
        }
        return nodes.of(bounded(value), self.label) if fits.get(spec.kind, False) else Node(NOT_ENOUGH, self.label)

    def text(self, value: str, spec: TypeSpec) -> Node:
        if len(value) > DEFAULT_TEXT_CAP:
            return Node(NOT_ENOUGH, self.label)
        if bounded(value) is NOT_ENOUGH:
            return Node(NOT_ENOUGH, self.label)
        if spec.enum:
            return Node(value if value in spec.enum else NOT_ENOUGH, self.label)
        if spec.format == "url":
            return self.link(value)
        value = clean(value)
        fits = {"email": _is_email, "date": _is_date}.get(spec.format, _anything)(value)
        if not fits:
            return Node(NOT_ENOUGH, self.label)
        return Node(value if spec.format else defang(value, self.permitted), self.label)

    def link(self, value: str) -> Node:
        """I3: the same characters, as a whole link, in text that was shown. Its writer is known if all who have it
        are one; two of them may not agree on whom to name."""
        writers = {who for text, who in self.shown if any(value == text[s:e] for s, e in links(text))}
        if not writers:
            return Node(NOT_ENOUGH, self.label)
        return Node(value, self.label, next(iter(writers)) if len(writers) == 1 else "")


def _anything(_: str) -> bool:
    return True


def _is_email(value: str) -> bool:
    local, at, host = value.partition("@")
    fine = bool(local and at and "." in host) and "@" not in host and len(value) <= 254
    return fine and all(c.isalnum() or c in "._%+-" for c in local) and all(c.isalnum() or c in ".-" for c in host)


def _is_date(value: str) -> bool:
    parts = value.split("-")
    return [len(p) for p in parts] == [4, 2, 2] and all(p.isascii() and p.isdigit() for p in parts)


def _is_decimal(value: str) -> bool:
    whole_part, _, rest = value.removeprefix("-").partition(".")
    return len(value) <= 40 and (whole_part + rest).isascii() and (whole_part + rest).isdigit()
