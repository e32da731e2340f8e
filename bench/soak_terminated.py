"""The terminated half of `egress_soak.py`: an upstream that answers, streams, stalls, resets, cuts and lies, and its clients.

What a client must get is checked byte for byte: bodies both ways, chunks, events of a stream, WebSocket messages, the answer to a
client that has ended its side. The upstream says the credential in each answer; it must never arrive.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import random
import socket
import ssl
import struct
import threading
import time

from saggar.egress.websocket import accept_value, unmask

NAME = "model.allowed.test"
PLAIN = "plain.allowed.test"
REVOKED = "revoked.allowed.test"
SECRET = "sk-" + "S" * 40
EVENTS = 5
LARGE = 2_000_000


def ended(head, fields=b""):
    return b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n" + head


class Moody:
    """TLS (or plain) on loopback; the path says what it does."""

    def __init__(self, context):
        self.context = context
        self.sock = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = self.sock.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            conn, _ = self.sock.accept()
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn):
        with contextlib.suppress(OSError, ValueError, IndexError):
            conn.settimeout(30)
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is not None:
                conn = self.context.wrap_socket(conn, server_side=True)
            with conn.makefile("rb") as stream:
                while line := stream.readline():
                    if not self._answer(conn, stream, line.split(b" ")[1].split(b"?")[0]):
                        break
        with contextlib.suppress(OSError):
            conn.close()

    def _answer(self, conn, stream, path):
        fields = http.client.parse_headers(stream)
        digest = hashlib.sha256()
        if fields.get("transfer-encoding") == "chunked":
            while size := int(stream.readline().split(b";")[0], 16):
                digest.update(stream.read(size))
                stream.readline()
            while stream.readline().strip():
                pass
        else:
            digest.update(stream.read(int(fields.get("content-length", 0))))
        body = f"{digest.hexdigest()} {SECRET} {fields.get('authorization', '')} {fields.get('x-for', '')}".encode()
        if path == b"/ws":
            self._websocket(conn, stream, fields["sec-websocket-key"].encode())
            return False
        return getattr(self, path[1:].decode())(conn, body)

    def ok(self, conn, body):
        conn.sendall(ended(body, b"Content-Length: %d\r\n" % len(body)))
        return True

    def chunked(self, conn, body):
        conn.sendall(ended(b"", b"Transfer-Encoding: chunked\r\n"))
        for at in range(0, len(body), 7):
            piece = body[at : at + 7]
            conn.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        conn.sendall(b"0\r\n\r\n")
        return True

    def sse(self, conn, body):
        conn.sendall(ended(b"", b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"))
        for number in range(EVENTS):
            event = b"data: %d\n\n" % number
            conn.sendall(b"%x\r\n%s\r\n" % (len(event), event))
            time.sleep(0.02)
        conn.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        return True

    def large(self, conn, body):
        conn.sendall(ended(b"z" * LARGE + body, b"Content-Length: %d\r\n" % (LARGE + len(body))))
        return True

    def stall(self, conn, body):
        time.sleep(0.4)
        return self.ok(conn, body)

    def hang(self, conn, _body):
        time.sleep(2)
        return False

    def cut(self, conn, body):
        conn.sendall(ended(body, b"Content-Length: %d\r\n" % (len(body) + 9)))
        return False

    def reset(self, conn, _body):
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    def lie(self, conn, body):
        conn.sendall(ended(body, b"Content-Length: %d\r\nContent-Length: 3\r\n" % len(body)))
        return True

    def twice(self, conn, body):
        return self.ok(conn, body) and self.ok(conn, body)

    def junk(self, conn, _body):
        conn.sendall(os.urandom(300) + b"\r\n\r\n")
        return True

    def _websocket(self, conn, stream, key):
        conn.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: %s\r\n\r\n" % accept_value(key)
        )
        while (message := read_frame(stream)) is not None:
            conn.sendall(frame(message))


def frame(data, mask=b""):
    """One binary message."""
    size = len(data)
    short = bytes([size | (0x80 if mask else 0)]) if size < 126 else b""
    length = short or (bytes([126 | (0x80 if mask else 0)]) + size.to_bytes(2, "big"))
    return b"\x82" + length + mask + (unmask(data, mask) if mask else data)


def read_frame(stream):
    head = stream.read(2)
    if len(head) < 2 or head[0] & 15 == 8:
        return None
    size = head[1] & 127
    if size == 126:
        size = int.from_bytes(stream.read(2), "big")
    mask = stream.read(4) if head[1] & 128 else b""
    data = stream.read(size)
    return unmask(data, mask) if mask else data


class WrongError(Exception):
    """An answer that is not what was sent."""


class _Count(threading.local):
    """Requests of this thread, and what the last one is called."""

    value = 0
    last = b""


class Clients:
    """The work of one thread each; `connect(port)` gives a socket born in the cell."""

    def __init__(self, connect, context, placeholder):
        self._connect = connect
        self._context = context
        self._placeholder = placeholder.encode()
        self._count = _Count()

    def _tls(self, name=NAME):
        sock = self._connect(443)
        sock.settimeout(30)
        return self._context.wrap_socket(sock, server_hostname=name)

    def _head(self, method, path, *fields, host=NAME):
        self._count.value += 1
        # an answer names its request: one that belongs to another (an upstream that answers twice) is told from one that is lost
        self._count.last = b"%s-%d-%d" % (path[1:], threading.get_ident(), self._count.value)
        lines = [b"%s %s HTTP/1.1" % (method, path), b"Host: " + host.encode(), b"X-For: " + self._count.last, *fields]
        if host == NAME:
            lines.append(b"Authorization: Bearer " + self._placeholder)
        return b"\r\n".join([*lines, b"", b""])

    def _check(self, stream, sent, before=b""):
        answer = http.client.HTTPResponse(_Made(stream))
        answer.begin()
        body = answer.read()
        if answer.status != 200:
            raise WrongError(f"status {answer.status}: {body[:100]!r}")
        expected = before + hashlib.sha256(sent).hexdigest().encode() + b" "
        if not body.startswith(expected) or not body.endswith(self._count.last):
            raise WrongError(f"not what was sent: {len(body)} bytes, {body[-60:]!r} for {self._count.last!r}")
        if SECRET.encode() in body:
            raise WrongError("the secret came through")
        if self._placeholder[: len(SECRET)] not in body:
            raise WrongError(f"no placeholder stands for the secret: {body[-120:]!r}")

    def good_requests(self):
        """Kept alive; bodies with a length and in chunks; answers of every form."""
        with self._tls() as tls, tls.makefile("rb") as stream:
            for _ in range(random.randint(1, 15)):
                body = os.urandom(random.choice((0, 10, 5000, 300_000)))
                path, before = random.choice(
                    (
                        (b"/ok", b""),
                        (b"/chunked", b""),
                        (b"/sse", b"".join(b"data: %d\n\n" % n for n in range(EVENTS))),
                        (b"/large", b"z" * LARGE),
                        (b"/stall", b""),
                    )
                )
                if random.random() < 0.5:
                    tls.sendall(self._head(b"POST", path, b"Content-Length: %d" % len(body)) + body)
                else:
                    tls.sendall(self._head(b"POST", path, b"Transfer-Encoding: chunked"))
                    for at in range(0, len(body), 60_000):
                        piece = body[at : at + 60_000]
                        tls.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
                    tls.sendall(b"0\r\n\r\n")
                self._check(stream, body, before)

    def good_websocket(self):
        with self._tls() as tls, tls.makefile("rb") as stream:
            key = b"dGhlIHNhbXBsZSBub25jZQ=="
            fields = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13")
            tls.sendall(self._head(b"GET", b"/ws", *fields, b"Sec-WebSocket-Key: " + key))
            if b" 101 " not in stream.readline():
                raise WrongError("no WebSocket")
            while stream.readline().strip():
                pass
            for _ in range(20):
                message = os.urandom(random.choice((1, 125, 126, 20_000, 60_000)))
                tls.sendall(frame(message, os.urandom(4)))
                if read_frame(stream) != message:
                    raise WrongError("a WebSocket message was changed or lost")
            tls.sendall(b"\x88\x82" + b"\0\0\0\0" + b"\x03\xe8")

    def good_half_closed(self):
        """The client ends its side with its request; the answer comes all the same."""
        with self._connect(80) as sock:
            body = os.urandom(3000)
            sock.sendall(self._head(b"POST", b"/stall", b"Content-Length: 3000", host=PLAIN) + body)
            sock.shutdown(socket.SHUT_WR)
            with sock.makefile("rb") as stream:
                answer = stream.read()
            if hashlib.sha256(body).hexdigest().encode() not in answer:
                raise WrongError(f"no whole answer: {answer[:100]!r}")

    def terminated_faults(self):
        """An upstream that fails: an orderly refusal or an end; never a body taken for whole."""
        with self._tls() as tls, tls.makefile("rb") as stream:
            path = random.choice((b"/cut", b"/reset", b"/lie", b"/junk", b"/hang"))
            tls.settimeout(5)
            tls.sendall(self._head(b"GET", path))
            answer = stream.read(1 << 20) if path in (b"/cut", b"/reset") else stream.readline()
            if SECRET.encode() in answer:
                raise WrongError("the secret came through")

    def terminated_twice(self):
        """An upstream that answers twice. Not on the host whose answers are checked: the first time that its second answer comes after
        the next request was sent nobody between can tell whose it is (then it is told, and gets one connection for each request)."""
        with self._tls(REVOKED) as tls, tls.makefile("rb") as stream:
            tls.sendall(self._head(b"GET", b"/twice", host=REVOKED))
            stream.readline()

    def terminated_leaves(self):
        """A client that goes in the middle."""
        with self._tls() as tls:
            data = self._head(b"POST", b"/large", b"Content-Length: 100000") + b"x" * 100_000
            tls.sendall(data[: random.randint(0, len(data))])
            if random.random() < 0.5:
                tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def terminated_refused(self):
        """A foreign key, a placeholder elsewhere, no certificate that is trusted."""
        kind = random.randrange(3)
        if kind == 2:
            with self._connect(443) as sock, contextlib.suppress(ssl.SSLError):
                ssl.create_default_context().wrap_socket(sock, server_hostname=NAME)
            return
        with self._tls() as tls, tls.makefile("rb") as stream:
            key = b"sk-" + b"F" * 40 if kind else self._placeholder
            tls.sendall(
                b"GET /ok?k=%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n"
                % (self._placeholder if not kind else b"v", NAME.encode(), key)
            )
            if b" 200 " in stream.readline():
                raise WrongError("a foreign credential went through")

    def revoked(self):
        """On a host that the operator takes away and gives back: cut when it is, whole until then."""
        with self._tls(REVOKED) as tls, tls.makefile("rb") as stream:
            while True:
                tls.sendall(self._head(b"GET", b"/ok", host=REVOKED))
                answer = http.client.HTTPResponse(_Made(stream))
                answer.begin()
                if answer.status == 200 and not answer.read().startswith(hashlib.sha256(b"").hexdigest().encode()):
                    raise WrongError("a wrong answer")


class _Made:
    """What HTTPResponse takes for a socket."""

    def __init__(self, stream):
        self._stream = stream

    def makefile(self, _mode):
        return _Kept(self._stream)


class _Kept:
    """A stream that stays open for the next answer."""

    def __init__(self, stream):
        self.read, self.readline, self.readinto, self.read1 = (
            stream.read,
            stream.readline,
            stream.readinto,
            stream.read1,
        )

    def flush(self):
        """Nothing is written here."""

    def close(self):
        """The connection is kept."""


KINDS = (
    *("good_requests",) * 3,
    "good_websocket",
    "good_half_closed",
    *("terminated_faults",) * 2,
    "terminated_twice",
    "terminated_leaves",
    "terminated_refused",
    "revoked",
)
