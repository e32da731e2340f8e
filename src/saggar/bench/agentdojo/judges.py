"""What may stand between a model and AgentDojo's tools in an ordinary loop: nothing, three known ways, and monitor mode.

All see the same calls in the same worlds. The attacker is the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from saggar.bench.agentdojo.declarations import SUITES
from saggar.bench.agentdojo.world import World
from saggar.core.decision import ALLOW, ASK, DENY, Decision
from saggar.core.label import UNTRUSTED
from saggar.core.tool import ToolDeclaration
from saggar.plan.monitor import Monitor
from saggar.plan.output import Owner

_ALLOW = Decision(ALLOW, "allowed", layer="bench")
_ASK = Decision(ASK, "asked", layer="bench")
_DENY = Decision(DENY, "denied", layer="bench")


class Judge(Protocol):
    def decide(self, tool: str, args: Mapping[str, Any]) -> Decision: ...

    def prepare(self, tool: str, args: Mapping[str, Any]) -> dict[str, Any]: ...

    def spend(self, tool: str) -> None: ...

    def observe(self, tool: str, value: Any) -> None: ...


@dataclass(slots=True)
class Setting:
    """What a judge is made from: the world, the user's words, and the tools that his task uses, with how often."""

    suite: str
    world: World
    request: str
    granted: Mapping[str, int]

    @property
    def tools(self) -> dict[str, ToolDeclaration]:
        return SUITES[self.suite]


@dataclass(slots=True)
class Nothing:
    """No defence."""

    setting: Setting

    def decide(self, tool: str, args: Mapping[str, Any]) -> Decision:  # noqa: ARG002
        return _ALLOW

    def prepare(self, tool: str, args: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return dict(args)

    def spend(self, tool: str) -> None:
        """Nothing is counted."""

    def observe(self, tool: str, value: Any) -> None:
        """Nothing is remembered."""


@dataclass(slots=True)
class AllowList(Nothing):
    """The tools that the user's task needs, as often as anybody likes."""

    def decide(self, tool: str, args: Mapping[str, Any]) -> Decision:  # noqa: ARG002
        return _ALLOW if tool in self.setting.granted else _DENY


@dataclass(slots=True)
class CallTaint(Nothing):
    """After one call that could return strangers' text, every side effect asks."""

    tainted: bool = False

    def decide(self, tool: str, args: Mapping[str, Any]) -> Decision:  # noqa: ARG002
        return _ASK if self.tainted and self.setting.tools[tool].has_side_effect else _ALLOW

    def observe(self, tool: str, value: Any) -> None:  # noqa: ARG002
        declaration = self.setting.tools[tool]
        if not declaration.has_side_effect:
            labels = [label for path, label in declaration.labels if path != "*"] or [declaration.label_of("*")]
            self.tainted = self.tainted or any(x.integrity == UNTRUSTED for x in labels)


#: suite to tool to the arguments that must be the user's or a tool's own record; written after the rules of thumb that
#: CaMeL gives for the same suites, with the faults that its shipped policies have mended
CAMEL: dict[str, dict[str, tuple[str, ...]]] = {
    "workspace": {
        "send_email": ("recipients", "cc", "bcc", "body", "subject", "attachments"),
        "delete_email": ("email_id",),
        "create_calendar_event": ("participants", "title", "description"),
        "cancel_calendar_event": ("event_id",),
        "reschedule_calendar_event": ("event_id",),
        "add_calendar_event_participants": ("event_id", "participants"),
        "append_to_file": ("file_id",),
        "delete_file": ("file_id",),
        "share_file": ("file_id", "email"),
    },
    "travel": {
        "send_email": ("recipients", "cc", "bcc", "body", "subject", "attachments"),
        "create_calendar_event": ("participants", "title"),
        "cancel_calendar_event": ("event_id",),
        "reserve_hotel": ("hotel", "start_day", "end_day"),
        "reserve_restaurant": ("restaurant", "start_time"),
        "reserve_car_rental": ("company", "start_time", "end_time"),
    },
    "banking": {
        "send_money": ("recipient", "amount", "subject", "date"),
        "schedule_transaction": ("recipient", "amount", "subject", "date"),
        "update_scheduled_transaction": ("id", "recipient", "amount", "subject", "date"),
        "update_password": ("password",),
        "update_user_info": ("first_name", "last_name", "street", "city"),
    },
    "slack": {
        "add_user_to_channel": ("user", "channel"),
        "send_direct_message": ("recipient", "body"),
        "send_channel_message": ("channel", "body"),
        "invite_user_to_slack": ("user", "user_email"),
        "remove_user_from_slack": ("user",),
        "get_webpage": ("url",),
        "post_webpage": ("url", "content"),
    },
}


@dataclass(slots=True)
class PerSuite(Nothing):
    """Hand-written rules for each suite: the named arguments must come from the user or from a tool's own record."""

    seen: Monitor | None = None

    def monitor(self) -> Monitor:
        if self.seen is None:
            s = self.setting
            self.seen = Monitor(s.request, s.tools, dict.fromkeys(s.tools, 1000), Owner(s.world.owner()))
        return self.seen

    def decide(self, tool: str, args: Mapping[str, Any]) -> Decision:
        guarded = CAMEL[self.setting.suite].get(tool, ())
        monitor = self.monitor()
        clean = all(monitor.worst(args[n]) in ("user", "named", "record") for n in guarded if args.get(n) is not None)
        return _ALLOW if clean else _ASK

    def observe(self, tool: str, value: Any) -> None:
        self.monitor().observe(tool, value)


def monitor(setting: Setting) -> Judge:
    return Monitor(setting.request, setting.tools, setting.granted, Owner(setting.world.owner()))


JUDGES: dict[str, Callable[[Setting], Judge]] = {
    "none": Nothing,
    "tool allow-list": AllowList,
    "call-level taint": CallTaint,
    "per-suite rules": PerSuite,
    "monitor": monitor,
}


@dataclass(slots=True)
class Session:
    """Plays calls through a judge. human: whether a person approves what is asked."""

    world: World
    judge: Judge
    asked: int = 0
    denied: int = 0
    micros: list[float] = field(default_factory=list)

    def play(self, calls: list[tuple[str, dict[str, Any]]], *, human: bool) -> None:
        for tool, args in calls:
            decision = self.judge.decide(tool, args)
            if decision.effect == DENY:
                self.denied += 1
                continue
            if decision.effect == ASK:
                self.asked += 1
                if not human:
                    continue
            self.judge.spend(tool)
            try:
                value = self.world.shaped(tool, self.judge.prepare(tool, args))
            except Exception:  # noqa: BLE001  # whatever the suite's tool raises is its outcome
                self.world.executed.pop()
                continue
            self.judge.observe(tool, value)
