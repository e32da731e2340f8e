"""Rules that can never decide, and rules that contradict each other: found at load.

I1  `covered(a, b)` implies that every call that `a` fits, `b` fits (lists without elements apart).
I2  A rule covered by a stronger one, or by an earlier one of its own effect, on every tool that it names, is an error.
I3  Two rules of one condition and two effects are a contradiction, an error of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from saggar.capability.constraint import AnyValue
from saggar.capability.narrower import narrower
from saggar.capability.rule import BoundRule, Rule
from saggar.core.decision import DENY, STRENGTH
from saggar.core.errors import UsageError


def covered(inner: BoundRule, outer: BoundRule) -> bool:
    """Sound (I1). A predicate covers nothing; what is exempt by `unless` covers only what has the same exemption."""
    if outer.rule.predicate is not None or inner.tool != outer.tool:
        return False
    if outer.unless and outer.unless != inner.unless:
        return False
    mine = dict(inner.when)
    for group in outer.any_of:
        same = group in inner.any_of
        if not same and not any(narrower(mine.get(name, AnyValue()), limit) for name, limit in group):
            return False
    return all(narrower(mine.get(name, AnyValue()), limit) for name, limit in outer.when)


def check_order(rules: Sequence[Rule], by_tool: Mapping[str, Sequence[BoundRule]]) -> None:
    """Raises `UsageError` (I2, I3)."""
    place = {rule.id: i for i, rule in enumerate(rules)}
    for rule in rules:
        here = [(bound, others) for others in by_tool.values() for bound in others if bound.rule is rule]
        if not here:
            raise UsageError(f"no tool has all the roles that the rule `{rule.id}` looks at")
        blockers = [_blocker(bound, others, place) for bound, others in here]
        if None in blockers:
            continue
        blocker = next(b for b in blockers if b is not None).rule
        if blocker.effect != rule.effect and _condition(blocker) == _condition(rule):
            raise UsageError(f"the rules `{rule.id}` and `{blocker.id}` contradict each other")
        raise UsageError(
            f"the rule `{rule.id}` can never decide: `{blocker.id}` ({blocker.effect}) covers it",
            hint="remove one, or narrow the stronger",
        )


def _condition(rule: Rule) -> tuple[object, ...]:
    return rule.tool, rule.capability, rule.when, rule.roles, rule.unless


def _blocker(bound: BoundRule, others: Sequence[BoundRule], place: Mapping[str, int]) -> BoundRule | None:
    mine = bound.rule
    for other in others:
        if not covered(bound, other):
            continue
        theirs = other.rule
        if STRENGTH[theirs.effect] > STRENGTH[mine.effect]:
            # an ask over an allow leaves the allow its word on built-in rules
            if theirs.effect == DENY or not mine.accepts:
                return other
        elif theirs.effect == mine.effect and place[theirs.id] < place[mine.id] and theirs.accepts == mine.accepts:
            return other
    return None
