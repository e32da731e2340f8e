"""What a person has approved for the rest of a task: asks that need no further word.

I1  An approval covers one host, one port, one method, and one canonical path with its query, or the pattern of the rule that
    asked; never more.
I2  It answers the asks of the very rule that asked (`grant`: the entry, `rule`: the rule in it), and so only what all its
    conditions hold for: what another rule asks about is asked, what one denies, or none allows, stays refused.

Pure. The JSON shape, in the broker's rules beside `allow`:
`{"id","grant","rule","host","port","method","path","query"}` with both as they are ("" for no query), or
`{"id","grant","rule","host","port","method","paths":[PATTERN…]}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saggar.egress.glob import PathPattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Approval:
    """id: its name in records. paths: any of them. query: the one that it is for, None where any is."""

    id: str
    grant: str
    rule: str
    host: str
    port: int
    method: str
    paths: tuple[PathPattern, ...]
    query: str | None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Approval:
        """Raises ParseError for a pattern, KeyError and the like for another shape."""
        query = None
        if "path" in data:
            query = str(data["query"])
            # a path may hold a `*` of its own: it stands for itself
            paths: tuple[PathPattern, ...] = (PathPattern(str(data["path"]), str(data["path"]), ()),)
        else:
            paths = tuple(PathPattern.parse(p) for p in data["paths"])
        names = [str(data[key]) for key in ("id", "grant", "rule", "host")]
        if not all(names):
            raise ValueError("an approval without a name")
        identity, grant, rule, host = names
        return cls(identity, grant, rule, host, int(data["port"]), str(data["method"]), paths, query)

    def covers(self, asked: Asked) -> bool:
        return (
            (self.grant, self.rule) == (asked.grant, asked.rule)
            and (self.host, self.port, self.method) == (asked.host, asked.port, asked.method)
            and self.query in (None, asked.query)
            and any(p.matches(asked.path) for p in self.paths)
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a rule asks about. query: "" for none."""

    grant: str
    rule: str
    host: str
    port: int
    method: str
    path: str
    query: str


def standing(approvals: Iterable[Approval], asked: Asked) -> str:
    """The id of the first approval that covers the request, "" where none does."""
    return next((a.id for a in approvals if a.covers(asked)), "")
