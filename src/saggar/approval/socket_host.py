"""The session's approval socket: what `saggar approvals` talks to while the session lives.

I1  Mode 0600 in a directory of the user's own; each peer's uid is read from the kernel and must be ours or root's.
I2  A peer in another user namespace is refused: a process of a sandbox maps to our uid and is not us.
I3  One request a connection, one JSON object a line, at most 64 KiB; anything else closes it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from typing import Any

from saggar.approval.book import answer_from_json, answer_to_json
from saggar.approval.review_host import Review
from saggar.capability.unix_host import connect, listen
from saggar.core.approval import Answer
from saggar.core.errors import ParseError, SaggarError, UsageError

NAME = "approvals.sock"
MAX_LINE = 64 * 1024
_PEER = struct.Struct("iII")


class ApprovalSocket:
    """Serves a review at `path` from a thread, until `close`."""

    def __init__(self, review: Review, path: str) -> None:
        """Raises `OSError`."""
        self._review = review
        self.path = path
        self._socket = listen(path, 16)
        self._thread = threading.Thread(target=self._serve, name="saggar-approvals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()
        self._thread.join(5)
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    self._one(connection)
                except (OSError, ValueError):
                    continue

    def _one(self, connection: socket.socket) -> None:
        refused = peer_problem(connection)
        line = read_line(connection)
        if refused:
            reply: dict[str, Any] = {"error": refused}
        else:
            try:
                reply = self._handle(json.loads(line))
            except (SaggarError, ValueError, KeyError, TypeError) as e:
                reply = {"error": str(e)[:500]}
        connection.sendall(json.dumps(reply).encode() + b"\n")

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] != "answer":
            raise ParseError(f"unknown operation `{str(request['op'])[:40]}`")
        self._review.store.answer(str(request["id"]), answer_from_json(request["answer"]))
        self._review.answered()
        return {"ok": True}


def peer_problem(connection: socket.socket) -> str:
    """Why the peer may not speak here, or "" (I1, I2)."""
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid not in (os.getuid(), 0):
        return "another user"
    try:
        if os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user"):
            return "another user namespace"
    except OSError:
        return "a peer that cannot be looked at"
    return ""


def read_line(connection: socket.socket) -> bytes:
    """Raises `ValueError` for a line that is too long or not ended."""
    data = b""
    while not data.endswith(b"\n"):
        piece = connection.recv(8192)
        if not piece or len(data) > MAX_LINE:
            raise ValueError("not one line")
        data += piece
    return data


def send_answer(path: str, ident: str, answer: Answer) -> bool:
    """Give an answer to a live session. False where nobody listens. Raises `UsageError` with the session's refusal."""
    try:
        client = connect(path)
    except OSError:
        return False
    with client:
        client.settimeout(10)
        request = {"op": "answer", "id": ident, "answer": answer_to_json(answer)}
        client.sendall(json.dumps(request).encode() + b"\n")
        reply = json.loads(read_line(client))
    if "error" in reply:
        raise UsageError(str(reply["error"]))
    return True
