"""What a sub-agent's calls are charged to beside its own accounts: those of the task that started it.

I1  One ledger and one lock for a task and all that it started, so a charge is whole over all of them.
I2  A call that none of the parent's grants allows is not the child's either, whatever its own policy says.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from saggar.capability.budget import Account, Ledger
from saggar.capability.call import Call
from saggar.capability.grant import Grant
from saggar.capability.verify import grant_key
from saggar.core.tool import Budget


@dataclass(frozen=True, slots=True)
class Above:
    """Of the parent: its ledger and lock, the grants that it holds, its task's budget, what its own accounts begin with
    ("" for a task that nobody started), and its own parent."""

    ledger: Ledger
    lock: AbstractContextManager[Any]
    grants: tuple[Grant, ...]
    budget: Budget
    prefix: Account = ()
    above: Above | None = None

    def accounts(self, call: Call) -> tuple[tuple[Account, Budget], ...] | None:
        """The parent's accounts for a call of a child, and its parents'; `None` where it holds nothing for it (I2)."""
        held = next((g for g in self.grants if g.refuses(call.declaration, call.args) == ("", "")), None)
        higher = self.above.accounts(call) if self.above is not None else ()
        if held is None or higher is None:
            return None
        charges = ((("grant", grant_key(held)), held.budget),)
        return (*own_accounts(self.prefix, self.budget, call, charges), *higher)


def own_accounts(
    prefix: Account, budget: Budget, call: Call, charges: tuple[tuple[Account, Budget], ...]
) -> tuple[tuple[Account, Budget], ...]:
    """A task's accounts for a call: the task's, the tool's, and those of the token."""
    tool = (("tool", call.declaration.name), call.declaration.budget)
    found = (((("task",)), budget), tool, *charges)
    return tuple(((*prefix, *account), bound) for account, bound in found)
