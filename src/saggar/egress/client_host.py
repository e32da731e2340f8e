"""The answers to a client of a terminated host: rewritten heads, searched bodies, tokens taken out, WebSockets begun.

I1  No rendering of this host's secret passes (`redact`), and what was cut out is on record before the rest is sent.
I2  An upstream connection is used again only after a whole answer to a whole request.
I3  A fault before the first byte of an answer becomes a refusal; a later one a cut.
I4  Of a token endpoint's answer no token passes; one that cannot be read does not pass at all.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from saggar.core.decision import ALLOW, Decision
from saggar.core.errors import ParseError
from saggar.egress.admit import refuse
from saggar.egress.answer import write_answer, write_interim
from saggar.egress.client_end_host import BODY, HEAD, SOCKET
from saggar.egress.client_request_host import Requests
from saggar.egress.client_upload_host import ANSWER_S
from saggar.egress.http_body import LAST_CHUNK, chunk, last_chunk
from saggar.egress.http_head import Body
from saggar.egress.oauth import swap_tokens
from saggar.egress.placeholder import mint
from saggar.egress.redact import Redactor
from saggar.egress.relay_host import Relay, agreed_head
from saggar.egress.remedies import UPSTREAM_FAULTS
from saggar.egress.trailers import of_answer

if TYPE_CHECKING:
    from saggar.egress.budget import Refusal
    from saggar.egress.http_head import RequestHead, ResponseHead
    from saggar.egress.redact import Secrets

IDLE_S = 75.0
#: ways in which one head was written for clients
_MADE = 8
TOKEN_LIMIT = 64 * 1024


class Client(Requests):
    """One client connection. The exchange of its upstream connection (`upstream_host.Exchange`)."""

    __slots__ = ()

    def exchange(self) -> Client:
        return self

    # the answer

    def on_informational(self, head: ResponseHead) -> None:
        """1xx: `100` lets a client that waits for it send its body; of the others what `write_interim` lets pass."""
        request = self._head
        if request is None or self.responding:
            return
        if head.status == 100:
            self.go_on()
            return
        out = write_interim(head, request)
        if out and self._lease is not None and self.terms.credential is not None:
            clean = self.owner.redaction(self.terms, self._lease).clean(out)
            if clean is not out and not self._note_redaction():
                return
            out = clean
        if out and self.owner.budget.down(self.meter, len(out)) is None:
            self.write(out)

    def on_response(self, head: ResponseHead, pieces: list[bytes], *, done: bool) -> None:
        request = self._head
        if request is None:
            return
        credential, lease = self.terms.credential, self._lease
        secrets = self.owner.redaction(self.terms, lease) if credential is not None and lease is not None else None
        if head.status == 101:
            self._switch(request, head, pieces, secrets)
            return
        if not self._done_up:
            # an answer before the request's end: what the client still sends goes nowhere
            self._keep = False
        if self.terms.token_endpoint and head.status < 300:
            self._tokens = []
            self._token_head = head
            self._take_tokens(request, pieces, done=done)
            return
        made = head.made.get((request.version, self._keep, credential is None, secrets))
        if made is None:
            try:
                made = self._answered(head, request, secrets)
            except ParseError as e:
                self.give_up(e.reason, "")
                return
        out, self._framing, self._keep, hit = made
        self.deadline = self.loop.time() + ANSWER_S
        if secrets is not None:
            self._redactor = Redactor(secrets, partial=head.status == 206)
            self._redactor.hits += hit
        self._down([out], pieces, done=done)

    def _answered(
        self, head: ResponseHead, request: RequestHead, secrets: Secrets | None
    ) -> tuple[bytes, str, bool, bool]:
        """(head for the client, framing, whether its connection stays, whether a secret was cut out), kept with `head`: what
        recurs byte for byte (`Answers`) is written once. Raises ParseError."""
        bound = self.terms.credential is not None
        out, framing, keep = write_answer(head, request, bound=bound, scanned=secrets is not None, keep=self._keep)
        clean = secrets.clean(out) if secrets is not None else out
        made = clean, framing, keep, clean is not out
        if len(head.made) >= _MADE:
            head.made.clear()
        head.made[request.version, self._keep, not bound, secrets] = made
        return made

    def _take_tokens(self, request: RequestHead, pieces: list[bytes], *, done: bool) -> None:
        """A token endpoint's answer: read whole, tokens out, placeholders in."""
        head, tokens = self._token_head, self._tokens
        if head is None or tokens is None:
            return
        tokens += pieces
        if sum(map(len, tokens)) > TOKEN_LIMIT:
            self.give_up("token_answer_too_large", "")
            return
        if not done:
            return
        try:
            body, swapped = swap_tokens(b"".join(tokens), lambda form: mint(form, os.urandom))
            whole = replace(head, body=Body("length", len(body)))
            out, self._framing, self._keep = write_answer(whole, request, bound=True, scanned=True, keep=self._keep)
        except ParseError as e:
            self.give_up(e.reason, "")
            return
        self._tokens = None
        self.owner.issue(swapped, self.authorized.rule.id)
        if swapped:
            detail = {**self.admitted, "tokens": len(swapped)}
            if not self.record(
                Decision(ALLOW, "tokens_replaced", layer="L2", rule=self.authorized.rule.id, detail=detail)
            ):
                return
        credential, lease = self.terms.credential, self._lease
        if credential is not None and lease is not None:
            secrets = self.owner.redaction(self.terms, lease)
            out, body = secrets.clean(out), secrets.clean(body)
        self._down([out], [body], done=True)

    def on_body(self, pieces: list[bytes], *, done: bool) -> None:
        self.deadline = self.loop.time() + ANSWER_S
        if self._tokens is not None and self._head is not None:
            self._take_tokens(self._head, pieces, done=done)
            return
        self._down([], pieces, done=done)

    def _down(self, out: list[bytes], pieces: list[bytes], *, done: bool) -> None:
        """Send on what came of the answer. out: its head, with the first of it."""
        count = sum(map(len, out)) + sum(map(len, pieces))
        refusal = self.owner.budget.down(self.meter, count)
        if refusal is not None:
            self._too_much(refusal)
            return
        self.responding = True
        redactor = self._redactor
        if redactor is not None and (pieces or done):
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            body = redactor.last(body) if done else redactor.feed(body)
            pieces = [body] if body else []
        end = LAST_CHUNK
        if done and self.upstream is not None and self.upstream.trailers and self._framing == "chunked":
            end = last_chunk(of_answer(self.upstream.trailers, bound=self.terms.credential is not None))
            if redactor is not None:
                end = redactor.clean(end)
        if redactor is not None and redactor.hits and not self._note_redaction():
            return
        if self._framing == "chunked":
            # one chunk for one read, however small the upstream's are
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if body:
                out.append(chunk(body))
            if done:
                out.append(end)
        else:
            out += pieces
        if out:
            self.write(out[0] if len(out) == 1 else b"".join(out))
        if self.closed:
            return
        if done:
            self._finish()
        elif self.pending and self.upstream is not None:
            self.upstream.pause()

    def _too_much(self, refusal: Refusal) -> None:
        """The budget of bytes ends here: said where nothing of the answer is out yet, else a cut."""
        if self.responding:
            decision = refuse(
                refusal.reason, self.authorized.destination, refusal.public, detail=self.admitted
            ).decision
            self.note(decision)
            self.cut()
        else:
            self.drop_upstream()
            self.over(refusal)

    def _note_redaction(self, hits: int = 1) -> bool:
        """Before what was cleaned goes on, and at the end where more was; False: it must not."""
        if self._told >= hits:
            return True
        self._told = hits
        rule = self.authorized.rule.id
        detail = {**self.admitted, "hits": hits}
        return self.record(Decision(ALLOW, "secret_redacted", layer="L2", rule=rule, detail=detail))

    def _finish(self) -> None:
        """The answer is complete."""
        if self._redactor is not None and self._redactor.hits and not self._note_redaction(self._redactor.hits):
            return
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            self.account(upstream)
            if self._done_up:
                self.owner.pool.give(upstream)
            else:
                upstream.exchange = None
                upstream.abort()
        keep = self._keep
        self._reset()
        if not keep:
            self.responding = True
            self.linger()
            return
        if self.eof:
            self.depart()
            return
        self.state = HEAD
        self.deadline = self.loop.time() + IDLE_S
        self.resume()
        if self.buffer:
            # not from within this call: a run of requests sent ahead must not recurse
            self.loop.call_soon(self._next_if_idle)

    def _next_if_idle(self) -> None:
        if self.state == HEAD and not self.closed:
            share = self.share
            if share is None:
                self._next()
                return
            began, work = share.clock(), share.work
            try:
                self._next()
            except Exception as e:  # noqa: BLE001  # a fault of ours ends this connection, and nothing passes
                self._fail(e)
            finally:
                share.account(began, work)

    def _switch(self, request: RequestHead, head: ResponseHead, pieces: list[bytes], scanner: Secrets | None) -> None:
        upstream, admitted = self.upstream, self._admitted
        answer = agreed_head(request, head) if admitted is not None and admitted.websocket else None
        if answer is None or upstream is None:
            self.give_up("unsolicited_upgrade", "")
            return
        refusal = self.owner.budget.down(self.meter, len(answer))
        if refusal is not None:
            self._too_much(refusal)
            return
        self.state = SOCKET
        self.responding = True
        self.deadline = float("inf")
        self._relay = Relay(self, upstream, scanner)
        self.write(answer)
        ahead, self.buffer = self.buffer, b""
        if ahead:
            self._relay.from_client(ahead)
        for piece in pieces:
            if not self.closed:
                self._relay.on_switched(piece)
        self.resume()

    # what the upstream's connection says

    def on_switched(self, data: bytes) -> None:
        """The relay has taken over by then."""

    def on_upstream_end(self) -> None:
        """Only of a switched connection."""

    def on_upstream_drained(self) -> None:
        if self.state == BODY:
            self.resume()

    def on_upstream_lost(self, reason: str, detail: str) -> None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            self.account(upstream)
        if self.responding:
            # part of an answer is out: only a cut tells the client that it is not whole
            facts = {**self.admitted, "cause": detail}
            public = UPSTREAM_FAULTS.get(reason, reason)
            self.note(refuse(reason, self.authorized.destination, public, detail=facts).decision)
            self.cut()
            return
        admitted = self._admitted
        if (
            reason == "upstream_closed"
            and upstream is not None
            and admitted is not None
            and not self._retried
            and self.may_repeat(upstream)
        ):
            # the upstream closed an idle connection just as we used it: once more, on a new one
            self._retried = True
            if self.record(self.noted("sent_again")):
                self._connect(admitted)
            return
        self.give_up(reason, detail)
