"""Terminated hosts over time: revocation, the death of the secrets process, floods and drips, plain HTTP and proxies.

Against the real broker, from sockets that were born in a real namespace.
"""

import contextlib
import json
import os
import signal
import socket
import ssl
import threading
import time

import pytest

from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import Upstream

pytestmark = pytest.mark.usefixtures("anywhere")
HOST = "api.allowed.test"
SECRET = "real-secret-value-0123456789"
BEARER = {"credential": {"source": "env:REAL", "env": "KEY"}}


def rule(upstream, pki, **http):
    return EgressRule(id="api", host=HOST, connect_to=upstream.address, http=json.dumps({"ca": pki.ca_file, **http}))


@pytest.fixture
def bound(pki, tls_upstream):
    with EgressCell([rule(tls_upstream, pki, **BEARER)], env={"REAL": SECRET}) as cell:
        yield cell


def tls(cell, sock=None):
    context = ssl.create_default_context(cadata=cell.ca_pem)
    return context.wrap_socket(sock or cell.connect("203.0.113.9", 443), server_hostname=HOST)


def get(cell, path="/v1/x", host=HOST):
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {cell.environment['KEY']}\r\n\r\n".encode()


def ends(sock):
    try:
        while sock.recv(4096):
            pass
    except (OSError, ssl.SSLError):
        pass
    return True


def test_row_61_a_revoked_host_is_cut_at_once(bound, tls_upstream):
    sock = tls(bound)
    sock.sendall(get(bound))
    assert sock.recv(4096).startswith(b"HTTP/1.1 200")
    bound.update([])
    assert ends(sock)
    bound.wait_record(reason="revoked")
    seen = len(tls_upstream.bytes)
    with pytest.raises((OSError, ssl.SSLError)):
        tls(bound)
    assert len(tls_upstream.bytes) == seen


def test_row_61_new_terms_count_for_the_next_connection(bound, pki, tls_upstream):
    sock = tls(bound)
    sock.sendall(get(bound))
    assert sock.recv(4096).startswith(b"HTTP/1.1 200")
    bound.update([rule(tls_upstream, pki, **BEARER, rules=[{"methods": ["POST"]}])])
    assert ends(sock)
    sock = tls(bound)
    sock.sendall(get(bound))
    assert sock.recv(4096).startswith(b"HTTP/1.1 405")


def test_row_62_without_the_secrets_process_the_cell_ends(bound, tls_upstream):
    sock = tls(bound)
    sock.sendall(get(bound))
    assert sock.recv(4096).startswith(b"HTTP/1.1 200")
    os.kill(bound.secrets.pid, signal.SIGKILL)
    event = bound.wait_event("fatal")
    assert event["cause"] == "secrets_process_died"
    assert ends(sock)


def test_row_62_an_audit_log_that_cannot_be_written(bound, tls_upstream):
    sock = tls(bound)
    sock.sendall(get(bound))
    assert sock.recv(4096).startswith(b"HTTP/1.1 200")
    seen = len(tls_upstream.bytes)
    os.unlink(bound.audit_path)
    sock.sendall(get(bound))
    assert bound.wait_event("fatal")["cause"].startswith("audit_failed")
    assert ends(sock)
    assert len(tls_upstream.bytes) == seen


def test_row_30_the_name_inside_connect_decides(bound):
    sock = bound.connect("198.19.255.53", 3128)
    sock.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\n\r\n".encode())
    assert sock.recv(4096).startswith(b"HTTP/1.1 200")
    inner = tls(bound, sock)
    inner.sendall(get(bound, host="other.test"))
    assert inner.recv(4096).startswith(b"HTTP/1.1 421")
    bound.wait_record(reason="name_mismatch", via="connect")


def test_plain_http_inside_connect_443_gets_no_credential(bound, tls_upstream):
    sock = bound.connect("198.19.255.53", 3128)
    sock.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\n\r\n".encode())
    assert sock.recv(4096).startswith(b"HTTP/1.1 200")
    sock.sendall(get(bound, host=f"{HOST}:443"))
    answer = sock.recv(4096)
    assert answer.startswith(b"HTTP/1.1 403")
    bound.wait_record(reason="insecure_upstream")
    assert SECRET.encode() not in tls_upstream.bytes


def test_row_34_only_http11_is_spoken(bound):
    context = ssl.create_default_context(cadata=bound.ca_pem)
    context.set_alpn_protocols(["h2", "http/1.1"])
    sock = context.wrap_socket(bound.connect("203.0.113.9", 443), server_hostname=HOST)
    assert sock.selected_alpn_protocol() == "http/1.1"


def test_row_31_ech_grease_is_tolerated_where_tls_ends_here(bound):
    """A greased hello is no secret where we are the server; tested by clients in `scripts/compat` (curl, Go, Node)."""
    assert tls(bound).getpeercert()["subjectAltName"] == (("DNS", HOST),)


def test_row_35_a_client_certificate_is_never_sent(pki):
    context = pki.server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(pki.ca_file)
    with (
        Upstream(context=context) as upstream,
        EgressCell([rule(upstream, pki, **BEARER)], env={"REAL": SECRET}) as cell,
    ):
        sock = tls(cell)
        sock.sendall(get(cell))
        assert sock.recv(4096).startswith(b"HTTP/1.1 502")
        assert upstream.bytes == b""


def test_row_64_half_open_and_dripping_connections_cost_little(bound):
    before = rss(bound.broker.pid)
    socks = []
    for i in range(300):
        sock = bound.connect("203.0.113.9", 443)
        if i % 3 == 1:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        socks.append(sock)
    for _ in range(20):
        sock = tls(bound)
        sock.sendall(b"GET /v1/x HTTP/1.1\r\nHost: ")
        socks.append(sock)
    sock = tls(bound)
    sock.sendall(get(bound))
    assert sock.recv(4096).startswith(b"HTTP/1.1 200")
    assert rss(bound.broker.pid) - before < 40 * 1024
    for sock in socks:
        sock.close()


def rss(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def test_row_60_connection_budget(pki, tls_upstream):
    one = rule(tls_upstream, pki, methods=["GET"], budget={"connections": 2})
    with EgressCell([one]) as cell:
        held = [tls(cell), tls(cell)]
        with pytest.raises((OSError, ssl.SSLError)):
            tls(cell)
        cell.wait_record(reason="budget_connections")
        held.pop().close()
        deadline = time.monotonic() + 10
        while True:
            try:
                tls(cell)
                break
            except (OSError, ssl.SSLError):
                assert time.monotonic() < deadline


def test_row_59_the_ca_dies_with_the_task(pki, tls_upstream):
    with EgressCell([rule(tls_upstream, pki, **BEARER)], env={"REAL": SECRET}) as first:
        old = first.ca_pem
    with EgressCell([rule(tls_upstream, pki, **BEARER)], env={"REAL": SECRET}) as second:
        assert second.ca_pem != old
        context = ssl.create_default_context(cadata=old)
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(second.connect("203.0.113.9", 443), server_hostname=HOST)


@pytest.mark.parametrize("name", ["evil.test", f"{HOST}.evil.test", f"x.{HOST}", "allowed.test"])
def test_row_59_no_leaf_for_a_name_that_is_not_listed(bound, tls_upstream, name):
    context = ssl.create_default_context(cadata=bound.ca_pem)
    with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
        context.wrap_socket(bound.connect("203.0.113.9", 443), server_hostname=name)
    bound.wait_record(effect="deny", reason="host_not_listed")
    assert tls_upstream.accepted == 0


@pytest.mark.parametrize(
    ("host", "target", "code"),
    [
        (HOST, "/x", 200),
        ("other.test", "/x", 421),
        (HOST, "https://other.test/x", 421),
        ("other.test", f"https://{HOST}/x", 421),
        ("other.test", "https://other.test/x", 421),
        (HOST, f"https://{HOST}/x", 200),
        (f"{HOST}:443", f"https://{HOST}:443/x", 200),
        (f"{HOST}:444", "/x", 421),
        (HOST, f"https://{HOST}:444/x", 421),
    ],
)
def test_name_in_tls_host_and_authority_are_one(bound, tls_upstream, host, target, code):
    sock = tls(bound)
    sock.sendall(get(bound, target, host))
    assert sock.recv(4096).startswith(b"HTTP/1.1 %d " % code)
    if code == 421:
        bound.wait_record(effect="deny", reason="name_mismatch")
        assert tls_upstream.accepted == 0
    else:
        assert b"\r\nHost: api.allowed.test\r\n" in tls_upstream.bytes


GIT_WAYS = {
    "another host by insteadOf": (
        ["-c", "url.https://evil.test/.insteadOf=https://api.allowed.test/"], "acme/widget.git", "host_not_listed"),
    "the attacker's credential by extraHeader": (
        ["-c", "http.extraHeader=Authorization: Basic YXR0YWNrZXI6YXR0YWNrZXI="], "acme/widget.git", "foreign_credential"),
    "a key in the address": ([], "acme/widget.git?access_token=abc", "no_rule_matches"),
    "another repository": ([], "acme/other.git", "no_rule_matches"),
    "another owner": ([], "evil/widget.git", "no_rule_matches"),
}  # fmt: skip


@pytest.mark.requires_program("git")
@pytest.mark.parametrize("way", GIT_WAYS)
def test_git_is_configured_to_go_elsewhere(pki, tls_upstream, tmp_path, way):
    """Submodules and large files on other hosts are the first way: requests for a host that is not listed."""
    options, path, reason = GIT_WAYS[way]
    forge = {
        "profile": {"name": "github", "owner": "acme", "repo": "widget"},
        "credential": {"source": "env:REAL", "env": "KEY"},
    }
    with EgressCell([rule(tls_upstream, pki, **forge)], env={"REAL": SECRET}) as cell:
        ca = tmp_path / "ca.pem"
        ca.write_text(cell.ca_pem)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        address = f"https://{HOST}/{path}"
        done = cell.run("git", "-c", f"http.sslCAInfo={ca}", *options, "ls-remote", address, env=env)
        assert done.returncode != 0
        cell.wait_record(effect="deny", reason=reason)
        assert tls_upstream.bytes == b""


def test_a_terminated_and_a_plain_port_of_one_host(pki, tls_upstream, http_upstream):
    rules = [
        rule(tls_upstream, pki, methods=["GET"]),
        EgressRule(
            id="plain", host=HOST, ports=(80,), connect_to=http_upstream.address, http=json.dumps({"methods": ["GET"]})
        ),
    ]
    with EgressCell(rules) as cell:
        sock = cell.connect("203.0.113.9", 80)
        sock.sendall(f"GET /a HTTP/1.1\r\nHost: {HOST}\r\nX-Api-Key: theirs\r\n\r\n".encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        sock.sendall(f"POST /a HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\n\r\n".encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 405")
        assert b"theirs" not in http_upstream.bytes
        # through the proxy address each connection may name many hosts: one request, then it ends
        sock = cell.connect("198.19.255.53", 3128)
        sock.sendall(f"GET http://{HOST}/b HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        answer = b""
        while data := sock.recv(4096):
            answer += data
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"Connection: close" in answer


# -- what is under way when the operator takes a host away

UNDER_WAY = ["a stream", "a socket", "a download", "half an upload", "an answer that does not come", "a question"]


@pytest.mark.parametrize("what", UNDER_WAY)
def test_row_61_revocation_cuts_what_is_under_way(pki, what):
    from saggar.egress.websocket import accept_value

    key = "MDEyMzQ1Njc4OWFiY2RlZg=="
    hold = threading.Event()
    chunked = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n7\r\ndata: 1\r\n"
    )
    switched = b"HTTP/1.1 101 A\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n\x81\x07data: 1"
    says = {
        "a stream": chunked,
        "a socket": switched % accept_value(key.encode()),
        "a download": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: 1",
    }.get(what, b"")

    def respond(head):
        return says or hold.wait(30) or None

    fields = "Content-Length: 100\r\n" if what == "half an upload" else ""
    if what == "a socket":
        fields = (
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        )
    asks = {"rules": [{"effect": "ask", "paths": ["/**"]}]} if what == "a question" else {}
    with Upstream(context=pki.server_context(), respond=respond) as upstream:
        terms = rule(upstream, pki, **BEARER, **asks, websocket=True)
        with EgressCell([terms], env={"REAL": SECRET}) as cell, tls(cell) as sock:
            method = "POST" if what == "half an upload" else "GET"
            head = get(cell).decode().replace("GET", method).replace("\r\n\r\n", f"\r\n{fields}\r\n")
            sock.sendall(head.encode() + (b"x" * 50 if what == "half an upload" else b""))
            if says:
                seen = b""
                while b"data: 1" not in seen:
                    seen += sock.recv(4096)
            elif what == "a question":
                cell.wait_record(reason="rule_asks")
            else:
                wait_until(lambda: b"x" * 50 in upstream.bytes if fields else upstream.bytes)
            began = time.monotonic()
            cell.update([])
            assert ends(sock)
            assert time.monotonic() - began < 5
            cell.wait_record(reason="revoked")
            if what == "a question":
                assert not upstream.bytes
        hold.set()


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class AnswersTwice:
    """TLS on loopback: each answer names its request; on the first connection each gets another, `late_s` later."""

    def __init__(self, context, late_s):
        self.context = context
        self.late_s = late_s
        self.accepted = 0
        self.sock = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = self.sock.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                conn, _ = self.sock.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(conn, self.accepted), daemon=True).start()

    def _serve(self, conn, number):
        with contextlib.suppress(OSError), self.context.wrap_socket(conn, server_side=True) as tls:
            stream = tls.makefile("rb")
            while line := stream.readline():
                while stream.readline().strip():
                    pass
                body = line.split()[1]
                tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                if number == 1:
                    time.sleep(self.late_s)
                    tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n/evil")


@pytest.mark.parametrize("late_s", [0, 0.05])
def test_a_second_answer_is_nobodys_and_the_host_is_not_asked_twice_on_one_connection(late_s, pki):
    liar = AnswersTwice(pki.server_context(), late_s)
    try:
        with EgressCell([rule(liar, pki, **BEARER)], env={"REAL": SECRET}) as cell:
            sock = tls(cell)
            stream = sock.makefile("rb")

            def ask(path):
                sock.sendall(get(cell, path))
                size = 0
                while line := stream.readline().strip():
                    if line.lower().startswith(b"content-length"):
                        size = int(line.split()[1])
                return stream.read(size).decode()

            assert ask("/first") == "/first"
            cell.wait_record(reason="unsolicited_answer")
            before = liar.accepted
            for number in range(5):
                assert ask(f"/{number}") == f"/{number}"
            assert liar.accepted == before + 5
            (record,) = [r for r in cell.records() if r["reason"] == "unsolicited_answer"]
            assert (record["kind"], record["detail"]["host"], record["detail"]["port"]) == (
                "egress.upstream",
                HOST,
                443,
            )
    finally:
        liar.sock.close()
