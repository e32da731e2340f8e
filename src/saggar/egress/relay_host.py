"""A WebSocket through a terminated host: frames are read, counted, searched and passed on.

I1  Only well-formed frames pass; both directions count in the budgets.
I2  A placeholder from the client, or our secret from the upstream, ends the socket before that piece is passed on; and of a
    secret in pieces, over frames and messages, no more than half is passed on before it is known for one (`FrameSieve`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saggar.core.errors import ParseError
from saggar.egress.admit import refuse
from saggar.egress.body_keys import KeyStream
from saggar.egress.placeholder import CanaryStream
from saggar.egress.websocket import FrameReader, FrameSieve, Lanes, accept_value, valid_key

if TYPE_CHECKING:
    from saggar.egress.budget import Refusal
    from saggar.egress.client_end_host import ClientEnd
    from saggar.egress.http_head import RequestHead, ResponseHead
    from saggar.egress.redact import Secrets
    from saggar.egress.upstream_host import Upstream

#: close frame with 1008, policy violation (RFC 6455 section 7.4.1)
_VIOLATION = b"\x88\x02\x03\xf0"


def agreed_head(request: RequestHead, head: ResponseHead) -> bytes | None:
    """The 101 to write to the client, None where the upstream's does not answer the request (RFC 6455 section 4.1)."""
    answer = {n.lower(): v for n, v in head.fields}
    key = request.get(b"sec-websocket-key") or b""
    accept = answer.get(b"sec-websocket-accept", b"")
    if not valid_key(key) or accept != accept_value(key) or answer.get(b"upgrade", b"").lower() != b"websocket":
        return None
    if b"sec-websocket-extensions" in answer:
        return None
    lines = [b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"]
    lines.append(b"Sec-WebSocket-Accept: %s\r\n" % accept)
    if b"sec-websocket-protocol" in answer:
        # one of those that the client asked for: so nothing of the upstream's own stands there
        offered = [
            p.strip(b" \t") for n, v in request.fields if n.lower() == b"sec-websocket-protocol" for p in v.split(b",")
        ]
        if answer[b"sec-websocket-protocol"] not in offered:
            return None
        lines.append(b"Sec-WebSocket-Protocol: %s\r\n" % answer[b"sec-websocket-protocol"])
    lines.append(b"\r\n")
    return b"".join(lines)


class Relay:
    """One WebSocket; the exchange of its upstream connection."""

    __slots__ = ("_canaries", "_client", "_down", "_keys", "_lanes", "_sieve", "_up", "_upstream")

    def __init__(self, client: ClientEnd, upstream: Upstream, scanner: Secrets | None) -> None:
        self._client = client
        self._upstream = upstream
        self._up = FrameReader(masked=True)
        self._down = FrameReader(masked=False)
        canary = client.owner.canary
        # one each for messages and for control frames: a ping within a message must not hide what is on both sides of it
        self._lanes = Lanes()
        self._canaries = (CanaryStream(canary), CanaryStream(canary)) if canary is not None else ()
        self._keys = (KeyStream(), KeyStream()) if client.terms.foreign_keys else ()
        self._sieve = FrameSieve(scanner.needles) if scanner is not None else None
        upstream.exchange = self

    def from_client(self, data: bytes) -> None:
        before = self._up.frames
        try:
            parts, forward = self._up.feed(data)
        except ParseError as e:
            self._stop(e.reason, str(e))
            return
        plain = self._lanes.apart(parts) if self._canaries or self._keys else ()
        refusal = self._client.owner.budget.up(self._client.meter, len(data)) or self._count(self._up.frames - before)
        if refusal is not None:
            self._stop(refusal.reason, refusal.public)
            return
        for stream, piece in zip(self._canaries, plain, strict=False):
            if piece and stream.seen(piece):
                self._stop("canary", "a placeholder stands where it does not belong", alert=True)
                return
        for keys, piece in zip(self._keys, plain, strict=False):
            if piece and keys.seen(piece):
                canary = self._client.owner.canary
                self._stop(*keys.reason(canary.placeholders if canary is not None else ()), alert=True)
                return
        if forward:
            self._upstream.write(forward)
        if self._upstream.pending:
            self._client.pause()

    def _count(self, frames: int) -> Refusal | None:
        """Each frame counts as a request where there is a rate, so a socket is no way around it."""
        client = self._client
        budget = client.owner.budget
        if client.meter.limits.rate is None and budget.task.limits.rate is None:
            return None
        now = client.loop.time()
        for _ in range(frames):
            refusal = budget.request(client.meter, now)
            if refusal is not None:
                return refusal
        return None

    def on_switched(self, data: bytes) -> None:
        client = self._client
        try:
            parts, forward = self._down.feed(data)
            passing = self._sieve.feed(parts, self._down) if self._sieve is not None else forward
        except ParseError as e:
            self._stop(e.reason, str(e))
            return
        refusal = client.owner.budget.down(client.meter, len(data))
        if refusal is not None:
            self._stop(refusal.reason, refusal.public)
            return
        if passing is None:
            self._stop("secret_in_answer", "the upstream sent the credential back")
            return
        if passing:
            client.write(passing)
        if client.pending:
            self._upstream.pause()

    def _stop(self, reason: str, public: str, *, alert: bool = False) -> None:
        client = self._client
        detail = {**client.admitted, **({"alert": True} if alert else {})}
        client.note(refuse(reason, client.authorized.destination, public, detail=detail).decision)
        client.write(_VIOLATION)
        client.depart()

    def on_upstream_ready(self) -> None:
        """Long since."""

    def on_informational(self, head: ResponseHead) -> None:
        """Not after 101."""

    def on_response(self, head: ResponseHead, pieces: list[bytes], *, done: bool) -> None:
        """Not after 101."""

    def on_body(self, pieces: list[bytes], *, done: bool) -> None:
        """Not after 101."""

    def on_upstream_end(self) -> None:
        """Half-close."""
        self._client.settle()
        if not self._client.pending:
            self._client.finish()
        if self._client.eof:
            self._client.depart()

    def on_upstream_lost(self, reason: str, detail: str) -> None:
        del reason, detail
        self._client.depart()

    def on_upstream_stalled(self) -> None:
        self._client.pause()

    def on_upstream_drained(self) -> None:
        self._client.resume()
