"""Further processes that serve a cell's connections beside the broker's first one: dealing out, gathering.

The first process keeps what is one for a cell: its sockets, names, the log's summary and the supervisor's ear. It accepts
each connection and gives it to whoever has the fewest of that cell's open ones, itself among them: sharing the listening
sockets instead would leave the spread to whoever wakes first, and one process can end up with every keep-alive connection.

I1  A worker holds nothing of a cell but the connections that it was given, the rules, and the cell's shared memory.
I2  A worker's death ends every cell that it serves (`worker_died`): what it had counted or held cannot be known.
I3  `updated` is said when every process works by the new rules; `removed` when every one has closed its part.
I4  The first process never waits for a worker: orders queue, a connection that cannot be given away is served at home.
"""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from saggar.egress.cell_host import Cell
    from saggar.egress.secrets_client_host import SecretsClient
    from saggar.egress.shared_host import Shared

_MESSAGE = 60 * 1024


class Worker:
    """One further process. says: called with each of its events; gone: called once, when it has ended."""

    __slots__ = ("_gone", "_loop", "_queue", "_says", "_sock", "ready")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        says: Callable[[Worker, dict[str, Any]], None],
        gone: Callable[[Worker], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._says = says
        self._gone = gone
        #: orders that it has not taken yet, with descriptors of our own
        self._queue: list[tuple[bytes, list[int]]] = []
        #: it serves already; before that it can be given connections all the same
        self.ready = False
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self._on_readable)

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """An order, in its turn."""
        data = json.dumps(message).encode()
        if self._queue or not self._put(data, descriptors):
            self._queue.append((data, [os.dup(fd) for fd in descriptors]))
            if len(self._queue) == 1 and self._sock.fileno() >= 0:
                self._loop.add_writer(self._sock.fileno(), self._flush)

    def give(self, message: bytes, descriptor: int) -> bool:
        """A connection; False where it does not take one now."""
        return not self._queue and self._put(message, (descriptor,))

    def _put(self, data: bytes, descriptors: Sequence[int]) -> bool:
        try:
            socket.send_fds(self._sock, [data], descriptors)
        except OSError:
            return False  # full, or gone: that is seen by reading
        return True

    def _flush(self) -> None:
        while self._queue:
            data, descriptors = self._queue[0]
            if not self._put(data, descriptors):
                return
            self._queue.pop(0)
            _close_all(descriptors)
        self._loop.remove_writer(self._sock.fileno())

    def _on_readable(self) -> None:
        while self._sock.fileno() >= 0:
            try:
                data = self._sock.recv(_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                self._gone(self)
                return
            self._says(self, json.loads(data))

    def close(self) -> None:
        """Let it go: it ends at end of file."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for _, descriptors in self._queue:
            _close_all(descriptors)
        self._queue = []


def _close_all(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)


class Spread:
    """One cell over its processes: the first, whose number is 0, and `workers`, from number 1 on."""

    __slots__ = ("_given", "_last", "_leaving", "_removed", "_shared", "_turn", "_updates", "cell", "workers")

    def __init__(self, cell: Cell, shared: Shared, workers: Sequence[Worker]) -> None:
        self.cell = cell
        self.workers = list(workers)
        self._shared = shared
        self._given = [0] * (len(workers) + 1)
        #: when each process was last given a connection, in turns
        self._last = [0] * (len(workers) + 1)
        self._turn = 0
        #: of each update, in order: who has not taken it yet, and what to do then
        self._updates: list[tuple[set[Worker], Callable[[], None]]] = []
        self._leaving: set[Worker] = set()
        self._removed: Callable[[], None] | None = None

    def _open_at(self, number: int) -> int:
        if number == 0:
            return len(self.cell.connections)
        return self._given[number] - self._shared.ended(number)

    @property
    def open(self) -> int:
        """The cell's connections, wherever they are served."""
        return sum(map(self._open_at, range(len(self._given))))

    def give(self, sock: socket.socket, *, proxy: bool) -> bool:
        """Hand an accepted connection to the least loaded process; False where that is this one."""
        number = min(range(len(self._given)), key=self._load)
        self._turn += 1
        self._last[number] = self._turn
        if number == 0:
            return False
        fixed = "" if proxy else self.cell.names.name_of(sock.getsockname()[0])
        message = json.dumps({"op": "take", "cell": self.cell.id, "proxy": proxy, "fixed": fixed}).encode()
        if not self.workers[number - 1].give(message, sock.fileno()):
            return False
        sock.close()
        self._given[number] += 1
        return True

    def _load(self, number: int) -> tuple[int, bool, int]:
        """Few open connections first; then who needs not start first; then who was not given one for longest."""
        return self._open_at(number), number > 0 and not self.workers[number - 1].ready, self._last[number]

    def update(self, rules: int, done: Callable[[], None]) -> None:
        """New rules, as a memfd; `done` once all work by them."""
        self._updates.append((set(self.workers), done))
        for worker in self.workers:
            worker.send({"op": "update", "cell": self.cell.id}, (rules,))

    def secrets(self, client: SecretsClient) -> None:
        """Connect each worker to the cell's secrets process. Raises OSError."""
        for worker in self.workers:
            with client.share() as sock:
                worker.send({"op": "secrets", "cell": self.cell.id}, (sock.fileno(),))

    def answer(self, message: dict[str, Any]) -> None:
        for worker in self.workers:
            worker.send(message)

    def stop(self) -> None:
        """The cell is closed: nobody serves it any longer."""
        for worker in self.workers:
            worker.send({"op": "stop", "cell": self.cell.id})

    def remove(self, done: Callable[[], None]) -> None:
        """`done` once every worker has told what it counted, and forgotten the cell."""
        self._leaving = set(self.workers)
        self._removed = done
        for worker in self.workers:
            worker.send({"op": "remove", "cell": self.cell.id})
        self._settle()

    def says(self, worker: Worker, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "updated":
            next(waiting for waiting, _ in self._updates if worker in waiting).discard(worker)
            while self._updates and not self._updates[0][0]:
                self._updates.pop(0)[1]()
        elif kind == "used":
            self.cell.usage.merge(event)
        elif kind == "removed":
            self._leaving.discard(worker)
            self._settle()
        elif kind == "fatal":
            self.cell.fatal(event["cause"])
        elif kind == "refused":
            self.cell.tell(event["reason"], event["host"], event["port"])
        elif kind in ("ask", "unheld"):
            self.cell.pass_on(event)

    def lost(self, worker: Worker) -> None:
        if worker in self.workers:
            self.cell.fatal("worker_died")
            self.workers.remove(worker)
            self._leaving.discard(worker)
            self._settle()

    def _settle(self) -> None:
        done = self._removed
        if done is not None and not self._leaving:
            self._removed = None
            done()


class Crew:
    """All workers of a broker, and the cells that they serve."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.workers: list[Worker] = []
        self.spreads: dict[str, Spread] = {}

    def join(self, sock: socket.socket) -> None:
        """A further process, which the supervisor started: this one may run no program by then."""
        self.workers.append(Worker(self._loop, sock, self._says, self._gone))

    def serve(
        self,
        cell: Cell,
        shared: Shared,
        message: dict[str, Any],
        descriptors: Sequence[int],
        secrets: SecretsClient | None,
    ) -> Spread:
        """Let `shared.count` processes serve the cell. message: the supervisor's `add`; descriptors: the rules, then a log for
        each worker. Raises OSError."""
        rules, *logs = descriptors
        spread = self.spreads[cell.id] = Spread(cell, shared, self.workers[: shared.count - 1])
        if secrets is not None:
            spread.secrets(secrets)
        for number, worker in enumerate(spread.workers, 1):
            order = {**message, "listeners": [], "process": number, "processes": shared.count}
            worker.send(order, (rules, logs[number - 1], shared.fd))
        return spread

    def _says(self, worker: Worker, event: dict[str, Any]) -> None:
        if event["event"] == "ready":
            worker.ready = True
            return
        spread = self.spreads.get(event["cell"])
        if spread is not None:
            spread.says(worker, event)

    def _gone(self, worker: Worker) -> None:
        self.workers.remove(worker)
        for spread in list(self.spreads.values()):
            spread.lost(worker)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
