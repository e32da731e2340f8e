"""A webhook as a channel: one signed POST, one signed reply."""

from __future__ import annotations

import http.client
import ssl
from time import time
from urllib.parse import urlsplit

from saggar.approval.webhook import ASK_DOMAIN, HEADER, MAX_REPLY, parse_reply, request_body, signature
from saggar.core.approval import Answer, Question
from saggar.core.errors import ParseError, UsageError

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Webhook:
    """Asks `url` (https, or http on loopback). secret: at least 16 bytes, shared with the other side."""

    def __init__(self, url: str, secret: bytes) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.username:
            raise UsageError(f"`{url}` is not a webhook's address")
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise UsageError("a webhook is https", hint="http is for loopback only")
        if len(secret) < 16:
            raise UsageError("a webhook's secret has at least 16 bytes")
        self._parts = parts
        self._host = parts.hostname
        self._secret = secret
        self.last_reason = ""

    def ask(self, question: Question, timeout_s: float) -> Answer | None:
        """None where no reply counts; `last_reason` then says why."""
        try:
            header, body = self._post(request_body(question), max(0.1, min(timeout_s, 60.0)))
            return parse_reply(self._secret, header, body, question, time())
        except ParseError as e:
            self.last_reason = e.reason
        except (OSError, http.client.HTTPException):
            self.last_reason = "unreachable"
        return None

    def _post(self, body: bytes, timeout_s: float) -> tuple[str, bytes]:
        connection = self._connection(timeout_s)
        try:
            headers = {
                "Content-Type": "application/json",
                HEADER: signature(self._secret, ASK_DOMAIN, int(time()), body),
            }
            connection.request("POST", self._parts.path or "/", body, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ParseError(f"status {response.status}", reason="reply_status")
            return response.headers.get(HEADER, ""), response.read(MAX_REPLY + 1)
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._parts.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._parts.port, timeout=timeout_s)
