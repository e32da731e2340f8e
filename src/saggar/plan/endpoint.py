"""What is said to a model's endpoint and what is understood of its answer: two message formats, sans I/O.

I1  Every answer gives text and token counts or `PeerError`; nothing of a stranger's text is formatted into an error.
I2  A stream is bounded: in bytes, in events, in the length of its text.
I3  No key is in here; the transport, or the broker on the wire, adds it. What a header cannot carry is refused by its
    name, before any library formats its value into a traceback; so is a base URL, which may hold a password.

OpenAI-compatible: `POST /chat/completions`, `stream: true`, `response_format: json_schema`. Anthropic: `POST /v1/messages`,
`stream: true`, structured output by a forced tool.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from saggar.core.errors import ParseError, PeerError, UsageError
from saggar.core.hostname import canonical_host

Format = Literal["openai", "anthropic"]
MAX_EVENT = 1 << 20
MAX_EVENTS = 100_000
MAX_ANSWER = 1 << 20
#: name of the tool whose arguments are the structured output (Anthropic)
TOOL = "answer"


@dataclass(frozen=True, slots=True)
class Prompt:
    """system: ours. user: the request, or data for the worker. schema: of the JSON that is wanted; None for text."""

    system: str
    user: str
    schema: Mapping[str, Any] | None = None
    max_tokens: int = 2048


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the endpoint counts them; 0 where it does not say."""

    prompt: int = 0
    answer: int = 0

    def plus(self, other: Usage) -> Usage:
        return Usage(self.prompt + other.prompt, self.answer + other.answer)


@dataclass(frozen=True, slots=True)
class Said:
    text: str
    usage: Usage
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Base:
    """Where a model's endpoint is. host: a canonical name, or an address without brackets. path: as it was written."""

    tls: bool
    host: str
    port: int
    path: str


def base_of(text: str) -> Base:
    """Raises `UsageError`, one line, for whatever is not `https://HOST[:PORT][/PATH]` (http likewise)."""
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError:  # brackets that do not close, a port that is no number or above 65535
        url, host, port = urlsplit(""), "", None
    plain = text.isprintable() and " " not in text and url.path.isascii()
    if url.scheme not in ("http", "https") or not host or port == 0 or not plain or "@" in url.netloc:
        raise _no_base("")
    if "?" in text or "#" in text:
        raise _no_base("")
    tls = url.scheme == "https"
    return Base(tls, _host(host), port or (443 if tls else 80), url.path)


def _host(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return canonical_host(text)
    except ParseError as err:
        raise _no_base(f": {err}") from None


def _no_base(cause: str) -> UsageError:
    # the text itself is not repeated: it may hold a password or a key
    return UsageError(f"that is no base URL of a model{cause}", hint="https://HOST/v1, without a key in it")


def key_header(form: Format, variable: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The header with the key that the environment holds as `variable`; none for "". Raises `UsageError`, which never
    shows the key."""
    if not variable:
        return {}
    key = environ.get(variable)
    if not key:
        raise UsageError(f"the environment has no `{variable}`", hint="--key-env names the variable with the key")
    if not sendable(key) or " " in key:
        raise UsageError(
            f"the key in `{variable}` has a character that no header carries",
            hint="a line end, a space or a letter that is not ASCII; it is not shown here",
        )
    return {"x-api-key": key} if form == "anthropic" else {"Authorization": f"Bearer {key}"}


def sendable(text: str) -> bool:
    """Whether a header can carry it: printable ASCII (RFC 9110 section 5.5, without obs-text)."""
    return text.isascii() and text.isprintable()


def path_of(form: Format, base: str) -> str:
    """The path of the call under the base URL's own path. OpenAI's bases end in `/v1`, Anthropic's do not; one that does
    all the same is meant well."""
    base = base.rstrip("/")
    return f"{base}/chat/completions" if form == "openai" else f"{base.removesuffix('/v1')}/v1/messages"


def body_of(form: Format, model: str, prompt: Prompt) -> dict[str, Any]:
    return _openai(model, prompt) if form == "openai" else _anthropic(model, prompt)


def _openai(model: str, prompt: Prompt) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
        "temperature": 0,
        "max_tokens": prompt.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if prompt.schema is not None:
        shape = {"name": TOOL, "strict": True, "schema": prompt.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": shape}
    return body


def _anthropic(model: str, prompt: Prompt) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "system": prompt.system,
        "messages": [{"role": "user", "content": prompt.user}],
        "temperature": 0,
        "max_tokens": prompt.max_tokens,
        "stream": True,
    }
    if prompt.schema is not None:
        body["tools"] = [{"name": TOOL, "description": "Give the answer.", "input_schema": prompt.schema}]
        body["tool_choice"] = {"type": "tool", "name": TOOL}
    return body


@dataclass(slots=True)
class Reader:
    """Reads one server-sent event stream. `feed` bytes as they come, then `end`."""

    form: Format
    left: bytes = b""
    parts: list[str] = field(default_factory=list)
    size: int = 0
    events: int = 0
    usage: Usage = field(default_factory=Usage)
    #: the answer is whole; token counts may follow
    finished: bool = False
    cut: bool = False
    #: the format's own last event was read: whatever follows is not looked at
    done: bool = False

    def feed(self, data: bytes) -> None:
        """Raises `PeerError` beyond the bounds (I2) and for events that are not what the format says."""
        self.left += data
        *lines, self.left = self.left.split(b"\n")
        if len(self.left) > MAX_EVENT:
            raise PeerError("the model's endpoint sent an event that is too large")
        for line in lines:
            line = line.strip()  # noqa: PLW2901  # CRLF and LF alike
            if line.startswith(b"data:"):
                self.event(line[5:].strip())

    def event(self, data: bytes) -> None:
        if self.done:
            return
        self.events += 1
        if self.events > MAX_EVENTS:
            raise PeerError("the model's endpoint sent too many events")
        if data == b"[DONE]":
            self.finished = self.done = True
            return
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise PeerError("the model's endpoint sent an event that is no JSON") from None
        if not isinstance(found, dict):
            raise PeerError("the model's endpoint sent an event that is no object")
        if "error" in found:
            raise PeerError("the model's endpoint gave up in the middle of its answer")
        if self.form == "openai":
            self.openai(found)
        else:
            self.anthropic(found)

    def openai(self, event: Mapping[str, Any]) -> None:
        self.count(event.get("usage"), "prompt_tokens", "completion_tokens")
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict) and isinstance(choice.get("delta"), dict):
                self.add(choice["delta"].get("content"))
                self.stop(choice.get("finish_reason"), "length")

    def anthropic(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        delta = event.get("delta")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self.count(event["message"].get("usage"), "input_tokens", "output_tokens")
        elif kind == "content_block_delta" and isinstance(delta, dict):
            self.add(delta.get("text") if delta.get("type") == "text_delta" else delta.get("partial_json"))
        elif kind == "message_delta" and isinstance(delta, dict):
            self.count(event.get("usage"), "input_tokens", "output_tokens")
            self.stop(delta.get("stop_reason"), "max_tokens")
        elif kind == "message_stop":
            self.finished = self.done = True

    def add(self, text: object) -> None:
        if not isinstance(text, str):
            return
        self.size += len(text)
        if self.size > MAX_ANSWER:
            raise PeerError("the model's answer is too long")
        self.parts.append(text)

    def stop(self, reason: object, cut: str) -> None:
        if isinstance(reason, str):
            self.finished = True
            self.cut = reason == cut

    def count(self, usage: object, prompt: str, answer: str) -> None:
        if isinstance(usage, dict):
            found = [usage.get(k) for k in (prompt, answer)]
            a, b = (n if type(n) is int and n >= 0 else 0 for n in found)
            self.usage = Usage(max(self.usage.prompt, a), max(self.usage.answer, b))

    def end(self) -> Said:
        """The whole answer. Raises `PeerError` for a stream that broke off."""
        if self.left.strip() and not self.done:
            self.feed(b"\n")
        if not self.finished:
            raise PeerError("the model's endpoint broke off its answer")
        return Said("".join(self.parts), self.usage, self.cut)


#: statuses after which the same call may go through
RETRY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


def wait_before(attempt: int, retry_after: str) -> float:
    """Seconds before the next try: what the endpoint says, within a minute, else doubling from half a second."""
    try:
        return min(60.0, max(0.0, float(retry_after)))
    except ValueError:
        return min(30.0, 0.5 * 2.0**attempt)
