"""The supervisor's end of the broker: starting it late, handing it cells, hearing its verdicts (docs/ARCHITECTURE.md).

I1  The broker gets a cell's sockets and rules, its audit log, and nothing else of the supervisor's.
I2  Its death is seen as end of file on one socket, at once, and every cell that it served is ended for it.
"""

from __future__ import annotations

import _socket
import os
import sys
from json import dumps, loads
from select import POLLHUP, POLLIN
from struct import pack

from saggar.audit.sink_host import open_log
from saggar.core.room_host import with_room
from saggar.isolation import wire_host as wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from saggar.policy.model import EgressPolicy
    from saggar.runtime.poll_host import Loop
    from saggar.runtime.supervisor_host import Cell

_MESSAGE = 60 * 1024


class BrokerLink:
    """One broker, and its further processes where a policy wants them. says: called with each of its messages; died: called once."""

    __slots__ = ("_died", "_loop", "_says", "_sock", "_workers", "pid")

    def __init__(self, loop: Loop, says: Callable[[dict[str, Any]], None], died: Callable[[], None]) -> None:
        self._loop = loop
        self._says = says
        self._died = died
        self._sock, theirs = wire.pair()
        self._workers: list[int] = []
        try:
            self.pid = _spawn(theirs.fileno(), "broker_host")
        finally:
            theirs.close()
        loop.add(self._sock.fileno(), POLLIN | POLLHUP, self._ready)

    def add(self, cell: Cell) -> None:
        """Hand over the cell's listeners and rules. Raises OSError."""
        prepared = cell.prepared
        if prepared.terminating is not None:
            self._send({"op": "secrets", "cell": cell.id}, [prepared.terminating.secrets.broker.fileno()])
        processes = prepared.policy.egress.processes
        if processes > 1:
            self._start_workers(processes - 1)
        rules = wire.memfd("saggar-rules", prepared.rules_json(prepared.policy.egress, cell.approvals))
        # open: the broker that serves a cell already may open no file
        logs = [open_log(prepared.audit.path) for _ in range(processes)]
        message = {
            "op": "add",
            "cell": cell.id,
            "task": cell.id,
            "audit": prepared.audit.path,
            "listeners": cell.specs,
        }
        try:
            self._send(message, [rules, *logs, *cell.listeners])
        finally:
            for fd in (rules, *logs):
                os.close(fd)

    def _start_workers(self, wanted: int) -> None:
        """So many further processes. The broker may run no program itself once it serves a cell."""
        self._workers = [pid for pid in self._workers if not _reap(pid)]
        while len(self._workers) < wanted:
            ours, theirs = wire.pair()
            try:
                self._workers.append(_spawn(theirs.fileno(), "worker_host"))
                self._send({"op": "worker", "cell": ""}, [ours.fileno()])
            finally:
                ours.close()
                theirs.close()

    def update(self, cell: Cell, egress: EgressPolicy) -> None:
        """Swap the cell's rules; the broker answers `updated`. Raises OSError."""
        rules = wire.memfd("saggar-rules", cell.prepared.rules_json(egress, cell.approvals))
        try:
            self._send({"op": "update", "cell": cell.id}, [rules])
        finally:
            os.close(rules)

    def answer(self, cell: Cell, number: str, verdict: str) -> None:
        """A word on a held request: `approved`, `denied` or `unattended`. Raises OSError."""
        self._send({"op": "answer", "cell": cell.id, "id": number, "verdict": verdict}, [])

    def remove(self, cell: Cell) -> None:
        try:
            self._send({"op": "remove", "cell": cell.id}, [])
        except OSError:
            self._gone()

    def _send(self, message: dict[str, Any], fds: list[int]) -> None:
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pack(f"{len(fds)}i", *fds))] if fds else []
        data = dumps(message).encode()
        with_room(lambda: self._sock.sendmsg([data], rights, _socket.MSG_NOSIGNAL))

    def _ready(self, _events: int) -> None:
        while self._sock.fileno() >= 0:
            try:
                data = self._sock.recv(_MESSAGE, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._gone()
                return
            self._says(loads(data))

    def _gone(self) -> None:
        if self._sock.fileno() < 0:
            return
        self.close()
        self._died()

    def close(self) -> None:
        """Let the broker go: it ends at end of file."""
        if self._sock.fileno() >= 0:
            self._loop.remove(self._sock.fileno())
            self._sock.close()
            for pid in (self.pid, *self._workers):
                _reap(pid)


def _spawn(fd: int, module: str) -> int:
    inherited = os.dup(fd)
    os.set_inheritable(inherited, True)
    try:
        # posix_spawn: no copy of a large interpreter. Its own session: neither Ctrl-C nor Ctrl-Z is meant for it
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-c", _BOOT % module, _package_root(), str(inherited)],
            _environment(),
            setsid=True,
        )
    finally:
        os.close(inherited)


#: `-m` would need the package on the path of an isolated interpreter; a source tree is not installed. Ours is loaded first, or the broker
#: of another installation would answer; its directory then stands last, where nothing else in it hides a module of Python's own.
_BOOT = (
    "import os, sys; root, fd = sys.argv[1:]; sys.path.insert(0, root); import saggar; del sys.path[0]; sys.path.append(root); "
    "from saggar.egress.%s import main; code = main([fd]); sys.stderr.flush(); os._exit(code)"
)


def _package_root() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _environment() -> dict[str, str]:
    # the resolver's and the time zone's settings are the host's business; nothing else is the broker's
    keep = ("PATH", "LANG", "LC_ALL", "TZ", "RES_OPTIONS", "LOCALDOMAIN", "SAGGAR_STATE_DIR")
    return {name: os.environ[name] for name in keep if name in os.environ}


def _reap(pid: int) -> bool:
    """Collect a child if it has ended; whether it has."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except OSError:
        return True
