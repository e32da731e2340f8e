"""What a task has done so far, read from its audit log: for a run that is taken up again.

I1  A one-shot id that has an intent is spent, whether or not the outcome was seen.
I2  Budgets count intents, not outcomes; records of other layers are passed over.
I3  `changed` names each tool whose declaration is another than the one on record, or that was called and is on no
    record: what was granted, asked and answered was about that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from saggar.capability.budget import Account
from saggar.core.tool import ToolDeclaration


@dataclass(frozen=True, slots=True)
class Past:
    """spent: one-shot ids. used: account to calls, bytes, amount. tools: whose results were seen. open_calls: ids of
    intents without an outcome, whose end nobody saw. opened: the log says which tools there were. digests: of their
    declarations, those that joined later included."""

    spent: frozenset[str] = frozenset()
    used: Mapping[Account, tuple[int, int, Decimal]] = field(default_factory=dict)
    tools: frozenset[str] = frozenset()
    open_calls: tuple[str, ...] = ()
    opened: bool = False
    digests: Mapping[str, str] = field(default_factory=dict)

    def changed(self, declarations: Iterable[ToolDeclaration]) -> list[str]:
        """The tools that are not what they were (I3); a new name is no change."""
        known = dict.fromkeys(self.tools, "") | dict(self.digests)
        return sorted(d.name for d in declarations if known.get(d.name, d.digest) != d.digest)


def past_of(records: Iterable[Mapping[str, Any]]) -> Past:
    """records: of one task's log, verified and in order. Raises `KeyError` for a record that is not one of ours."""
    used: dict[Account, tuple[int, int, Decimal]] = {}
    tools: set[str] = set()
    waiting: dict[str, None] = {}
    spent: set[str] = set()
    charged: dict[str, list[list[str]]] = {}
    opened = False
    digests: dict[str, str] = {}
    for record in records:
        kind, detail = record.get("kind"), record.get("detail", {})
        if kind == "capability.tools":
            opened = True
            known = detail.get("tools") or {}
            digests |= {name: tool["tool_hash"] for name, tool in known.items() if "tool_hash" in tool}
        elif kind == "capability.intent":
            spent.add(detail["call_id"])
            waiting[detail["call_id"]] = None
            tools.add(detail["tool"])
            charged[detail["call_id"]] = detail["charged"]["accounts"]
            _charge(used, detail["charged"])
        elif kind == "capability.outcome":
            waiting.pop(detail["call_id"], None)
            result = {"accounts": charged.get(detail["call_id"], []), "bytes": detail.get("bytes", 0), "amount": "0"}
            _charge(used, result, calls=0)
    return Past(frozenset(spent), used, frozenset(tools), tuple(waiting), opened, digests)


def _charge(used: dict[Account, tuple[int, int, Decimal]], charged: Mapping[str, Any], calls: int = 1) -> None:
    amount = Decimal(charged["amount"])
    for names in charged["accounts"]:
        account = tuple(map(str, names))
        before, size, total = used.get(account, (0, 0, Decimal(0)))
        used[account] = (before + calls, size + int(charged["bytes"]), total + amount)
