"""Calls a model's endpoint: one connection a call, streamed, with a deadline over all of it, and retries.

No key is read here. In a sandbox the key is the broker's: a placeholder travels, and the broker puts the real one on
the wire. Outside one, `headers` carries whatever the caller puts there.
"""

from __future__ import annotations

import http.client
import json
import ssl
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from saggar.core.errors import PeerError, UsageError
from saggar.plan.deadline_host import Deadline, connected
from saggar.plan.endpoint import (
    RETRY,
    Format,
    Prompt,
    Reader,
    Said,
    Usage,
    base_of,
    body_of,
    path_of,
    sendable,
    wait_before,
)

_CHUNK = 16 * 1024
#: of a header's name (RFC 9110 section 5.6.2)
_TOKEN = frozenset("!#$%&'*+-.^_`|~" + string.ascii_letters + string.digits)


@dataclass(slots=True)
class Endpoint:
    """One model behind one base URL (`https://api.example.com/v1`). timeout_s: of one call with all its tries.

    sleep and clock are parameters for the tests. `spent` counts the tokens of all calls.
    """

    form: Format
    base: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 120.0
    tries: int = 4
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    spent: Usage = field(default_factory=Usage)
    calls: int = 0

    def __post_init__(self) -> None:
        """Raises `UsageError`; what a header holds is never in it."""
        base_of(self.base)
        for name, value in self.headers.items():
            if not _TOKEN.issuperset(name) or not name:
                raise UsageError("a header's name is not one that HTTP carries")
            if not sendable(value):
                raise UsageError(f"the value of the header `{name}` has a character that no header carries")

    def say(self, prompt: Prompt) -> Said:
        """The answer. Raises `PeerError` after the last try, or at once where trying again is no use."""
        deadline = self.clock() + self.timeout_s
        last = "it did not answer"
        for attempt in range(self.tries):
            left = deadline - self.clock()
            if left <= 0:
                break
            try:
                status, retry_after, said = self._once(prompt, Deadline(deadline, self.clock))
            except (OSError, http.client.HTTPException, ValueError) as err:
                # by its type alone: the library's own words may show a header or the URL
                status, retry_after, said, last = 0, "", None, type(err).__name__
            if said is not None:
                self.spent = self.spent.plus(said.usage)
                self.calls += 1
                return said
            if status and status not in RETRY:
                raise PeerError(f"the model's endpoint answered {status}")
            last = f"it answered {status}" if status else last
            pause = wait_before(attempt, retry_after)
            if attempt + 1 < self.tries and self.clock() + pause < deadline:
                self.sleep(pause)
        raise PeerError(f"no answer from the model's endpoint: {last}")

    def _once(self, prompt: Prompt, deadline: Deadline) -> tuple[int, str, Said | None]:
        base = base_of(self.base)
        body = json.dumps(body_of(self.form, self.model, prompt)).encode()
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **self.headers}
        if self.form == "anthropic":
            headers.setdefault("anthropic-version", "2023-06-01")
        connection = http.client.HTTPConnection(base.host, base.port)
        connection.default_port = 443 if base.tls else 80  # its `Host` names any other
        context = ssl.create_default_context() if base.tls else None
        timed = connected(base.host, base.port, deadline, context)
        connection.sock = timed
        try:
            connection.request("POST", path_of(self.form, base.path), body=body, headers=headers)
            return self._answer(connection.getresponse())
        finally:
            timed.shut()

    def _answer(self, response: http.client.HTTPResponse) -> tuple[int, str, Said | None]:
        """Until the format's own end, the stream's, or the deadline's with a whole answer in hand."""
        if response.status != 200:
            return response.status, response.headers.get("Retry-After", ""), None
        reader = Reader(self.form)
        while not reader.done and not (reader.finished and self.form == "anthropic"):
            try:
                data = response.read1(_CHUNK)
            except (OSError, http.client.HTTPException):
                if reader.finished:
                    break
                raise
            if not data:
                break
            reader.feed(data)
        return 200, "", reader.end()
