"""What a person has approved for the rest of a task: asks that need no further word.

I1  An approval covers one host, one port, one method, and one canonical path or the pattern of the rule that asked; never more.
I2  It answers asks alone: what a rule denies, or none allows, stays refused.

Pure. The JSON shape, in the broker's rules beside `allow`:
`{"id","host","port","method","path"}` with the path as it is, or `{"id","host","port","method","paths":[PATTERN…]}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saggar.egress.glob import PathPattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from saggar.egress.destination import Destination


@dataclass(frozen=True, slots=True)
class Approval:
    """id: its name in records. paths: any of them."""

    id: str
    host: str
    port: int
    method: str
    paths: tuple[PathPattern, ...]

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Approval:
        """Raises ParseError for a pattern, KeyError and the like for another shape."""
        if "path" in data:
            # a path may hold a `*` of its own: it stands for itself
            paths: tuple[PathPattern, ...] = (PathPattern(str(data["path"]), str(data["path"]), ()),)
        else:
            paths = tuple(PathPattern.parse(p) for p in data["paths"])
        return cls(str(data["id"]), str(data["host"]), int(data["port"]), str(data["method"]), paths)

    def covers(self, destination: Destination, method: str, path: str) -> bool:
        return (
            (self.host, self.port, self.method) == (destination.host, destination.port, method)
            and any(p.matches(path) for p in self.paths)
        )  # fmt: skip


def standing(approvals: Iterable[Approval], destination: Destination, method: str, path: str) -> str:
    """The id of the first approval that covers the request, "" where none does."""
    return next((a.id for a in approvals if a.covers(destination, method, path)), "")
