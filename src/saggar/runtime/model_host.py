"""A model that is spoken to from a cell: what reads untrusted data has a sandbox of its own.

I1  Each answer is a cell of its own that knows one prompt and ends with it: nothing of one document is there when the
    next is read. It has no workspace, no tools, and one destination: the model's endpoint.
I2  The key never enters: the broker puts it on the wire (a placeholder is what the cell finds in its environment).
I3  Nothing that the cell says is believed: status and stream are parsed here, bounded (`plan.endpoint`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from saggar.core.errors import PeerError, UsageError
from saggar.plan.endpoint import MAX_ANSWER, RETRY, Format, Prompt, Reader, Said, Usage, body_of, path_of, wait_before
from saggar.policy.model import MIB, Policy
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
while part := answer.read1(65536):
    out.write(part)
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
        url = urlsplit(self.base)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query or url.fragment:
            raise UsageError(f"`{self.base}` is no base URL of a model", hint="https://HOST/v1, without a key in it")
        hosts = [rule.host for rule in self.policy.egress.allow]
        if hosts != [url.hostname]:
            raise UsageError(
                "a worker's policy allows its model's endpoint and nothing else",
                hint=f'one [[egress.allow]] with host = "{url.hostname}"',
            )
        if self.policy.isolation.read:
            raise UsageError("a worker's policy shows it no host paths", hint="leave out `isolation.read`")
        workspace = self.policy.workspace.replace(mode="none")
        limits = self.policy.limits.replace(memory_bytes=min(self.policy.limits.memory_bytes, 256 * MIB), tasks=16)
        self.policy = self.policy.replace(workspace=workspace, limits=limits)

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
        url = urlsplit(self.base)
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self.form == "anthropic":
            headers["anthropic-version"] = "2023-06-01"
        tls = url.scheme == "https"
        job = {
            "tls": tls,
            "host": url.hostname,
            "port": url.port or (443 if tls else 80),
            "path": path_of(self.form, url.path),
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


def python() -> str:
    """The system's interpreter is shown inside as it is; any other comes with its prefix."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else os.path.realpath(sys.executable)
