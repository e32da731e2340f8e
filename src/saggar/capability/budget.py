"""What a task has used of what it may use.

I1  A charge is taken whole or not at all, from every account that it concerns, before the call.
I2  Nothing is given back: a call that failed has used its budget, because its effect may have happened.
I3  A child's calls count against every ancestor's budget, so ten children of `max=3` make three calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from saggar.capability.call import Call
from saggar.capability.constraint import as_decimal
from saggar.core.tool import Budget

Account = tuple[str, ...]


@dataclass(slots=True)
class _Used:
    calls: int = 0
    bytes: int = 0
    amount: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Overrun:
    """Which budget of which account would be passed."""

    reason: str
    account: str
    limit: str


class Ledger:
    """The accounts of one task. Not locked: its gateway holds one lock over check, charge and one-shot id."""

    __slots__ = ("_used",)

    def __init__(self) -> None:
        self._used: dict[Account, _Used] = {}

    def overrun(self, accounts: Iterable[tuple[Account, Budget]], call: Call) -> Overrun | None:
        """The first budget that this call would pass, or `None`."""
        amount = amount_of(call)
        for account, budget in accounts:
            used = self._used.get(account) or _Used()
            name = ":".join(account)
            if budget.calls is not None and used.calls + 1 > budget.calls:
                return Overrun("budget_calls", name, str(budget.calls))
            if budget.bytes is not None and used.bytes + call.size > budget.bytes:
                return Overrun("budget_bytes", name, str(budget.bytes))
            if budget.amount is not None and used.amount + amount > Decimal(budget.amount):
                return Overrun("budget_amount", name, budget.amount)
        return None

    def charge(self, accounts: Iterable[tuple[Account, Budget]], call: Call) -> None:
        amount = amount_of(call)
        for account, _ in accounts:
            used = self._used.setdefault(account, _Used())
            used.calls += 1
            used.bytes += call.size
            used.amount += amount

    def charge_result(self, accounts: Iterable[tuple[Account, Budget]], size: int) -> bool:
        """Count a result's bytes; whether they fit. A result that does not fit is withheld, the call is not undone."""
        fits = True
        for account, budget in accounts:
            used = self._used.setdefault(account, _Used())
            used.bytes += size
            fits = fits and (budget.bytes is None or used.bytes <= budget.bytes)
        return fits

    def restore(self, used: Mapping[Account, tuple[int, int, Decimal]]) -> None:
        """What an earlier process of the task had used."""
        for account, (calls, size, amount) in used.items():
            self._used[account] = _Used(calls, size, amount)

    def used(self, account: Account) -> tuple[int, int, Decimal]:
        found = self._used.get(account) or _Used()
        return found.calls, found.bytes, found.amount


def amount_of(call: Call) -> Decimal:
    """The sum of the arguments of role `amount`."""
    total = Decimal(0)
    for argument in call.declaration.arguments:
        if argument.role == "amount":
            value = as_decimal(call.args[argument.name])
            total += value if value is not None else 0
    return total
