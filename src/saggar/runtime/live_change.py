"""One requested change to the egress rules of a running task, worked out without effect.

I1  The result depends on the request and the present rules alone.
I2  `allow` only adds rules, or enables what the policy has ready, and `revoke` only takes away; neither touches another rule.
I3  An added rule passes the checks of the policy loader.
I4  A host and port that was taken away stays in the rules as one that is not enabled, so that no wildcard gives it back.
I5  An approval outlasts no change after which another rule, or none, covers its host and port, by the look-up of `RuleSet.find`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from saggar.core.errors import UsageError
from saggar.egress.match import RuleSet
from saggar.policy.flags import with_flags
from saggar.policy.model import EgressPolicy, EgressRule, Policy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

MAX_ENTRIES = 64
#: ports whose listeners take every address: a host added later is reached there like any other
_CAPTURED = (80, 443)


@dataclass(frozen=True, slots=True)
class Record:
    """What the audit log says of one changed rule. kind: `policy.allow` or `policy.revoke`."""

    kind: str
    rule: EgressRule
    more: Mapping[str, Any] = field(default_factory=dict)

    def fields(self, uid: int) -> dict[str, Any]:
        """The keywords for `AuditLog.append`."""
        return {
            "layer": "policy",
            "effect": "allow" if self.kind == "policy.allow" else "deny",
            "reason": "operator",
            "rule": self.rule.id,
            "detail": {"host": self.rule.host, "ports": list(self.rule.ports), **self.more, "uid": uid},
        }


@dataclass(frozen=True, slots=True)
class Change:
    """egress: the rules afterwards. changed: `HOST:PORT` each. added: how many new ids were used."""

    egress: EgressPolicy
    records: tuple[Record, ...]
    changed: list[str]
    notes: list[str] = field(default_factory=list)
    added: int = 0
    approvals: list[dict[str, Any]] = field(default_factory=list)


def change(data: bytes, before: EgressPolicy, approvals: Sequence[dict[str, Any]] = (), *, first_id: int) -> Change:
    """Work out one request. approvals: what a person approved for the task; a revocation may name one by its id, and takes
    those of a host along. Raises UsageError for what a person can mend, ValueError and the like for garbage."""
    request = json.loads(data)
    operation, entries = request["op"], request["entries"]
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_ENTRIES:
        raise UsageError(f"1 to {MAX_ENTRIES} hosts can be changed at once")
    if operation == "allow":
        return _prune(_allow([str(e) for e in entries], before, first_id), approvals)
    if operation == "revoke":
        return _take_back([str(e) for e in entries], before, approvals)
    raise UsageError("an unknown operation")


def _allow(entries: list[str], before: EgressPolicy, first_id: int) -> Change:
    before = before.replace(allow=_parted(before.allow, entries))
    ids = {r.id for r in before.allow if not r.enabled} & set(entries)
    named = before.replace(allow=tuple(r.replace(enabled=True) if r.id in ids else r for r in before.allow))
    policy = with_flags(Policy(egress=named), allow=[e for e in entries if e not in ids])
    kept, fresh = policy.egress.allow[: len(before.allow)], policy.egress.allow[len(before.allow) :]
    enabled = tuple(rule for rule, old in zip(kept, before.allow, strict=True) if rule != old)
    added = tuple(rule.replace(id=f"live[{first_id + i}]") for i, rule in enumerate(fresh))
    notes = [
        f"{rule.host}:{port} has no listener in the running cell: it is reached through the proxy address "
        "198.19.255.53:3128 alone, and directly in the next run (a rule with `enabled = false` has its listeners ready)"
        for rule in added
        for port in rule.ports
        if port not in _CAPTURED
    ]
    return Change(
        before.replace(allow=(*_joined(kept), *added)),
        tuple(Record("policy.allow", rule) for rule in (*enabled, *added)),
        [f"{rule.host}:{port}" for rule in (*enabled, *added) for port in rule.ports],
        notes,
        len(added),
    )


def _take_back(entries: list[str], before: EgressPolicy, approvals: Sequence[dict[str, Any]]) -> Change:
    """Approvals by id, rules by host."""
    named = [a for a in approvals if a["id"] in entries]
    ids = {a["id"] for a in named}
    return _prune(_revoke([e for e in entries if e not in ids], before), approvals, ids)


def _prune(made: Change, approvals: Sequence[dict[str, Any]], named: Collection[str] = ()) -> Change:
    """The change with the approvals that are left after it, and a record of those that are not (I5)."""
    rules = RuleSet(made.egress.allow)

    def stands(approval: dict[str, Any]) -> bool:
        rule, _ = rules.find(approval["host"], approval["port"])
        return rule is not None and rule.id == approval["grant"] and approval["id"] not in named

    left = [a for a in approvals if stands(a)]
    gone = [a for a in approvals if a not in left]
    return replace(
        made,
        approvals=left,
        records=(*made.records, *(_taken(a) for a in gone)),
        changed=[*made.changed, *(a["id"] for a in gone)],
    )


def _parted(rules: Iterable[EgressRule], entries: Iterable[str]) -> tuple[EgressRule, ...]:
    """The rules, a disabled one of several ports in two where an entry names some of them: `HOST:PORT` enables no other port."""
    parted = list(rules)
    for entry in (e for e in entries if ":" in e and e not in {r.id for r in parted}):
        (named,) = with_flags(Policy(), allow=[entry]).egress.allow
        for at in [i for i, r in enumerate(parted) if not r.enabled and r.host == named.host][::-1]:
            rule = parted[at]
            some = tuple(p for p in rule.ports if p in named.ports)
            rest = tuple(p for p in rule.ports if p not in named.ports)
            if some and rest:
                parted[at : at + 1] = [rule.replace(ports=some), rule.replace(ports=rest)]
    return tuple(parted)


def _joined(rules: Iterable[EgressRule]) -> tuple[EgressRule, ...]:
    """The rules, the parts of one that are alike again as one."""
    joined: dict[EgressRule, EgressRule] = {}
    for rule in rules:
        like = rule.replace(ports=())
        known = joined.get(like) if rule.id else None
        if known is None:
            joined[like if rule.id else rule] = rule
        else:
            joined[like] = known.replace(ports=(*known.ports, *(p for p in rule.ports if p not in known.ports)))
    return tuple(joined.values())


def _taken(approval: dict[str, Any]) -> Record:
    rule = EgressRule(host=approval["host"], ports=(approval["port"],), id=approval["id"])
    paths = approval.get("paths") or [approval["path"]]
    return Record("policy.revoke", rule, {"method": approval["method"], "paths": paths})


def _revoke(entries: list[str], before: EgressPolicy) -> Change:
    rules = list(before.allow)
    records: list[Record] = []
    changed: list[str] = []
    for entry in entries:
        (named,) = with_flags(Policy(), allow=[entry]).egress.allow
        ports = named.ports if ":" in entry else None
        hit = [r for r in rules if r.enabled and r.host == named.host and (ports is None or set(ports) & set(r.ports))]
        if not hit:
            raise UsageError(f"no rule allows `{entry}`", hint=_covering(rules, named.host))
        for rule in hit:
            gone = tuple(p for p in rule.ports if ports is None or p in ports)
            left = tuple(p for p in rule.ports if p not in gone)
            at = rules.index(rule)
            # what is taken away stays ready (of the policy's: listeners, credential and trust are there), and shut (I4)
            off = rule.replace(ports=gone, enabled=False)
            rules[at : at + 1] = [rule.replace(ports=left), off] if left else [off]
            records.append(Record("policy.revoke", rule.replace(ports=gone)))
            changed += [f"{rule.host}:{port}" for port in gone]
    made = _joined(rules)
    return Change(before.replace(allow=made), tuple(records), changed, _still(made, entries))


def _still(rules: tuple[EgressRule, ...], entries: Iterable[str]) -> list[str]:
    """What of the hosts that were named whole a wildcard still lets through, by ports that no rule of theirs had."""
    found = RuleSet(rules)
    hosts = [with_flags(Policy(), allow=[e]).egress.allow[0].host for e in entries if ":" not in e]
    return [
        f"{host}:{port} is still reached under `{rule.host}`, which can be revoked as a whole"
        for host in hosts
        for rule in found.candidates(host)
        for port in rule.ports
        if found.find(host, port)[0] is rule
    ]


def _covering(rules: list[EgressRule], host: str) -> str:
    wildcard = "*." + host.partition(".")[2]
    if any(r.host == wildcard for r in rules):
        return f"`{wildcard}` covers it; that rule can be revoked as a whole"
    return "`saggar egress show` lists what the run may reach"
