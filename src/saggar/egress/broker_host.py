"""The broker process: owns the sockets of many cells, and is the only way out of each.

`python -I -m saggar.egress.broker_host FD` with an AF_UNIX SOCK_SEQPACKET socket; the protocol is in
docs/ARCHITECTURE.md. EOF there is the supervisor's death: everything is closed, the process ends.

I1  Nothing that a cell does or holds configures this process; its own environment is dropped, proxies included.
I2  A message that cannot be followed to the letter is fatal for its cell: no cell is served by half.
I3  The process cannot be dumped or traced by its own user, and leaves no core.
I4  Before the first byte of the first cell is read it gives up files (but its own program and the system's), programs, ports, tracing, and signals
    to others (`lockdown_host`); what the kernel cannot take away is said in `added`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from saggar.audit.sink_host import AuditLog
from saggar.core.errors import SaggarError
from saggar.egress.budget import Limits
from saggar.egress.cell_host import Cell
from saggar.egress.heap_host import keep_heap
from saggar.egress.lockdown_host import lock_down_broker, refuse_rings
from saggar.egress.shares_host import Shares
from saggar.policy.model import EgressRule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from saggar.egress.secrets_client_host import SecretsClient
    from saggar.egress.shared_host import Shared
    from saggar.egress.terminated_path_host import Terminated
    from saggar.egress.workers_host import Crew

MAX_MESSAGE = 60 * 1024
#: the kernel's SCM_MAX_FD
_MAX_DESCRIPTORS = 253
MAX_RULES_BYTES = 16 * 1024 * 1024
#: events that wait for a supervisor that is slow; beyond it the oldest refusals are dropped, never a fatal
_MAX_QUEUED = 1000
_RESOLVER_THREADS = 64

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
#: of our own environment; a proxy variable, a resolver option or a path must not steer a wall
_KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR", "LANG", "LC_ALL", "TZ")


class _BadMessageError(SaggarError):
    """The supervisor said something that we cannot do as told."""


class Broker:
    """Follows the supervisor's orders. Made and used inside the running loop."""

    def __init__(self, control: socket.socket, *, stop: asyncio.Event) -> None:
        self.cells: dict[str, Cell] = {}
        #: what the process has taken away from itself, once it serves (I4)
        self.lockdown: dict[str, str] = {}
        self._control = control
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._shares = Shares(self._loop, descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._queue: list[dict[str, object]] = []
        #: by cell: each has a secrets process of its own
        self._secrets: dict[str, SecretsClient] = {}
        self._terminated: dict[str, Terminated] = {}
        #: further processes, from the first cell on that is served by several
        self._crew: Crew | None = None
        self._operations: dict[str, Callable[[dict[str, Any], list[int]], None]] = {
            "add": self._add,
            "update": self._update,
            "remove": self._remove,
            "secrets": self._secrets_from,
            "answer": self._answer,
            "worker": self._worker,
        }
        self._pool = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="resolve")
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._on_readable)
        self.emit({"event": "ready"})

    # -- control ---------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        while not self._stop.is_set():
            try:
                data, descriptors, flags, _ = socket.recv_fds(self._control, MAX_MESSAGE + 1, _MAX_DESCRIPTORS)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors, flags = b"", [], 0
            if not data:
                self._stop.set()
                return
            self._follow(data, descriptors, cut=bool(flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC)))

    def _follow(self, data: bytes, descriptors: list[int], *, cut: bool) -> None:
        cell = ""
        try:
            for fd in descriptors:
                os.set_inheritable(fd, False)
            message = json.loads(data)
            cell = str(message["cell"])
            # a connection is lost alone; it says so itself
            if cut and message["op"] != "take":
                raise _BadMessageError("a control message was cut")
            operation = self._operations.get(message["op"])
            if operation is None:
                raise _BadMessageError("an unknown operation")
            operation(message, descriptors)
        except (SaggarError, OSError, ValueError, KeyError, TypeError, IndexError) as e:
            known = self.cells.get(cell)
            if known is not None:
                known.fatal(f"control_failed: {e}")
            else:
                self.emit({"event": "fatal", "cell": cell, "cause": f"control_failed: {type(e).__name__}: {e}"})
        finally:
            for fd in descriptors:
                with suppress(OSError):
                    os.close(fd)

    def _add(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Serve a new cell. Descriptors that are taken over are removed from the list."""
        id_ = message["cell"]
        specs = message["listeners"]
        if id_ in self.cells:
            raise _BadMessageError("the cell is served already")
        policy = read_policy(descriptors[0])
        if len(descriptors) != len(specs) + self._beside(policy["egress"]):
            raise _BadMessageError(f"{len(descriptors)} descriptors for {len(specs)} listeners, the rules and the log")
        rules = rules_of(policy)
        limits = Limits.parse(policy["egress"].get("budget") or {})
        shared = self._share(message, policy["egress"], descriptors)
        audit = AuditLog(message["audit"], message["task"], fd=descriptors.pop(1), tail=shared)
        cell = Cell(
            id=id_,
            rules=rules,
            audit=audit,
            pool=self._pool,
            emit=self.emit,
            share=self._shares.join(),
            limits=limits,
            shared=shared,
        )
        self.cells[id_] = cell
        secrets = self._secrets.get(id_)
        if secrets is not None:
            cell.terminated = self._termination(cell, secrets, policy["egress"])
        first = len(descriptors) - len(specs)
        for spec in specs:
            fd = descriptors.pop(first)
            cell.adopt(spec, socket.socket(fileno=fd))
        self._adopted(cell, message, descriptors)
        if not self.lockdown:
            self.lockdown = lock_down_broker()
        self.emit({"event": "added", "cell": id_, "lockdown": self.lockdown})

    def _beside(self, egress: dict[str, Any]) -> int:
        """The descriptors of an `add` that are no listeners: the rules, and a log for each process."""
        processes = egress.get("processes", 1)
        if type(processes) is not int or processes < 1:
            raise _BadMessageError(f"{processes!r} processes")
        return 1 + processes

    def _share(self, _message: dict[str, Any], egress: dict[str, Any], _descriptors: list[int]) -> Shared | None:
        """What the processes of a new cell have in common; None where one serves it alone."""
        processes = egress.get("processes", 1)
        if processes == 1:
            return None
        from saggar.egress.shared_host import MAX_PROCESSES, Shared

        if processes > MAX_PROCESSES or self._crew is None or len(self._crew.workers) < processes - 1:
            raise _BadMessageError(f"{processes} processes, and fewer workers")
        return Shared.make(processes)

    def _adopted(self, cell: Cell, message: dict[str, Any], descriptors: list[int]) -> None:
        """Its sockets are ours: let others help. descriptors: the rules, and the log for each of them."""
        if cell.shared is not None and self._crew is not None:
            cell.spread = self._crew.serve(cell, cell.shared, message, descriptors, self._secrets.get(cell.id))

    def _worker(self, _message: dict[str, Any], descriptors: list[int]) -> None:
        """The supervisor started a further process: this is the socket to it."""
        from saggar.egress.workers_host import Crew

        if self._crew is None:
            self._crew = Crew(self._loop)
        self._crew.join(socket.socket(fileno=descriptors.pop(0)))

    def _update(self, message: dict[str, Any], descriptors: list[int]) -> None:
        policy = read_policy(descriptors[0])
        cell = self.cells[message["cell"]]
        terminated = self._terminated.get(cell.id)
        if terminated is not None:
            terminated.update(policy["egress"])
        cell.update(rules_of(policy), Limits.parse(policy["egress"].get("budget") or {}))

        def done() -> None:
            self.emit({"event": "updated", "cell": cell.id})

        if cell.spread is None:
            done()
        else:
            cell.spread.update(descriptors[0], done)

    def _secrets_from(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """The socket to a cell's secrets process; before the cell itself, or before an update that needs it."""
        id_ = message["cell"]
        if id_ in self._secrets:
            raise _BadMessageError("the cell's secrets process is known already")
        from saggar.egress.secrets_client_host import SecretsClient

        sock = socket.socket(fileno=descriptors.pop(0))
        client = SecretsClient(self._loop, sock, lambda: self._secrets_gone(id_))
        self._secrets[id_] = client
        cell = self.cells.get(id_)
        if cell is not None:
            cell.terminated = self._termination(cell, client, {})
            if cell.spread is not None:
                cell.spread.secrets(client)

    def _termination(self, cell: Cell, secrets: SecretsClient, egress: dict[str, Any]) -> Terminated:
        # a third of what a broker would import, and most tasks have no terminated host: their first connection waits for it
        from saggar.egress.terminated_path_host import BrokerPort, Terminated

        made = self._terminated[cell.id] = Terminated(BrokerPort(cell, self.emit), secrets, egress)
        return made

    def _secrets_gone(self, id_: str) -> None:
        """Nothing that needs a secret can be served: the cell ends, with that cause."""
        cell = self.cells.get(id_)
        if cell is not None and not cell.closed:
            cell.fatal("secrets_process_died")

    def _answer(self, message: dict[str, Any], _descriptors: list[int]) -> None:
        """A human's word on a held request."""
        cell = self.cells[message["cell"]]
        terminated = self._terminated.get(cell.id)
        if terminated is not None:
            terminated.port.answer(str(message["id"]), str(message["verdict"]))
        if cell.spread is not None:
            cell.spread.answer(message)  # whoever asked knows the number

    def _remove(self, message: dict[str, Any], _descriptors: list[int]) -> None:
        cell = self.cells.pop(message["cell"])
        cell.close()
        if cell.spread is None:
            self._removed(cell)
        else:
            cell.spread.remove(lambda: self._removed(cell))

    def _close_books(self, cell: Cell) -> None:
        for part in cell.summaries():
            cell.note("egress.summary", reason="removed", **part)

    def _removed(self, cell: Cell) -> None:
        """Nobody serves the cell any longer: tell what it did, and forget it."""
        self._close_books(cell)
        cell.audit.close()
        if cell.shared is not None:
            cell.shared.close()
        if self._crew is not None:
            self._crew.spreads.pop(cell.id, None)
        self._terminated.pop(cell.id, None)
        secrets = self._secrets.pop(cell.id, None)
        if secrets is not None:
            secrets.close()
        usage = cell.usage
        self.emit(
            {
                "event": "removed",
                "cell": cell.id,
                "allowed": usage.allowed,
                "refused": usage.refused,
                "bytes_up": usage.bytes_up,
                "bytes_down": usage.bytes_down,
            }
        )

    def emit(self, event: dict[str, object]) -> None:
        """Tell the supervisor; kept while it does not read."""
        if len(self._queue) >= _MAX_QUEUED and event["event"] == "refused":
            return
        self._queue.append(event)
        if len(self._queue) == 1:
            self._flush()

    def _flush(self) -> None:
        while self._queue:
            try:
                self._control.send(json.dumps(self._queue[0], separators=(",", ":")).encode())
            except BlockingIOError:
                self._loop.add_writer(self._control.fileno(), self._flush)
                return
            except OSError:
                self._stop.set()
                return
            self._queue.pop(0)
        self._loop.remove_writer(self._control.fileno())

    def close(self) -> None:
        """The supervisor is gone, or we are: no cell is served any longer."""
        self._loop.remove_reader(self._control.fileno())
        for cell in self.cells.values():
            cell.close()
        for secrets in self._secrets.values():
            secrets.close()
        if self._crew is not None:
            self._crew.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def read_policy(fd: int) -> dict[str, Any]:
    """The JSON in a memfd: `{"egress":{"allow":[…],"placeholders":[…],"budget":{…}}}`. Raises what its shape deserves."""
    size = os.fstat(fd).st_size
    if size > MAX_RULES_BYTES:
        raise _BadMessageError("the rules are too long")
    policy: dict[str, Any] = json.loads(os.pread(fd, size, 0))
    return policy


def rules_of(policy: dict[str, Any]) -> list[EgressRule]:
    """The rules of such a policy. An unknown key is an error: a rule of a newer supervisor may narrow what we would allow."""
    return [_rule(entry) for entry in policy["egress"]["allow"]]


def _rule(entry: dict[str, Any]) -> EgressRule:
    unknown = set(entry) - set(EgressRule.__slots__)
    if unknown:
        raise _BadMessageError(f"a rule has the unknown key `{min(unknown)}`")
    override = entry.get("connect_to")
    values = {**entry, "ports": tuple(entry["ports"])}
    values["connect_to"] = (str(override[0]), int(override[1])) if override else None
    return EgressRule(**values)


def harden(*, parent_death: bool) -> None:
    """Shut this process off from its user, its terminal and its environment (I1, I3)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_DUMPABLE")
    if parent_death:
        parent = os.getppid()
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG")
        if os.getppid() != parent:
            raise SystemExit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in list(os.environ):
        if name not in _KEPT:
            del os.environ[name]
    os.umask(0o077)
    # a ring with a thread of the kernel's own would work with the rights that we had when it was made
    os.environ["UV_USE_IO_URING"] = "0"
    with suppress(OSError):
        os.setsid()  # the terminal's signals are for the command and the supervisor


async def _serve(control: socket.socket, made: type[Broker]) -> None:
    stop = asyncio.Event()
    broker = made(control, stop=stop)
    try:
        await stop.wait()
    finally:
        broker.close()


def run(control: socket.socket, made: type[Broker] = Broker) -> None:
    """Serve until `control` ends."""
    from saggar.egress import loop_host

    loop_host.run(_serve(control, made))


def main(argv: Sequence[str] | None = None) -> int:
    """`broker_host FD [--pdeathsig]`. The option asks for SIGKILL when the *thread* that started us ends (that is what
    the kernel ties it to), so it is for supervisors that start us from their main thread; EOF serves everybody."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    harden(parent_death="--pdeathsig" in arguments[1:])
    refuse_rings()
    keep_heap()
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    run(control)
    return 0


if __name__ == "__main__":
    # a resolver thread may hang in the C library for its whole time-out: nothing here needs an orderly interpreter end
    code = main()
    sys.stderr.flush()
    os._exit(code)
