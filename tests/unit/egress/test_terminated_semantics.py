"""Trailers, interim answers, `Expect`, and connections that end as they are used: over real TLS, against a scripted upstream."""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import threading
import time

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from terminated_rig import SECRET, Rig, get, ok, raw, read_message

from saggar.egress.upstream_host import Pool
from saggar.egress.upstream_host import Upstream as UpstreamEnd

BEARER = {"credential": {"source": "env:REAL_KEY", "env": "OPENAI_API_KEY", "format": "openai"}}
CHUNKED = b"Transfer-Encoding: chunked"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


def auth(rig: Rig) -> bytes:
    return b"Authorization: Bearer " + rig.placeholder.encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def reason(answer: bytes) -> str:
    return next(
        (line.partition(b": ")[2].decode() for line in answer.split(b"\r\n") if line.startswith(b"X-Saggar-Reason")), ""
    )


@pytest.fixture(scope="module")
def bearer():
    rules = [{"methods": ["GET", "POST", "PUT"]}, {"effect": "deny", "headers": {"x-mode": "admin"}}]
    with Rig(ok(), {**BEARER, "rules": rules}) as rig:
        yield rig


@pytest.fixture
def own():
    """A rig of its own: whom it distrusts it does not forgive."""
    with Rig(ok(), BEARER) as rig:
        yield rig


@pytest.fixture
def rig(bearer):
    bearer.call(bearer.termination.pool.close)
    bearer.upstream.received.clear()
    bearer.port.records.clear()
    bearer.upstream.script = ok()
    return bearer


def read_to(conn, end):
    seen = b""
    while not seen.endswith(end):
        data = conn.recv(65536)
        if not data:
            break
        seen += data
    return seen


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def upload(rig, trailers, *fields):
    """(answer, what the upstream saw) of a chunked request with these trailer lines."""
    conn = rig.connect()
    seen = []

    def script(request, upstream):
        seen.append(request)
        upstream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        return True

    rig.upstream.script = script
    conn.sendall(get(b"/x", auth(rig), CHUNKED, *fields, method=b"POST"))
    conn.sendall(b"5\r\nhello\r\n0\r\n" + b"".join(t + b"\r\n" for t in trailers) + b"\r\n")
    answer = read_message(conn)
    conn.close()
    return answer, b"".join(seen)


# -- trailers of a request -------------------------------------------------------------------------------------------


def test_harmless_trailers_of_a_request_pass_announced(rig):
    answer, seen = upload(
        rig, [b"Content-Digest: sha-256=:abc=:", b"X-Checksum:  7 "], b"Trailer: Content-Digest, Host"
    )
    assert status(answer) == 200
    assert seen.endswith(b"0\r\ncontent-digest: sha-256=:abc=:\r\nx-checksum: 7\r\n\r\n")
    assert b"\r\nTrailer: content-digest\r\n" in seen


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Host: evil.test", b"X-Forwarded-Host: evil.test", b"Connection: close",
        b"X-HTTP-Method-Override: DELETE", b"X_HTTP_Method_Override: DELETE", b"Content-Type: text/html", b"Range: bytes=0-1",
        b"X-Mode: admin", b"X_Mode: admin", b"Trailer: x", b"TE: trailers", b"Expect: 100-continue", b"Cache-Control: no-store",
        b"X-Acme-Token: abc", b"If-Match: *", b"Sec-WebSocket-Key: a", b"X-Amz-Acl: public-read", b"Accept-Encoding: gzip",
    ],
)  # fmt: skip
def test_a_trailer_that_could_change_something_stays_here(rig, line):
    answer, seen = upload(rig, [b"X-Fine: 1", line])
    assert status(answer) == 200
    assert seen.endswith(b"0\r\nx-fine: 1\r\n\r\n")
    name = line.partition(b":")[0].lower().decode()
    assert [d.detail["trailers"] for d in rig.port.records if d.reason == "trailers_dropped"] == [[name]]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda r: b"Authorization: Bearer sk-attacker", "foreign_credential"),
        (lambda r: b"X-Api-Key: attacker", "foreign_credential"),
        (lambda r: b"Cookie: a=b", "foreign_credential"),
        (lambda r: b"X-Any: ghp_0123456789abcdefghij0123", "foreign_credential"),
        (lambda r: b"X-Any: " + r.placeholder.encode(), "canary"),
        (lambda r: b"X-Any: " + r.placeholder.encode().hex().encode(), "canary"),
    ],
)
def test_a_credential_in_a_trailer_is_refused(rig, make, why):
    answer, seen = upload(rig, [make(rig)])
    assert (status(answer), reason(answer)) == (403, why)
    assert b"0\r\n\r\n" not in seen
    assert [d.reason for d in rig.port.records if d.effect == "deny"] == [why]
    assert rig.port.records[-1].detail["alert"] is True


@pytest.mark.parametrize(
    "lines",
    [
        [b"no colon"],
        [b" folded: x"],
        [b"X : a"],
        [b"X: a\0b"],
        [b"X: a\rb"],
        [b": x"],
        [b"\xc3\xa4: x"],
        [b"a: b"] * 65,
    ],
)
def test_a_malformed_trailer_stops_the_request(rig, lines):
    answer, _ = upload(rig, lines)
    assert (status(answer), reason(answer)) == (400, "bad_framing")


def test_trailers_on_a_host_without_a_credential_are_taken_off():
    with Rig(ok(), {"methods": ["POST"]}) as rig:
        answer, seen = upload(rig, [b"Authorization: Bearer x", b"X-Fine: 1"])
        assert status(answer) == 200
        assert seen.endswith(b"0\r\nx-fine: 1\r\n\r\n")


# -- trailers of an answer -------------------------------------------------------------------------------------------


def answer_with(*trailers, head=()):
    lines = b"".join(h + b"\r\n" for h in head)
    return raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + lines + b"\r\n2\r\nok\r\n0\r\n"
        + b"".join(t + b"\r\n" for t in trailers) + b"\r\n",
        close=False,
    )  # fmt: skip


def test_trailers_of_an_answer_pass_and_are_announced(rig):
    rig.upstream.script = answer_with(
        b"Grpc-Status: 0", b"Server-Timing: db;dur=1", head=[b"Trailer: Grpc-Status, Set-Cookie"]
    )
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig), b"TE: trailers"))
    seen = read_to(conn, b"dur=1\r\n\r\n")
    assert seen.endswith(b"0\r\ngrpc-status: 0\r\nserver-timing: db;dur=1\r\n\r\n")
    assert b"\r\nTrailer: grpc-status\r\n" in seen
    assert b"Connection: TE\r\nTE: trailers\r\n" in rig.upstream.received[0]
    # and the connection goes on
    rig.upstream.script = ok()
    assert rig.ask(get(b"/x", auth(rig)), conn).endswith(b"hello")
    assert b"TE:" not in rig.upstream.received[1]


@pytest.mark.parametrize(
    "line",
    [b"Set-Cookie: a=b", b"Content-Length: 9", b"Transfer-Encoding: chunked", b"Location: https://evil.test/", b"Alt-Svc: h3", b"Connection: x",
     b"Content-Encoding: gzip", b"WWW-Authenticate: Basic", b"Access-Control-Allow-Origin: *", b"X-Accel-Redirect: /etc"],
)  # fmt: skip
def test_a_trailer_of_an_answer_that_could_change_something_stays_here(rig, line):
    rig.upstream.script = answer_with(b"X-Fine: 1", line)
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig)))
    assert read_to(conn, b"x-fine: 1\r\n\r\n").endswith(b"2\r\nok\r\n0\r\nx-fine: 1\r\n\r\n")


def test_the_secret_does_not_come_back_in_a_trailer(rig):
    rig.upstream.script = answer_with(b"X-Debug: key=" + SECRET.encode())
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig)))
    seen = read_to(conn, b"\r\n\r\n")
    while b"x-debug" not in seen or not seen.endswith(b"\r\n\r\n"):
        seen += conn.recv(4096)
    assert SECRET.encode() not in seen
    assert [d.reason for d in rig.port.records if d.reason == "secret_redacted"]


def test_an_old_client_gets_no_trailers(rig):
    rig.upstream.script = answer_with(b"X-Fine: 1")
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig)).replace(b"HTTP/1.1", b"HTTP/1.0"))
    seen = read_to(conn, b"never")
    assert seen.endswith(b"\r\n\r\nok")


# -- interim answers -------------------------------------------------------------------------------------------------

FINAL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("interim", "passed"),
    [
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nSet-Cookie: a=b\r\nAlt-Svc: h3\r\nX: y\r\n\r\n",
         b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"),
        (b"HTTP/1.1 103 whatever\r\n\r\n", b""),
        (b"HTTP/1.1 102 Processing\r\nX: y\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b""),
        (b"HTTP/1.1 104 Upload Resumption\r\nUpload-Offset: 1\r\n\r\n", b""),
        (b"HTTP/1.1 199 X\r\n\r\n", b""),
    ],
)  # fmt: skip
def test_interim_answers(rig, interim, passed):
    rig.upstream.script = raw(interim + FINAL, close=False)
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig)))
    assert read_to(conn, b"ok") == passed + FINAL


def test_no_interim_answer_for_an_old_client(rig):
    rig.upstream.script = raw(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + FINAL, close=False)
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig)).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert read_to(conn, b"ok").startswith(b"HTTP/1.1 200 OK\r\n")


def test_the_secret_does_not_come_back_in_a_hint(rig):
    rig.upstream.script = raw(b"HTTP/1.1 103 X\r\nLink: </?k=" + SECRET.encode() + b">\r\n\r\n" + FINAL, close=False)
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig)))
    seen = read_to(conn, b"ok")
    assert SECRET.encode() not in seen
    assert seen.startswith(b"HTTP/1.1 103 ")
    assert [d.reason for d in rig.port.records].count("secret_redacted") == 1


def test_hints_without_end_are_cut(rig):
    rig.upstream.script = raw(b"HTTP/1.1 103 X\r\nLink: </a>\r\n\r\n" * 40 + FINAL, close=False)
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig)))
    seen = read_to(conn, b"never")
    assert seen.count(b"HTTP/1.1 103 ") <= 16
    assert b"X-Saggar-Reason: bad_response" in seen


# -- Expect ----------------------------------------------------------------------------------------------------------


def expecting(rig, path=b"/x", size=5):
    conn = rig.connect()
    conn.sendall(get(path, auth(rig), b"Expect: 100-continue", b"Content-Length: %d" % size, method=b"POST"))
    return conn


class ByHand:
    """Takes the place of the rig's `read_message`: heads alone, bodies by the script."""

    def __init__(self, monkeypatch):
        import terminated_rig

        def heads(conn, buffer=b""):
            while b"\r\n\r\n" not in buffer:
                data = conn.recv(65536)
                if not data:
                    return buffer
                buffer += data
            return buffer

        monkeypatch.setattr(terminated_rig, "read_message", heads)


@pytest.fixture
def by_hand(monkeypatch):
    return ByHand(monkeypatch)


def test_the_upstreams_word_lets_the_body_go(rig, by_hand):
    order = []

    def script(request, conn):
        assert request.endswith(b"\r\n\r\n")
        assert b"\r\nExpect: 100-continue\r\n" in request
        order.append("asked")
        conn.sendall(GO_ON)
        assert conn.recv(100) == b"12345"
        order.append("sent")
        conn.sendall(FINAL)
        return True

    rig.upstream.script = script
    conn = expecting(rig)
    started = time.monotonic()
    assert conn.recv(4096) == GO_ON
    assert time.monotonic() - started < 0.9
    assert order == ["asked"]
    conn.sendall(b"12345")
    assert read_to(conn, b"ok") == FINAL
    assert order == ["asked", "sent"]


def test_a_body_that_the_upstream_refuses_is_never_sent(rig, by_hand):
    rig.upstream.script = raw(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno", close=False)
    conn = expecting(rig)
    seen = read_to(conn, b"no")
    assert seen.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in seen
    assert GO_ON not in seen
    assert conn.recv(10) == b""


def test_a_body_that_is_refused_here_is_never_asked_for(rig):
    dialled = len(rig.port.dialer.dialled)
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig), b"X-Mode: admin", b"Expect: 100-continue", b"Content-Length: 5", method=b"POST"))
    seen = read_to(conn, b"never")
    assert seen.startswith(b"HTTP/1.1 403 ")
    assert GO_ON not in seen
    assert len(rig.port.dialer.dialled) == dialled


def test_an_upstream_that_says_nothing_gets_the_body_all_the_same(rig, by_hand):
    def script(request, conn):
        assert conn.recv(100) == b"12345"
        conn.sendall(FINAL)
        return True

    rig.upstream.script = script
    conn = expecting(rig)
    assert conn.recv(4096) == GO_ON
    conn.sendall(b"12345")
    assert read_to(conn, b"ok") == FINAL


def test_a_client_that_does_not_wait_is_not_told(rig):
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig), b"Expect: 100-continue", method=b"POST", body=b"12345"))
    assert read_to(conn, b"hello").startswith(b"HTTP/1.1 200 OK\r\n")
    assert rig.upstream.received[0].endswith(b"12345")


def test_other_expectations_are_refused(rig):
    answer = rig.ask(get(b"/x", auth(rig), b"Expect: 200-ok", b"Content-Length: 0", method=b"POST"))
    assert (status(answer), reason(answer)) == (400, "malformed_request")


# -- connections that end as they are used ---------------------------------------------------------------------------


def closing(how, gate):
    """An upstream that answers, and ends its connection once the gate opens; from then on it keeps them."""

    def script(request, conn):
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        if gate.is_set():
            return True
        gate.wait(10)
        if how == "reset":
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "bytes":
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
            return True
        conn.close()
        raise OSError

    return script


def use_after_the_end(rig, gate, request):
    """The answer to `request`, read by the broker in the very turn of its loop in which the upstream's end arrived."""
    conn = rig.connect()
    assert rig.ask(get(b"/1", auth(rig)), conn).endswith(b"hello")
    wait_for(lambda: rig.call(lambda: [c for c in rig.termination.clients if c.state == 1 and c.upstream is None]))

    def use():
        gate.set()
        time.sleep(0.1)
        (client,) = [c for c in rig.termination.clients if c.state == 1]
        client.data(request)

    rig.call(use)
    return read_message(conn)


@pytest.mark.parametrize("request_", [(b"GET", b""), (b"POST", b"abc"), (b"PUT", b"abc")], ids=lambda r: r[0].decode())
@pytest.mark.parametrize("how", ["close", "reset", "bytes"])
def test_a_connection_that_has_ended_is_not_used_again(how, request_):
    gate = threading.Event()
    with Rig(closing(how, gate), BEARER) as rig:
        method, body = request_
        answer = use_after_the_end(rig, gate, get(b"/2", auth(rig), method=method, body=body))
        assert answer.endswith(b"hello")
        assert rig.upstream.connections == 2
        assert [r[:6].split(b" ")[0] for r in rig.upstream.received] == [b"GET", method]
        assert "sent_again" not in [d.reason for d in rig.port.records]


@pytest.fixture
def blind(monkeypatch):
    """The race itself: the end of an idle connection comes just behind the look at it."""
    monkeypatch.setattr(UpstreamEnd, "is_quiet", lambda self: True)


def stale(rig, blind_end):
    """An idle pooled connection that the upstream ends when the next request has reached it, unanswered."""
    served = []

    def script(request, conn):
        served.append(request)
        if len(served) == 1:
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            return True
        if len(served) == 2:
            if blind_end == "reset":
                conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            conn.close()
            raise OSError
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nagain")
        return True

    rig.upstream.script = script
    return served


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        (b"GET", b"", 200),
        # the body is gone
        (b"PUT", b"abc", 502),
        # the upstream may have acted on it
        (b"POST", b"abc", 502),
        (b"POST", b"", 502),
    ],
)
def test_only_what_cannot_happen_twice_is_sent_again(rig, end, method, body, code):
    served = stale(rig, end)
    conn = rig.connect()
    assert rig.ask(get(b"/1", auth(rig)), conn).endswith(b"hello")
    extra = [b"Content-Length: 0"] if method == b"POST" and not body else []
    answer = rig.ask(get(b"/2", auth(rig), *extra, method=method, body=body), conn)
    assert status(answer) == code
    assert len(served) == (3 if code == 200 else 2)
    notes = [d.reason for d in rig.port.records if d.reason in ("sent_again", "upstream_closed")]
    assert notes == (["sent_again"] if code == 200 else ["upstream_closed"])


def test_a_head_whose_body_did_not_follow_yet_is_sent_again(rig, by_hand):
    served = stale(rig, "close")
    conn = rig.connect()
    assert rig.ask(get(b"/1", auth(rig)), conn).endswith(b"hello")
    conn.sendall(get(b"/2", auth(rig), b"Content-Length: 5", method=b"POST"))
    wait_for(lambda: len(served) >= 3)
    conn.sendall(b"12345")
    assert read_to(conn, b"again").startswith(b"HTTP/1.1 200 ")
    assert all(s.startswith(b"POST /2 ") for s in served[1:])


@pytest.mark.usefixtures("blind")
def test_a_request_of_which_nothing_left_is_sent_again_whatever_it_is():
    gate = threading.Event()
    with Rig(closing("reset", gate), BEARER) as rig:
        answer = use_after_the_end(rig, gate, get(b"/2", auth(rig), method=b"POST", body=b"abc"))
        assert answer.endswith(b"hello")
        assert rig.upstream.received[-1].endswith(b"\r\n\r\nabc")
        assert len(rig.upstream.received) == 2
        assert [d.reason for d in rig.port.records] == ["rule_allows", "rule_allows", "sent_again"]


def test_unsolicited_bytes_on_an_idle_connection_end_it(own):
    def script(request, conn):
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        time.sleep(0.02)
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        return True

    own.upstream.script = script
    conn = own.connect()
    assert own.ask(get(b"/1", auth(own)), conn).endswith(b"ok")
    time.sleep(0.05)
    own.upstream.script = ok(b"good")
    assert own.ask(get(b"/2", auth(own)), conn).endswith(b"good")


def test_a_client_that_ends_its_side_of_tls_still_gets_its_answer(rig):
    conn = rig.connect()
    conn.sendall(get(b"/x", auth(rig)))
    with socket.socket(fileno=os.dup(conn.fileno())) as bare:
        bare.shutdown(socket.SHUT_WR)
    assert read_message(conn).endswith(b"hello")
    assert conn.recv(10) == b""


EVIL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"


def test_an_upstream_that_answers_twice_gets_one_connection_for_each_request(own):
    own.upstream.script = lambda _, conn: conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + EVIL) or True
    conn = own.connect()
    assert own.ask(get(b"/1", auth(own)), conn).endswith(b"ok")
    own.upstream.script = ok(b"good")
    before = len(own.port.dialer.dialled)
    for number in range(3):
        assert own.ask(get(b"/%d" % number, auth(own)), conn).endswith(b"good")
    assert len(own.port.dialer.dialled) == before + 3
    assert len(own.port.liars) == 1


def test_an_answer_that_comes_between_the_last_look_and_the_request_is_no_answer_to_it(own, monkeypatch):
    gate = threading.Event()

    def script(request, conn):
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        gate.wait(10)
        conn.sendall(EVIL)
        return True

    take = Pool.take

    def slow(pool, key):
        upstream = take(pool, key)
        if upstream is not None:
            gate.set()
            assert select.select([upstream.sock], [], [], 10)[0]
        return upstream

    monkeypatch.setattr(Pool, "take", slow)
    own.upstream.script = script
    conn = own.connect()
    assert own.ask(get(b"/1", auth(own)), conn).endswith(b"ok")
    own.upstream.script = ok(b"good")
    assert own.ask(get(b"/2", auth(own), method=b"POST", body=b"abc"), conn).endswith(b"good")
    assert [d.reason for d in own.port.records][-2:] == ["rule_allows", "sent_again"]
    assert len(own.port.liars) == 1
