"""Which rule of the allowlist a host and port fall under.

I1  Matching is by equality: the whole name, or the whole name less its first label under a `*.` rule. Never by prefix,
    suffix or pattern.
I2  A `*.` rule covers exactly one label; the apex is not covered.
I3  Nothing listed is nothing allowed. A cloud's metadata name needs a rule that says `allow_metadata` besides.
    A rule that is not enabled is not listed, and what it names exactly no wildcard lists in its place.
I4  An exact name is looked at before a wildcard; among equals the first in file order decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saggar.core.hostname import METADATA_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from saggar.policy.model import EgressRule


class RuleSet:
    """The allowlist, indexed for look-up by name. Immutable after construction."""

    __slots__ = ("_exact", "_shut", "_wildcard", "rules")

    def __init__(self, rules: Iterable[EgressRule]) -> None:
        given = tuple(rules)
        self.rules = tuple(rule for rule in given if rule.enabled)
        self._shut = frozenset((rule.host, port) for rule in given if not rule.enabled for port in rule.ports)
        self._exact: dict[str, list[EgressRule]] = {}
        self._wildcard: dict[str, list[EgressRule]] = {}
        for rule in self.rules:
            if rule.host.startswith("*."):
                self._wildcard.setdefault(rule.host[2:], []).append(rule)
            else:
                self._exact.setdefault(rule.host, []).append(rule)

    def candidates(self, host: str) -> list[EgressRule]:
        """Every rule that names `host`, the most precise first."""
        found = list(self._exact.get(host, ()))
        label, dot, parent = host.partition(".")
        if dot and label:
            found += self._wildcard.get(parent, ())
        if host in METADATA_NAMES:
            return [rule for rule in found if rule.allow_metadata]
        return found

    def find(self, host: str, port: int) -> tuple[EgressRule | None, str]:
        """(rule, "") where one allows; else (None, reason): `metadata_name`, `host_not_listed`, `port_not_listed`."""
        candidates = self.candidates(host)
        for rule in candidates:
            if port in rule.ports and (rule.host == host or (host, port) not in self._shut):
                return rule, ""
        return None, "port_not_listed" if candidates else self.name_reason(host)

    def name_reason(self, host: str) -> str:
        """Why a name is not answered in DNS, where no port is known yet; "" where some rule names it."""
        if self.candidates(host):
            return ""
        return "metadata_name" if host in METADATA_NAMES else "host_not_listed"
