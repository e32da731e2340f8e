"""The synthetic addresses of one cell: host name to address and back.

I1  A name keeps its address for the life of the cell, whatever happens to the rules.
I2  Exact names have the addresses that the launcher's plan gave them; wildcard names and names allowed later take the
    next free one.
I3  At most `MAX_LATE_NAMES` names are added after the start: random labels under a wildcard cost bounded memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saggar.egress.listeners import synthetic_address, synthetic_addresses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from saggar.policy.model import EgressRule

MAX_LATE_NAMES = 4096


class SyntheticNames:
    """Two-way table; `rules` are those that the launcher planned its listeners with."""

    __slots__ = ("_by_address", "_by_name", "_late", "_next")

    def __init__(self, rules: Sequence[EgressRule]) -> None:
        self._by_name = synthetic_addresses(rules)
        self._by_address = {address: name for name, address in self._by_name.items()}
        self._next = len(rules)
        self._late = 0

    def name_of(self, address: str) -> str:
        """The host that a synthetic address stands for; "" for any other address."""
        return self._by_address.get(address, "")

    def address_of(self, host: str) -> str:
        """The address for `host`, made on first use; "" when no more may be made (I3)."""
        known = self._by_name.get(host)
        if known is not None:
            return known
        if self._late >= MAX_LATE_NAMES:
            return ""
        address = synthetic_address(self._next)
        self._next += 1
        self._late += 1
        self._by_name[host] = address
        self._by_address[address] = host
        return address
