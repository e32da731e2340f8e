"""Wilson's score interval and percentiles: the two pieces of statistics that the reports need."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt


def wilson(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927); (0, 1) for no attempts. A count of 0 has no interval of 0."""
    if of <= 0:
        return (0.0, 1.0)
    p = hits / of
    centre = p + z * z / (2 * of)
    spread = z * sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    scale = 1 + z * z / of
    return (max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale))


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; 0 for no values."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0


def triplet(allow: int, ask: int, deny: int) -> dict[str, object]:
    """Counts with the interval of each share: never a lone percentage."""
    total = allow + ask + deny
    return {
        "allow": allow,
        "ask": ask,
        "deny": deny,
        "of": total,
        "interval_95": {
            name: [round(x, 4) for x in wilson(n, total)]
            for name, n in (("allow", allow), ("ask", ask), ("deny", deny))
        },
    }
