"""The broker's end of the secrets process: leases and leaves, asked for once and kept no longer than they hold.

I1  A lease is used only while it holds: its time, its file's fingerprint, and no `forget` since.
I2  Questions of the same kind that wait at the same time share one answer.
I3  When the secrets process is gone every question fails; nothing older is used.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from saggar.egress.admit import Lease
from saggar.egress.sources_host import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE_BYTES = 60 * 1024
ANSWER_S = 45.0


class SecretsError(Exception):
    """The secrets process said no, or is gone. The text may be logged; it holds no secret."""


class _Kept:
    """A lease and what tells that it is over."""

    __slots__ = ("fd", "lease", "print")

    def __init__(self, lease: Lease, fd: int) -> None:
        self.lease = lease
        self.fd = fd
        self.print = fingerprint(fd) if fd >= 0 else ()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SecretsClient:
    """One for each process of the broker's. `sock`: a SOCK_SEQPACKET socket to the secrets process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, on_gone: Callable[[], None]) -> None:
        self._loop = loop
        self._sock = sock
        self._on_gone = on_gone
        self._next = 0
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], int]]] = {}
        self._kept: dict[tuple[str, str, str, str], _Kept] = {}
        self._shared: dict[tuple[str, ...], asyncio.Future[Any]] = {}
        self.gone = False
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self._on_readable)

    def share(self) -> socket.socket:
        """A socket for another process of this broker's, which asks for itself. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._sock, [b'{"op":"peer"}'], [ours.fileno()])
        except OSError:
            theirs.close()
            raise
        finally:
            ours.close()
        return theirs

    def peek(self, cell: str, credential: str, host: str, date: str = "") -> Lease | None:
        """A lease that holds now, without asking; None where there is none."""
        kept = self._kept.get((cell, credential, host, date))
        if kept is None:
            return None
        if self._loop.time() < kept.lease.ends and (kept.fd < 0 or fingerprint(kept.fd) == kept.print):
            return kept.lease
        self._drop((cell, credential, host, date))
        return None

    async def lease(self, cell: str, credential: str, host: str, date: str = "") -> Lease:
        """Raises SecretsError."""
        found = self.peek(cell, credential, host, date)
        if found is not None:
            return found
        key = (cell, credential, host, date)
        return await self._share(("get", *key), lambda: self._lease(key))  # type: ignore[no-any-return]

    async def leaf(self, cell: str, host: str) -> tuple[str, str]:
        """(certificate, key) as PEM. Raises SecretsError."""
        return await self._share(("leaf", cell, host), lambda: self._leaf(cell, host))  # type: ignore[no-any-return]

    async def _share(self, key: tuple[str, ...], start: Callable[[], Any]) -> Any:
        pending = self._shared.get(key)
        if pending is None:
            pending = asyncio.ensure_future(start())
            self._shared[key] = pending
            pending.add_done_callback(lambda _: self._shared.pop(key, None))
        return await asyncio.shield(pending)

    async def _lease(self, key: tuple[str, str, str, str]) -> Lease:
        cell, credential, host, date = key
        asked = self._loop.time()
        answer, fd = await self._ask({"op": "get", "cell": cell, "credential": credential, "host": host, "date": date})
        lease = Lease(credential, answer["version"], asked + float(answer["lease_s"]), answer["values"])
        self._drop(key)
        self._kept[key] = _Kept(lease, fd)
        return lease

    async def _leaf(self, cell: str, host: str) -> tuple[str, str]:
        answer, _ = await self._ask({"op": "leaf", "cell": cell, "host": host})
        return answer["certificate"], answer["key"]

    async def _ask(self, question: dict[str, Any]) -> tuple[dict[str, Any], int]:
        if self.gone:
            raise SecretsError("the secrets process is gone")
        self._next += 1
        number = self._next
        future: asyncio.Future[tuple[dict[str, Any], int]] = self._loop.create_future()
        self._waiting[number] = future
        try:
            self._sock.send(json.dumps({"id": number, **question}).encode())
            async with asyncio.timeout(ANSWER_S):
                answer, fd = await future
        except (OSError, TimeoutError):
            raise SecretsError("the secrets process does not answer") from None
        finally:
            self._waiting.pop(number, None)
        if not answer["ok"]:
            raise SecretsError(str(answer["error"]))
        return answer, fd

    def _on_readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._end()
            return
        fd = -1
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fd = array.array("i", payload[:4])[0]
        message = json.loads(data)
        if message.get("event") == "forget":
            self.forget(message["cell"])
            return
        future = self._waiting.get(message["id"])
        if future is None or future.done():
            if fd >= 0:
                os.close(fd)
            return
        future.set_result((message, fd))

    def forget(self, cell: str) -> None:
        for key in [k for k in self._kept if k[0] == cell]:
            self._drop(key)

    def _drop(self, key: tuple[str, str, str, str]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.close()

    def _end(self) -> None:
        if self.gone:
            return
        self.close()
        self._on_gone()

    def close(self) -> None:
        self.gone = True
        with suppress(OSError, ValueError):
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for key in list(self._kept):
            self._drop(key)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SecretsError("the secrets process is gone"))
