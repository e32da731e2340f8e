"""One call to use all of it: `open_session`, then `await session.ask("…")`.

The planner sees the request and the declarations; its plan is checked, shown, and run by the executor; each call goes
through the gateway with a capability for exactly it; one audit log, one book of approvals.

I1  A plan with a fault is not run; the planner gets one more try, with the fault.
I2  Both walls (plan and capability) ask on one card; a refusal of either is a refusal.
I3  What the session grants a call is never wider than the session's own capabilities.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from saggar.approval.review_host import Channel
from saggar.capability.declare import Tool
from saggar.capability.rule import Rule
from saggar.core.decision import DENY
from saggar.core.errors import LimitExceeded, ParseError, PeerError, UsageError
from saggar.core.tool import Budget, ToolDeclaration
from saggar.plan import flow, parse
from saggar.plan.calling import Carried
from saggar.plan.check import Report, check
from saggar.plan.compile import compile_source
from saggar.plan.execute import Executor, RunResult
from saggar.plan.journal_host import FileJournal
from saggar.plan.output import Owner
from saggar.plan.provenance import Event
from saggar.plan.state import Person
from saggar.plan.step import Plan
from saggar.plan.worker import Planner, Worker
from saggar.policy.model import Policy
from saggar.runtime.ask_host import Unattended
from saggar.runtime.held import OnAsk
from saggar.runtime.one_call_host import OneCall
from saggar.runtime.tools_host import ToolSession

JOURNAL = "plan-{n}.journal"
PLAN = "plan-{n}.json"
MAX_ASKS = 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """text: for the user. status: `done`, `parked` (a human has not answered; `session.resume(answer)` goes on) or
    `limit`. plan: what was run; report: what the static pass said of it; result: events, calls and labels."""

    text: str
    status: str
    request: str
    plan: Plan
    report: Report
    result: RunResult
    number: int

    @property
    def done(self) -> bool:
        return self.status == "done"


class NobodyToAsk:
    """A person who never answers: a question of the plan's own parks the run."""

    def answer(self, key: str, question: str, options: tuple[str, ...], suggest: str) -> str | None:  # noqa: ARG002
        return None


@dataclass(slots=True)
class Session:
    """Tools, planner and worker behind the walls. Use it as a context manager, or `close` it.

    on_plan: called with plan and report before anything runs; False stops it. on_step: called with each event.
    person: answers the plan's own questions. owner: the user's own names in the tools (addresses, account numbers).
    """

    tools: ToolSession
    planner: Planner
    worker: Worker
    person: Person
    owner: Owner
    capabilities: tuple[str, ...]
    on_plan: Callable[[Plan, Report], bool] | None = None
    on_step: Callable[[Event], None] | None = None
    count: int = 0
    journals: dict[int, FileJournal] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.tools.id

    @property
    def declarations(self) -> Mapping[str, ToolDeclaration]:
        return self.tools.gateway.declarations()

    async def ask(self, request: str) -> Answer:
        """Plan, check and run one request. Raises `PeerError` where the planner gives no plan that can be run,
        `LimitExceeded` after 1000 requests, and `UsageError` where `on_plan` says no."""
        return await asyncio.to_thread(self.ask_sync, request)

    def ask_sync(self, request: str) -> Answer:
        """`ask`, for code without an event loop."""
        if self.count >= MAX_ASKS:
            raise LimitExceeded("this session has had its requests", limit="session.requests", value=MAX_ASKS)
        plan, report = self.planned(request)
        if self.on_plan is not None and not self.on_plan(plan, report):
            self.record("plan.refused", effect=DENY, reason="refused_by_user", detail={})
            raise UsageError("the plan was not started")
        self.count += 1
        self._keep(plan, self.count)
        return self._run(request, plan, report, self.count)

    async def resume(self, answer: Answer) -> Answer:
        """Go on with a parked request; what was done is not done again."""
        return await asyncio.to_thread(self.resume_sync, answer.number)

    def resume_sync(self, number: int = 0) -> Answer:
        """Go on with request `number` of this task (0: the last one), in this process or after a restart of it.

        Raises `UsageError` where there is no such request, `ParseError` for a plan that does not parse any more.
        """
        number = number or self.count
        path = os.path.join(self.tools.directory, PLAN.format(n=number))
        try:
            with open(path, encoding="utf-8") as f:
                plan = parse.parse(f.read(parse.MAX_BYTES + 1))
        except FileNotFoundError:
            raise UsageError(f"the run `{self.id}` has no request {number}") from None
        return self._run(plan.request, plan, self.checked(plan), number)

    def planned(self, request: str) -> tuple[Plan, Report]:
        """The plan for a request and the report on it (I1)."""
        fault = ""
        for _ in range(2):
            source = self.planner.plan(request, self.declarations, fault)
            try:
                plan = read_plan(source, request, self.declarations.keys())
            except (UsageError, ParseError) as err:
                fault = str(err)
                continue
            report = self.checked(plan)
            if report.sound:
                return plan, report
            fault = "; ".join(f"line {f.line}: {f.message}" for f in report.faults[:5])
        self.record("plan.refused", effect=DENY, reason="no_sound_plan", detail={"fault": fault[:500]})
        raise PeerError(f"the planner gave no plan that can be run: {fault}")

    def checked(self, plan: Plan) -> Report:
        return check(plan, self.declarations, self.owner, self.tools.amount_drift)

    def record(self, kind: str, **fields: Any) -> Any:
        return self.tools.audit.append(kind, layer="L4", **fields)

    def _keep(self, plan: Plan, number: int) -> None:
        """The plan on the disk before anything of it happens, for a restart."""
        path = os.path.join(self.tools.directory, PLAN.format(n=number))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as f:
            json.dump(parse.dump(plan), f)
            f.flush()
            os.fsync(f.fileno())

    def _run(self, request: str, plan: Plan, report: Report, number: int) -> Answer:
        if number not in self.journals:
            path = os.path.join(self.tools.directory, JOURNAL.format(n=number))
            self.journals[number] = FileJournal(path)
        held = self.tools.gateway.grants(self.capabilities)
        executor = Executor(
            tools=self.declarations,
            gateway=self.tools.gateway,
            capabilities=OneCall(self.tools, held),
            worker=self.worker,
            approver=self.tools.approver,
            person=self.person,
            owner=self.owner,
            record=self.record,
            journal=self.journals[number],
            run_id=f"{self.id}.{number}",
            progress=self.on_step,
            decide=flow.decide,
            gateway_asks=True,
            drift_percent=self.tools.amount_drift,
        )
        result = executor.run(plan)
        return Answer(result.reply, result.status, request, plan, report, result, number)

    def close(self) -> None:
        for journal in self.journals.values():
            journal.close()
        self.journals.clear()
        self.tools.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


def read_plan(source: str, request: str, tools: Iterable[str]) -> Plan:
    """A plan from a planner's text: JSON where it begins with a brace, else restricted Python; a fenced block is
    unwrapped. The request is always the user's own: a plan that claims another is refused."""
    text = source.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0].strip()
    if not text.startswith("{"):
        return compile_source(text, request, frozenset(tools), file="plan")
    plan = parse.parse(text)
    if plan.request != request:
        raise ParseError("the plan's `request` is not the user's", reason="plan_request")
    return plan


def open_session(
    policy: str | Policy | None = None,
    *,
    tools: Sequence[Tool],
    planner: Planner,
    worker: Worker,
    capabilities: Sequence[str] | None = None,
    rules: Sequence[Rule] | None = None,
    channels: Sequence[Channel] | None = None,
    wait_s: float = 300.0,
    person: Person | None = None,
    owner: Iterable[str] = (),
    on_plan: Callable[[Plan, Report], bool] | None = None,
    on_step: Callable[[Event], None] | None = None,
    budget: Budget | None = None,
    resume: str = "",
    on_ask: OnAsk | Unattended = "refuse",
) -> Session:
    """A session with all that a request needs: tools behind their gateway, planner, worker, one audit log.

        with saggar.open_session(tools=[read_inbox, send_email], planner=…, worker=…,
                                 capabilities=["read:inbox", "send:email[to=*@example.com]"]) as session:
            answer = await session.ask("Sum up my inbox for ann@example.com")

    policy: a file's path or a `Policy`; capabilities and rules are in place of its own. channels: where cards go
    (default: the terminal). on_ask: who is asked about requests of hosts, as in `saggar.run`. resume: the id of an ended run, whose parked request `resume_sync()` goes on with. Raises `UsageError` for what does not fit together.
    """
    held = ToolSession(
        tools,
        capabilities=capabilities,
        rules=rules,
        policy=policy,
        channels=channels,
        wait_s=wait_s,
        label_rules=Carried(),
        budget=budget,
        resume=resume,
        on_ask=on_ask,
    )
    return Session(
        tools=held,
        planner=planner,
        worker=worker,
        person=person or NobodyToAsk(),
        owner=Owner(frozenset({"owner", *owner})),
        capabilities=held.capabilities,
        on_plan=on_plan,
        on_step=on_step,
        count=_asked(held.directory) if resume else 0,
    )


def _asked(directory: str) -> int:
    """How many requests a task has had."""
    n = 0
    while os.path.exists(os.path.join(directory, PLAN.format(n=n + 1))):
        n += 1
    return n
