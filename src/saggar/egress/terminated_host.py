"""The terminated path of one cell: leaves, upstream trust, pool, budget and the connections that use them.

I1  Nothing here is shared between cells: leaves, pool, budget, placeholders and redactions are one cell's.
I2  A leaf is had from the secrets process alone, for the host that was decided on.
I3  Revoked rules and a removed cell cut their connections at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from saggar.egress.admit import refuse
from saggar.egress.budget import Budget, Limits
from saggar.egress.client_host import Client
from saggar.egress.known import Answers
from saggar.egress.needles import MIN_BYTES
from saggar.egress.placeholder import Canary
from saggar.egress.redact import Secrets
from saggar.egress.shares_host import LEAF_NS
from saggar.egress.terms import ISSUED, Terms
from saggar.egress.turn_host import Turn
from saggar.egress.upstream_host import Pool, client_context

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from saggar.core.decision import Decision
    from saggar.egress.admit import Lease
    from saggar.egress.approved import Approval
    from saggar.egress.authorize import AuthorizedRequest
    from saggar.egress.client_end_host import ClientEnd
    from saggar.egress.destination import Destination
    from saggar.egress.dial_host import Dialer
    from saggar.egress.known import Known
    from saggar.egress.secrets_client_host import SecretsClient
    from saggar.egress.shared_host import Shared
    from saggar.egress.shares_host import Share

    class CellPort(Protocol):
        """What the broker gives the terminated path of one cell."""

        id: str
        dialer: Dialer

        def record(self, decision: Decision, destination: Destination, via: str) -> bool:
            """The audit record of what is about to happen: written by the next `commit`. False: nothing may pass."""
            ...

        def commit(self) -> bool:
            """Write what was recorded; False: it could not be, and nothing may pass."""
            ...

        def refused(self, decision: Decision, via: str) -> bool:
            """Write a refusal, count it and tell the supervisor; False as above."""
            ...

        def moved(self, destination: Destination, up: int, down: int) -> None:
            """Count bytes."""
            ...

        def unsolicited(self, host: str, port: int, rule: str) -> None:
            """An upstream sent what nobody asked for: a fact for the record, once for each of them."""
            ...

        async def approve(self, decision: Decision) -> str:
            """`approved`, `denied`, `timeout`, `unattended` or `crowded`."""
            ...


_SWEEP_S = 1.0
MAX_ISSUED = 256
#: whose admitted heads are remembered
_HEAD_HOSTS = 64
MAX_LEAVES = 256
#: leaves that are made at the same time
_MINTS = 4
_REDACTIONS = 64
#: earlier secrets of a credential that are still looked for
_FORMER = 3


class Termination:
    """All terminated connections of one cell."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        port: CellPort,
        secrets: SecretsClient,
        *,
        placeholders: Iterable[str] = (),
        limits: Limits | None = None,
        share: Share | None = None,
    ) -> None:
        self.loop = loop
        self.port = port
        self.secrets = secrets
        self.share = share
        self._placeholders = tuple(placeholders)
        self.canary: Canary | None = Canary(self._placeholders) if self._placeholders else None
        #: placeholder to (token, id of the rule whose endpoint issued it)
        self.issued: dict[str, tuple[str, str]] = {}
        #: what other processes that serve the cell know too
        self.shared: Shared | None = None
        self.budget = Budget(limits or Limits(), loop.time())
        self.turn = Turn(loop, port.commit)
        self.pool = Pool(loop, lambda key: port.unsolicited(str(key[0]), int(str(key[1])), str(key[3])))
        self.clients: set[ClientEnd] = set()
        #: what a person approved for the rest of the task
        self.approved: tuple[Approval, ...] = ()
        self._servers: dict[str, ssl.SSLContext] = {}
        self._making: dict[str, asyncio.Task[ssl.SSLContext]] = {}
        self._minting = asyncio.Semaphore(_MINTS)
        self._redactions: dict[tuple[str, int], Secrets] = {}
        #: by credential, the secrets that were used, the latest first
        self._given: dict[str, list[str]] = {}
        self._heads: dict[Destination, tuple[Terms, dict[bytes, Known]]] = {}
        self.answers = Answers()
        self._timer = loop.call_later(_SWEEP_S, self._sweep)

    def accept(
        self,
        sock: socket.socket,
        authorized: AuthorizedRequest,
        terms: Terms,
        *,
        first: bytes = b"",
        persistent: bool = True,
        via: str = "",
        on_gone: Callable[[], object] | None = None,
    ) -> Client:
        """Take over a client's socket. The destination was allowed; the ClientHello is unread.

        first: bytes that were read already (plain HTTP). persistent: further requests on the connection are for the same
        destination; else it ends after one. via: how the client came, for the records. on_gone: called once at the end.
        """
        client = Client(self, sock, authorized, terms)
        client.buffer = first
        client.persistent = persistent
        client.via = via
        client.on_gone = on_gone
        self.clients.add(client)
        client.begin()
        return client

    def revoke(self, gone: Iterable[str]) -> None:
        """Cut every connection under a rule that is no more, and every idle one to an upstream."""
        rules = set(gone)
        for client in [c for c in self.clients if c.authorized.rule.id in rules]:
            client.cut()
        self.pool.close()

    def approve_for_task(self, approvals: Iterable[Approval]) -> None:
        """What a person approved, from now on; requests in work under an approval that is no more are cut."""
        self.approved = tuple(approvals)
        known = {a.id for a in self.approved}
        for client in [c for c in self.clients if c.admitted.get("approval", "") not in known | {""}]:
            facts = dict(client.admitted)
            refused = refuse("revoked", client.authorized.destination, "the approval was taken back", detail=facts)
            client.note(refused.decision)
            client.cut()

    def close(self) -> None:
        self._timer.cancel()
        for making in self._making.values():
            making.cancel()
        for client in list(self.clients):
            client.cut()
        self.pool.close()

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(_SWEEP_S, self._sweep)
        now = self.loop.time()
        for client in [c for c in self.clients if c.deadline <= now]:
            client.on_deadline()
        self.pool.sweep()

    def heads(self, destination: Destination, terms: Terms) -> dict[bytes, Known]:
        """Heads to `destination` that were admitted under these very terms, byte for byte, and what was made of them.

        `parse_request` and `admit` depend on the bytes, the destination, the terms and the known placeholders alone: a client
        that asks the same again is told the same, and each time counted and recorded. Emptied by `expect`.
        """
        found = self._heads.get(destination)
        if found is None or found[0] is not terms:
            if len(self._heads) >= _HEAD_HOSTS:
                self._heads.clear()
            found = self._heads[destination] = terms, {}
        return found[1]

    def expect(self, placeholders: Iterable[str]) -> None:
        """The task's own placeholders from now on; those of issued tokens stay known."""
        self._placeholders = tuple(placeholders)
        texts = (*self._placeholders, *self.issued)
        self.canary = Canary(texts) if texts else None
        for _, heads in self._heads.values():
            heads.clear()  # in place: connections hold on to it

    def issue(self, tokens: dict[str, str], rule: str) -> None:
        """Remember what a token endpoint gave; the oldest go beyond `MAX_ISSUED`."""
        fresh = {placeholder: (token, rule) for placeholder, token in tokens.items()}
        if self.shared is not None:
            self.issued = self.shared.issue(fresh, MAX_ISSUED)
        else:
            self.issued |= fresh
            while len(self.issued) > MAX_ISSUED:
                del self.issued[next(iter(self.issued))]
        self.expect(self._placeholders)

    def catch_up(self) -> None:
        """Know what token endpoints gave through the cell's other processes: before a request is judged."""
        if self.shared is not None and self.shared.fresh:
            self.issued = self.shared.issued()
            self.expect(self._placeholders)

    def redeem(self, body: bytes, rule: str, *, as_json: bool = False) -> bytes:
        """A request body for a token endpoint, with that endpoint's tokens in place of their placeholders. as_json: it is
        JSON, else a form."""
        self.catch_up()
        for placeholder, (token, owner) in self.issued.items():
            if owner == rule and placeholder.encode() in body:
                text = json.dumps(token)[1:-1] if as_json else quote(token, safe="-._~")
                body = body.replace(placeholder.encode(), text.encode())
        return body

    def known_context(self, host: str) -> ssl.SSLContext | None:
        return self._servers.get(host)

    async def server_context(self, host: str) -> ssl.SSLContext:
        """The TLS context with this host's leaf, made once, whoever waits for it. Raises SecretsError."""
        found = self._servers.get(host)
        if found is not None:
            return found
        making = self._making.get(host)
        if making is None:
            making = self._making[host] = self.loop.create_task(self._make_context(host))
            making.add_done_callback(partial(self._made, host))
        return await asyncio.shield(making)

    async def _make_context(self, host: str) -> ssl.SSLContext:
        # few at a time: the secrets process takes questions in turn, and leases are asked for there too
        async with self._minting:
            certificate, key = await self.secrets.leaf(self.port.id, host)
            if self.share is not None:
                self.share.charge(LEAF_NS)
            # OpenSSL reads and checks the chain for 0.6 ms of 0.8, and lets other threads go on: not in everybody's loop
            return await self.loop.run_in_executor(_reader(), _server_context, certificate, key)

    def _made(self, host: str, making: asyncio.Task[ssl.SSLContext]) -> None:
        del self._making[host]
        if making.cancelled() or making.exception() is not None:
            return
        if len(self._servers) >= MAX_LEAVES:
            # under a wildcard a cell can invent names without end
            del self._servers[next(iter(self._servers))]
        self._servers[host] = making.result()

    def dial_context(self, ca_pem: str) -> ssl.SSLContext:
        return client_context(ca_pem)

    def redaction(self, terms: Terms, lease: Lease) -> Secrets:
        """The compiled scanner for what this lease must not let back in, nor those before it: a rotated key or a token that
        was renewed works on for a while, and an upstream may have kept it."""
        key = (lease.credential, lease.version)
        found = self._redactions.get(key)
        if found is None:
            credential = terms.credential
            secret = lease.values.get("value") or lease.values.get("session_token", "")
            issued = credential is not None and credential.kind == ISSUED
            given = [] if issued else self._given.setdefault(lease.credential, [])
            if secret and secret not in given:
                given.insert(0, secret)
                del given[_FORMER + 1 :]
            pairs = [(text.encode(), credential.placeholder if credential else "") for text in given]
            user = credential.user if credential else ""
            if credential is not None and credential.kind == "basic" and not user:
                # the secret is `user:password`: the password alone is one as well
                parts = [text.partition(":")[2] for text in given]
                pairs += [(part.encode(), "") for part in parts if len(part) >= MIN_BYTES]
            found = Secrets(pairs, basic_user=user.encode())
            if len(self._redactions) > _REDACTIONS:
                self._redactions.clear()
            self._redactions[key] = found
        return found


@cache
def _reader() -> ThreadPoolExecutor:
    """One thread of the process: however many leaves are wanted, a processor is left for the loop."""
    return ThreadPoolExecutor(1, thread_name_prefix="leaf")


def _server_context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # the client knows which cipher its processor has: all that are offered do, and AES-128 costs a fifth less than AES-256
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # the module reads chains from files alone; this one has no name and dies with its descriptor
    fd = os.memfd_create("leaf", os.MFD_CLOEXEC)
    try:
        os.write(fd, (certificate + key).encode())
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context
