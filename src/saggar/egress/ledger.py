"""What a task was allowed to reach, what it reached, and what it was refused: read from its audit log.

I1  The ledger depends on the records alone; the same log gives the same ledger.
I2  Totals are the broker's own count, whatever became of the places: those are bounded on both sides.
I3  A rule counts as used only by the port that was used: an unused port of a used rule is unused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_PLACES = 10_000


@dataclass(slots=True)
class Used:
    """Connections or requests that were allowed, and the bytes they moved (known once the run has ended)."""

    count: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(slots=True)
class Ledger:
    """declared: rule id to (host, ports). used: (rule id, host, port) to Used. refused: (host, port, reason) to count;
    host is as much as was known, port 0 where there was none. total: all places together, None before the run has ended;
    refused_total: refusals, recorded one by one or not."""

    declared: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    used: dict[tuple[str, str, int], Used] = field(default_factory=dict)
    refused: dict[tuple[str, int, str], int] = field(default_factory=dict)
    total: Used | None = None
    refused_total: int | None = None

    def unused(self) -> dict[str, tuple[int, ...]]:
        """Rule id to the ports of it that nothing went through; rules used in whole are left out."""
        reached = {(rule, port) for rule, _, port in self.used}
        found = {
            rule: tuple(p for p in ports if (rule, p) not in reached) for rule, (_, ports) in self.declared.items()
        }
        return {rule: ports for rule, ports in found.items() if ports}

    def hosts_of(self, rule: str) -> list[str]:
        """The names that a rule was used for, sorted: what a wildcard stood for in this run."""
        return sorted({host for id_, host, _ in self.used if id_ == rule})


def read(records: Iterable[Mapping[str, Any]]) -> Ledger:
    """The ledger of one task's records, in order. What does not look like ours is passed over."""
    ledger = Ledger()
    for record in records:
        kind, detail = record.get("kind"), record.get("detail")
        if not isinstance(detail, dict):
            continue
        if kind == "run.start":
            for rule in detail.get("egress") or ():
                _declare(ledger, rule)
        elif kind == "policy.allow":
            _declare(ledger, {**detail, "id": record.get("rule", "")})
        elif kind == "egress.decision" and record.get("effect") == "allow":
            # a terminated host's records name the rule for the request; `grant` is the allowlist's entry above it
            _use(ledger, str(detail.get("grant") or record.get("rule", "")), detail)
        elif record.get("layer") == "L2" and record.get("effect") == "deny":
            _refuse(ledger, str(record.get("reason", "")), detail)
        elif kind == "egress.summary":
            _bytes(ledger, detail)
    return ledger


def _declare(ledger: Ledger, rule: object) -> None:
    if isinstance(rule, dict) and isinstance(rule.get("ports"), list):
        ports = tuple(p for p in rule["ports"] if isinstance(p, int))
        ledger.declared[str(rule.get("id", ""))] = str(rule.get("host", "")), ports


def _port(detail: Mapping[str, Any]) -> int:
    port = detail.get("port")
    return port if isinstance(port, int) else 0


def _use(ledger: Ledger, rule: str, detail: Mapping[str, Any]) -> None:
    key = rule, str(detail.get("host", "")), _port(detail)
    if key in ledger.used or len(ledger.used) < MAX_PLACES:
        ledger.used.setdefault(key, Used()).count += 1


def _refuse(ledger: Ledger, reason: str, detail: Mapping[str, Any]) -> None:
    host = str(detail.get("host") or detail.get("to") or detail.get("name") or "")
    key = host, _port(detail), reason
    if key in ledger.refused or len(ledger.refused) < MAX_PLACES:
        ledger.refused[key] = ledger.refused.get(key, 0) + 1


def _bytes(ledger: Ledger, detail: Mapping[str, Any]) -> None:
    total = detail.get("total")
    if isinstance(total, dict):
        whole = ledger.total = ledger.total or Used()
        whole.count += _number(total, "count")
        whole.bytes_up += _number(total, "bytes_up")
        whole.bytes_down += _number(total, "bytes_down")
        ledger.refused_total = (ledger.refused_total or 0) + _number(detail, "refused_total")
    moved = detail.get("used")
    if not isinstance(moved, dict):
        return
    for (_, host, port), used in ledger.used.items():
        entry = moved.get(f"{host}:{port}")
        if isinstance(entry, dict):
            used.bytes_up, used.bytes_down = _number(entry, "bytes_up"), _number(entry, "bytes_down")


def _number(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    return value if type(value) is int else 0
