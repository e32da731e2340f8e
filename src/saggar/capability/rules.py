"""The rules of a task: loaded with checks, then asked about calls.

I1  Deny beats ask beats allow; where no rule fits, the answer is deny.
I2  A rule set with an unreachable rule, two rules that contradict each other, an authority argument that an allow does
    not cover, or an example that comes out otherwise, does not load.
I3  An engine that fails denies: `rule_error`, with the rule's id.
I4  An outside engine (Cedar) is asked last and can only make the answer stronger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from saggar.capability.builtin import BUILTIN_RULES, HUMAN_ONLY, Finding, Flow, findings
from saggar.capability.call import BadCall, prepare
from saggar.capability.grant import Grant
from saggar.capability.rule import BoundRule, CallView, Rule, bind_rule, role_of
from saggar.capability.rule_check import check_order, covered
from saggar.core.decision import ALLOW, ASK, DENY, STRENGTH, Decision
from saggar.core.errors import UsageError
from saggar.core.tool import AUTHORITY_ROLES, LabelLike, ToolDeclaration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.core.decision import EffectName

REFUSED = "this call is not allowed"
ASKED = "this call needs approval"


class Tightening(Protocol):
    """An outside engine: the stronger of its word and ours counts (I4)."""

    name: str

    def decide(self, call: CallView) -> Decision | None: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision, what it asks for, and how it came about.

    asks: (rule id, reason) of everything that a human would have to accept. accepted: built-in rules that an allow
    rule answered for. fitting: ids of the policy's rules that fit, strongest first.
    """

    decision: Decision
    asks: tuple[tuple[str, str], ...] = ()
    accepted: tuple[str, ...] = ()
    fitting: tuple[str, ...] = ()
    human_only: bool = False


class RuleSet:
    """Rules bound to the tools of a task. Load once; asking has no side effect."""

    __slots__ = ("_by_tool", "_outside", "rules")

    def __init__(
        self,
        rules: Sequence[Rule],
        declarations: Iterable[ToolDeclaration],
        *,
        outside: Sequence[Tightening] = (),
    ) -> None:
        """Raises `UsageError` (I2)."""
        known = {d.name: d for d in declarations}
        self.rules = tuple(rules)
        self._outside = tuple(outside)
        _check_words(self.rules, known)
        self._by_tool: dict[str, tuple[BoundRule, ...]] = {}
        for name, declaration in known.items():
            bound = [bind_rule(rule, declaration) for rule in self.rules if _concerns(rule, declaration)]
            for rule in bound:
                _check_cover(rule, declaration)
                _check_examples(rule, declaration)
            self._by_tool[name] = tuple(sorted(bound, key=_strongest_first))
        check_order(self.rules, self._by_tool)

    def decide(
        self,
        call: CallView,
        grant: Grant,
        flow: Flow,
    ) -> Verdict:
        """The verdict on one call. Never raises."""
        fitting: list[Rule] = []
        for bound in self._by_tool.get(call.declaration.name, ()):
            try:
                fits = bound.fits(call)
            except Exception as e:  # noqa: BLE001  # somebody's predicate; an engine that fails denies (I3)
                return Verdict(_deny("rule_error", bound.rule.id, {"error": type(e).__name__}))
            if not fits:
                continue
            if bound.rule.effect == DENY:
                return Verdict(_deny("rule_deny", bound.rule.id, {"why": bound.rule.reason}), fitting=(bound.rule.id,))
            fitting.append(bound.rule)
        allows = [r for r in fitting if r.effect == ALLOW]
        asking = [r for r in fitting if r.effect == ASK]
        if not allows and not asking:
            return Verdict(_deny("no_rule", "", {}))
        return self._tightened(call, _weigh(call, grant, flow, asking, allows))

    def _tightened(self, call: CallView, verdict: Verdict) -> Verdict:
        for engine in self._outside:
            try:
                word = engine.decide(call)
            except Exception as e:  # noqa: BLE001  # I3
                word = _deny("rule_error", engine.name, {"error": type(e).__name__})
            if word is not None and STRENGTH[word.effect] > STRENGTH[verdict.decision.effect]:
                asks = (*verdict.asks, (word.rule, word.reason)) if word.effect == ASK else verdict.asks
                verdict = Verdict(word, asks, verdict.accepted, verdict.fitting, verdict.human_only)
        return verdict

    def for_tool(self, tool: str) -> tuple[BoundRule, ...]:
        """The rules that name this tool, strongest first, each in the order written."""
        return self._by_tool.get(tool, ())


def _weigh(call: CallView, grant: Grant, flow: Flow, asking: Sequence[Rule], allows: Sequence[Rule]) -> Verdict:
    accepts = {name for rule in allows for name in rule.accepts}
    found = list(findings(call.declaration, call.args, call.labels, grant, flow))
    accepted = tuple(sorted({f.rule for f in found} & accepts))
    open_findings = [f for f in found if f.rule not in accepts]
    asks = tuple((r.id, r.reason or "rule_ask") for r in asking) + tuple((f.rule, f.reason) for f in open_findings)
    ids = tuple(r.id for r in (*asking, *allows))
    if not asks:
        decision = Decision(ALLOW, "rule_allow", layer="L3", rule=allows[0].id)
        return Verdict(decision, accepted=accepted, fitting=ids)
    human = any(r.human_only for r in asking) or any(f.rule in HUMAN_ONLY for f in open_findings)
    reason = "rule_ask" if asking else open_findings[0].reason
    decision = Decision(ASK, reason, layer="L3", rule=asks[0][0], public=ASKED, detail=_about(open_findings))
    return Verdict(decision, asks, accepted, ids, human)


def _about(found: Sequence[Finding]) -> dict[str, Any]:
    return {"findings": [{"rule": f.rule, "reason": f.reason, "argument": f.argument} for f in found]}


def _deny(reason: str, rule: str, detail: dict[str, Any]) -> Decision:
    return Decision(DENY, reason, layer="L3", rule=rule, public=REFUSED, detail=detail)


def _concerns(rule: Rule, declaration: ToolDeclaration) -> bool:
    """A rule by role says nothing about a tool without that role: an allow would fit it for want of anything to check."""
    return rule.names(declaration) and all(declaration.with_role(role_of(r, rule)) for r in rule.roles)


def _strongest_first(bound: BoundRule) -> int:
    return -STRENGTH[bound.rule.effect]


def _check_words(rules: Sequence[Rule], known: Mapping[str, ToolDeclaration]) -> None:
    seen: set[str] = set()
    for rule in rules:
        if not rule.id or rule.id in seen or rule.id.startswith("builtin."):
            raise UsageError(f"the rule id `{rule.id}` is empty, taken, or reserved")
        seen.add(rule.id)
        if bool(rule.tool) == bool(rule.capability):
            raise UsageError(f"rule `{rule.id}` names its tools by `tool` or by `capability`, one of them")
        effects: tuple[EffectName, ...] = (ALLOW, ASK, DENY)
        if rule.effect not in effects:
            raise UsageError(f"rule `{rule.id}`: `{rule.effect}` is neither allow, ask nor deny")
        if not any(rule.names(d) for d in known.values()):
            raise UsageError(
                f"rule `{rule.id}` names the tool `{rule.tool or rule.capability}`, which is not there",
                hint=f"there are {', '.join(sorted(known)) or 'none'}",
            )
        _check_options(rule, known)


def _check_options(rule: Rule, known: Mapping[str, ToolDeclaration]) -> None:
    for name in rule.accepts:
        if rule.effect != ALLOW or name not in BUILTIN_RULES:
            raise UsageError(
                f"rule `{rule.id}` accepts `{name}`", hint=f"an allow may accept {', '.join(BUILTIN_RULES)}"
            )
    if rule.unless and rule.effect == ALLOW:
        raise UsageError(f"rule `{rule.id}`: an allow has no `unless`", hint="write what it allows under `when`")
    for text in rule.roles:
        role = role_of(text, rule)
        if not any(d.with_role(role) for d in known.values() if rule.names(d)):
            raise UsageError(f"rule `{rule.id}` looks at the role `{role}`, which none of its tools has")


def _check_cover(bound: BoundRule, declaration: ToolDeclaration) -> None:
    """An allow that looks at one authority argument must look at all: else the attacker uses the other."""
    rule = bound.rule
    if rule.effect != ALLOW or rule.predicate is not None:
        return
    looked = bound.looks_at()
    authority = [a.name for a in declaration.arguments if a.role in AUTHORITY_ROLES]
    missed = [name for name in authority if name not in looked]
    if looked and missed:
        raise UsageError(
            f"rule `{rule.id}` allows `{declaration.name}` but does not look at its authority argument `{missed[0]}`",
            hint=f'when = {{ {missed[0]} = "*" }} says that any value will do',
        )


def _check_examples(bound: BoundRule, declaration: ToolDeclaration) -> None:
    for example in bound.rule.examples:
        try:
            call = prepare(declaration, example.args, "")
        except BadCall as e:
            raise UsageError(f"rule `{bound.rule.id}`: an example is no call of `{declaration.name}`: {e}") from None
        if bound.fits(CallView(declaration, call.args, _NO_LABELS)) is not example.fits:
            says = "fits" if not example.fits else "does not fit"
            raise UsageError(
                f"rule `{bound.rule.id}` {says} its example {dict(example.args)!r}", hint="is it inverted?"
            )


_NO_LABELS: dict[str, LabelLike] = {}

__all__ = ["ASKED", "REFUSED", "RuleSet", "Tightening", "Verdict", "covered"]
