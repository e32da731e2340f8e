"""AgentDojo's overprovision, before and after grants per task, measured by `saggar audit overprovision`'s own report.

    python bench/overprovision.py            needs the `bench` extra (agentdojo)

Before: every tool of the suite, as the suites hand them out. After: the tools that the task's plan names, which was
written from the user's prompt alone. Each user task's ground truth is played through a real gateway with a token of
those grants; a call that the grants refuse is counted, so a grant that is too small shows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from saggar.bench.agentdojo.declarations import SUITES
from saggar.bench.agentdojo.planmode import plan_of
from saggar.bench.agentdojo.world import LATEST, Suite, load, truth_of
from saggar.capability.builtin import BUILTIN_RULES
from saggar.capability.constraint import AnyValue
from saggar.capability.declare import Tool
from saggar.capability.desk_host import Desk
from saggar.capability.grant import Grant
from saggar.capability.overprovision import Report, report
from saggar.capability.rule import Rule
from saggar.core.tool import Budget, ToolDeclaration
from saggar.plan.step import Call, all_steps
from saggar.testing.capability import MemoryLog


def open_grant(declaration: ToolDeclaration) -> Grant:
    """Everything that a tool can do: what an agent has that is given the tool."""
    limits = tuple(sorted((a.name, AnyValue()) for a in declaration.arguments))
    return Grant(declaration.name, declaration.digest, declaration.operation, declaration.resource, limits, Budget())


def play(suite: Suite, task: Any, tools: dict[str, ToolDeclaration], names: set[str]) -> tuple[Report, int]:
    """The report of one task's log, and how many of the ground truth's calls were refused."""
    world = suite.world(task)

    def body(name: str, **args: Any) -> Any:
        return world.call(name, {k: v for k, v in args.items() if v is not None})

    made: list[Tool] = []
    for name, declaration in tools.items():
        run: Callable[..., Any] = partial(body, name)
        made.append(Tool(declaration, run, {}, is_async=False))
    log = MemoryLog()
    desk = Desk(task.ID, made, audit=log, rules=[Rule("all", "allow", tool="*", accepts=BUILTIN_RULES)])
    token = desk.gateway.token([open_grant(tools[n]) for n in sorted(names)], ttl_s=3600)
    refused = 0
    for name, args in truth_of(task, world.before):
        outcome = desk.gateway.call(token, name, json.loads(json.dumps(args, default=str)))
        refused += outcome.status == "denied"
        if outcome.status == "denied" and os.environ.get("SHOW"):
            print(
                f"  {suite.name}/{task.ID}: {name}: {outcome.decision.reason} {outcome.decision.detail}",
                file=sys.stderr,
            )
    return report(log.records, task.ID), refused


def main() -> int:
    print(f"AgentDojo {LATEST}: tools given per tool used; the mean over tasks, and over all tasks' tools together\n")
    print(f"{'suite':<10} {'tasks':>5} {'before':>7} {'after':>7} {'before':>9} {'after':>7} {'refused':>8}")
    rows: list[tuple[str, int, int, int, int]] = []
    for name, inner in load().items():
        suite, tools = Suite(name, inner), dict(SUITES[name])
        for task in suite.user_tasks.values():
            plan = plan_of(name, task.ID, task.PROMPT)
            names = {s.tool for s in all_steps(plan) if isinstance(s, Call)}
            found, missed = play(suite, task, tools, names)
            truth = {f for f, _ in truth_of(task, suite.world(task).before)}
            rows.append((name, len(found.tools), len(found.granted_tools), len(truth), missed))
        line(name, [r for r in rows if r[0] == name])
    line("all", rows)
    return 0


def line(name: str, rows: list[tuple[str, int, int, int, int]]) -> None:
    before, after, used, refused = (sum(r[i] for r in rows) for i in (1, 2, 3, 4))
    each = [sum(r[i] / max(1, r[3]) for r in rows) / len(rows) for i in (1, 2)]
    print(
        f"{name:<10} {len(rows):>5} {each[0]:>7.1f} {each[1]:>7.2f} {before / used:>9.1f} {after / used:>7.2f} {refused:>8}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
