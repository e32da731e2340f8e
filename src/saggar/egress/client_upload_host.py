"""The body of a request to a terminated host, on its way up: read, counted, searched, passed on.

I1  Nothing of a body passes that was not counted and searched; what stops it in the middle leaves an incomplete request.
I2  A client that asked whether it may send its body is told so by the upstream's word, or after `CONTINUE_S` without one:
    a body that was refused, here or there, is never sent.
I3  Fields behind the body pass where they change nothing that was judged (`trailers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saggar.core.decision import ALLOW, Decision
from saggar.core.errors import ParseError
from saggar.egress.admit import status_of
from saggar.egress.client_end_host import COLLECT, HOLD, WAIT
from saggar.egress.hold_host import Holding
from saggar.egress.http_body import LAST_CHUNK, ChunkedReader, LengthReader, chunk, last_chunk
from saggar.egress.http_head import IDEMPOTENT
from saggar.egress.trailers import judge

if TYPE_CHECKING:
    from saggar.egress.admit import Admitted
    from saggar.egress.body_keys import KeyStream
    from saggar.egress.http_head import RequestHead
    from saggar.egress.placeholder import CanaryStream
    from saggar.egress.upstream_host import Upstream

BODY_S = 120.0
#: until the first byte of an answer, and between two pieces; models think long
ANSWER_S = 900.0
#: an upstream that knows nothing of `Expect` says nothing; clients wait about as long before they send all the same
CONTINUE_S = 1.0
SIGN_LIMIT = 8 * 1024 * 1024


class Uploads(Holding):
    """See the module. The fields are of the request in work; `Requests` sets them."""

    __slots__ = (
        "_admitted",
        "_body_count",
        "_canary",
        "_collected",
        "_done_up",
        "_first",
        "_head",
        "_kept",
        "_keys",
        "_limit",
        "_out",
        "_reader",
        "_waits",
    )

    _head: RequestHead | None
    _admitted: Admitted | None
    _reader: ChunkedReader | LengthReader | None
    _canary: CanaryStream | None
    _keys: KeyStream | None
    _collected: list[bytes]
    #: the head as it is sent, and what is still to be sent
    _first: bytes
    _out: list[bytes]
    _body_count: int
    _limit: int | None
    _done_up: bool
    #: what was written to the upstream's connection while nothing of the request had been sent: it waits for the round's end
    _kept: list[bytes]
    #: the client asked whether it may send, and was not told yet
    _waits: bool

    def take_whole(self, body: bytes) -> None:
        """A body that had to be read before anything is sent is there: the subclass."""
        raise NotImplementedError

    def _flush_up(self) -> None:
        upstream, out = self.upstream, self._out
        if upstream is not None and out:
            upstream.write(out[0] if len(out) == 1 else b"".join(out))
            if self.upstream is upstream:
                self._kept = [] if upstream.sent else self._kept + out
                self._out = []

    def may_repeat(self, upstream: Upstream) -> bool:
        """Whether the request can go out once more after `upstream`, an idle connection, ended without an answer.

        Only where the upstream cannot have acted on it twice: nothing of it left; or its head alone did, and a body was to
        follow; or the method is idempotent and no body is gone (RFC 9110, section 9.2.2; RFC 9112, section 9.3.1). Leaves
        in `_out` what is to be sent.
        """
        head = self._head
        if head is None or upstream.fresh or upstream.responded:
            return False
        if not upstream.sent:
            self._out, self._kept = self._kept + self._out, []
            return True
        if self._done_up:
            # without a body, or with one that was collected, `_out` still holds all of it
            return bool(self._out) and head.method in IDEMPOTENT
        if self._body_count or self._admitted is None:
            return False
        self._out, self._kept = [self._first], []
        return True

    def go_on(self) -> None:
        """Tell a client that waits to be told that it may send its body: the upstream said so, or will not say."""
        if self._waits and not self.closed:
            self._waits = False
            self.deadline = self.loop.time() + BODY_S
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

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
        self._waits = False
        self.deadline = self.loop.time() + BODY_S
        chunked = isinstance(reader, ChunkedReader)
        # one piece for one read: what is looked at again with each piece (`CanaryStream`) is looked at once
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if piece:
            if not self._passes(piece):
                return
            if self.state == COLLECT:
                self._collected.append(piece)
            else:
                self._out.append(chunk(piece) if chunked else piece)
        if reader.done:
            self.buffer = reader.rest
            self._reader = None
            if self.state == COLLECT:
                self.state = HOLD
                self.take_whole(b"".join(self._collected))
                return
            if isinstance(reader, ChunkedReader):
                end = self._last_chunk(reader.trailers) if reader.trailers else LAST_CHUNK
                if not end:
                    return
                self._out.append(end)
            self._done_up = True
            self.state = WAIT
            self.deadline = self.loop.time() + ANSWER_S
        if self.state != COLLECT:
            self._flush_up()
            if self.upstream is not None and self.upstream.pending:
                self.pause()

    def _last_chunk(self, found: list[tuple[bytes, bytes]]) -> bytes:
        """The end of a body with what may stand behind it; b"" where the upload was stopped for it."""
        passing, dropped, foreign = judge(found, self.terms)
        canary = self.owner.canary
        if canary is not None and canary.seen(b"\n".join([part for pair in found for part in pair])):
            self._stop_upload("canary", "a placeholder stands where it does not belong", alert=True)
            return b""
        if foreign and self.terms.credential is not None and self.terms.foreign == "refuse":
            text = f"a credential that is not this task's stands in the trailer `{foreign}`"
            self._stop_upload("foreign_credential", text, alert=True)
            return b""
        refusal = self.owner.budget.up(self.meter, sum(len(n) + len(v) for n, v in passing))
        if refusal is not None:
            self._stop_upload(refusal.reason, refusal.public, status=refusal.status)
            return b""
        if dropped and not self.record(self.noted("trailers_dropped", trailers=sorted(dropped))):
            return b""
        return last_chunk(passing)

    def noted(self, reason: str, **facts: object) -> Decision:
        """A fact of the request in work, for the record."""
        detail = {**self.admitted, **facts}
        return Decision(ALLOW, reason, layer="L2", rule=self.authorized.rule.id, detail=detail)

    def on_upstream_stalled(self) -> None:
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
        if self._keys is not None and self._keys.seen(piece):
            canary = self.owner.canary
            self._stop_upload(*self._keys.reason(canary.placeholders if canary is not None else ()), alert=True)
            return False
        return True

    def _stop_upload(self, reason: str, public: str, *, status: int = 0, alert: bool = False) -> None:
        """Refuse in the middle of a body: what was sent is an incomplete request that the upstream must drop."""
        self.drop_upstream()
        self.refuse_for(reason, public, status=status or status_of(reason), alert=alert)
