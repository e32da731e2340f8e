"""The graph of one run: which step used what, under which label, and what was decided. No values, ever.

I1  A refused or skipped call stays in the graph as an event of its own.
I2  Events are appended in order and never changed; the graph of the same journal is the same.
I3  Text and picture are made of step ids, tool names, labels and reasons; text from a tool or a model does not appear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from saggar.core.errors import ParseError
from saggar.core.label import NEUTRAL, Label

KINDS = ("call", "extract", "summarise", "select", "for_each", "if", "ask_user", "reply")
EFFECTS = ("allow", "ask", "deny", "skip", "")


@dataclass(frozen=True, slots=True)
class Event:
    """key: step id and round. inputs: keys of the events whose values went in. effect: what was decided (`skip`: an
    argument was not known). approved: a human said yes. label: of the result."""

    key: str
    kind: str
    name: str
    inputs: tuple[str, ...] = ()
    label: Label = NEUTRAL
    effect: str = ""
    reason: str = ""
    rule: str = ""
    approved: bool = False
    line: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "kind": self.kind,
            "name": self.name,
            "inputs": list(self.inputs),
            "label": self.label.to_json(),
            "effect": self.effect,
            "reason": self.reason,
            "rule": self.rule,
            "approved": self.approved,
            "line": self.line,
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Event:
        """Raises `ParseError` for what `to_json` did not write."""
        texts = [raw.get(k) for k in ("key", "kind", "name", "effect", "reason", "rule")]
        inputs = raw.get("inputs")
        if not all(isinstance(t, str) for t in texts) or not isinstance(inputs, list):
            raise ParseError("not an event of a plan", reason="provenance")
        if raw["kind"] not in KINDS or raw["effect"] not in EFFECTS or not all(isinstance(i, str) for i in inputs):
            raise ParseError("not an event of a plan", reason="provenance")
        line = raw.get("line", 0)
        return Event(
            raw["key"],
            raw["kind"],
            raw["name"],
            tuple(inputs),
            Label.from_json(raw.get("label")),
            raw["effect"],
            raw["reason"],
            raw["rule"],
            raw.get("approved") is True,
            line if type(line) is int else 0,
        )


def sources(label: Label, limit: int = 3) -> str:
    """A source chip: the label in a few words."""
    kinds: dict[str, None] = {}
    for source in sorted(map(str, label.sources)):
        kinds[source.partition(" (call")[0]] = None
    # a list's own length and order are rarely what a reader looks for
    names = [k for k in kinds if not k.partition(" by ")[0].endswith("#")] or list(kinds)
    more = f" +{len(names) - limit}" if len(names) > limit else ""
    return f"{label.integrity}: {', '.join(names[:limit])}{more}" if names else label.integrity


def as_text(events: Iterable[Event]) -> str:
    """One line an event: key, kind, name, inputs, verdict, source chip."""
    rows = []
    for e in events:
        verdict = (
            f"  [{e.effect}{': ' + e.reason if e.reason else ''}{', approved' if e.approved else ''}]"
            if e.effect
            else ""
        )
        uses = f"  <- {', '.join(e.inputs)}" if e.inputs else ""
        rows.append(f"{e.key:<14} {e.kind:<9} {e.name}{uses}{verdict}  ({sources(e.label)})")
    return "\n".join(rows) + "\n" if rows else "no step was taken\n"


_COLOURS = {"user": "#1a7f37", "system": "#57606a", "directory": "#0969da", "untrusted": "#bc4c00"}
_ROW, _WIDTH, _LEFT = 56, 860, 240


def as_svg(events: Iterable[Event]) -> str:
    """A self-contained picture: one box an event, from top to bottom, an arc for each use, colour by integrity."""
    rows = list(events)
    place = {e.key: i for i, e in enumerate(rows)}
    height = _ROW * len(rows) + 60
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13">'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for x, (name, colour) in zip(range(20, _WIDTH, 130), _COLOURS.items(), strict=False):
        out.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{x + 18}" y="25">{name}</text>')
    for i, e in enumerate(rows):
        out.extend(_arcs(e, i, place))
        out.extend(_box(e, i))
    return "\n".join([*out, "</svg>"]) + "\n"


def _arcs(e: Event, i: int, place: Mapping[str, int]) -> Iterable[str]:
    for key in e.inputs:
        j = place.get(key)
        if j is None or j >= i:
            continue
        y1, y2 = 60 + j * _ROW, 60 + i * _ROW
        bend = _LEFT - 30 - min(180, 12 * (i - j))
        yield f'<path d="M{_LEFT} {y1} C{bend} {y1} {bend} {y2} {_LEFT} {y2}" fill="none" stroke="#8c959f"/>'


def _box(e: Event, i: int) -> Iterable[str]:
    y = 42 + i * _ROW
    refused = e.effect in ("deny", "skip") or (e.effect == "ask" and not e.approved)
    dash = ' stroke-dasharray="5 3"' if refused else ""
    colour = _COLOURS[e.label.integrity]
    yield f'<rect x="{_LEFT}" y="{y}" width="600" height="40" rx="6" fill="#f6f8fa" stroke="{colour}" stroke-width="2"{dash}/>'
    verdict = f" [{e.effect}{': ' + e.reason if e.reason else ''}]" if e.effect else ""
    yield f'<text x="{_LEFT + 10}" y="{y + 17}">{escape(f"{e.key}  {e.kind} {e.name}{verdict}"[:84])}</text>'
    yield f'<text x="{_LEFT + 10}" y="{y + 33}" fill="{colour}">{escape(sources(e.label)[:88])}</text>'
