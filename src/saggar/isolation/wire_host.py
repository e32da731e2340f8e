"""Messages between the supervisor, the launcher and a cell's child: one dict and some descriptors each.

Both ends are this package on this interpreter and nothing inside a cell ever holds such a socket, so `marshal` serves: it is
built in, keeps bytes as bytes, and `json` would cost 5 ms of start-up. SOCK_SEQPACKET keeps messages whole, so several processes
may write to one socket. A body above 32 KiB (a long argv) travels in a memfd.
"""

from __future__ import annotations

import _socket
import os
from marshal import dumps, loads
from struct import pack, unpack

from saggar.core.room_host import with_room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Message = dict[str, Any]
    Socket = _socket.socket

_INLINE = 32 * 1024
#: of linux/net/scm.h
SCM_MAX_FD = 253
#: of one message, a body that travels in a memfd left aside
MAX_FDS = 250
_DIRECT = b"d"
_MEMFD = b"m"


def pair() -> tuple[Socket, Socket]:
    """Two connected sockets, close-on-exec, as wide as the longest message needs."""
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)


def adopt(fd: int) -> Socket:
    """The socket behind a descriptor that was inherited."""
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)


def memfd(name: str, content: bytes, *, inherit: bool = False) -> int:
    """An anonymous file that holds `content`, positioned at its start."""
    fd = os.memfd_create(name, 0 if inherit else os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def send(sock: Socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message. Raises OSError (BrokenPipeError when the other end is gone)."""
    if len(fds) > MAX_FDS:
        raise OSError(7, "too many descriptors for one message")
    body = dumps(message)
    if len(body) <= _INLINE:
        _send(sock, _DIRECT + body, fds)
        return
    fd = memfd("saggar-message", body)
    try:
        _send(sock, _MEMFD, [fd, *fds])
    finally:
        os.close(fd)


def _send(sock: Socket, data: bytes, fds: Sequence[int]) -> None:
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pack(f"{len(fds)}i", *fds))] if fds else []
    if not rights:
        sock.sendmsg([data], rights, _socket.MSG_NOSIGNAL)
        return
    with_room(lambda: sock.sendmsg([data], rights, _socket.MSG_NOSIGNAL))


def receive(sock: Socket, flags: int = 0) -> tuple[Message | None, list[int]]:
    """The next message and its descriptors (close-on-exec), or (None, []) at the end. Raises BlockingIOError with MSG_DONTWAIT."""
    data, ancillary, got, _ = sock.recvmsg(
        _INLINE + 64, _socket.CMSG_SPACE(4 * (MAX_FDS + 1)), flags | _socket.MSG_CMSG_CLOEXEC
    )
    fds: list[int] = []
    for level, kind, raw in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds += unpack(f"{len(raw) // 4}i", raw[: len(raw) // 4 * 4])
    if not data:
        return None, fds
    if got & (_socket.MSG_TRUNC | _socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        raise OSError(90, "a message was cut short")
    if data[:1] == _MEMFD:
        body_fd = fds.pop(0)
        try:
            body = _read_all(body_fd)
        finally:
            os.close(body_fd)
    else:
        body = data[1:]
    return loads(body), fds  # noqa: S302  # written by ourselves, see above


def _read_all(fd: int) -> bytes:
    # pread: the sender's descriptor shares its offset with ours
    size = os.fstat(fd).st_size
    parts = []
    at = 0
    while at < size:
        part = os.pread(fd, size - at, at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)
