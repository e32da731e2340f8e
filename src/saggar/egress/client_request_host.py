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
from dataclasses import replace
from typing import TYPE_CHECKING

from saggar.core.decision import ALLOW, ASK
from saggar.core.errors import ParseError
from saggar.egress import http_head
from saggar.egress.admit import RANGES, Admitted, Lease, Refused, admit, inject, status_of, write_request
from saggar.egress.body_keys import KeyStream, to_be_read
from saggar.egress.client_end_host import BODY, COLLECT, HEAD, HOLD, LINGER, SOCKET, WAIT
from saggar.egress.client_upload_host import ANSWER_S, BODY_S, CONTINUE_S, Uploads
from saggar.egress.dial_host import DialError
from saggar.egress.http_body import ChunkedReader, LengthReader
from saggar.egress.known import HEAD_BYTES, MAX_HEADS, Known
from saggar.egress.placeholder import CanaryStream
from saggar.egress.secrets_client_host import SecretsError
from saggar.egress.terms import ISSUED
from saggar.egress.trailers import announced
from saggar.egress.upstream_host import Upstream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from saggar.egress.http_head import RequestHead, ResponseHead
    from saggar.egress.redact import Redactor
    from saggar.egress.relay_host import Relay
    from saggar.egress.upstream_host import Exchange

AHEAD_LIMIT = 64 * 1024
UPSTREAM_HANDSHAKE_S = 20.0


class Requests(Uploads):
    """See the module. The fields without a default in `_reset` are of the request in work."""

    __slots__ = (
        "_framing",
        "_keep",
        "_known",
        "_lease",
        "_redactor",
        "_relay",
        "_retried",
        "_token_head",
        "_tokens",
        "_told",
    )

    _known: Known | None
    _lease: Lease | None
    _redactor: Redactor | None
    _relay: Relay | None

    def exchange(self) -> Exchange:
        """Who takes the answer: the subclass."""
        raise NotImplementedError

    def _reset(self) -> None:
        self._head = None
        self._known = None
        self._admitted = None
        self._lease = None
        self._reader = None
        self._canary = None
        self._keys = None
        self._redactor = None
        self._relay = None
        self._collected = []
        self._out = []
        self._first = b""
        self._body_count = 0
        self._limit = None
        self._framing = "none"
        self._keep = True
        self._done_up = False
        self._retried = False
        self._told = 0
        self._waits = False
        self._kept = []
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
            if self.upstream is not None and self.upstream.eof:
                # the upstream was the first to end: nobody says anything any more
                self.depart()
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
        elif self.state == BODY and self._waits and not self.responding:
            # the upstream says neither yes nor no
            self.go_on()
        elif self.state in (BODY, COLLECT) and not self.responding:
            self.drop_upstream()
            self.refuse_for("request_timeout", "the request's body did not come in time", status=408)
        elif self.state in (WAIT, HOLD) and not self.responding:
            self.give_up("upstream_timeout", "")
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
            self.owner.catch_up()
            known = self.heads.get(raw) or self._judged(raw)
        except ParseError as e:
            status = http_head.STATUS.get(e.reason) or status_of(e.reason)
            self.refuse_for(e.reason, str(e), status=status)
            return
        if known is None:
            return
        head, found = known.head, known.admitted
        self._known = known
        self._head = head
        self._keep = head.keep_alive and self.persistent
        self.state = HOLD
        self.admitted = found.decision.detail
        budget = self.owner.budget
        refusal = budget.request(self.meter, self.loop.time()) or budget.up(self.meter, end)
        if refusal is not None:
            self.over(refusal)
            return
        if found.decision.effect == ASK:
            found = self.standing(found)
        self._admitted = found
        self._limit = found.body_limit
        body = head.body
        if body.kind != "none":
            if self.owner.canary is not None:
                self._canary = CanaryStream(self.owner.canary)
            if self.terms.foreign_keys and not self._look_for_keys(found):
                return
            if body.kind == "chunked":
                self._reader = ChunkedReader()
            elif body.length:
                self._reader = LengthReader(body.length)
        if found.decision.effect == ASK or (self.terms.credential is not None and not self._leased(found)):
            self.task = self.loop.create_task(self._prepare(found))
        else:
            self._proceed(found)

    def _judged(self, raw: bytes) -> Known | None:
        """A head that is not known yet, admitted; None where it was refused. Raises ParseError."""
        destination, owner = self.authorized.destination, self.owner
        port, more = 443 if destination.scheme == "https" else 80, self.terms.rules.extra_methods
        head = http_head.parse_request(raw, default_port=port, more_methods=more)
        self._head = head
        self._keep = head.keep_alive and self.persistent
        self.state = HOLD
        found = admit(head, destination, self.terms, owner.canary, owner.issued)
        if isinstance(found, Refused):
            self.refuse(found)
            return None
        facts = found.decision.detail
        facts["grant"] = self.authorized.rule.id
        override = self.authorized.rule.connect_to
        if override is not None:
            facts["connect_to"] = f"{override[0]}:{override[1]}"
        known = Known(head, found)
        # a question's facts are told apart by its answer
        if found.decision.effect == ALLOW and len(raw) <= HEAD_BYTES:
            if len(self.heads) >= MAX_HEADS:
                del self.heads[next(iter(self.heads))]
            self.heads[raw] = known
        return known

    def _look_for_keys(self, admitted: Admitted) -> bool:
        """Whether the request may go on: its body, if it is to be looked at for keys, can be."""
        reads, why_not = to_be_read(admitted.fields)
        if why_not:
            self.refuse_for("body_unreadable", why_not)
            return False
        if reads:
            self._keys = KeyStream()
        return True

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
        head = self._head
        self.state = COLLECT
        self._waits = head is not None and head.expects_continue and not self.buffer
        self.go_on()
        self._take_ahead()

    def take_whole(self, body: bytes) -> None:
        whole = self._redeemed(body) if self.terms.token_endpoint else body
        if whole is not None and self._admitted is not None:
            self._dispatch(self._admitted, whole)

    def _redeemed(self, body: bytes) -> bytes | None:
        """A token endpoint's request with its own tokens in place; None where another placeholder stands in it."""
        kinds = [v for n, v in self._admitted.fields if n == b"content-type"] if self._admitted is not None else []
        body = self.owner.redeem(body, self.authorized.rule.id, as_json=any(b"json" in kind.lower() for kind in kinds))
        if self.owner.canary is not None and self.owner.canary.seen(body):
            self._stop_upload("canary", "a placeholder stands where it does not belong", alert=True)
            return None
        return body

    def _dispatch(self, admitted: Admitted, body: bytes | None) -> None:
        """Write the head, record the decision, find a connection. body: a whole body that was read before."""
        head, lease, known = self._head, self._lease, self._known
        if head is None:
            return
        if known is not None and known.written and known.lease is lease:
            first = known.written
        else:
            try:
                first = self._written(admitted, head, lease, body)
            except ParseError as e:
                self.refuse_for(e.reason, str(e))
                return
            if known is not None and body is None and self._recurs(admitted, head):
                known.lease, known.written = lease, first
        if not self.record(admitted.decision):
            return
        self._first = first
        self._out = [first, body] if body else [first]
        self._connect(admitted)

    def _recurs(self, admitted: Admitted, head: RequestHead) -> bool:
        """Whether the head that goes upstream is the same next time."""
        credential = self.terms.credential
        # an approval's request is one; a signature has its time, a token of an endpoint a lease of its own
        return (
            head.body.kind == "none"
            and self._known is not None
            and self._known.admitted is admitted
            and (credential is None or credential.kind not in ("sigv4", ISSUED))
        )

    def _written(self, admitted: Admitted, head: RequestHead, lease: Lease | None, body: bytes | None) -> bytes:
        """The head that goes upstream, with the secret in it. Raises ParseError for a body that cannot be signed."""
        credential, authority = self.terms.credential, self.authorized.destination.authority
        target: bytes = admitted.target.raw
        fields: Iterable[tuple[bytes, bytes]] = admitted.fields
        if credential is not None and lease is not None:
            if admitted.narrow and admitted.narrow <= self.owner.redaction(self.terms, lease).needles.hold:
                # a secret could be had in parts too small to be told from chance; a server may ignore `Range`, so it is asked
                # for the whole (RFC 9110, section 14.2)
                admitted = replace(admitted, fields=tuple(f for f in admitted.fields if f[0] not in RANGES))
                fields = admitted.fields
            now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) if credential.kind == "sigv4" else ""
            whole = b"" if body is None and head.body.kind == "none" else body
            target, fields = inject(admitted, credential, lease, authority=authority, now=now, body=whole)
        chunked = body is None and head.body.kind == "chunked"
        self._waits = head.expects_continue and body is None and self._reader is not None and not self.buffer
        return write_request(
            admitted,
            head.body,
            authority,
            target=target,
            fields=fields,
            whole=body,
            promised=announced([v for n, v in head.fields if n.lower() == b"trailer"]) if chunked else b"",
            expects=self._waits,
        )

    # a connection

    def _connect(self, admitted: Admitted) -> None:
        lease = self._lease
        identity = (lease.credential, lease.version) if lease is not None else ()
        to = self.authorized.destination
        key = (to.host, to.port, to.scheme, self.authorized.rule.id, *identity, self.terms.ca_pem)
        upstream = None if self._retried else self.owner.pool.take(key)
        if upstream is not None:
            self.upstream = upstream
            upstream.begin(self.exchange(), admitted.method)
            self.on_upstream_ready()
            return
        if not self.written():
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
            self.give_up(e.reason, str(e.detail))
            return
        self.task = None
        if self.closed or self.state != HOLD:
            # refused in the meantime
            sock.close()
            return
        upstream = Upstream(self.loop, sock, self.owner.turn, key, self.owner.answers)
        upstream.share = self.owner.share
        upstream.pool = self.owner.pool
        self.upstream = upstream
        # what is awaited now is a handshake, and no model thinks about that
        self.deadline = self.loop.time() + UPSTREAM_HANDSHAKE_S
        upstream.begin(self.exchange(), admitted.method)
        secure = destination.scheme == "https"
        try:
            context = self.owner.dial_context(self.terms.ca_pem) if secure else None
            upstream.start(context, server_side=False, hostname=destination.host if secure else None)
        except (ssl.SSLError, ValueError, OSError) as e:
            self.give_up("upstream_tls", type(e).__name__)

    def on_upstream_ready(self) -> None:
        """The connection is there: send the head, then the body as it comes."""
        if self.state != HOLD:
            self.drop_upstream()
            return
        if self._reader is not None and not self._collected:
            self.state = BODY
            self._waits = self._waits and not self.buffer
            self.deadline = self.loop.time() + (CONTINUE_S if self._waits else BODY_S)
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

    def _take_ahead(self) -> None:
        ahead, self.buffer = self.buffer, b""
        if ahead:
            self._body(ahead)
        if self.state in (BODY, COLLECT) and self.eof:
            # it ended while we dialled: the request can never be whole
            self.depart()
        elif self.state in (BODY, COLLECT) and (self.upstream is None or not self.upstream.pending):
            self.resume()
