"""One requested change to the egress rules of a running task, worked out without effect.

I1  The result depends on the request and the present rules alone.
I2  `allow` only adds rules and `revoke` only takes away; neither touches another rule.
I3  An added rule passes the checks of the policy loader.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from saggar.core.errors import UsageError
from saggar.policy.flags import with_flags
from saggar.policy.model import EgressPolicy, EgressRule, Policy

MAX_ENTRIES = 64
#: ports whose listeners take every address: a host added later is reached there like any other
_CAPTURED = (80, 443)


@dataclass(frozen=True, slots=True)
class Record:
    """What the audit log says of one changed rule. kind: `policy.allow` or `policy.revoke`."""

    kind: str
    rule: EgressRule

    def fields(self, uid: int) -> dict[str, Any]:
        """The keywords for `AuditLog.append`."""
        return {
            "layer": "policy",
            "effect": "allow" if self.kind == "policy.allow" else "deny",
            "reason": "operator",
            "rule": self.rule.id,
            "detail": {"host": self.rule.host, "ports": list(self.rule.ports), "uid": uid},
        }


@dataclass(frozen=True, slots=True)
class Change:
    """egress: the rules afterwards. changed: `HOST:PORT` each. added: how many new ids were used."""

    egress: EgressPolicy
    records: tuple[Record, ...]
    changed: list[str]
    notes: list[str] = field(default_factory=list)
    added: int = 0


def change(data: bytes, before: EgressPolicy, *, first_id: int) -> Change:
    """Work out one request. Raises UsageError for what a person can mend, ValueError and the like for garbage."""
    request = json.loads(data)
    operation, entries = request["op"], request["entries"]
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_ENTRIES:
        raise UsageError(f"1 to {MAX_ENTRIES} hosts can be changed at once")
    if operation == "allow":
        return _allow([str(e) for e in entries], before, first_id)
    if operation == "revoke":
        return _revoke([str(e) for e in entries], before)
    raise UsageError("an unknown operation")


def _allow(entries: list[str], before: EgressPolicy, first_id: int) -> Change:
    policy = with_flags(Policy(egress=before), allow=entries)
    fresh = policy.egress.allow[len(before.allow) :]
    added = tuple(rule.replace(id=f"live[{first_id + i}]") for i, rule in enumerate(fresh))
    notes = [
        f"{rule.host}:{port} has no listener in the running cell: it is reached through the proxy address "
        "198.19.255.53:3128 alone, and directly in the next run"
        for rule in added
        for port in rule.ports
        if port not in _CAPTURED
    ]
    return Change(
        before.replace(allow=(*before.allow, *added)),
        tuple(Record("policy.allow", rule) for rule in added),
        [f"{rule.host}:{port}" for rule in added for port in rule.ports],
        notes,
        len(added),
    )


def _revoke(entries: list[str], before: EgressPolicy) -> Change:
    rules = list(before.allow)
    records: list[Record] = []
    changed: list[str] = []
    for entry in entries:
        (named,) = with_flags(Policy(), allow=[entry]).egress.allow
        ports = named.ports if ":" in entry else None
        hit = [r for r in rules if r.host == named.host and (ports is None or set(ports) & set(r.ports))]
        if not hit:
            raise UsageError(f"no rule allows `{entry}`", hint=_covering(rules, named.host))
        for rule in hit:
            gone = tuple(p for p in rule.ports if ports is None or p in ports)
            left = tuple(p for p in rule.ports if p not in gone)
            at = rules.index(rule)
            rules[at : at + 1] = [rule.replace(ports=left)] if left else []
            records.append(Record("policy.revoke", rule.replace(ports=gone)))
            changed += [f"{rule.host}:{port}" for port in gone]
    return Change(before.replace(allow=tuple(rules)), tuple(records), changed)


def _covering(rules: list[EgressRule], host: str) -> str:
    wildcard = "*." + host.partition(".")[2]
    if any(r.host == wildcard for r in rules):
        return f"`{wildcard}` covers it; that rule can be revoked as a whole"
    return "`saggar egress show` lists what the run may reach"
