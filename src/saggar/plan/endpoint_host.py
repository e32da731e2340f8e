"""Calls a model's endpoint: one connection a call, streamed, with a deadline over all of it, and retries.

No key is read here. In a sandbox the key is the broker's: a placeholder travels, and the broker puts the real one on
the wire. Outside one, `headers` carries whatever the caller puts there.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from saggar.core.errors import PeerError, UsageError
from saggar.plan.endpoint import RETRY, Format, Prompt, Reader, Said, Usage, body_of, path_of, wait_before

_CHUNK = 16 * 1024


@dataclass(slots=True)
class Endpoint:
    """One model behind one base URL (`https://api.example.com/v1`). timeout_s: of one call with all its tries.

    sleep and clock are parameters for the tests. `spent` counts the tokens of all calls.
    """

    form: Format
    base: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 120.0
    tries: int = 4
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    spent: Usage = field(default_factory=Usage)
    calls: int = 0

    def __post_init__(self) -> None:
        url = urlsplit(self.base)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query or url.fragment:
            raise UsageError(f"`{self.base}` is no base URL of a model", hint="https://HOST/v1, without a key in it")

    def say(self, prompt: Prompt) -> Said:
        """The answer. Raises `PeerError` after the last try, or at once where trying again is no use."""
        deadline = self.clock() + self.timeout_s
        last = "it did not answer"
        for attempt in range(self.tries):
            left = deadline - self.clock()
            if left <= 0:
                break
            try:
                status, retry_after, said = self._once(prompt, deadline)
            except (OSError, http.client.HTTPException) as err:
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

    def _once(self, prompt: Prompt, deadline: float) -> tuple[int, str, Said | None]:
        url = urlsplit(self.base)
        left = max(0.1, deadline - self.clock())
        host = url.hostname or ""
        if url.scheme == "https":
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, url.port, timeout=left, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, url.port, timeout=left)
        try:
            return self._exchange(connection, path_of(self.form, url.path), prompt, deadline)
        finally:
            connection.close()

    def _exchange(
        self, connection: http.client.HTTPConnection, path: str, prompt: Prompt, deadline: float
    ) -> tuple[int, str, Said | None]:
        body = json.dumps(body_of(self.form, self.model, prompt)).encode()
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **self.headers}
        if self.form == "anthropic":
            headers.setdefault("anthropic-version", "2023-06-01")
        connection.request("POST", path, body=body, headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            response.read(_CHUNK)
            return response.status, response.headers.get("Retry-After", ""), None
        reader = Reader(self.form)
        while not reader.finished or self.form == "openai":
            left = deadline - self.clock()
            if left <= 0:
                raise PeerError("the model's endpoint ran out of time")
            if connection.sock is not None:
                connection.sock.settimeout(left)
            data = response.read1(_CHUNK)
            if not data:
                break
            reader.feed(data)
        return 200, "", reader.end()
