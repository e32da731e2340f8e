"""Bytes that cost the broker much more than the sender: neighbours, revocation and wall time do not wait for them."""

import contextlib
import json
import socket
import ssl
import threading
import time

import pytest

from saggar.egress.listeners import RESOLVER_ADDRESS
from saggar.egress.websocket import accept_value
from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import Upstream

HOST, NEIGHBOUR = "api.allowed.test", "b.allowed.test"
ELSEWHERE = "203.0.113.9"
ENV = {"REAL": "real-secret-value-0123456789"}
#: what a neighbour's request, a revocation and the end of the wall time may take
GET_S, REVOKED_S, WALL_S = 0.25, 1.0, 1.0

TINY = b"1\r\nx\r\n" * 43690
ESCAPED = b"1\r\n\\\r\n" * 43690
SLASHES = b"%x\r\n" % 262144 + b"\\" * 262144 + b"\r\n"
ESCAPES = b"%x\r\n" % 262140 + b"\\x41" * 65535 + b"\r\n"
FIELDS = b"".join(b"X-%d: %s\r\n" % (i, b"\\" * 240) for i in range(190))
FRAMES = b"\x82\x81\0\0\0\0\\" * 37449
#: the stub's answer is read by nobody for long: what a client sends ahead is worked off all the same
QUERY = b"\0\x1c" + b"\0\1\1\0\0\1\0\0\0\0\0\0" + b"\5other\4test\0" + b"\0\1\0\1"


class Plant(Upstream):
    """Takes all there is, or gives without end."""

    def _serve(self, sock):
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(65536)
        if head.startswith(b"GET /tiny"):
            sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                sock.sendall(TINY)
        if b"/socket" in head:
            key = next(line[19:] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key: "))
            sock.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Accept: %s\r\n\r\n" % accept_value(key)
            )
        if b"X-0: " in head:
            while head:
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                head = sock.recv(1 << 20)
                while head and not head.endswith(b"\r\n\r\n"):
                    head += sock.recv(1 << 20)
        while sock.recv(1 << 20):
            pass


CHUNKED = b"Transfer-Encoding: chunked\r\nContent-Type: text/plain\r\n"
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)
#: (terminated, connections, first line, fields, what follows for ever)
CASES = {
    "plain, small chunks up": (False, 1, b"POST /x", CHUNKED, TINY),
    "plain, small chunks down": (False, 1, b"GET /tiny", b"", b""),
    "plain, many connections": (False, 8, b"POST /x", CHUNKED, TINY),
    "terminated, small chunks up": (True, 1, b"POST /x", CHUNKED, ESCAPED),
    "terminated, small chunks down": (True, 1, b"GET /tiny", b"", b""),
    "terminated, backslashes": (True, 1, b"POST /x", CHUNKED, SLASHES),
    "terminated, escapes": (True, 2, b"POST /x", CHUNKED, ESCAPES),
    "terminated, heads of backslashes": (True, 4, b"GET /x", FIELDS, b"again"),
    "terminated, small frames": (
        True,
        1,
        b"GET /socket",
        UPGRADE,
        FRAMES,
    ),
}


@pytest.fixture
def plants(pki):
    with Plant() as plain, Plant(context=pki.server_context()) as secure:
        yield plain, secure


def hostile_rule(pki, plants, *, terminated):
    terms = {
        "ca": pki.ca_file,
        "credential": {"source": "env:REAL", "env": "KEY"},
        "foreign_keys": "refuse",
        "websocket": True,
    }
    http = json.dumps(terms) if terminated else ""
    return EgressRule(
        id="hostile",
        host=HOST,
        ports=(443 if terminated else 80,),
        connect_to=plants[terminated].address,
        http=http,
    )


class Flood:
    """One case's connections, until they are cut. ended: when each was."""

    def __init__(self, cell, case):
        self.terminated, count, self.line, self.fields, self.rest = CASES[case]
        self.cell = cell
        self.ended = []
        self.sockets = [self._connect() for _ in range(count)]
        self.threads = [threading.Thread(target=self._run, args=(sock,), daemon=True) for sock in self.sockets]
        for thread in self.threads:
            thread.start()

    def _connect(self):
        sock = self.cell.connect(ELSEWHERE, 443 if self.terminated else 80)
        sock.settimeout(30)
        if self.terminated:
            context = ssl.create_default_context(cadata=self.cell.ca_pem)
            sock = context.wrap_socket(sock, server_hostname=HOST)
        return sock

    def _run(self, sock):
        key = self.cell.environment["KEY"].encode() if self.terminated else b"none"
        bearer = b"Authorization: Bearer %s\r\n" % key if self.terminated else b""
        head = self.line + b" HTTP/1.1\r\nHost: " + HOST.encode() + b"\r\n" + bearer + self.fields + b"\r\n"
        with contextlib.suppress(OSError):
            sock.sendall(head)
            if self.rest == b"again":
                while sock.recv(65536):
                    sock.sendall(head)
            elif not self.rest:
                while sock.recv(1 << 20):
                    pass
            else:
                while True:
                    sock.sendall(self.rest)
        self.ended.append(time.monotonic())

    def wait(self, timeout_s):
        for thread in self.threads:
            thread.join(timeout_s)
        return len(self.ended) == len(self.threads)


def test_names_of_one_segment_leave_turns_to_the_others(plants, http_upstream):
    rule = EgressRule(id="n", host=NEIGHBOUR, ports=(80,), connect_to=http_upstream.address)
    with EgressCell([rule]) as cell, EgressCell([rule], beside=cell) as beside:
        asking = cell.connect(RESOLVER_ADDRESS, 53)
        stop = threading.Event()

        def ask():
            with contextlib.suppress(OSError):
                while not stop.is_set():
                    asking.sendall(QUERY * 2000)

        def read():
            with contextlib.suppress(OSError):
                while asking.recv(1 << 20):
                    pass

        for target in (ask, read):
            threading.Thread(target=target, daemon=True).start()
        assert second_worst(beside) < GET_S
        stop.set()
        asking.shutdown(socket.SHUT_RDWR)  # it is connected still: it was served to the end


@pytest.mark.parametrize("escape", ["%s", "\\x%02x", "%%%02X"])
def test_a_placeholder_in_chunks_of_one_byte_is_found(escape, pki, plants):
    with EgressCell([hostile_rule(pki, plants, terminated=True)], env=ENV) as cell:
        key = cell.environment["KEY"]
        text = key if escape == "%s" else "".join(escape % ord(c) for c in key)
        context = ssl.create_default_context(cadata=cell.ca_pem)
        with context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname=HOST) as sock:
            head = f"POST /x HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {key}\r\nContent-Type: text/plain\r\n"
            chunks = "".join(f"1\r\n{c}\r\n" for c in "before " + text)
            sock.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n{chunks}".encode())
            assert b"(canary)" in sock.recv(4096)
        assert "canary" in [r["reason"] for r in cell.records()]
        assert text.encode() not in plants[1].bytes


def second_worst(cell, seconds=1.5):
    """Seconds that a request of this cell took; the worst is left to the machine's other work."""
    sock = cell.connect(ELSEWHERE, 80)
    sock.settimeout(10)
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(took) < 10:
        began = time.monotonic()
        sock.sendall(b"GET /x HTTP/1.1\r\nHost: " + NEIGHBOUR.encode() + b"\r\n\r\n")
        answer = b""
        while b"upstream: GET" not in answer:
            answer += sock.recv(4096)
        took.append(time.monotonic() - began)
        time.sleep(0.01)
    sock.close()
    return sorted(took)[-2]


@pytest.mark.parametrize("case", CASES)
def test_neighbours_and_revocation_do_not_wait(case, pki, plants, http_upstream):
    rule = hostile_rule(pki, plants, terminated=CASES[case][0])
    beside = EgressRule(id="n", host=NEIGHBOUR, ports=(80,), connect_to=http_upstream.address)
    with EgressCell([rule], env=ENV) as cell, EgressCell([beside], beside=cell) as neighbour:
        flood = Flood(cell, case)
        time.sleep(0.3)
        assert second_worst(neighbour) < GET_S
        assert not flood.ended, "the flood was to go on"
        asked = time.monotonic()
        cell.withdraw("hostile")
        assert time.monotonic() - asked < REVOKED_S
        assert flood.wait(5)
        assert max(flood.ended) - asked < REVOKED_S
        assert "revoked" in [r["reason"] for r in cell.records()]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("case", ["plain, small chunks up", "terminated, small chunks up"])
def test_the_wall_time_ends_it(case, processes, pki, plants):
    rule = hostile_rule(pki, plants, terminated=CASES[case][0])
    began = time.monotonic()
    with EgressCell([rule], env=ENV, budget=json.dumps({"wall_s": 2}), processes=processes) as cell:
        served = time.monotonic()
        flood = Flood(cell, case)
        assert flood.wait(10)
        # the time runs from when the broker has the cell: between these two
        assert began + 2 <= max(flood.ended) < served + 2 + WALL_S
        assert "budget_wall" in [r["reason"] for r in cell.records()]
