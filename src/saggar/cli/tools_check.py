"""What can be said about `[tools]` without the tools: whether its texts are of the grammar at all."""

from __future__ import annotations

from saggar.capability.grammar import parse, parse_term
from saggar.core.errors import ParseError, UsageError
from saggar.policy.model import Policy


def grammar_problems(policy: Policy, name: str) -> list[UsageError]:
    """Every capability and term that does not parse, with its line."""
    found = []
    for i, text in enumerate(policy.tools.capabilities):
        try:
            parse(text)
        except ParseError as e:
            found.append(_problem(policy, name, ("tools.capabilities",), f"capability {i}: {e}"))
    for i, rule in enumerate(policy.tools.rule):
        for key, pairs in (("when", rule.when), ("roles", rule.roles), ("unless", rule.unless)):
            for argument, text in pairs:
                try:
                    parse_term(text)
                except ParseError as e:
                    here = (f"tools.rule[{i}].{key}", f"tools.rule[{i}]")
                    found.append(_problem(policy, name, here, f"`{argument}` of rule `{rule.id}`: {e}"))
    return found


def _problem(policy: Policy, name: str, keys: tuple[str, ...], message: str) -> UsageError:
    origin = next((policy.origins[k] for k in keys if k in policy.origins), None)
    return UsageError(
        message, file=name, line=origin.line if origin else 0, hint="docs/CAPABILITIES.md has the grammar"
    )
