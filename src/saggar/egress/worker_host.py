"""A further process of the broker's: serves the connections that the first one hands it, by the same rules.

Its supervisor is the first process (`workers_host`), its protocol the broker's own, with these differences:
`add` has no listeners but a third descriptor, the cell's shared memory, and `process`, its number of `processes`;
`{"op":"take","cell","proxy","fixed"}` brings an accepted connection, and the name that its address stands for;
`{"op":"stop","cell"}` closes the cell; before `removed` comes what it counted, `{"event":"used","cell",…}`.

I1  It resolves, dials, decides and records as the first process does: the same code, the same log, the same counters.
I2  It ends with the first process, and locks itself down as that one does.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

from saggar.egress.authorize import refuse
from saggar.egress.broker_host import Broker, harden, run
from saggar.egress.connection_host import Connection
from saggar.egress.heap_host import keep_heap
from saggar.egress.lockdown_host import refuse_rings
from saggar.egress.shared_host import Shared
from saggar.egress.shares_host import ACCEPT_NS
from saggar.egress.wire_host import reset

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from saggar.egress.cell_host import Cell, Served


class _Open(set["Served"]):
    """A cell's open connections here; the first process reads how many have ended."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self._shared = shared

    def discard(self, connection: object) -> None:
        if connection in self:
            super().discard(connection)
            self._shared.end_one()


class Worker(Broker):
    """Follows the first process's orders."""

    def __init__(self, control: socket.socket, *, stop: asyncio.Event) -> None:
        super().__init__(control, stop=stop)
        self._operations |= {"take": self._take, "stop": self._stop_cell}

    def _share(self, message: dict[str, Any], _egress: dict[str, Any], descriptors: list[int]) -> Shared | None:
        return Shared(descriptors.pop(2), message["process"], message["processes"])

    def _beside(self, egress: dict[str, Any]) -> int:  # noqa: ARG002  # how many others there are is not its business
        return 3

    def _adopted(self, cell: Cell, message: dict[str, Any], descriptors: list[int]) -> None:  # noqa: ARG002  # the first one's part
        if cell.shared is not None:
            cell.connections = cell.share.held = _Open(cell.shared)

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        cell = self.cells.get(message["cell"])
        if cell is None or cell.shared is None:
            return
        if not descriptors:
            # lost on the way to a process that has no room for it: the kernel has closed it
            cell.shared.end_one()
            cell.refused(refuse("out_of_descriptors"), via="accept")
            return
        sock = socket.socket(fileno=descriptors.pop())
        if cell.closed:
            reset(sock)
            return
        if cell.share.full():
            cell.shared.end_one()
            cell.refused(refuse("too_many_connections"), via="accept")
            reset(sock)
            return
        sock.setblocking(False)
        cell.share.take(ACCEPT_NS)
        connection = Connection(cell, sock, proxy=message["proxy"])
        connection.fixed = message["fixed"]
        connection.start()

    def _stop_cell(self, message: dict[str, Any], _descriptors: list[int]) -> None:
        cell = self.cells.get(message["cell"])
        if cell is not None:
            cell.close()

    def _remove(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if message["cell"] in self.cells:
            super()._remove(message, descriptors)
            return
        # one that could not be added, which was said; the first process waits for this word all the same
        secrets = self._secrets.pop(message["cell"], None)
        if secrets is not None:
            secrets.close()
        self.emit({"event": "removed", "cell": message["cell"]})

    def _close_books(self, cell: Cell) -> None:
        for part in cell.usage.told():
            self.emit({"event": "used", "cell": cell.id, **part})


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the socket ends whose descriptor is the first argument."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    harden(parent_death=False)
    refuse_rings()
    keep_heap()
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    run(control, Worker)
    return 0
