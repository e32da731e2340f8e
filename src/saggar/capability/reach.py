"""What a set of capabilities makes reachable in one task, before anything runs.

I1  Each leg of the lethal trifecta names the tools that give it; the trifecta is reachable when none is empty.
I2  Reachable is not reached: the built-in rule asks at the call that would close the triangle.

The Rule of Two counts untrusted input, private access and change of state or communication; without a human, two at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from saggar.capability.builtin import TRUSTED, bounded, outward
from saggar.capability.constraint import AnyValue
from saggar.capability.grant import Grant
from saggar.core.tool import ToolDeclaration


@dataclass(frozen=True, slots=True)
class Reach:
    """Names of granted tools by what they give. open_authority: `tool.argument` that no constraint bounds."""

    private: tuple[str, ...]
    untrusted: tuple[str, ...]
    outward: tuple[str, ...]
    changing: tuple[str, ...]
    open_authority: tuple[str, ...]

    @property
    def trifecta(self) -> bool:
        return bool(self.private and self.untrusted and self.outward)

    @property
    def rule_of_two(self) -> bool:
        """All three of the rule's properties are there, so some call will need a human."""
        return bool(self.private and self.untrusted and self.changing)


def reach(declarations: Iterable[ToolDeclaration], grants: Iterable[Grant]) -> Reach:
    held: dict[str, list[Grant]] = {}
    for grant in grants:
        held.setdefault(grant.tool, []).append(grant)
    tools = [d for d in declarations if d.name in held]
    return Reach(
        private=tuple(d.name for d in tools if any(x.private and x.readers != "*" for _, x in d.labels)),
        untrusted=tuple(d.name for d in tools if any(x.integrity not in TRUSTED for _, x in d.labels)),
        outward=tuple(d.name for d in tools if outward(d)),
        changing=tuple(d.name for d in tools if d.has_side_effect and not d.reversible),
        open_authority=tuple(
            f"{d.name}.{a.name}"
            for d in tools
            for a in d.authority_arguments
            if not all(bounded(dict(g.constraints).get(a.name, AnyValue())) for g in held[d.name] if _named(g, a.name))
        ),
    )


def _named(grant: Grant, argument: str) -> bool:
    return any(name == argument for name, _ in grant.constraints)


def lines_of(found: Reach) -> list[str]:
    """For people."""
    legs = (
        ("private data from", found.private),
        ("untrusted content from", found.untrusted),
        ("a way out by", found.outward),
    )
    out = [f"{what} {', '.join(names) or 'nothing'}" for what, names in legs]
    if found.trifecta:
        out.append("lethal trifecta: reachable; the call that would close it asks a person")
    elif found.rule_of_two:
        out.append("Rule of Two: all three are reachable; a change that cannot be undone asks")
    else:
        out.append("lethal trifecta: not reachable with these capabilities")
    if found.open_authority:
        out.append(f"chosen freely by the model, so each such call asks: {', '.join(found.open_authority)}")
    return out
