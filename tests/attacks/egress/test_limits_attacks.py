"""Slow, silent, many and large: time, memory and descriptors stay bounded, and other connections go on."""

import os
import resource
import socket
import threading
import time

import pytest

from saggar.egress.alerts import ACCESS_DENIED, INTERNAL_ERROR
from saggar.policy.model import EgressRule
from saggar.testing import client_hello as h
from saggar.testing.egress_cell import EgressCell, reset_socket
from saggar.testing.upstream import Upstream

ELSEWHERE = "203.0.113.9"

#: the broker's own time-outs, made short for the test by the one who starts it
SHORT = "import saggar.egress.connection_host as c, saggar.egress.http_host as t; c.SNIFF_S = t.HEAD_S = t.KEEP_ALIVE_S = 0.5"


def rss_kib(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def ended(sock, timeout_s=10):
    """What arrives until the end, which must come in time."""
    sock.settimeout(timeout_s)
    received = b""
    try:
        while part := sock.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


@pytest.fixture
def short(rules):
    with EgressCell(rules, tweak=SHORT) as cell:
        yield cell


SLOW = {
    "half a hello": (443, h.hello(b"api.allowed.test")[:-1]),
    "one byte of a hello": (443, b"\x16"),
    "half a method": (80, b"GE"),
    "half a head": (80, b"GET / HTTP/1.1\r\nHost: api.allowed.test\r\n"),
    "half a CONNECT": (80, b"CONNECT api.allowed.test:443 HTTP/1.1\r\n"),
}


@pytest.mark.parametrize("case", SLOW)
def test_row_29_a_first_flight_that_never_ends(short, case):
    port, data = SLOW[case]
    with short.connect(ELSEWHERE, port) as sock:
        sock.sendall(data)
        started = time.monotonic()
        reply = ended(sock)
        assert time.monotonic() - started < 5
    assert reply == b"" or reply.startswith(b"HTTP/1.1 408 ")
    short.wait_record(effect="deny", reason="sniff_timeout")


def test_row_29_a_drip_of_single_bytes_ends_in_time(short):
    data = h.hello(b"api.allowed.test")
    with short.connect(ELSEWHERE, 443) as sock:
        sock.setblocking(False)
        started = time.monotonic()
        for byte in data * 50:
            try:
                sock.send(bytes([byte]))
            except OSError:
                break
            if time.monotonic() - started > 8:
                pytest.fail("the drip goes on")
            time.sleep(0.01)  # a drip is what is tried here
    short.wait_record(effect="deny", reason="sniff_timeout")


def test_row_64_idle_connections_are_bounded_and_others_go_on(cell, rules):
    limit = 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    before = rss_kib(cell.broker.pid)
    held = []
    try:
        for _ in range(limit + 20):
            sock = cell.connect(ELSEWHERE, 443)
            sock.sendall(b"\x16")
            held.append(sock)
        cell.wait_record(effect="deny", reason="too_many_connections")
        assert rss_kib(cell.broker.pid) - before < 30_000
        held[0].close()
        held[1].close()
        deadline = time.monotonic() + 10
        while True:
            with cell.connect(ELSEWHERE, 443) as sock:
                sock.sendall(h.hello(b"evil.test"))
                if ended(sock) == ACCESS_DENIED:
                    break
            assert time.monotonic() < deadline
    finally:
        for sock in held:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_row_64_a_flood_of_refusals_leaves_a_bounded_log(cell):
    for _ in range(1500):
        with cell.connect(ELSEWHERE, 443) as sock:
            sock.sendall(b"\0")
            ended(sock)
    removed = cell.remove()
    assert removed["refused"] == 1500
    denied = [r for r in cell.records() if r["effect"] == "deny"]
    assert 1000 <= len(denied) < 1400
    told = [e for e in cell.events if e["event"] == "refused"]
    assert len(told) == 100


def test_row_64_a_flood_of_names_leaves_a_bounded_log(cell):
    cell.python(
        "import socket\n"
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect(('198.19.255.53',53))\n"
        "for i in range(5000):\n"
        "    n=b'x%d'%i; s.send(b'\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0'+bytes([len(n)])+n+b'\\4evil\\4test\\0\\0\\1\\0\\1'); s.recv(512)\n",
        timeout_s=60,
    )
    assert len([r for r in cell.records() if r["kind"] == "egress.dns"]) == 512


def test_a_body_that_nobody_reads_stops_at_the_windows(cell, http_upstream):
    """The upstream does not read: what the client may send is bounded by the kernel's buffers, not by our memory."""
    release = []
    http_upstream.respond = lambda _: release.append(1) or None
    before = rss_kib(cell.broker.pid)
    with cell.connect(ELSEWHERE, 80) as sock, socket.create_server(("127.0.0.1", 0)) as silent:
        cell.update([EgressRule(id="s", host="silent.test", ports=(80,), connect_to=silent.getsockname())])
        sock.sendall(b"POST / HTTP/1.1\r\nHost: silent.test\r\nContent-Length: 10000000000\r\n\r\n")
        sock.setblocking(False)
        sent, deadline = 0, time.monotonic() + 3
        while time.monotonic() < deadline and sent < 512 << 20:
            try:
                sent += sock.send(b"x" * 65536)
            except BlockingIOError:
                time.sleep(0.01)  # the windows are full: look whether they stay so
    assert sent < 64 << 20
    assert rss_kib(cell.broker.pid) - before < 20_000


def test_a_large_response_flows_with_flat_memory_and_back_pressure(rules, pki):
    size = 200 << 20
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    with Upstream(respond=lambda _: head + bytes(size)) as big:
        with EgressCell([EgressRule(id="big", host="big.test", ports=(80,), connect_to=big.address)]) as cell:
            before = rss_kib(cell.broker.pid)
            done = cell.run("curl", "-sS", "-m", "60", "-o", "/dev/null", "-w", "%{size_download}", "http://big.test/")
            assert done.stdout == str(size), done.stderr
            assert rss_kib(cell.broker.pid) - before < 20_000


def test_a_large_tunnelled_stream_is_whole_in_both_directions(cell, client_context, tls_upstream):
    """Past the point where the tunnel hands over to the kernel's splice, with a slow reader."""
    size = 48 << 20
    body = bytes(range(256)) * (size // 256)
    tls_upstream.respond = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body
    with client_context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname="api.allowed.test") as tls:
        tls.settimeout(30)
        tls.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + body)
        received = bytearray()
        while len(received) < size + 40:
            part = tls.recv(1 << 20)
            if not part:
                break
            received += part
    assert bytes(received).endswith(body)
    assert tls_upstream.bytes.endswith(body)
    used = cell.remove()
    assert min(used["bytes_up"], used["bytes_down"]) > size


def take_all(cell, count):
    """Connections that say nothing more; those that were refused among them."""
    held = []
    for _ in range(count):
        sock = cell.connect(ELSEWHERE, 443)
        sock.sendall(b"\x16")
        held.append(sock)
    return held


def serves(cell, timeout_s=15):
    """A connection is judged, sooner or later."""
    deadline = time.monotonic() + timeout_s
    while True:
        with cell.connect(ELSEWHERE, 443) as sock:
            sock.sendall(h.hello(b"evil.test"))
            if ended(sock) == ACCESS_DENIED:
                return
        assert time.monotonic() < deadline


def test_out_of_descriptors_the_broker_waits_and_goes_on(rules):
    # fewer than a cell may have in any case: the bound that leaves room for others does not help
    with EgressCell(rules, nofile=24) as cell:
        held = take_all(cell, 60)
        cell.wait_record(effect="deny", reason="out_of_descriptors")
        for sock in held:
            sock.close()
        serves(cell)


def test_a_cell_that_takes_all_descriptors_leaves_those_of_others(rules, tls_upstream, client_context):
    with EgressCell(rules, nofile=240) as greedy, EgressCell(rules, beside=greedy) as other:
        held = take_all(greedy, 150)
        greedy.wait_record(effect="deny", reason="too_many_connections")
        # what is left is shared by whoever comes: others are judged, dialled and answered as if nothing was
        tunnels = []
        for _ in range(5):
            sock = other.connect(ELSEWHERE, 443)
            tls = client_context.wrap_socket(sock, server_hostname="api.allowed.test")
            tls.sendall(b"GET / HTTP/1.1\r\nHost: api.allowed.test\r\n\r\n")
            assert tls.recv(65536).startswith(b"HTTP/1.1 200")
            tunnels.append(tls)
        serves(other, 0)
        assert not [r for r in other.records() if r["reason"] in ("out_of_descriptors", "too_many_connections")]
        assert not [r for r in greedy.records() if r["reason"] == "out_of_descriptors"]
        for sock in (*held, *tunnels):
            sock.close()
        serves(greedy)


LOOK_OFTEN = "import saggar.egress.http_host as t; t._LOOK_S = 0.1; t.HALF_CLOSED_S = 0.5"


@pytest.mark.parametrize("how", ["reset", "end"])
def test_a_client_that_leaves_a_stalled_upstream_is_let_go(rules, how):
    with socket.create_server(("127.0.0.1", 0)) as stalled:
        rule = EgressRule(id="s", host="stalled.test", ports=(80,), connect_to=stalled.getsockname())
        with EgressCell([rule], tweak=LOOK_OFTEN) as cell:
            sock = cell.connect(ELSEWHERE, 80)
            sock.sendall(b"GET / HTTP/1.1\r\nHost: stalled.test\r\n\r\n")
            upstream, _ = stalled.accept()
            with upstream:
                upstream.settimeout(10)
                assert upstream.recv(4096).startswith(b"GET / HTTP/1.1\r\n")
                reset_socket(sock) if how == "reset" else sock.close()
                assert ended(upstream) == b""


def test_a_client_that_ends_its_direction_still_gets_its_answer(cell, http_upstream):
    with cell.connect(ELSEWHERE, 80) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: api.allowed.test\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        assert ended(sock).endswith(b"hello from upstream: GET / HTTP/1.1")


def test_a_refused_client_that_sends_without_end_holds_nobody_up(cell, http_upstream):
    stop = threading.Event()

    def pour():
        while not stop.is_set():
            with cell_lock:
                sock = cell.connect(ELSEWHERE, 80)
            with sock:
                try:
                    sock.sendall(b"POST / HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 99999999999\r\n\r\n")
                    while not stop.is_set():
                        sock.sendall(b"x" * 262144)
                except OSError:
                    pass

    cell_lock = threading.Lock()
    threads = [threading.Thread(target=pour) for _ in range(3)]
    for t in threads:
        t.start()
    try:
        for _ in range(20):
            with cell_lock:
                sock = cell.connect(ELSEWHERE, 80)
            with sock:
                sock.sendall(b"GET / HTTP/1.1\r\nHost: api.allowed.test\r\nConnection: close\r\n\r\n")
                assert ended(sock).startswith(b"HTTP/1.1 200 ")
    finally:
        stop.set()
        for t in threads:
            t.join()


def test_names_that_nobody_answers_leave_the_resolver_to_other_cells():
    """A resolver that is silent about one name: the cell waits for itself alone, and gets its reason."""
    tweak = (
        "import time, saggar.egress.dial_host as d, saggar.egress.cell_host as c\n"
        "d.RESOLVE_S = 0.5; real = d.Dialer.__init__\n"
        "def slow(host):\n    time.sleep(3); raise OSError('no answer')\n"
        "d.Dialer.__init__ = lambda self, pool, look_up=slow: real(self, pool, look_up)"
    )
    with EgressCell([EgressRule(id="w", host="*.slow.test")], tweak=tweak) as cell:
        socks = [cell.connect(ELSEWHERE, 443) for _ in range(20)]
        started = time.monotonic()
        for i, sock in enumerate(socks):
            sock.sendall(h.hello(b"n%d.slow.test" % i))
        for sock in socks:
            with sock:
                assert ended(sock) == INTERNAL_ERROR
        assert time.monotonic() - started < 8
        threads = len(os.listdir(f"/proc/{cell.broker.pid}/task"))
        assert threads <= 4 + 3
