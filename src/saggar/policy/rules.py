"""The allowlist as a whole: rules that repeat or contradict each other, names that are too wide.

I1  Of the rules that pass, at most one exact rule and at most one wildcard rule cover a given host and port.
I2  No wildcard stands over a public suffix or an ancestor of one, no rule names a metadata service unless it says so.

An exact rule beats a wildcard for its host; that is order of precision, not disagreement.
"""

from __future__ import annotations

from saggar.policy.model import MAX_RULES, EgressRule
from saggar.policy.values import is_metadata, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.policy.positions import Path
    from saggar.policy.table import Report

WILDCARD_PORTS = frozenset({80, 443})


def check_rules(rules: list[EgressRule | None], path: Path, report: Report) -> tuple[EgressRule, ...]:
    """The rules with their ids; what is wrong with them goes to `report`."""
    if len(rules) > MAX_RULES:
        report.wrong((*path, MAX_RULES), f"more than {MAX_RULES} rules")
        return ()
    named: list[EgressRule] = []
    owner: dict[tuple[str, int], tuple[int, EgressRule]] = {}
    ids: dict[str, int] = {}
    for i, rule in enumerate(rules):
        if rule is None:
            continue
        here = (*path, i)
        for key, message, hint in problems_of(rule):
            report.wrong((*here, key), message, hint)
        _check_overlap(rule, i, here, owner, report)
        named.append(rule if rule.id else rule.replace(id=rule_id(i)))
        if ids.setdefault(named[-1].id, i) != i:
            report.wrong((*here, "id"), f"the id `{named[-1].id}` is taken by rule {ids[named[-1].id]}")
    return tuple(named)


def rule_id(index: int) -> str:
    """The id of a rule that has none of its own."""
    return f"egress.allow[{index}]"


def problems_of(rule: EgressRule) -> list[tuple[str, str, str]]:
    """(key, message, hint) for everything wrong with one rule by itself."""
    found: list[tuple[str, str, str]] = []
    if not rule.ports:
        found.append(("ports", "a rule without ports allows nothing", ""))
    if is_metadata(rule.host) and not rule.allow_metadata:
        message = f"`{rule.host}` is a cloud's metadata service, which gives the host's credentials to whoever asks"
        found.append(("host", message, "add `allow_metadata = true` to the rule if that is meant"))
    if rule.host.startswith("*."):
        odd = [p for p in rule.ports if p not in WILDCARD_PORTS]
        if odd:
            message = f"a wildcard reaches ports 80 and 443 only, not {odd[0]}"
            found.append(("ports", message, "name the host for other ports"))
        from saggar.policy.suffixes import covering_suffix

        suffix = covering_suffix(rule.host[2:])
        if suffix:
            whose = "a public suffix" if suffix == rule.host[2:] else f"above the public suffix `{suffix}`"
            message = f"`{show(rule.host)}` stands for hosts of unrelated owners: `{rule.host[2:]}` is {whose}"
            found.append(("host", message, "name the hosts, or a wildcard below one owner's name"))
    return found


def _check_overlap(
    rule: EgressRule, index: int, here: Path, owner: dict[tuple[str, int], tuple[int, EgressRule]], report: Report
) -> None:
    for port in rule.ports:
        first = owner.setdefault((rule.host, port), (index, rule))
        if first[0] == index:
            continue
        other = report.where((*here[:-1], first[0]))
        if rule.same_terms(first[1]):
            report.wrong(here, f"`{rule.host}:{port}` is allowed twice, first {other}", "remove one of the two")
        else:
            report.wrong(here, f"two rules for `{rule.host}:{port}` disagree, the other one is {other}", "merge them")
        return
