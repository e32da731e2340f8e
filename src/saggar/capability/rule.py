"""One rule: what it looks at, and whether it fits a call.

I1  A rule is bound to a tool's declaration before it is asked; a rule that names what the tool does not have is a
    `UsageError` at load.
I2  An allow fits only when every value that it looks at fits; an ask or a deny fits as soon as one does, however deep in
    lists and objects. So a list with one forbidden element is forbidden, and one with one permitted element is not
    permitted.
I3  A rule that raises is a denial with the reason `rule_error` (the engine sees to it), never a skipped rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from saggar.audit import canonical
from saggar.capability.constraint import All, Constraint, EachItem, MaxLength
from saggar.capability.grammar import parse_term
from saggar.capability.grant import typed
from saggar.core.decision import ALLOW, ASK, DENY
from saggar.core.errors import ParseError, UsageError
from saggar.core.tool import ROLES, ArgumentDeclaration, LabelLike, Role, ToolDeclaration
from saggar.policy.tools import ToolRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.core.decision import EffectName

EVERY = "*"


@dataclass(frozen=True, slots=True)
class CallView:
    """What a rule may look at. args: complete. labels: of the arguments that somebody tracked."""

    declaration: ToolDeclaration
    args: Mapping[str, Any]
    labels: Mapping[str, LabelLike]


@dataclass(frozen=True, slots=True)
class Example:
    """A call and whether the rule fits it; checked at load, so an inverted rule does not load."""

    args: Mapping[str, Any]
    fits: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """As written, in the policy file or in Python.

    id: unique. effect: allow, ask or deny. reason: one line for humans, shown on the approval card. tool: a name, or
    `*`. capability: `operation:resource`, another way to name tools. when: argument to grammar term; all must hold.
    roles: role to grammar term, over every argument of that role. unless: argument to term, for ask and deny: the rule
    does not fit when all of these hold for all elements. predicate: Python's own say, given the call. accepts: built-in
    rules that this allow answers for (`builtin.destructive`). human_only: only a person may approve what this asks.
    """

    id: str
    effect: EffectName
    reason: str = ""
    tool: str = ""
    capability: str = ""
    when: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    predicate: Callable[[CallView], bool] | None = None
    accepts: tuple[str, ...] = ()
    human_only: bool = False
    examples: tuple[Example, ...] = ()

    def names(self, declaration: ToolDeclaration) -> bool:
        if self.tool:
            return self.tool in (EVERY, declaration.name)
        return self.capability == f"{declaration.operation}:{declaration.resource}"


@dataclass(frozen=True, slots=True)
class BoundRule:
    """A rule for one tool. when, unless: pairs of argument and constraint, on the element where the argument is a list;
    all must hold. any_of: groups of which one must hold (an ask's or a deny's role, over the arguments that have it)."""

    rule: Rule
    tool: str
    when: tuple[tuple[str, Constraint], ...]
    unless: tuple[tuple[str, Constraint], ...]
    any_of: tuple[tuple[tuple[str, Constraint], ...], ...] = ()

    def fits(self, call: CallView) -> bool:
        every = self.rule.effect == ALLOW
        for name, limit in self.when:
            if not holds(limit, call.args[name], every=every):
                return False
        for group in self.any_of:
            if not any(holds(limit, call.args[name], every=False) for name, limit in group):
                return False
        if self.unless and all(holds(limit, call.args[name], every=True) for name, limit in self.unless):
            return False
        return self.rule.predicate is None or bool(self.rule.predicate(call))

    def looks_at(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.when) | frozenset(name for name, _ in self.unless)


def holds(limit: Constraint, value: Any, *, every: bool) -> bool:
    """Does `limit` allow the value, or (of a list) every element; or, for an ask or a deny, anything within it? An
    argument that is absent neither harms an allow nor feeds an ask or a deny."""
    if value is None:
        return every
    return _all_of(limit, value) if every else _some_of(limit, value)


def _all_of(limit: Constraint, value: Any) -> bool:
    if type(value) is list and not _on_list(limit):
        return all(_all_of(limit, item) for item in value)
    return limit.allows(value)


def _some_of(limit: Constraint, value: Any) -> bool:
    """Keys count as well: a tool may take them for addresses. Where a part speaks of the whole list, each part is asked
    for itself, which fits more calls and never fewer."""
    if isinstance(limit, All) and _on_list(limit):
        return all(_some_of(part, value) for part in limit.parts)
    if type(value) is dict:
        return any(_some_of(limit, item) for pair in value.items() for item in pair)
    if type(value) is not list or isinstance(limit, MaxLength):
        return limit.allows(value)
    inner = limit.inner if isinstance(limit, EachItem) else limit
    return any(_some_of(inner, item) for item in value)


def _on_list(limit: Constraint) -> bool:
    return isinstance(limit, EachItem | MaxLength) or (isinstance(limit, All) and any(map(_on_list, limit.parts)))


def bind_rule(rule: Rule, declaration: ToolDeclaration) -> BoundRule:
    """Raises `UsageError` (I1)."""
    when = [_bound(rule, declaration, name, text) for name, text in rule.when.items()]
    any_of = []
    for role, text in rule.roles.items():
        group = [(a.name, _term(rule, a, text)) for a in declaration.arguments if a.role == role]
        if rule.effect == ALLOW:
            when += group
        else:
            any_of.append(tuple(group))
    unless = [_bound(rule, declaration, name, text) for name, text in rule.unless.items()]
    when, unless = sorted(when, key=_name), sorted(unless, key=_name)
    return BoundRule(rule, declaration.name, tuple(when), tuple(unless), tuple(any_of))


def _name(pair: tuple[str, Constraint]) -> str:
    return pair[0]


def _bound(rule: Rule, declaration: ToolDeclaration, name: str, text: str) -> tuple[str, Constraint]:
    argument = declaration.argument(name)
    if argument is None:
        raise UsageError(
            f"rule `{rule.id}` looks at `{name}`, which the tool `{declaration.name}` does not have",
            hint=f"it has {', '.join(a.name for a in declaration.arguments) or 'none'}",
        )
    return name, _term(rule, argument, text)


def _term(rule: Rule, argument: ArgumentDeclaration, text: str) -> Constraint:
    try:
        term = parse_term(text)
        spec = argument.type
        whole = any(f.kind in ("each", "length") for f in term)
        while spec.items is not None and not whole:
            spec = spec.items
        return typed(term, spec)
    except ParseError as e:
        raise UsageError(f"rule `{rule.id}`, argument `{argument.name}`: {e}") from None


def role_of(text: str, rule: Rule) -> Role:
    for role in ROLES:
        if role == text:
            return role
    raise UsageError(f"rule `{rule.id}`: `{text}` is no role", hint=", ".join(ROLES))


def from_policy(rule: ToolRule) -> Rule:
    """The rule of one `[[tools.rule]]` table. Raises `UsageError`."""
    return Rule(
        id=rule.id,
        effect=_effect(rule.effect, rule.id),
        reason=rule.reason,
        tool=rule.tool,
        capability=rule.capability,
        when=dict(rule.when),
        roles=dict(rule.roles),
        unless=dict(rule.unless),
        accepts=rule.accepts,
        human_only=rule.human_only,
        examples=tuple(Example(canonical.decode(e.args.encode()), e.fits) for e in rule.example),
    )


def _effect(word: str, ident: str) -> EffectName:
    for known in (ALLOW, ASK, DENY):
        if word == known:
            return known
    raise UsageError(f"rule `{ident}`: `{word}` is neither allow, ask nor deny")
