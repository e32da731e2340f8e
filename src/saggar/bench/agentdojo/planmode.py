"""Runs the written plans in AgentDojo's worlds: the executor and its rules, with L3 switched off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from saggar.bench.agentdojo import plans
from saggar.bench.agentdojo.declarations import SUITES
from saggar.bench.agentdojo.world import Suite, World
from saggar.core.decision import ALLOW, Decision
from saggar.core.tool import LabelLike, Outcome, ToolDeclaration
from saggar.plan.compile import compile_source
from saggar.plan.execute import Executor, RunResult
from saggar.plan.output import Owner
from saggar.plan.step import Plan
from saggar.plan.worker import Worker
from saggar.testing.plan import ScriptedHuman

_DIRECT = Decision(ALLOW, "l3_off", layer="L3")


@cache
def plan_of(suite: str, task_id: str, prompt: str, edition: int = 2) -> Plan:
    return compile_source(plans.sources(suite, edition)[task_id], prompt, SUITES[suite].keys(), file=f"{suite}.plan")


@dataclass(slots=True)
class WorldGateway:
    """Every call goes through: what is measured is L4 alone."""

    world: World
    tools: Mapping[str, ToolDeclaration]

    def call(
        self,
        token: str,  # noqa: ARG002
        tool: str,
        args: Mapping[str, Any],
        *,
        labels: Mapping[str, LabelLike] | None = None,  # noqa: ARG002
        call_id: str = "",
    ) -> Outcome:
        try:
            return Outcome("done", _DIRECT, self.world.shaped(tool, args), call_id)
        except Exception:  # noqa: BLE001  # whatever the suite's tool raises is its outcome
            self.world.executed.pop()
            return Outcome("failed", _DIRECT, call_id=call_id)

    def declaration(self, tool: str) -> ToolDeclaration | None:
        return self.tools.get(tool)

    def declarations(self) -> Mapping[str, ToolDeclaration]:
        return self.tools

    def mint(self, tool: str, args: Mapping[str, Any], ttl_s: float) -> str:  # noqa: ARG002
        return ""


def run(suite: Suite, task: Any, world: World, worker: Worker, human: ScriptedHuman, *, edition: int = 2) -> RunResult:
    """One run of the task's plan in the world."""
    tools = SUITES[suite.name]
    gateway = WorldGateway(world, tools)
    executor = Executor(tools, gateway, gateway, worker, human, human, owner=Owner(world.owner()))
    return executor.run(plan_of(suite.name, task.ID, task.PROMPT, edition))
