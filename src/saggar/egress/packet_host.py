"""The packet socket of a cell, read outside: records what the kernel refused by itself.

A port that nobody listens on is answered with a reset, UDP with an ICMP error; neither reaches the broker. Each
destination is recorded once, and counted after that.
"""

from __future__ import annotations

import socket
from array import array
from contextlib import suppress
from struct import pack
from typing import TYPE_CHECKING

from saggar.core.decision import DENY, Decision
from saggar.egress.packet import KernelRefusal, parse_reply
from saggar.egress.packet_filter import FILTER, SNAP, filter_program
from saggar.egress.shares_host import PACKET_NS

if TYPE_CHECKING:
    from saggar.egress.cell_host import Cell

_SO_ATTACH_FILTER = 26
MAX_DESTINATIONS = 512
_BATCH = 64


class PacketWatch:
    """Reads replies and records each refused destination once."""

    __slots__ = ("_cell", "_seen", "_sock")

    def __init__(self, cell: Cell, sock: socket.socket) -> None:
        self._cell = cell
        self._sock = sock
        self._seen: dict[KernelRefusal, int] = {}
        with suppress(OSError):  # the launcher has attached it already; without it all is parsed here, to the same end
            attach_filter(sock)
        cell.loop.add_reader(sock.fileno(), self.on_readable)

    def on_readable(self) -> None:
        if self._cell.share.spent:
            self._cell.share.park(self._sock.fileno(), self.on_readable)
        else:
            self._read()

    def _read(self) -> None:
        for _ in range(_BATCH):
            try:
                packet, origin = self._sock.recvfrom(SNAP)
            except OSError:
                return
            self._cell.share.take(PACKET_NS)
            if origin[2] != 0:  # PACKET_HOST: what was queued before the filter came in both directions
                continue
            refusal = parse_reply(packet)
            if refusal is not None:
                self._record(refusal)

    def _record(self, refusal: KernelRefusal) -> None:
        count = self._seen.get(refusal, 0)
        if count or len(self._seen) < MAX_DESTINATIONS:
            self._seen[refusal] = count + 1
        if count or len(self._seen) > MAX_DESTINATIONS:
            return
        host = self._cell.names.name_of(refusal.address)
        reason = "port_not_listed" if refusal.protocol == "tcp" else "protocol_refused"
        decision = Decision(
            DENY,
            reason,
            layer="L2",
            detail={
                "host": host or refusal.address,
                "port": refusal.port,
                "protocol": refusal.protocol,
                "address": refusal.address,
            },
        )
        # a client that tries QUIC on an allowed host and falls back to TCP is not worth a line at the end of the run
        quic = refusal.protocol == "udp" and refusal.port == 443 and bool(host)
        self._cell.refused(decision, kind="egress.kernel_refused", told=not quic)

    def close(self) -> None:
        """Read what is queued, then tell how often each was tried."""
        self._read()
        repeated = {f"{r.protocol} {r.address}:{r.port}": n for r, n in self._seen.items() if n > 1}
        if repeated:
            self._cell.note("egress.kernel_refused", reason="repeated", counts=repeated)


def attach_filter(sock: socket.socket) -> None:
    """Let the kernel drop all that is no refusal. Raises OSError."""
    program = array("B", filter_program())
    # struct sock_fprog: an unsigned short, padding, a pointer
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pack("HP", len(FILTER), program.buffer_info()[0]))
