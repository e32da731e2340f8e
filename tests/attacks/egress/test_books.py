"""What was sent is in the audit log's last records and in the result, however the connection that sent it ended."""

import contextlib
import json
import socket
import ssl
import threading

import pytest

from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import Upstream

HOST = "api.allowed.test"
ELSEWHERE = "203.0.113.9"
PIECE = bytes(100_000)


class Swallower(Upstream):
    """Reads what comes, answers nothing, and says when so much of it is there."""

    def __init__(self, *, enough, **options):
        super().__init__(**options)
        self._enough = enough
        self.full = threading.Event()

    def _serve(self, sock):
        received = bytearray()
        self.received.append(received)
        with contextlib.suppress(OSError):
            while data := sock.recv(1 << 16):
                received += data
                if len(received) >= self._enough:
                    self.full.set()


def books(cell):
    """`removed`, and the totals and places of the closing records, which must agree with it."""
    removed = cell.remove()
    details = [r["detail"] for r in cell.records() if r["kind"] == "egress.summary"]
    total = next(d["total"] for d in details if "total" in d)
    used = {place: moved for d in details for place, moved in d.get("used", {}).items()}
    for way in ("bytes_up", "bytes_down"):
        assert removed[way] == total[way] == sum(moved[way] for moved in used.values())
    return removed


def post(length, path=b"/"):
    return b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (path, HOST.encode(), length)


def plain(upstream):
    return [EgressRule(id="a", host=HOST, ports=(80,), connect_to=upstream.address)]


def read(upstream, pki):
    """The host is terminated: each request is read."""
    return [
        EgressRule(id="a", host=HOST, connect_to=upstream.address, http=json.dumps({"ca": pki.ca_file})),
    ]


def inside_tls(cell, context=None):
    context = context or ssl.create_default_context(cadata=cell.ca_pem)
    return context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname=HOST)


def answered(sock):
    reply = b""
    while b"\r\n\r\n" not in reply:
        reply += sock.recv(65536)
    return reply


@pytest.mark.usefixtures("anywhere")
def test_plain_requests_on_a_connection_that_stays_open(http_upstream):
    http_upstream.respond = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with EgressCell(plain(http_upstream)) as cell, cell.connect(ELSEWHERE, 80) as sock:
        for _ in range(5):
            sock.sendall(post(len(PIECE)) + PIECE)
            assert answered(sock).startswith(b"HTTP/1.1 200")
        assert books(cell)["bytes_up"] >= len(http_upstream.bytes) > 5 * len(PIECE)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("breaks_off", [True, False], ids=["broken off", "still open"])
def test_an_upload_in_the_middle(pki, breaks_off):
    size = 5_000_000
    for kind in ("plain", "read"):
        context = pki.server_context() if kind == "read" else None
        with Swallower(enough=size, context=context) as upstream:
            rules = plain(upstream) if kind == "plain" else read(upstream, pki)
            with EgressCell(rules) as cell:
                sock = cell.connect(ELSEWHERE, 80) if kind == "plain" else inside_tls(cell)
                with sock:
                    sock.sendall(post(99_000_000) + bytes(size))
                    assert upstream.full.wait(20)
                    if breaks_off:
                        sock.close()
                    assert books(cell)["bytes_up"] >= len(upstream.bytes) >= size


@pytest.mark.usefixtures("anywhere")
def test_what_a_refusal_in_the_middle_of_a_body_let_pass_before(pki):
    with Swallower(enough=1, context=pki.server_context()) as upstream:
        rule = EgressRule(
            id="a",
            host=HOST,
            connect_to=upstream.address,
            http=json.dumps({"ca": pki.ca_file, "budget": {"bytes_up": 1_000_000}}),
        )
        with EgressCell([rule]) as cell, inside_tls(cell) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(post(9_000_000) + bytes(3_000_000))
            cell.wait_record(effect="deny", reason="budget_bytes_up")
            assert 1_000_000 >= books(cell)["bytes_up"] >= len(upstream.bytes) > 0


@pytest.mark.usefixtures("anywhere")
def test_a_tunnel_that_is_open_at_the_end(rules, client_context, tls_upstream):
    with EgressCell(rules) as cell, inside_tls(cell, client_context) as sock:
        sock.sendall(post(len(PIECE)) + PIECE)
        assert answered(sock)
        assert books(cell)["bytes_up"] > len(PIECE)


HEAD = b"x" * 3000


@pytest.mark.usefixtures("anywhere")
def test_a_plain_head_is_of_the_budget(http_upstream):
    with EgressCell(plain(http_upstream), budget='{"bytes_up": 10000}') as cell:
        replies = []
        for _ in range(5):
            with cell.connect(ELSEWHERE, 80) as sock:
                sock.sendall(b"GET /%s HTTP/1.1\r\nHost: %s\r\n\r\n" % (HEAD, HOST.encode()))
                replies.append(answered(sock)[:12])
        assert replies == [b"HTTP/1.1 200"] * 3 + [replies[3]] * 2
        assert replies[3] in (b"HTTP/1.1 413", b"HTTP/1.1 429")
        cell.wait_record(effect="deny", reason="budget_bytes_up", host=HOST)
        assert http_upstream.bytes.count(HEAD) == 3
        assert books(cell)["bytes_up"] >= len(http_upstream.bytes)


@pytest.mark.usefixtures("anywhere")
def test_a_plain_trailer_is_of_the_budget(http_upstream):
    with EgressCell(plain(http_upstream), budget='{"bytes_up": 2000}') as cell, cell.connect(ELSEWHERE, 80) as sock:
        sock.sendall(
            b"POST / HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx-d: %s\r\n\r\n"
            % (HOST.encode(), HEAD)
        )
        with contextlib.suppress(ConnectionResetError):
            assert not sock.recv(9)
        cell.wait_record(effect="deny", reason="budget_bytes_up", host=HOST)
        assert HEAD not in http_upstream.bytes


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("before", [0, 3_000_000])
def test_a_byte_budget_that_comes_while_a_tunnel_is_open_binds_it(raw_upstream, before):
    """before: what it moved while nothing limited it, which counts."""
    with Swallower(enough=before or 1) as upstream:
        rules = [EgressRule(id="a", host=HOST, ports=(8443,), connect_to=upstream.address)]
        with EgressCell(rules) as cell, cell.connect(cell_address(cell), 8443) as sock:
            sock.sendall(b"\x00" * (before or 1))
            assert upstream.full.wait(20)
            cell._budget = '{"bytes_up": 2000000}'
            cell.update(rules)
            with contextlib.suppress(OSError):
                for _ in range(60):
                    sock.sendall(PIECE)
                sock.shutdown(socket.SHUT_WR)
                sock.recv(1)
            cell.wait_record(effect="deny", reason="budget_bytes_up", host=HOST)
            assert len(upstream.bytes) <= max(before, 2_000_000)
            books(cell)


def cell_address(cell):
    return cell.python(f"import socket; print(socket.getaddrinfo({HOST!r}, 8443, socket.AF_INET)[0][4][0])").strip()
