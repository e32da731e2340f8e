"""The rules that every task has: by the roles of arguments and the effect of the tool, not by the tool's name.

I1  A built-in rule only ever asks or denies; it never allows.
I2  An allow rule of the policy may answer for one by name (`accepts`), and the audit record then says so.
I3  Without labels the task's own history stands in for them, so nothing is trusted for want of tracking.

Sources: the lethal trifecta (private data, untrusted content, a way out); the Rule of Two (of untrusted input, private
access and change of state at most two without a human).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from saggar.capability.constraint import All, AnyValue, Constraint, EachItem, Exact, Range
from saggar.capability.grant import Grant
from saggar.core.tool import INTEGRITY, LabelLike, Role, ToolDeclaration

AUTHORITY = "builtin.authority"
READERS = "builtin.readers"
DESTRUCTIVE = "builtin.destructive"
AMOUNT = "builtin.amount"
TRIFECTA = "builtin.trifecta"
RULE_OF_TWO = "builtin.rule_of_two"
BUILTIN_RULES = (AUTHORITY, READERS, DESTRUCTIVE, AMOUNT, TRIFECTA, RULE_OF_TWO)
#: what no automatic reviewer may approve
HUMAN_ONLY = frozenset({AMOUNT, TRIFECTA})
#: whatever a label says that is none of these is untrusted
TRUSTED = frozenset(INTEGRITY) - {"untrusted"}
_IRREVERSIBLE = frozenset({"destructive", "pay"})
_OUTWARD = frozenset({"egress", "pay"})
_AUDIENCE: tuple[Role, Role] = ("recipient", "destination")


@dataclass(frozen=True, slots=True)
class Flow:
    """What the task has read so far; stands in for labels that nobody tracked (I3)."""

    private: bool = False
    untrusted: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A built-in rule that asks. argument: the one it is about, or ""."""

    rule: str
    reason: str
    argument: str = ""


def findings(
    declaration: ToolDeclaration,
    args: Mapping[str, Any],
    labels: Mapping[str, LabelLike],
    grant: Grant,
    flow: Flow,
) -> Iterator[Finding]:
    """Every built-in rule that asks about this call, in the order of `BUILTIN_RULES`.

    grant: the root of the token's chain, which the policy's author wrote; not what a holder narrowed it to.
    """
    limits = dict(grant.constraints)
    yield from _authority(declaration, args, labels, limits)
    yield from _readers(declaration, args, labels)
    if declaration.effect in _IRREVERSIBLE and not declaration.reversible:
        yield Finding(DESTRUCTIVE, "effect_irreversible")
    yield from _amount(declaration, grant, limits)
    if not declaration.has_side_effect:
        return
    private, untrusted = _mixed(declaration, args, labels, flow)
    if private and untrusted:
        if outward(declaration):
            yield Finding(TRIFECTA, "lethal_trifecta")
        elif not declaration.reversible:
            yield Finding(RULE_OF_TWO, "rule_of_two")


def outward(declaration: ToolDeclaration) -> bool:
    """Can the call carry data to somebody else?"""
    if declaration.effect in _OUTWARD:
        return True
    return declaration.has_side_effect and bool(declaration.with_role(*_AUDIENCE))


def _given(args: Mapping[str, Any], name: str) -> bool:
    return args.get(name) not in (None, [])


def _authority(
    declaration: ToolDeclaration,
    args: Mapping[str, Any],
    labels: Mapping[str, LabelLike],
    limits: Mapping[str, Constraint],
) -> Iterator[Finding]:
    for argument in declaration.authority_arguments:
        name = argument.name
        if not _given(args, name):
            continue
        label = labels.get(name)
        limit = limits.get(name, AnyValue())
        if label is None:
            if not bounded(limit):
                yield Finding(AUTHORITY, "authority_unbounded", name)
        elif label.integrity not in TRUSTED and not _endorses(limit, read_only=not declaration.has_side_effect):
            yield Finding(AUTHORITY, "authority_untrusted", name)


def _endorses(limit: Constraint, *, read_only: bool) -> bool:
    """Did the policy's author name this very value; or, for a read, its bounds?"""
    if isinstance(limit, EachItem):
        return _endorses(limit.inner, read_only=read_only)
    return isinstance(limit, Exact) or (read_only and bounded(limit))


def bounded(limit: Constraint) -> bool:
    """Does the constraint say anything?"""
    if isinstance(limit, EachItem):
        return bounded(limit.inner)
    if isinstance(limit, All):
        return any(bounded(part) for part in limit.parts)
    return not isinstance(limit, AnyValue)


def _readers(
    declaration: ToolDeclaration, args: Mapping[str, Any], labels: Mapping[str, LabelLike]
) -> Iterator[Finding]:
    if not outward(declaration):
        return
    audience: set[str] = set()
    for argument in declaration.with_role(*_AUDIENCE):
        value = args.get(argument.name)
        audience.update(str(v) for v in (value if type(value) is list else [value]) if v is not None)
    for argument in declaration.arguments:
        label = labels.get(argument.name)
        if argument.role in _AUDIENCE or label is None or label.readers is None:
            continue
        # nobody named is not nobody: a call that leaves without saying to whom may reach everyone
        if not audience or not audience <= label.readers:
            yield Finding(READERS, "reader_not_permitted", argument.name)


def _amount(declaration: ToolDeclaration, grant: Grant, limits: Mapping[str, Constraint]) -> Iterator[Finding]:
    if grant.budget.amount is not None or declaration.budget.amount is not None:
        return
    for argument in declaration.with_role("amount"):
        if declaration.has_side_effect and not _has_top(limits.get(argument.name, AnyValue())):
            yield Finding(AMOUNT, "amount_unbounded", argument.name)


def _has_top(limit: Constraint) -> bool:
    if isinstance(limit, All):
        return any(_has_top(part) for part in limit.parts)
    if isinstance(limit, Range):
        return limit.high is not None
    return bounded(limit)


def _mixed(
    declaration: ToolDeclaration, args: Mapping[str, Any], labels: Mapping[str, LabelLike], flow: Flow
) -> tuple[bool, bool]:
    """(private, untrusted) of what goes into the call."""
    private = untrusted = False
    for argument in declaration.arguments:
        if not _given(args, argument.name):
            continue
        label = labels.get(argument.name)
        if label is None:
            private, untrusted = private or flow.private, untrusted or flow.untrusted
        else:
            private = private or label.readers is not None
            untrusted = untrusted or label.integrity not in TRUSTED
    return private, untrusted
