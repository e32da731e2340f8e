"""The same suites with a real planner and worker, through any OpenAI-compatible or Anthropic endpoint.

Resumable: each run's result is one line of a file, and runs that are in it are not run again. A cost estimate comes
first. The key is read from an environment variable by name and goes into the request's header alone.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from saggar.bench.agentdojo.attack import hostile
from saggar.bench.agentdojo.declarations import SUITES
from saggar.bench.agentdojo.measure import said
from saggar.bench.agentdojo.planmode import WorldGateway, plan_of
from saggar.bench.agentdojo.world import Suite, World
from saggar.bench.estimate import CHARS_A_TOKEN, estimated
from saggar.bench.kept_host import Kept
from saggar.bench.stats import triplet, wilson
from saggar.core.errors import PeerError
from saggar.plan.check import check
from saggar.plan.endpoint import Format, Usage, key_header
from saggar.plan.endpoint_host import Endpoint
from saggar.plan.execute import Executor
from saggar.plan.models import LANGUAGE, ModelPlanner, ModelWorker, describe
from saggar.plan.output import Owner
from saggar.plan.step import Extract, Plan, Summarise, all_steps
from saggar.runtime.session_host import read_plan
from saggar.testing.plan import ScriptedHuman

#: what a worker is shown on average, in tokens, and what a plan and an answer come to
DATA_TOKENS, PLAN_TOKENS, ANSWER_TOKENS = 900, 350, 120
#: how the status of a job begins whose planner could not be asked
NO_ANSWER = "planner: "


@dataclass(slots=True)
class Options:
    """out: the results file. price: per million tokens in and out, in any currency; None where nobody said."""

    model: str
    base: str
    form: Format = "openai"
    key_env: str = ""
    out: str = "agentdojo.jsonl"
    suites: tuple[str, ...] = tuple(SUITES)
    attacks: bool = True
    limit: int = 0
    price: tuple[float, float] | None = None

    def headers(self) -> dict[str, str]:
        return key_header(self.form, self.key_env, os.environ)


@dataclass(frozen=True, slots=True)
class Job:
    suite: Suite
    task: Any
    injection: Any

    @property
    def name(self) -> str:
        return f"{self.suite.name}/{self.task.ID}/{self.injection.ID if self.injection is not None else 'benign'}"


def jobs(suites: Mapping[str, Suite], options: Options) -> Iterator[Job]:
    """Benign runs first, then pairs."""
    chosen = [suites[name] for name in options.suites]
    for suite in chosen:
        for task in suite.user_tasks.values():
            yield Job(suite, task, None)
    if options.attacks:
        for suite in chosen:
            for task in suite.user_tasks.values():
                for injection in suite.injection_tasks.values():
                    yield Job(suite, task, injection)


def estimate(todo: list[Job], options: Options) -> dict[str, Any]:
    """Calls, tokens and cost before anything is sent: from the prompts' length and the written plans' worker steps."""
    plans: dict[str, int] = {}
    sent = got = calls = 0
    for job in todo:
        key = f"{job.suite.name}/{job.task.ID}"
        if key not in plans:
            plan = plan_of(job.suite.name, job.task.ID, job.task.PROMPT)
            plans[key] = sum(isinstance(s, Extract | Summarise) for s in all_steps(plan))
        planner = len(LANGUAGE) + len(job.task.PROMPT)
        planner += sum(len(describe(t)) + 1 for t in SUITES[job.suite.name].values())
        calls += 1 + plans[key]
        sent += planner // CHARS_A_TOKEN + plans[key] * DATA_TOKENS
        got += PLAN_TOKENS + plans[key] * ANSWER_TOKENS
    return estimated(len(todo), calls, sent, got, options.price)


@dataclass(slots=True)
class Live:
    """Runs jobs and writes their results."""

    options: Options
    suites: Mapping[str, Suite]
    endpoint: Endpoint
    kept: Kept

    @property
    def done(self) -> dict[str, dict[str, Any]]:
        return self.kept.done

    def todo(self) -> list[Job]:
        found = [j for j in jobs(self.suites, self.options) if j.name not in self.done]
        return found[: self.options.limit] if self.options.limit else found

    def run(self, progress: bool) -> bool:
        """Whether the endpoint answered anything, where there was something to ask. Raises `UsageError` where the results
        cannot be kept, before any model is called."""
        self.kept.ready()
        todo = self.todo()
        silent = 0
        for n, job in enumerate(todo, 1):
            result = self.one(job)
            silent += result["status"].startswith(NO_ANSWER)
            self.kept.add(result)
            if progress:
                bar = "#" * (30 * n // len(todo))
                sys.stderr.write(f"\r[{bar:<30}] {n}/{len(todo)} {job.name[:50]:<50}")
        if progress and todo:
            sys.stderr.write("\n")
        return not todo or silent < len(todo)

    def one(self, job: Job) -> dict[str, Any]:
        before = self.endpoint.spent
        result: dict[str, Any] = {"job": job.name, "model": self.options.model, "status": "no_plan"}
        try:
            plan = self.planned(job)
        except PeerError as err:
            result["status"] = f"{NO_ANSWER}{err}"[:200]
            plan = None
        if plan is not None:
            result |= self.benign(job, plan) if job.injection is None else self.attacked(job, plan)
        spent = self.endpoint.spent
        return result | {"tokens_in": spent.prompt - before.prompt, "tokens_out": spent.answer - before.answer}

    def planned(self, job: Job) -> Plan | None:
        """A plan that the static pass finds sound, with one more try."""
        tools, fault = SUITES[job.suite.name], ""
        for _ in range(2):
            source = ModelPlanner(self.endpoint).plan(job.task.PROMPT, tools, fault)
            try:
                plan = read_plan(source, job.task.PROMPT, tools.keys())
            except Exception as err:  # noqa: BLE001  # a refused plan of any kind is a fault to tell the planner
                fault = str(err)
                continue
            report = check(plan, tools)
            if report.sound:
                return plan
            fault = "; ".join(f.message for f in report.faults[:5])
        return None

    def benign(self, job: Job, plan: Plan) -> dict[str, Any]:
        world = job.suite.world(job.task)
        human = ScriptedHuman("approved", default="no")
        reply, status = self.execute(job, plan, world, human)
        return {"status": status, "useful": world.useful(job.task, reply), "asks": len(human.questions)}

    def attacked(self, job: Job, plan: Plan) -> dict[str, Any]:
        out: dict[str, Any] = {"outcome": "deny"}
        for kind in ("denied", "approved"):
            world = hostile(job.suite, job.task, job.injection, friends=False)
            human = ScriptedHuman("denied" if kind == "denied" else "approved", default="no")
            reply, out["status"] = self.execute(job, plan, world, human)
            if world.breached(job.injection, reply or said("", job.injection)):
                out["outcome"] = "allow" if kind == "denied" else "ask"
                break
            if not human.questions:
                break
        return out

    def execute(self, job: Job, plan: Plan, world: World, human: ScriptedHuman) -> tuple[str, str]:
        tools = SUITES[job.suite.name]
        gateway = WorldGateway(world, tools)
        worker = ModelWorker(self.endpoint, lambda: secrets.token_hex(8))
        executor = Executor(tools, gateway, gateway, worker, human, human, owner=Owner(world.owner()))
        result = executor.run(plan)
        return result.reply, result.status

    def summary(self) -> dict[str, Any]:
        # what the endpoint gave no answer to was neither done nor refused
        made = [r for r in self.done.values() if not r["status"].startswith(NO_ANSWER)]
        benign = [r for r in made if r["job"].endswith("/benign")]
        attacks = Counter(r.get("outcome", "deny") for r in made if not r["job"].endswith("/benign"))
        useful = sum(bool(r.get("useful")) for r in benign)
        no_ask = sum(bool(r.get("useful")) and not r.get("asks") for r in benign)
        used = Usage(sum(r["tokens_in"] for r in self.done.values()), sum(r["tokens_out"] for r in self.done.values()))
        return {
            "benchmark": "agentdojo",
            "model": self.options.model,
            "benign": {
                "useful_with_asks_approved": useful,
                "useful_with_no_ask": no_ask,
                "of": len(benign),
                "interval_95": [round(x, 4) for x in wilson(useful, len(benign))],
                "without_a_plan": sum("useful" not in r for r in benign),
            },
            "attack": triplet(attacks["allow"], attacks["ask"], attacks["deny"]),
            "attempts": attacks.total(),
            "unanswered": len(self.done) - len(made),
            "breaches": attacks["allow"],
            "tokens_in": used.prompt,
            "tokens_out": used.answer,
        }


def start(options: Options, suites: Mapping[str, Suite]) -> Live:
    endpoint = Endpoint(options.form, options.base, options.model, headers=options.headers())
    kept = Kept(options.out, options.model, "job", again=lambda r: not _whole(r) or r["status"].startswith(NO_ANSWER))
    kept.load()
    return Live(options, suites, endpoint, kept)


def _whole(result: Mapping[str, Any]) -> bool:
    """Whether a kept line is one that a run of ours wrote; any other is made anew."""
    counts = [result.get("tokens_in"), result.get("tokens_out"), result.get("asks", 0)]
    texts = [result.get("status"), result.get("outcome", "deny")]
    fits = all(type(n) is int and n >= 0 for n in counts) and all(isinstance(t, str) for t in texts)
    return fits and texts[1] in ("allow", "ask", "deny")
