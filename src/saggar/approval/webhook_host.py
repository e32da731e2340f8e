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


def _is_plain(url: str) -> bool:
    return url.isascii() and url.isprintable() and " " not in url


class Webhook:
    """Asks `url` (https, or http on loopback). secret: at least 16 bytes, shared with the other side."""

    def __init__(self, url: str, secret: bytes) -> None:
        try:
            parts = urlsplit(url)
            self._port = parts.port
            sound = parts.scheme in ("https", "http") and parts.hostname and "@" not in parts.netloc and _is_plain(url)
        except ValueError:
            sound = False
        if not sound:
            # not shown: such an address may hold a password, and a path that is one
            raise UsageError(
                "the webhook's address is no URL that can be asked", hint="`https://HOST/PATH`, without a user in it"
            )
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise UsageError("a webhook is https", hint="http is for loopback only")
        if len(secret) < 16:
            raise UsageError("a webhook's secret has at least 16 bytes")
        self._parts = parts
        self._host = parts.hostname or ""
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._secret = secret
        self.last_reason = ""

    def ask(self, question: Question, timeout_s: float) -> Answer | None:
        """None where no reply counts; `last_reason` then says why."""
        try:
            header, body = self._post(request_body(question), max(0.1, min(timeout_s, 60.0)))
            return parse_reply(self._secret, header, body, question, time())
        except ParseError as e:
            self.last_reason = e.reason
        except (OSError, http.client.HTTPException, ValueError):
            # `ValueError`: a host name or a header that cannot be sent, and its text would show it
            self.last_reason = "unreachable"
        return None

    def _post(self, body: bytes, timeout_s: float) -> tuple[str, bytes]:
        connection = self._connection(timeout_s)
        try:
            headers = {
                "Content-Type": "application/json",
                HEADER: signature(self._secret, ASK_DOMAIN, int(time()), body),
            }
            connection.request("POST", self._target, body, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ParseError(f"status {response.status}", reason="reply_status")
            return response.headers.get(HEADER, ""), response.read(MAX_REPLY + 1)
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
