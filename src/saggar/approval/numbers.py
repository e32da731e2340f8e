"""How approval is going: a reviewer who is asked too often stops reading.

Counted from the book's events: asks, answers, time-outs, the median time to decide, and how many decisions took under
two seconds (nobody reads a card in that time).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from saggar.approval.book import Entry

HASTY_S = 2.0


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of one task. median_s: seconds from question to answer, None without answers. last_hour: asks in the
    hour before `now`. by_rule: asks by the rule that asked."""

    asked: int
    approved: int
    denied: int
    parked: int
    waiting: int
    median_s: float | None
    hasty: int
    last_hour: int
    by_rule: tuple[tuple[str, int], ...]

    def to_json(self) -> dict[str, object]:
        return {
            "asked": self.asked,
            "approved": self.approved,
            "denied": self.denied,
            "parked": self.parked,
            "waiting": self.waiting,
            "median_s": self.median_s,
            "under_two_seconds": self.hasty,
            "asked_in_the_last_hour": self.last_hour,
            "by_rule": dict(self.by_rule),
        }


def numbers(entries: Iterable[Entry], now: float) -> Numbers:
    found = list(entries)
    times = [e.answered - e.asked for e in found if e.answered]
    states = [e.state for e in found]
    rules: dict[str, int] = {}
    for e in found:
        rules[e.question.rule] = rules.get(e.question.rule, 0) + 1
    return Numbers(
        asked=len(found),
        approved=states.count("approved"),
        denied=states.count("denied"),
        parked=states.count("parked"),
        waiting=states.count("waiting"),
        median_s=median(times) if times else None,
        hasty=sum(t < HASTY_S for t in times),
        last_hour=sum(now - e.asked < 3600 for e in found),
        by_rule=tuple(sorted(rules.items(), key=lambda pair: (-pair[1], pair[0]))),
    )
