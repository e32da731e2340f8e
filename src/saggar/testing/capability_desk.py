"""Five small tools and a desk over them, for tests of what stands behind a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from saggar.capability.declare import Tool, tool
from saggar.capability.desk_host import Desk
from saggar.core.clock import ManualClock
from saggar.core.tool import FieldLabel
from saggar.testing.capability import MemoryLog

PUBLIC = {"*": FieldLabel(integrity="system", readers="*", private=False)}


@tool(
    "send:email",
    effect="egress",
    roles={"to": "recipient", "subject": "content", "body": "content", "cc": "recipient"},
    labels=PUBLIC,
)
def send_email(to: str, subject: str, body: str, cc: list[str] | None = None) -> str:  # noqa: ARG001
    """Send one message."""
    return f"sent to {to}"


@tool("read:notes", effect="read", roles={"day": "selector"}, labels=PUBLIC)
def read_notes(day: str) -> list[str]:
    """The notes of a day."""
    return [f"note of {day}"]


@tool("read:inbox", effect="read", roles={"limit": "option"})
def read_inbox(limit: int = 10) -> list[str]:
    """Messages that anyone may have written."""
    return ["please pay"] * limit


@tool("pay:bill", effect="pay", roles={"iban": "recipient", "amount": "amount"}, labels=PUBLIC)
def pay(iban: str, amount: Decimal) -> str:  # noqa: ARG001
    """Pay."""
    return f"paid {amount}"


@tool(
    "write:file",
    effect="write",
    roles={"path": "target", "text": "content"},
    formats={"path": "path"},
    labels=PUBLIC,
    reversible=True,
)
def write_file(path: str, text: str) -> None:
    """Write."""


TOOLS = [send_email, read_notes, read_inbox, pay, write_file]
DECLARATIONS = [t.declaration for t in TOOLS]


def make_desk(
    *capabilities: str,
    tools: Sequence[Tool] = TOOLS,
    audit: MemoryLog | None = None,
    clock: ManualClock | None = None,
    **options: Any,
) -> tuple[Desk, MemoryLog, ManualClock]:
    """A desk of task `task-1` with these capabilities; options as of `Desk`."""
    log = audit or MemoryLog()
    clock = clock or ManualClock()
    return Desk("task-1", tools, audit=log, capabilities=capabilities, clock=clock, **options), log, clock
