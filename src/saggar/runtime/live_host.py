"""Changing the egress rules of a running task: a socket in the run's directory, for the operator alone.

I1  Only whoever may enter the state directory can connect (mode 0700, outside every cell), and the kernel's word on the
    peer's uid is checked besides.
I2  A change is in the task's audit log before it has an effect, and is answered only when the broker has taken it.
I3  An added rule passes the same checks as one in a policy file.

Requests and answers are one JSON object each on a SOCK_SEQPACKET connection:
`{"op":"allow"|"revoke","entries":["HOST[:PORT]",…]}` → `{"ok":true,"changed":[…],"notes":[…]}` or `{"ok":false,"error":…,"hint":…}`;
`{"op":"held"}` → `{"ok":true,"held":[{"id","host","port","method","path","query","rule","patterns"}…],"approvals":[…]}`;
`{"op":"answer","id","verdict":"approved"|"denied","scope":"once"|"task"|"policy","pattern":bool}` → `{"ok":true,"approval","diff",…}`.

On the `saggar run` path only as far as opening the socket (40 us); what a request needs is imported with it.
"""

from __future__ import annotations

import _socket
import os
from select import POLLHUP, POLLIN
from struct import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from saggar.policy.model import EgressPolicy
    from saggar.runtime.held import Ask, Verdict
    from saggar.runtime.poll_host import Loop
    from saggar.runtime.supervisor_host import Cell

NAME = "live"
MAX_REQUEST = 16 * 1024
MAX_ANSWER = 60 * 1024
_MAX_CLIENTS = 8
_SOCK_NONBLOCK, _SOCK_CLOEXEC = 0o4000, 0o2000000


class LiveControl:
    """Listens for one cell. change: hands new rules to the broker; True where its answer is to be waited for. settle: carries
    out a verdict on a held request."""

    __slots__ = ("_added", "_cell", "_change", "_clients", "_loop", "_settle", "_sock", "_waiting", "rules")

    def __init__(
        self,
        loop: Loop,
        cell: Cell,
        change: Callable[[], bool],
        settle: Callable[[str, Verdict, int], dict[str, Any]],
    ) -> None:
        self._loop = loop
        self._cell = cell
        self._change = change
        self._settle = settle
        self._clients: set[int] = set()
        self._waiting: list[tuple[_socket.socket, dict[str, Any]]] = []
        self._added = 0
        #: the rules as they stand since the first change, None before it
        self.rules: EgressPolicy | None = None
        self._sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _SOCK_NONBLOCK | _SOCK_CLOEXEC, 0)
        try:
            # by descriptor: a state directory's path may be longer than a socket's name can be
            self._sock.bind(f"/proc/self/fd/{cell.prepared.run.fd}/{NAME}")
            self._sock.listen(_MAX_CLIENTS)
        except OSError:
            self._sock.close()
            raise
        loop.add(self._sock.fileno(), POLLIN, self._accept)

    def _accept(self, _events: int) -> None:
        try:
            fd, _ = self._sock._accept()  # type: ignore[attr-defined]  # typeshed knows socket.socket alone
        except OSError:
            return
        client = _socket.socket(fileno=fd)
        client.setblocking(False)
        uid = unpack("3i", client.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))[1]
        if uid not in (0, os.geteuid()) or len(self._clients) >= _MAX_CLIENTS:
            client.close()
            return
        self._clients.add(fd)
        self._loop.add(fd, POLLIN | POLLHUP, lambda _: self._asked(client, uid))

    def _asked(self, client: _socket.socket, uid: int) -> None:
        fd = client.fileno()
        try:
            data = client.recv(MAX_REQUEST)
        except OSError:
            data = b""
        self._loop.remove(fd)
        self._clients.discard(fd)
        if not data:
            client.close()
            return
        answer, waits = self._follow(data, uid)
        if waits:
            self._waiting.append((client, answer))
        else:
            _answer(client, answer)

    def _follow(self, data: bytes, uid: int) -> tuple[dict[str, Any], bool]:
        from saggar.core.errors import SaggarError, UsageError
        from saggar.runtime.live_change import change

        try:
            held = self._held(data, uid)
            if held is not None:
                return held, False
            cell = self._cell
            made = change(data, cell.egress, cell.approvals, first_id=self._added)
            for record in made.records:
                cell.prepared.audit.append(record.kind, **record.fields(uid))
            self._added += made.added
            cell.approvals = made.approvals
            self.rules = made.egress
            waits = bool(made.changed) and self._change()
        except UsageError as e:
            return {"ok": False, "error": e.message, "hint": e.hint}, False
        except (SaggarError, OSError, ValueError, TypeError, KeyError) as e:
            return {"ok": False, "error": f"the change was not made: {e}", "hint": ""}, False
        return {"ok": True, "changed": made.changed, "notes": made.notes}, waits

    def _held(self, data: bytes, uid: int) -> dict[str, Any] | None:
        """The answer to a question about held requests, None where it is none. Raises UsageError, OSError."""
        from json import loads

        request = loads(data)
        if request["op"] == "held":
            from saggar.runtime.held_host import ask

            held = [_fields(ask(self._cell, number)) for number in self._cell.held]
            return {"ok": True, "held": held, "approvals": self._cell.approvals}
        if request["op"] != "answer":
            return None
        from saggar.runtime.held import parse_verdict

        made = self._settle(str(request["id"]), parse_verdict(request), uid)
        return {"ok": True, "changed": [], "notes": [], **made}

    def updated(self) -> None:
        """The broker works by the new rules: tell those who wait for it."""
        for client, answer in self._waiting:
            _answer(client, answer)
        self._waiting = []

    def close(self) -> None:
        for client, _ in self._waiting:
            _answer(client, {"ok": False, "error": "the run has ended", "hint": ""})
        self._waiting = []
        for fd in self._clients:
            self._loop.remove(fd)
            os.close(fd)
        self._clients = set()
        self._loop.remove(self._sock.fileno())
        self._sock.close()
        try:
            os.unlink(NAME, dir_fd=self._cell.prepared.run.fd)
        except OSError:
            return


def _fitting(answer: dict[str, Any]) -> bytes:
    """As one message; of a list that a sandbox can make long, what there is room for."""
    from json import dumps

    while len(data := dumps(answer).encode()) > MAX_ANSWER and answer.get("held"):
        answer = {**answer, "held": answer["held"][: len(answer["held"]) // 2], "cut": True}
    return data


def _fields(ask: Ask) -> dict[str, Any]:
    names = ("id", "host", "port", "method", "path", "query", "rule", "patterns")
    return {name: getattr(ask, name) for name in names}


def _answer(client: _socket.socket, answer: dict[str, Any]) -> None:
    try:
        client.send(_fitting(answer))
    except OSError:
        return  # whoever asked is gone; the log has what was done
    finally:
        client.close()
