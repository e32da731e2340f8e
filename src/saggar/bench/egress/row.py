"""One attempt's outcome."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Row:
    """One attempt's outcome, JSON-ready."""

    name: str
    row: str
    verdict: str = "error"
    reason: str = ""
    evidence: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
