"""What one cell did: connections, requests, bytes and refusals by place, bounded, for its closing records.

I1  Totals count everything; what finds no place in a list is counted together.
I2  A list that the cell can fill is told in pieces that each fit into a record, and into a message.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from saggar.egress.destination import Destination

#: places and refusals that the closing records name; the rest is counted. A name is 253 bytes at most
MAX_HOSTS = 1000
MAX_REFUSALS = 1000
#: of one closing record's list: well below what an audit record holds, with room for escapes
_SUMMARY_BYTES = 16 * 1024


class Usage:
    """What one cell did, for the closing event and the task's egress record."""

    __slots__ = ("allowed", "bytes_down", "bytes_up", "hosts", "others", "refusals", "refusals_left_out", "refused")

    def __init__(self) -> None:
        self.allowed = 0
        self.refused = 0
        self.bytes_up = 0
        self.bytes_down = 0
        #: "host:port" to [connections or requests, bytes up, bytes down]; bounded
        self.hosts: dict[str, list[int]] = {}
        #: the same of all places beyond the bound together
        self.others = [0, 0, 0]
        #: "host:port reason" to count; bounded
        self.refusals: dict[str, int] = {}
        #: refusals that found no place there
        self.refusals_left_out = 0

    def add_bytes(self, destination: Destination, up: int, down: int) -> None:
        self.bytes_up += up
        self.bytes_down += down
        entry = self._entry(str(destination))
        entry[1] += up
        entry[2] += down

    def add_allowed(self, place: str) -> None:
        self.allowed += 1
        self._entry(place)[0] += 1

    def _entry(self, where: str) -> list[int]:
        entry = self.hosts.get(where)
        if entry is not None:
            return entry
        if len(self.hosts) >= MAX_HOSTS:
            return self.others
        entry = self.hosts[where] = [0, 0, 0]
        return entry

    def add_refused(self, where: str, reason: str, *, told: bool) -> None:
        self.refused += told
        key = f"{where} {reason}".strip()
        if key in self.refusals or len(self.refusals) < MAX_REFUSALS:
            self.refusals[key] = self.refusals.get(key, 0) + 1
        else:
            self.refusals_left_out += 1

    def told(self) -> Iterator[dict[str, Any]]:
        """All of it in pieces that each fit into a message, for `merge` in another process."""
        yield {
            "counts": [self.allowed, self.refused, self.bytes_up, self.bytes_down, self.refusals_left_out],
            "others": self.others,
        }
        for part in parts(self.hosts):
            yield {"hosts": part}
        for part in parts(self.refusals):
            yield {"refusals": part}

    def merge(self, part: Mapping[str, Any]) -> None:
        """Add what another process of the same cell counted."""
        counts = part.get("counts")
        if counts is not None:
            self.allowed += counts[0]
            self.refused += counts[1]
            self.bytes_up += counts[2]
            self.bytes_down += counts[3]
            self.refusals_left_out += counts[4]
            _add(self.others, part["others"])
        for where, moved in part.get("hosts", {}).items():
            _add(self._entry(where), moved)
        for key, count in part.get("refusals", {}).items():
            if key in self.refusals or len(self.refusals) < MAX_REFUSALS:
                self.refusals[key] = self.refusals.get(key, 0) + count
            else:
                self.refusals_left_out += count


def _add(entry: list[int], more: Sequence[int]) -> None:
    for i, count in enumerate(more):
        entry[i] += count


def moved(entry: Sequence[int]) -> dict[str, int]:
    return {"count": entry[0], "bytes_up": entry[1], "bytes_down": entry[2]}


def parts(entries: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """`entries` in order, in pieces whose JSON takes at most `_SUMMARY_BYTES`, or that are one entry."""
    part: dict[str, object] = {}
    size = 0
    for key, value in entries.items():
        length = len(json.dumps([key, value]))
        if part and size + length > _SUMMARY_BYTES:
            yield part
            part, size = {}, 0
        part[key] = value
        size += length
    if part:
        yield part
