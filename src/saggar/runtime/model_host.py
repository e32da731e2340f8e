"""A model that is spoken to from a cell: what reads untrusted data has a sandbox of its own.

I1  Each answer is a cell of its own that knows one prompt and ends with it: nothing of one document is there when the
    next is read. It has no workspace, no tools, and one destination: the model's endpoint.
I2  The key never enters: the broker puts it on the wire (a placeholder is what the cell finds in its environment).
I3  Its policy is built anew from the few fields that a worker may have; one that sets any other is refused, so that a
    field that policies will have one day gives a worker nothing.
I4  Nothing that the cell says is believed: status and stream are parsed here, bounded (`plan.endpoint`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from saggar.core.errors import PeerError, UsageError
from saggar.plan.endpoint import (
    MAX_ANSWER,
    RETRY,
    Base,
    Format,
    Prompt,
    Reader,
    Said,
    Usage,
    base_of,
    body_of,
    path_of,
    wait_before,
)
from saggar.policy.model import MIB, EgressPolicy, EgressRule, IsolationPolicy, Policy, WorkspacePolicy
from saggar.policy.section import Section
from saggar.runtime.api_host import run_sync

#: runs in the cell: standard library only, one POST, the raw answer to standard output
CLIENT = """
import http.client, json, os, ssl, sys
job = json.load(sys.stdin)
headers = dict(job["headers"])
if "OPENAI_API_KEY" in os.environ:
    headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
if "ANTHROPIC_API_KEY" in os.environ:
    headers["x-api-key"] = os.environ["ANTHROPIC_API_KEY"]
kind = http.client.HTTPSConnection if job["tls"] else http.client.HTTPConnection
more = {"context": ssl.create_default_context()} if job["tls"] else {}
connection = kind(job["host"], job["port"], timeout=job["timeout_s"], **more)
connection.request("POST", job["path"], body=json.dumps(job["body"]).encode(), headers=headers)
answer = connection.getresponse()
out = sys.stdout.buffer
out.write(f"{answer.status} {answer.headers.get('Retry-After', '')}\\n".encode())
line = b""
while part := answer.read1(65536):
    out.write(part)
    *lines, line = (line + part).split(b"\\n")
    # the format's own end: whoever holds the connection open after it holds up nothing
    if any(x.strip() in (b"data: [DONE]", b"data:[DONE]", b"event: message_stop") for x in lines):
        break
    line = line[-65536:]
"""
#: an answer, its events' wrapping (about 20 times its own size, a few characters each), and a head line
_KEEP = 24 * MAX_ANSWER


@dataclass(slots=True)
class QuarantinedModel:
    """Implements `plan.models.Model`. policy: what the cell may do; its only egress rule is the endpoint's host, with the
    credential there. base: as in `plan.endpoint_host.Endpoint`. timeout_s: of one answer with all its tries."""

    form: Format
    base: str
    model: str
    policy: Policy
    timeout_s: float = 120.0
    tries: int = 3
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    spent: Usage = field(default_factory=Usage)
    calls: int = 0
    runs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises `UsageError` for a policy that gives the worker more than its model."""
        self.policy = worker_policy(self.policy, base_of(self.base))

    def say(self, prompt: Prompt) -> Said:
        """The answer. Raises `PeerError`."""
        deadline = self.clock() + self.timeout_s
        last = "it did not answer"
        for attempt in range(self.tries):
            left = deadline - self.clock()
            if left <= 0:
                break
            status, retry_after, stream = self._once(prompt, left)
            if status == 200:
                said = self._read(stream)
                self.spent = self.spent.plus(said.usage)
                self.calls += 1
                return said
            if status and status not in RETRY:
                raise PeerError(f"the model's endpoint answered {status}")
            last = f"it answered {status}" if status else "the cell gave no answer"
            pause = wait_before(attempt, retry_after)
            if attempt + 1 < self.tries and self.clock() + pause < deadline:
                self.sleep(pause)
        raise PeerError(f"no answer from the model's endpoint: {last}")

    def _read(self, stream: bytes) -> Said:
        reader = Reader(self.form)
        reader.feed(stream)
        return reader.end()

    def _once(self, prompt: Prompt, left: float) -> tuple[int, str, bytes]:
        base = base_of(self.base)
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self.form == "anthropic":
            headers["anthropic-version"] = "2023-06-01"
        job = {
            "tls": base.tls,
            "host": base.host,
            "port": base.port,
            "path": path_of(self.form, base.path),
            "headers": headers,
            "body": body_of(self.form, self.model, prompt),
            "timeout_s": left,
        }
        command = [python(), "-I", "-S", "-c", CLIENT]
        result = run_sync(
            command, self.policy, input=json.dumps(job).encode(), cwd="/", timeout_s=left, keep_bytes=_KEEP
        )
        self.runs.append(result.run_id)
        if not result.ok:
            return 0, "", b""
        head, _, stream = result.stdout.partition(b"\n")
        status, _, retry_after = head.decode("ascii", "replace").partition(" ")
        return int(status) if status.isascii() and status.isdigit() and len(status) == 3 else 0, retry_after, stream


def worker_policy(given: Policy, base: Base) -> Policy:
    """What a worker's cell gets of a policy (I3). Raises `UsageError`, which names the field that gives more."""
    rules = given.egress.allow
    if [(r.host, r.ports) for r in rules] != [(base.host, (base.port,))]:
        raise UsageError(
            "a worker's policy allows its model's endpoint and nothing else",
            hint=f'one [[egress.allow]] with host = "{base.host}", ports = [{base.port}]',
        )
    [rule] = rules
    allowed = EgressRule(host=base.host, ports=(base.port,), connect_to=rule.connect_to, http=rule.http, id=rule.id)
    policy = Policy(
        isolation=IsolationPolicy(tier=given.isolation.tier),
        limits=given.limits,
        egress=EgressPolicy(allow=(allowed,), budget=given.egress.budget, processes=given.egress.processes),
        file=given.file,
        origins=given.origins,
    )
    # whatever the task's workspace is, a worker has none
    more = _beyond(given.replace(workspace=policy.workspace), policy) or _beyond(rule, allowed, "egress.allow.")
    if more:
        raise UsageError(f"a worker's policy leaves `{more}` out", hint="the cell gets its model's endpoint, no more")
    limits = given.limits.replace(memory_bytes=min(given.limits.memory_bytes, 256 * MIB), tasks=16)
    return policy.replace(workspace=WorkspacePolicy(mode="none"), limits=limits)


def _beyond(given: Section, allowed: Section, under: str = "") -> str:
    """The first field in which they differ, rules aside."""
    slots: tuple[str, ...] = given.__slots__
    for slot in slots:
        a, b = getattr(given, slot), getattr(allowed, slot)
        if isinstance(a, Section) and isinstance(b, Section):
            if found := _beyond(a, b, f"{slot}."):
                return found
        elif a != b and slot != "allow":
            return under + slot.removesuffix("_")
    return ""


def python() -> str:
    """The system's interpreter is shown inside as it is; any other comes with its prefix."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else os.path.realpath(sys.executable)
