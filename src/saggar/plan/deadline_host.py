"""A connection whose every wait ends at one moment, however slowly or endlessly the other side speaks.

I1  A socket's own timeout starts again with each byte; here each read, write and handshake is given what is left of the
    whole. A peer that drips headers, chunk sizes or `100 Continue` ends with the deadline.
I2  Names are looked up in a thread of their own: the resolver knows no timeout of ours.
"""

from __future__ import annotations

import io
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any


class Deadline:
    """A moment of `clock`, in seconds."""

    def __init__(self, at: float, clock: Callable[[], float]) -> None:
        self._at = at
        self._clock = clock

    def left(self) -> float:
        """Seconds until then. Raises `TimeoutError` where there are none."""
        left = self._at - self._clock()
        if left <= 0:
            raise TimeoutError("ran out of time")
        return left


class TimedSocket:
    """What `http.client` needs of a socket, each operation within the deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(self._deadline.left())
            rest = rest[self._sock.send(rest) :]

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002  # `http.client` asks for "rb"
        return io.BufferedReader(_Incoming(self._sock, self._deadline))

    def close(self) -> None:
        """Nothing yet: `http.client` closes at the head of an answer what it goes on to read."""

    def shut(self) -> None:
        self._sock.close()


class _Incoming(io.RawIOBase):
    """The bytes that come in. It leaves the socket open when it is closed: the connection closes that."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        self._sock.settimeout(self._deadline.left())
        return self._sock.recv_into(into)


def connected(host: str, port: int, deadline: Deadline, context: ssl.SSLContext | None) -> TimedSocket:
    """To the first address that answers. Raises `OSError`, `TimeoutError` among them."""
    failed: OSError = OSError("no address")
    for family, kind, protocol, _, address in _addresses(host, port, deadline):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.left())
            sock.connect(address)
            if context is not None:
                sock.settimeout(deadline.left())
                # the handshake keeps to the socket's timeout as a whole (`_ssl.c`)
                sock = context.wrap_socket(sock, server_hostname=host)
        except OSError as err:
            sock.close()
            failed = err
        except BaseException:
            sock.close()
            raise
        else:
            return TimedSocket(sock, deadline)
    raise failed


def _addresses(host: str, port: int, deadline: Deadline) -> list[Any]:
    found: list[Any] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as err:  # ValueError: a name that no resolver takes
            found.append(OSError(type(err).__name__))

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(deadline.left())
    if not found:
        raise TimeoutError("ran out of time")
    if isinstance(found[0], OSError):
        raise found[0]
    return list(found[0])
