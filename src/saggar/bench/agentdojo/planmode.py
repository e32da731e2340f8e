"""Runs the written plans in AgentDojo's worlds: the executor and its rules, without L3, or with L3's built-in rules
looking on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any

from saggar.bench.agentdojo import plans
from saggar.bench.agentdojo.declarations import SUITES
from saggar.bench.agentdojo.world import Suite, World
from saggar.capability.builtin import Flow, findings
from saggar.capability.grant import Grant
from saggar.core.decision import ALLOW, Decision
from saggar.core.tool import Budget, LabelLike, Outcome, ToolDeclaration
from saggar.plan import flow
from saggar.plan.compile import compile_source
from saggar.plan.execute import Executor, RunResult
from saggar.plan.output import Owner
from saggar.plan.step import Plan
from saggar.plan.worker import Worker
from saggar.testing.plan import ScriptedHuman

_DIRECT = Decision(ALLOW, "l3_off", layer="L3")


@cache
def plan_of(suite: str, task_id: str, prompt: str, edition: int = plans.LATEST) -> Plan:
    return compile_source(plans.sources(suite, edition)[task_id], prompt, SUITES[suite].keys(), file=f"{suite}.plan")


@dataclass(slots=True)
class WorldGateway:
    """Every call goes through: what is measured is L4 alone. questions: where it is given, the built-in rules of L3
    that would have asked about a call, with the labels that a session hands them, no rule of the policy accepting
    anything, and a budget for whatever is paid."""

    world: World
    tools: Mapping[str, ToolDeclaration]
    questions: list[str] | None = None

    def call(
        self,
        token: str,  # noqa: ARG002
        tool: str,
        args: Mapping[str, Any],
        *,
        labels: Mapping[str, LabelLike] | None = None,
        call_id: str = "",
    ) -> Outcome:
        if self.questions is not None:
            t = self.tools[tool]
            grant = Grant(tool, t.digest, t.operation, t.resource, (), Budget(amount="1000000"))
            self.questions.extend(f.rule for f in findings(t, args, labels or {}, grant, Flow()))
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


@dataclass(slots=True)
class Timed:
    """The rules of L4, with the time that each decision took, in microseconds."""

    micros: list[float] = field(default_factory=list)

    def __call__(self, *args: Any) -> Decision:
        start = perf_counter()
        decision = flow.decide(*args)
        self.micros.append((perf_counter() - start) * 1e6)
        return decision


def run(
    suite: Suite,
    task: Any,
    world: World,
    worker: Worker,
    human: ScriptedHuman,
    *,
    edition: int = plans.LATEST,
    decide: Callable[..., Decision] = flow.decide,
    drift_percent: float = 0.0,
    questions: list[str] | None = None,
) -> RunResult:
    """One run of the task's plan in the world. questions: as of `WorldGateway`."""
    tools = SUITES[suite.name]
    gateway = WorldGateway(world, tools, questions)
    owner = Owner(world.owner())
    executor = Executor(
        tools, gateway, gateway, worker, human, human, owner=owner, decide=decide, drift_percent=drift_percent
    )
    return executor.run(plan_of(suite.name, task.ID, task.PROMPT, edition))
