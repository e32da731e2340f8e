"""A request of a cell whose rules ask, and a person's word on it: for tests that speak to the broker in the supervisor's place."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import TYPE_CHECKING, Any

from saggar.egress.terms import compile_policy
from saggar.policy.model import EgressPolicy

if TYPE_CHECKING:
    from saggar.testing.egress_cell import EgressCell

#: any address: the cell's listener takes it, and the name in the request decides
ELSEWHERE = "203.0.113.9"


def approve(cell: EgressCell, *approvals: dict[str, Any]) -> None:
    """Tell the broker of the approvals that now stand, and wait until it knows."""
    made = compile_policy(EgressPolicy(allow=tuple(cell.rules)), random=os.urandom, read_ca=str)
    fd = os.memfd_create("rules")
    os.write(fd, json.dumps({"egress": {**made.egress, "approved": approvals}}).encode())
    socket.send_fds(cell.control, [b'{"op":"update","cell":"c"}'], [fd])
    os.close(fd)
    cell.wait_event("updated")


def answer(cell: EgressCell, number: str, verdict: str) -> None:
    cell.control.send(json.dumps({"op": "answer", "cell": "c", "id": number, "verdict": verdict}).encode())


def send(cell: EgressCell, line: str, *fields: str, host: str = "api.allowed.test") -> socket.socket:
    """Send one plain request from the cell. line: method and target."""
    sock = cell.connect(ELSEWHERE, 80)
    head = "\r\n".join([f"{line} HTTP/1.1", f"Host: {host}", "Connection: close", *fields])
    sock.sendall(head.encode("latin-1") + b"\r\n\r\n")
    return sock


def reply(sock: socket.socket) -> tuple[str, str]:
    """(status, the broker's reason or "") of the whole answer. Closes the socket."""
    data = b""
    with sock, contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            data += piece
    status = data[9:12].decode()
    reason = data.partition(b"X-Saggar-Reason: ")[2].partition(b"\r\n")[0].decode()
    return status, reason
