"""The requests of one client connection to a terminated host.

I1  A request is judged, counted and recorded before anything of it is sent; its body is not read before that.
I2  The secret of a request is fetched for its destination, stands in the written head alone, and in no page, log or error.
I3  One request at a time on a connection; what a client sends ahead waits, at most `AHEAD_LIMIT` of it.
I4  Whatever fails ends in a refusal that names host, rule and remedy, or in a cut; never in bytes passed on.
I5  Memory for a connection is bounded: one head, one `recv` and its encryption each way (and `SIGN_LIMIT` for a body that
    must be signed).

No task is made for a request that need not wait: its secret is leased, a connection is pooled.
"""

from __future__ import annotations

import math
import ssl
import time
from typing import TYPE_CHECKING

from saggar.core.decision import ASK
from saggar.core.errors import ParseError
from saggar.egress import http_head
from saggar.egress.admit import Admitted, Lease, Refused, admit, inject, refuse, status_of, write_request
from saggar.egress.answer import refusal_page
from saggar.egress.client_end_host import BODY, COLLECT, HEAD, HOLD, LINGER, SOCKET, WAIT
from saggar.egress.dial_host import DialError
from saggar.egress.hold_host import Holding
from saggar.egress.http_body import LAST_CHUNK, ChunkedReader, LengthReader, chunk
from saggar.egress.placeholder import CanaryStream
from saggar.egress.secrets_client_host import SecretsError
from saggar.egress.terms import ISSUED
from saggar.egress.upstream_host import Upstream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from saggar.egress.budget import Refusal
    from saggar.egress.http_head import RequestHead, ResponseHead
    from saggar.egress.redact import Redactor
    from saggar.egress.relay_host import Relay
    from saggar.egress.upstream_host import Exchange

BODY_S = 120.0
#: until the first byte of an answer, and between two pieces; models think long
ANSWER_S = 900.0
SIGN_LIMIT = 8 * 1024 * 1024
AHEAD_LIMIT = 64 * 1024

#: what is told of an upstream's faults
UPSTREAM_FAULTS = {
    "upstream_certificate": "the upstream's certificate could not be verified",
    "upstream_tls": "no TLS connection to the upstream could be made",
    "upstream_closed": "the upstream closed the connection before its answer was complete",
    "bad_response": "the upstream's answer is malformed",
    "bad_framing": "the upstream's answer is malformed",
    "encoded_response": "the upstream compressed an answer that must be read here",
    "unsolicited_upgrade": "the upstream switched protocols unasked",
    "upstream_timeout": "the upstream did not answer in time",
    "unreachable": "the upstream could not be reached",
    "resolve_failed": "the name does not resolve",
    "token_answer_malformed": "the token endpoint's answer cannot be read, so its tokens cannot be taken out",
    "token_answer_too_large": "the token endpoint's answer cannot be read, so its tokens cannot be taken out",
    "address_refused": "the name resolves to an address that is never dialled",
}


class Requests(Holding):
    """See the module. The fields without a default in `_reset` are of the request in work."""

    __slots__ = (
        "_admitted",
        "_body_count",
        "_canary",
        "_collected",
        "_done_up",
        "_down_count",
        "_framing",
        "_head",
        "_keep",
        "_lease",
        "_limit",
        "_out",
        "_reader",
        "_redactor",
        "_relay",
        "_retried",
        "_token_head",
        "_tokens",
        "_told",
    )

    _head: RequestHead | None
    _admitted: Admitted | None
    _lease: Lease | None
    _reader: ChunkedReader | LengthReader | None
    _canary: CanaryStream | None
    _redactor: Redactor | None
    _relay: Relay | None

    def exchange(self) -> Exchange:
        """Who takes the answer: the subclass."""
        raise NotImplementedError

    def _reset(self) -> None:
        self._head = None
        self._admitted = None
        self._lease = None
        self._reader = None
        self._canary = None
        self._redactor = None
        self._relay = None
        self._collected: list[bytes] = []
        self._out: list[bytes] = []
        self._body_count = 0
        self._down_count = 0
        self._limit: int | None = None
        self._framing = "none"
        self._keep = True
        self._done_up = False
        self._retried = False
        self._told = False
        self._token_head: ResponseHead | None = None
        self._tokens: list[bytes] | None = None
        self.responding = False
        self.asking = False
        self.admitted = {}

    def ready(self) -> None:
        super().ready()
        self._reset()
        if self.buffer:
            # plain HTTP whose first head was read already
            self._next()

    # bytes and ends of the client

    def data(self, data: bytes) -> None:
        state = self.state
        if state == HEAD:
            self.buffer = self.buffer + data if self.buffer else data
            self._next()
        elif state in (BODY, COLLECT):
            self._body(data)
        elif state == SOCKET and self._relay is not None:
            self._relay.from_client(data)
        elif state != LINGER:
            self.buffer += data
            if len(self.buffer) > AHEAD_LIMIT:
                self.pause()

    def ended(self) -> None:
        if self.state == SOCKET and self.upstream is not None:
            self.upstream.finish()
        elif self.state in (WAIT, HOLD) and not self.asking:
            # half-closed: the answer still goes out
            self._keep = False
        else:
            self.depart()

    def drained(self) -> None:
        if self.state == LINGER:
            self.finish()
        elif self.upstream is not None:
            self.upstream.resume()

    def on_deadline(self) -> None:
        if self.state == HEAD and self.buffer:
            self.refuse_for("request_timeout", "the request's head did not come in time", status=408)
        elif self.state in (BODY, COLLECT) and not self.responding:
            self.drop_upstream()
            self.refuse_for("request_timeout", "the request's body did not come in time", status=408)
        elif self.state in (WAIT, HOLD) and not self.responding:
            self._give_up("upstream_timeout", "")
        else:
            self.cut()

    # a request, until it can be sent

    def _next(self) -> None:
        """Take the next request from the buffer, if it is there."""
        try:
            end = http_head.find_end(self.buffer)
            if end < 0:
                return
            raw, self.buffer = self.buffer[:end], self.buffer[end:]
            destination = self.authorized.destination
            head = http_head.parse_request(raw, default_port=443 if destination.scheme == "https" else 80)
        except ParseError as e:
            status = http_head.STATUS.get(e.reason) or status_of(e.reason)
            self.refuse_for(e.reason, str(e), status=status)
            return
        self._head = head
        self._keep = head.keep_alive and self.persistent
        self.state = HOLD
        found = admit(head, destination, self.terms, self.owner.canary, self.owner.issued)
        if isinstance(found, Refused):
            self.refuse(found)
            return
        self.admitted = found.decision.detail
        self.admitted["grant"] = self.authorized.rule.id
        override = self.authorized.rule.connect_to
        if override is not None:
            self.admitted["connect_to"] = f"{override[0]}:{override[1]}"
        budget = self.owner.budget
        refusal = budget.request(self.meter, self.loop.time()) or budget.up(self.meter, end)
        if refusal is not None:
            self._over(refusal)
            return
        if found.decision.effect == ASK:
            found = self.standing(found)
        self._admitted = found
        self._limit = found.body_limit
        body = head.body
        if body.kind != "none":
            if self.owner.canary is not None:
                self._canary = CanaryStream(self.owner.canary)
            if body.kind == "chunked":
                self._reader = ChunkedReader()
            elif body.length:
                self._reader = LengthReader(body.length)
        if found.decision.effect == ASK or (self.terms.credential is not None and not self._leased(found)):
            self.task = self.loop.create_task(self._prepare(found))
        else:
            self._proceed(found)

    def _date(self) -> str:
        credential = self.terms.credential
        return time.strftime("%Y%m%d", time.gmtime()) if credential is not None and credential.kind == "sigv4" else ""

    def _leased(self, admitted: Admitted) -> bool:
        credential = self.terms.credential
        if credential is not None and credential.kind == ISSUED:
            if admitted.issued:
                # its own number keeps its connections and redactions apart from those of other tokens
                token = self.owner.issued[admitted.issued][0]
                self._lease = Lease(admitted.issued, 0, math.inf, {"value": token})
            return True
        if credential is not None:
            host = self.authorized.destination.host
            self._lease = self.owner.secrets.peek(self.owner.port.id, credential.id, host, self._date())
        return self._lease is not None

    async def _prepare(self, admitted: Admitted) -> None:
        """What cannot be had at once: a human's word, a secret."""
        if admitted.decision.effect == ASK:
            approved = await self.ask(admitted, self._head)
            if approved is None:
                return
            self._admitted = admitted = approved
        credential = self.terms.credential
        if credential is not None and not self._leased(admitted):
            host = self.authorized.destination.host
            try:
                self._lease = await self.owner.secrets.lease(self.owner.port.id, credential.id, host, self._date())
            except SecretsError as e:
                self.task = None
                self.refuse_for("credential_unavailable", "the credential for this host could not be had", cause=str(e))
                return
        self.task = None
        if self.state == HOLD and not self.closed:
            self._proceed(admitted)

    def _proceed(self, admitted: Admitted) -> None:
        """Everything is there but a connection, and maybe the body."""
        credential = self.terms.credential
        if credential is not None:
            rule = self.authorized.rule
            destination = self.authorized.destination
            if destination.scheme != "https" and (rule.connect_to is None or destination.port == 443):
                self.refuse_for("insecure_upstream", "a credential is never sent without TLS")
                return
            if (
                credential.kind == "sigv4"
                and admitted.stated_hash is None
                and credential.service != "s3"
                and self._reader
            ):
                self._collect()
                return
        if self.terms.token_endpoint and self._reader:
            self._collect()
            return
        self._dispatch(admitted, None)

    def _collect(self) -> None:
        """Read the whole body before anything is sent."""
        self.state = COLLECT
        self.deadline = self.loop.time() + BODY_S
        self._continue()
        self._take_ahead()

    def _redeemed(self, body: bytes) -> bytes | None:
        """A token endpoint's request with its own tokens in place; None where another placeholder stands in it."""
        body = self.owner.redeem(body, self.authorized.rule.id)
        if self.owner.canary is not None and self.owner.canary.seen(body):
            self._stop_upload("canary", "a placeholder stands where it does not belong", alert=True)
            return None
        return body

    def _dispatch(self, admitted: Admitted, body: bytes | None) -> None:
        """Write the head, record the decision, find a connection. body: a whole body that was read before."""
        destination, credential, lease, head = (
            self.authorized.destination,
            self.terms.credential,
            self._lease,
            self._head,
        )
        if head is None:
            return
        target: bytes = admitted.target.raw
        fields: Iterable[tuple[bytes, bytes]] = admitted.fields
        authority = destination.authority
        if credential is not None and lease is not None:
            now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) if credential.kind == "sigv4" else ""
            whole = b"" if body is None and head.body.kind == "none" else body
            try:
                target, fields = inject(admitted, credential, lease, authority=authority, now=now, body=whole)
            except ParseError as e:
                self.refuse_for(e.reason, str(e))
                return
        if not self.record(admitted.decision):
            return
        self._out = [write_request(admitted, head.body, authority, target=target, fields=fields, whole=body)]
        if body:
            self._out.append(body)
        self._connect(admitted)

    # a connection

    def _connect(self, admitted: Admitted) -> None:
        lease = self._lease
        identity = (lease.credential, lease.version) if lease is not None else ()
        key = (self.authorized.destination, self.authorized.rule.id, identity, self.terms.ca_pem)
        upstream = None if self._retried else self.owner.pool.take(key)
        if upstream is not None:
            self.upstream = upstream
            upstream.begin(self.exchange(), admitted.method)
            self.on_upstream_ready()
            return
        self.state = HOLD
        self.deadline = self.loop.time() + ANSWER_S
        self.task = self.loop.create_task(self._dial(admitted, key))

    async def _dial(self, admitted: Admitted, key: tuple[object, ...]) -> None:
        destination = self.authorized.destination
        try:
            sock = await self.owner.port.dialer.dial(self.authorized)
        except DialError as e:
            self.task = None
            self._give_up(e.reason, str(e.detail))
            return
        self.task = None
        if self.closed or self.state != HOLD:
            # refused in the meantime
            sock.close()
            return
        upstream = Upstream(self.loop, sock, key)
        self.upstream = upstream
        upstream.begin(self.exchange(), admitted.method)
        secure = destination.scheme == "https"
        try:
            context = self.owner.dial_context(self.terms.ca_pem) if secure else None
            upstream.start(context, server_side=False, hostname=destination.host if secure else None)
        except (ssl.SSLError, ValueError, OSError) as e:
            self._give_up("upstream_tls", type(e).__name__)

    def on_upstream_ready(self) -> None:
        """The connection is there: send the head, then the body as it comes."""
        if self.state != HOLD:
            self.drop_upstream()
            return
        if self._reader is not None and not self._collected:
            self.state = BODY
            self.deadline = self.loop.time() + BODY_S
            self._continue()
            if not self.buffer and not self.eof:
                self._flush_up()
            # else head and the first of the body in one record
            self._take_ahead()
            return
        self._done_up = True
        self.state = WAIT
        self.deadline = self.loop.time() + ANSWER_S
        out = self._out
        if self.upstream is not None:
            self.upstream.write(out[0] if len(out) == 1 else b"".join(out))

    def _continue(self) -> None:
        head = self._head
        if head is not None and head.expects_continue and not self.responding and not self.buffer:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _take_ahead(self) -> None:
        ahead, self.buffer = self.buffer, b""
        if ahead:
            self._body(ahead)
        if self.state in (BODY, COLLECT) and self.eof:
            # it ended while we dialled: the request can never be whole
            self.depart()
        elif self.state in (BODY, COLLECT) and (self.upstream is None or not self.upstream.pending):
            self.resume()

    # the body

    def _flush_up(self) -> None:
        upstream, out = self.upstream, self._out
        if upstream is not None and out:
            self._out = []
            upstream.write(out[0] if len(out) == 1 else b"".join(out))

    def _body(self, data: bytes) -> None:
        """Bytes of the request's body."""
        reader = self._reader
        if reader is None:
            self.buffer += data
            return
        try:
            pieces = reader.feed(data)
        except ParseError as e:
            self._stop_upload(e.reason, str(e))
            return
        self.deadline = self.loop.time() + BODY_S
        chunked = isinstance(reader, ChunkedReader)
        for piece in pieces:
            if not self._passes(piece):
                return
            if self.state == COLLECT:
                self._collected.append(piece)
            else:
                self._out.append(chunk(piece) if chunked else piece)
        if reader.done:
            self.buffer = reader.rest
            self._reader = None
            if self.state == COLLECT and self._admitted is not None:
                self.state = HOLD
                whole: bytes | None = b"".join(self._collected)
                if self.terms.token_endpoint and whole is not None:
                    whole = self._redeemed(whole)
                if whole is not None:
                    self._dispatch(self._admitted, whole)
                return
            if chunked:
                self._out.append(LAST_CHUNK)
            self._done_up = True
            self.state = WAIT
            self.deadline = self.loop.time() + ANSWER_S
        if self.state != COLLECT:
            self._flush_up()
            if self.upstream is not None and self.upstream.pending:
                self.pause()

    def _passes(self, piece: bytes) -> bool:
        """Whether a piece of body may go on; else the upload was stopped."""
        self._body_count += len(piece)
        limit = self._limit
        if self.state == COLLECT:
            limit = min(SIGN_LIMIT, limit) if limit is not None else SIGN_LIMIT
        if limit is not None and self._body_count > limit:
            self._stop_upload("body_too_large", f"the body is larger than {limit} bytes")
            return False
        refusal = self.owner.budget.up(self.meter, len(piece))
        if refusal is not None:
            self._stop_upload(refusal.reason, refusal.public, status=refusal.status)
            return False
        # a token endpoint's own placeholders belong into its body: the whole is looked at once they are replaced
        if self._canary is not None and not self.terms.token_endpoint and self._canary.seen(piece):
            self._stop_upload("canary", "a placeholder stands where it does not belong", alert=True)
            return False
        return True

    def _stop_upload(self, reason: str, public: str, *, status: int = 0, alert: bool = False) -> None:
        """Refuse in the middle of a body: what was sent is an incomplete request that the upstream must drop."""
        self.drop_upstream()
        self.refuse_for(reason, public, status=status or status_of(reason), alert=alert)

    # failures

    def _give_up(self, reason: str, detail: str) -> None:
        """The upstream's side failed before an answer."""
        self.drop_upstream()
        status = {"upstream_timeout": 504, "address_refused": 403}.get(reason, 502)
        self.refuse_for(reason, UPSTREAM_FAULTS.get(reason, "the upstream failed"), status=status, cause=detail)

    def _over(self, refusal: Refusal) -> None:
        detail = {**self.admitted, "limit": refusal.limit, "scope": refusal.scope}
        decision = refuse(refusal.reason, self.authorized.destination, refusal.public, detail=detail).decision
        extra = f"Retry-After: {refusal.retry_after_s}\r\n" if refusal.retry_after_s else ""
        if self.note(decision):
            self.say_and_linger(refusal_page(refusal.status, decision.reason, decision.public, extra=extra))

    def count_bytes(self) -> None:
        self.owner.port.moved(self.authorized.destination, self._body_count, self._down_count)
