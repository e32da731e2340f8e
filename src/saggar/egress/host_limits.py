"""What the rules of a task allow of one host together: the strictest of the budgets of all rules that name it.

I1  The answer depends on the rules and the host alone: every process that serves the cell gives the same.
I2  A rule whose terms cannot be read lets nothing pass (`terms_unreadable`), so it limits nothing.

Pure.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from saggar.core.errors import ParseError
from saggar.egress.budget import NONE, Limits

if TYPE_CHECKING:
    from saggar.egress.match import RuleSet


class HostLimits:
    """By host. Each rule's text is read once, when a host under it is first asked about."""

    __slots__ = ("_read", "_rules")

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._read: dict[str, Limits] = {"": NONE}

    def __call__(self, host: str) -> Limits:
        found = NONE
        for rule in self._rules.candidates(host):
            found = found.strictest(self._of(rule.http))
        return found

    def _of(self, text: str) -> Limits:
        limits = self._read.get(text)
        if limits is None:
            try:
                limits = Limits.parse(json.loads(text).get("budget") or {})
            except (ParseError, ValueError, AttributeError, TypeError):
                limits = NONE
            self._read[text] = limits
        return limits
