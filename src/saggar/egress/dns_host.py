"""The resolver inside a cell: answers from the rules alone; no query ever leaves.

I1  An allowed name gets its synthetic address, every other name NXDOMAIN, every other type nothing.
I2  A refused name is recorded once, with the same reason that a connection to it would have.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from saggar.core.decision import DENY, Decision
from saggar.core.errors import ParseError
from saggar.egress import dns_message as dns
from saggar.egress.destination import parse_host
from saggar.egress.eager import metered
from saggar.egress.shares_host import NAME_NS
from saggar.egress.wire_host import Wire

if TYPE_CHECKING:
    from saggar.egress.cell_host import Cell

_BATCH = 8
_TCP_IDLE_S = 10.0
MAX_RECORDED_NAMES = 512
_LOCALHOST = {dns.A: ip_address("127.0.0.1").packed, dns.AAAA: ip_address("::1").packed}


def answer(cell: Cell, data: bytes) -> bytes | None:
    """The reply to one query; None where there can be none."""
    try:
        query = dns.parse_query(data)
    except ParseError:
        return dns.failure(data)
    if query.opcode != 0:
        return dns.response(query, dns.NOTIMP)
    try:
        host = parse_host(query.name)
    except ParseError as e:
        _record(cell, query, "", e.reason)
        return dns.response(query, dns.NXDOMAIN)
    if host == "localhost" or host.endswith(".localhost"):
        packed = _LOCALHOST.get(query.type)
        return dns.response(query, dns.NOERROR, (packed,) if packed else ())
    reason = cell.rules.name_reason(host)
    if reason:
        _record(cell, query, host, reason)
        return dns.response(query, dns.NXDOMAIN)
    if query.type != dns.A:
        # no AAAA: one family is enough to attribute a name; no HTTPS or SVCB: they offer QUIC and ECH
        return dns.response(query, dns.NOERROR)
    address = cell.names.address_of(host)
    if not address:
        _record(cell, query, host, "too_many_names")
        return dns.response(query, dns.REFUSED)
    return dns.response(query, dns.NOERROR, (ip_address(address).packed,))


def _record(cell: Cell, query: dns.Query, host: str, reason: str) -> None:
    seen = cell.dns_seen
    key = (host or query.name.decode("latin-1").lower(), reason)
    if key in seen or len(seen) >= MAX_RECORDED_NAMES:
        return  # a client asks for A and AAAA, and again: one attempt
    seen.add(key)
    detail: dict[str, object] = {"host": host, "type": query.type_name}
    if not host:
        detail["name"] = query.name.decode("latin-1")
    # a reverse look-up is what tools do beside their work; nobody tried to reach anything
    cell.refused(
        Decision(DENY, reason, layer="L2", detail=detail), kind="egress.dns", told=bool(host) and query.type != dns.PTR
    )


class DnsUdp:
    """The UDP side of the stub. Bound to its own address, so replies come from where the query went."""

    __slots__ = ("_cell", "_sock")

    def __init__(self, cell: Cell, sock: socket.socket) -> None:
        self._cell = cell
        self._sock = sock

    def on_readable(self) -> None:
        share = self._cell.share
        for _ in range(_BATCH):
            if share.spent:
                share.park(self._sock.fileno(), self.on_readable)
                return
            try:
                data, peer = self._sock.recvfrom(4096)
            except OSError:
                return
            share.take(NAME_NS)
            reply = answer(self._cell, data)
            if reply is not None:
                with suppress(OSError):
                    self._sock.sendto(reply, peer)


class DnsTcp:
    """One TCP connection to the stub (RFC 7766): queries in turn, until the client is idle or wrong."""

    def __init__(self, cell: Cell, sock: socket.socket) -> None:
        self._cell = cell
        self._wire = Wire(sock, cell.share)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._cell.connections.add(self)
        self._task = self._cell.loop.create_task(metered(self._serve(), self._cell.share))

    async def _serve(self) -> None:
        try:
            with suppress(OSError):
                while True:
                    # many queries in one segment: none of them waits
                    await self._cell.share.turn()
                    async with asyncio.timeout(_TCP_IDLE_S):
                        data = await self._read()
                        self._cell.share.take(NAME_NS)
                        reply = answer(self._cell, data) if data else None
                        if reply is None:
                            return
                        await self._wire.write(len(reply).to_bytes(2, "big") + reply)
        finally:
            self._cell.connections.discard(self)
            self._wire.sock.close()

    async def _read(self) -> bytes:
        buffer = self._wire.buffer
        while len(buffer) < 2 or len(buffer) < 2 + int.from_bytes(buffer[:2], "big"):
            if len(buffer) >= 2 and int.from_bytes(buffer[:2], "big") > dns.MAX_QUERY:
                return b""
            if not await self._wire.fill():
                return b""
        size = int.from_bytes(buffer[:2], "big")
        data = bytes(buffer[2 : 2 + size])
        del buffer[: 2 + size]
        return data

    def charge(self) -> None:
        """No budget counts it."""

    def reconsider(self) -> None:
        """Nothing to cut: each query is decided afresh."""

    def cut(self, reason: str) -> None:
        """Names cost nothing of a budget."""

    def end_if_idle(self, _sweeps: float) -> None:
        """Its own time-out ends it."""

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
