"""The rules over tools as a whole: ids that repeat, and tools named twice or not at all.

Pure shape; whether a rule means anything is known once there are tools (`capability.rules`).
"""

from __future__ import annotations

from saggar.policy.tools import ToolExample, ToolRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.policy.positions import Path
    from saggar.policy.table import Report


def check_tool_rules(rules: list[ToolRule | None], path: Path, report: Report) -> tuple[ToolRule, ...]:
    seen: dict[str, int] = {}
    kept = []
    for i, rule in enumerate(rules):
        if rule is None:
            continue
        if seen.setdefault(rule.id, i) != i:
            report.wrong((*path, i, "id"), f"the id `{rule.id}` is taken by rule {seen[rule.id]}")
        if bool(rule.tool) == bool(rule.capability):
            report.wrong((*path, i), "a rule names its tools by `tool` or by `capability`, one of them")
        kept.append(rule)
    return tuple(kept)


def keep_all(examples: list[ToolExample | None], path: Path, report: Report) -> tuple[ToolExample, ...]:  # noqa: ARG001
    return tuple(e for e in examples if e is not None)
