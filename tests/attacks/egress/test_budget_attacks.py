"""Row 60: a task's budget holds on tunnels and on plain HTTP, over reconnects and hosts together."""

import contextlib
import json

import pytest

from saggar.egress.alerts import ACCESS_DENIED
from saggar.testing import client_hello as h
from saggar.testing.egress_cell import EgressCell

pytestmark = pytest.mark.usefixtures("anywhere")
ELSEWHERE = "203.0.113.9"
GET = b"GET / HTTP/1.1\r\nHost: api.allowed.test\r\nConnection: close\r\n\r\n"


def exchange(sock, data):
    received = b""
    with sock, contextlib.suppress(ConnectionResetError):
        sock.sendall(data)
        while part := sock.recv(65536):
            received += part
    return received


def cell_of(rules, **budget):
    return EgressCell(rules, budget=json.dumps(budget))


def test_requests_of_tunnels_and_plain_http_count_together(rules, client_context, tls_upstream, http_upstream):
    with cell_of(rules, requests=3) as cell:
        with client_context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname="api.allowed.test"):
            pass
        for _ in range(2):
            assert exchange(cell.connect(ELSEWHERE, 80), GET).startswith(b"HTTP/1.1 200 ")
        reply = exchange(cell.connect(ELSEWHERE, 80), GET)
        assert reply.startswith(b"HTTP/1.1 429 ")
        assert b"X-Saggar-Reason: budget_requests" in reply
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"b.allowed.test")) == ACCESS_DENIED
        record = cell.wait_record(effect="deny", reason="budget_requests", host="b.allowed.test")
        assert (record["detail"]["limit"], record["detail"]["scope"]) == (3, "task")
        assert (tls_upstream.accepted, http_upstream.accepted) == (1, 2)


def test_connections_at_once(rules, client_context):
    with cell_of(rules, connections=1) as cell:
        with client_context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname="api.allowed.test"):
            assert exchange(cell.connect(ELSEWHERE, 443), h.hello()) == ACCESS_DENIED
            cell.wait_record(effect="deny", reason="budget_connections")
        # the one that ended makes room, when its end has come through
        while exchange(cell.connect(ELSEWHERE, 443), h.hello()) == ACCESS_DENIED:
            assert len([r for r in cell.records() if r["effect"] == "deny"]) < 900


def test_distinct_hosts(rules):
    with cell_of(rules, hosts=1) as cell:
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"x.wild.test")) != ACCESS_DENIED
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"x.wild.test")) != ACCESS_DENIED
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello(b"y.wild.test")) == ACCESS_DENIED
        cell.wait_record(effect="deny", reason="budget_hosts", host="y.wild.test")


def test_a_rate(rules):
    with cell_of(rules, rate=1) as cell:
        replies = [exchange(cell.connect(ELSEWHERE, 80), GET)[:12] for _ in range(4)]
        assert replies[0] == b"HTTP/1.1 200"
        assert b"HTTP/1.1 429" in replies
        cell.wait_record(effect="deny", reason="budget_rate")


@pytest.mark.parametrize("direction", ["up", "down"])
def test_bytes_of_a_tunnel_cut_it_in_the_middle_and_stay_used(rules, client_context, tls_upstream, direction):
    size = 2 << 20
    tls_upstream.respond = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
    with cell_of(rules, **{f"bytes_{direction}": 1 << 20}) as cell:
        moved = 0
        with client_context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname="api.allowed.test") as tls:
            with contextlib.suppress(OSError):
                body = bytes(size) if direction == "up" else b""
                tls.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                while part := tls.recv(65536):
                    moved += len(part)
        assert moved < 1 << 20
        assert len(tls_upstream.bytes) < 1 << 20
        cell.wait_record(effect="deny", reason=f"budget_bytes_{direction}")
        # what is left of the budget is little; reconnecting does not fill it up
        total = 0
        for _ in range(3):
            with contextlib.suppress(OSError):
                with client_context.wrap_socket(
                    cell.connect(ELSEWHERE, 443), server_hostname="api.allowed.test"
                ) as tls:
                    tls.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n" + bytes(600_000))
                    while part := tls.recv(65536):
                        total += len(part)
        assert total < 1 << 20


@pytest.mark.parametrize("direction", ["up", "down"])
def test_bytes_of_plain_http(rules, http_upstream, direction):
    size = 2 << 20
    if direction == "down":
        http_upstream.respond = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
    with cell_of(rules, **{f"bytes_{direction}": 1 << 20}) as cell:
        body = bytes(size) if direction == "up" else b""
        head = b"POST / HTTP/1.1\r\nHost: api.allowed.test\r\nContent-Length: %d\r\n\r\n" % len(body)
        with contextlib.suppress(BrokenPipeError):
            assert len(exchange(cell.connect(ELSEWHERE, 80), head + body)) < 1 << 20
        cell.wait_record(effect="deny", reason=f"budget_bytes_{direction}")
        assert len(http_upstream.bytes) < 1 << 20


def test_wall_time_ends_what_is_open(rules, client_context):
    with cell_of(rules, wall_s=1.5) as cell:
        with client_context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname="api.allowed.test") as tls:
            tls.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert tls.recv(1) == b""
        cell.wait_record(effect="deny", reason="budget_wall")
        assert exchange(cell.connect(ELSEWHERE, 443), h.hello()) == ACCESS_DENIED


def test_without_a_budget_nothing_is_counted(cell):
    for _ in range(30):
        assert exchange(cell.connect(ELSEWHERE, 80), GET).startswith(b"HTTP/1.1 200 ")
    assert [r for r in cell.records() if r["effect"] == "deny"] == []
