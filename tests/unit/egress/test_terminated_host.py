"""The terminated path over loopback: real TLS, real secrets process, an upstream that records every byte."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import ssl
import sys
import threading
import time

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from terminated_rig import HOST, SECRET, Rig, Upstream, get, ok, raw, read_message

from saggar.egress import terminated_host
from saggar.egress.budget import Limits
from saggar.egress.ca_host import TaskCa
from saggar.egress.secrets_client_host import SecretsError
from saggar.egress.websocket import accept_value

BEARER = {"credential": {"source": "env:REAL_KEY", "env": "OPENAI_API_KEY", "format": "openai"}}


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
    with Rig(
        ok(),
        {**BEARER, "rules": [{"methods": ["GET", "POST", "HEAD", "PUT"], "paths": ["/v1/**"], "max_body": 100000}]},
    ) as rig:
        yield rig


def fresh(rig: Rig) -> None:
    rig.upstream.received.clear()
    rig.port.records.clear()
    rig.upstream.script = ok()


# -- injection and refusal, one table: (request, status, reason, upstream saw something) -----------------------------


def big(*fields: bytes) -> bytes:
    return get(b"/v1/x", *fields)


REFUSED = [
    ("no placeholder", lambda r: get(), 403, "placeholder_missing"),
    ("attacker's bearer", lambda r: get(b"/v1/x", b"Authorization: Bearer sk-attacker-0000000000000"), 403, "foreign_credential"),
    ("attacker's x-api-key beside ours", lambda r: get(b"/v1/x", auth(r), b"x-api-key: sk-ant-attacker000000"), 403, "foreign_credential"),
    ("cookie beside ours", lambda r: get(b"/v1/x", auth(r), b"Cookie: session=abc"), 403, "foreign_credential"),
    ("key in query beside ours", lambda r: get(b"/v1/x?key=abc", auth(r)), 403, "foreign_credential"),
    ("presigned query", lambda r: get(b"/v1/x?X-Amz-Signature=abc", auth(r)), 403, "foreign_credential"),
    ("basic credential", lambda r: get(b"/v1/x", b"Authorization: Basic dTpw"), 403, "foreign_credential"),
    ("two authorizations, one ours", lambda r: get(b"/v1/x", auth(r), b"Authorization: Bearer other-key"), 403, "foreign_credential"),
    ("key of a known form in any header", lambda r: get(b"/v1/x", auth(r), b"x-custom: ghp_0123456789abcdefghij"), 403, "foreign_credential"),
    ("placeholder in another header", lambda r: get(b"/v1/x", auth(r), b"x-custom: " + r.placeholder.encode()), 403, "canary"),
    ("placeholder in basic", lambda r: get(b"/v1/x", b"Authorization: Basic " + base64.b64encode(b"u:" + r.placeholder.encode())), 403, "canary"),
    ("placeholder in query", lambda r: get(b"/v1/x?q=" + r.placeholder.encode(), auth(r)), 403, "canary"),
    ("placeholder's core in query", lambda r: get(b"/v1/x?q=" + r.placeholder[3:].encode(), auth(r)), 403, "canary"),
    ("placeholder in path", lambda r: get(b"/v1/" + r.placeholder.encode(), auth(r)), 403, "canary"),
    ("placeholder %-encoded in path", lambda r: get(b"/v1/" + "".join(f"%{ord(c):02x}" for c in r.placeholder).encode(), auth(r)), 403, "canary"),
    ("placeholder in body", lambda r: get(b"/v1/x", auth(r), method=b"POST", body=b'{"k":"' + r.placeholder.encode() + b'"}'), 403, "canary"),
    ("placeholder u-escaped in body", lambda r: get(b"/v1/x", auth(r), method=b"POST", body="".join(f"\\u{ord(c):04x}" for c in r.placeholder).encode()), 403, "canary"),
    ("another host", lambda r: get(b"/v1/x", auth(r), host=b"evil.test"), 421, "name_mismatch"),
    ("another port", lambda r: get(b"/v1/x", auth(r), host=HOST.encode() + b":8443"), 421, "name_mismatch"),
    ("path not allowed", lambda r: get(b"/v2/x", auth(r)), 403, "no_rule_matches"),
    ("method not allowed", lambda r: get(b"/v1/x", auth(r), method=b"DELETE"), 405, "method_not_allowed"),
    ("TRACE", lambda r: get(b"/v1/x", auth(r), method=b"TRACE"), 405, "method_refused"),
    ("dot segments", lambda r: get(b"/v1/../admin", auth(r)), 400, "path_dot_segment"),
    ("encoded dot segments", lambda r: get(b"/v1/%2e%2e/admin", auth(r)), 400, "path_dot_segment"),
    ("encoded slash", lambda r: get(b"/v1/a%2fb", auth(r)), 400, "path_encoded_slash"),
    ("double encoding", lambda r: get(b"/v1/%252e", auth(r)), 400, "path_double_encoding"),
    ("semicolon", lambda r: get(b"/v1/x;y", auth(r)), 400, "path_parameters"),
    ("body too large", lambda r: get(b"/v1/x", auth(r), b"Content-Length: 100001", method=b"POST"), 403, "no_rule_matches"),
    ("websocket", lambda r: get(b"/v1/x", auth(r), b"Upgrade: websocket", b"Connection: Upgrade"), 403, "upgrade_refused"),
    ("h2c", lambda r: get(b"/v1/x", auth(r), b"Upgrade: h2c", b"Connection: Upgrade"), 400, "h2_refused"),
    ("h2 preface", lambda r: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed_request"),
    ("CL and TE", lambda r: get(b"/v1/x", auth(r), b"Content-Length: 5", b"Transfer-Encoding: chunked", method=b"POST"), 400, "bad_framing"),
    ("two hosts", lambda r: get(b"/v1/x", auth(r), b"Host: evil.test"), 400, "malformed_request"),
    ("obs-fold", lambda r: get(b"/v1/x", auth(r), b"X: a\r\n b"), 400, "malformed_request"),
    ("space before colon", lambda r: get(b"/v1/x", auth(r), b"X : a"), 400, "malformed_request"),
    ("huge head", lambda r: get(b"/v1/x", auth(r), b"X: " + b"a" * 70000), 431, "head_too_large"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "code", "why"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refused_before_anything_is_sent(bearer, name, make, code, why):
    fresh(bearer)
    before = bearer.upstream.connections
    dialled = len(bearer.port.dialer.dialled)
    answer = bearer.ask(make(bearer))
    assert (status(answer), reason(answer)) == (code, why)
    if b"body" not in name.encode():
        assert len(bearer.port.dialer.dialled) == dialled
        assert bearer.upstream.connections == before
    assert bearer.upstream.received == [] or b"HTTP" not in b"".join(bearer.upstream.received)[-20:]
    assert [d.reason for d in bearer.port.records if d.effect == "deny"] == [why]
    assert SECRET.encode() not in answer
    assert SECRET not in json.dumps([d.detail for d in bearer.port.records])


def test_secret_goes_upstream_exactly_once(bearer):
    fresh(bearer)
    answer = bearer.ask(get(b"/v1/x", auth(bearer), b"Connection: Authorization, close"))
    assert answer.endswith(b"hello")
    (seen,) = bearer.upstream.received
    assert seen.count(SECRET.encode()) == 1
    assert b"authorization: Bearer " + SECRET.encode() + b"\r\n" in seen
    assert bearer.placeholder.encode() not in seen
    record = bearer.port.records[-1]
    assert (record.effect, record.reason, record.detail["path"]) == ("allow", "rule_allows", "/v1/x")


def test_override_and_hop_headers_stay_here(bearer):
    fresh(bearer)
    fields = [b"X-HTTP-Method-Override: DELETE", b"X-Forwarded-Host: evil", b"X-Original-URL: /admin", b"Forwarded: for=1", b"X-Rewrite-URL: /x",
              b"Keep-Alive: 1", b"TE: trailers", b"X_Forwarded_Host: evil", b"Accept-Encoding: gzip", b"Openai-Organization: org-evil"]  # fmt: skip
    answer = bearer.ask(get(b"/v1/x", auth(bearer), *fields[:-1]))
    assert status(answer) == 200
    (seen,) = bearer.upstream.received
    for name in (b"override", b"forwarded", b"x-original-url", b"x-rewrite", b"keep-alive", b"te:", b"gzip"):
        assert name not in seen.lower().replace(b"\r\nte:", b"")
    fresh(bearer)
    assert reason(bearer.ask(get(b"/v1/x", auth(bearer), fields[-1]))) == "foreign_credential"


def test_keep_alive_reuses_both_connections(bearer):
    fresh(bearer)
    conn = bearer.connect()
    before = bearer.upstream.connections
    for _ in range(5):
        assert status(bearer.ask(get(b"/v1/x", auth(bearer)), conn)) == 200
    conn.close()
    assert bearer.upstream.connections <= before + 1
    assert len(bearer.upstream.received) == 5


def test_pipelined_second_request_is_judged_by_itself(bearer):
    fresh(bearer)
    conn = bearer.connect()
    conn.sendall(get(b"/v1/x", auth(bearer)) + get(b"/v1/x", auth(bearer), host=b"evil.test"))
    first = read_message(conn)
    assert status(first) == 200
    rest = first.partition(b"hello")[2] or read_message(conn)
    assert (status(rest), reason(rest)) == (421, "name_mismatch")
    assert len(bearer.upstream.received) == 1


def test_smuggled_request_in_a_body_stays_a_body(bearer):
    fresh(bearer)
    inner = get(b"/v1/admin", b"X: y")
    assert status(bearer.ask(get(b"/v1/x", auth(bearer), method=b"POST", body=inner))) == 200
    (seen,) = bearer.upstream.received
    assert seen.endswith(inner)
    assert seen.startswith(b"POST /v1/x ")
    assert b"Content-Length: %d" % len(inner) in seen


def test_chunked_body_goes_on_chunked_in_pieces(bearer):
    fresh(bearer)
    conn = bearer.connect()
    conn.sendall(get(b"/v1/x", auth(bearer), b"Transfer-Encoding: chunked", method=b"POST"))
    for piece in (b"5;ext=1\r\nhello\r\n", b"6\r\n wor", b"ld\r\n", b"0\r\n\r\n"):
        conn.sendall(piece)
    assert status(read_message(conn)) == 200
    (seen,) = bearer.upstream.received
    head, _, body = seen.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert b"hello" in body
    assert b"ext" not in body


def test_chunked_body_over_the_rules_limit_is_cut(bearer):
    fresh(bearer)
    conn = bearer.connect()
    conn.sendall(get(b"/v1/x", auth(bearer), b"Transfer-Encoding: chunked", method=b"POST"))
    conn.sendall(b"fffff\r\n" + b"x" * 0xFFFFF + b"\r\n0\r\n\r\n")
    answer = read_message(conn)
    assert (status(answer), reason(answer)) == (413, "body_too_large")
    assert not any(b"0\r\n\r\n" in r for r in bearer.upstream.received)


def test_placeholder_split_over_chunks_is_found(bearer):
    fresh(bearer)
    conn = bearer.connect()
    conn.sendall(get(b"/v1/x", auth(bearer), b"Transfer-Encoding: chunked", method=b"POST"))
    for i in range(0, len(bearer.placeholder), 7):
        part = bearer.placeholder[i : i + 7].encode()
        conn.sendall(b"%x\r\n%s\r\n" % (len(part), part))
    answer = read_message(conn)
    assert (status(answer), reason(answer)) == (403, "canary")
    assert bearer.port.records[-1].detail["alert"] is True


# -- answers ---------------------------------------------------------------------------------------------------------

ECHOES = {
    "raw": SECRET.encode(),
    "base64": base64.b64encode(b"x" + SECRET.encode()),
    "json": json.dumps(SECRET).encode(),
    "hex": SECRET.encode().hex().encode(),
    "percent": "".join(f"%{b:02X}" for b in SECRET.encode()).encode(),
}


@pytest.mark.parametrize("form", ECHOES)
@pytest.mark.parametrize("where", ["length", "chunked", "header", "close"])
def test_echoed_secret_is_cut_out(bearer, form, where):
    fresh(bearer)
    echo = ECHOES[form]
    if where == "length":
        bearer.upstream.script = ok(b"{" + echo + b"}")
    elif where == "header":
        bearer.upstream.script = ok(b"x", b"X-Echo: " + echo)
    else:

        def script(request, conn):
            conn.sendall(
                b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked\r\n\r\n" if where == "chunked" else b"\r\n")
            )
            for i in range(0, len(echo), 9):
                part = echo[i : i + 9]
                conn.sendall(b"%x\r\n%s\r\n" % (len(part), part) if where == "chunked" else part)
                time.sleep(0.001)
            if where == "chunked":
                conn.sendall(b"0\r\n\r\n")
                return True
            return None

        bearer.upstream.script = script
    answer = bearer.ask(get(b"/v1/x", auth(bearer)))
    assert status(answer) == 200
    plain = answer.replace(b"\r\n9\r\n", b"")
    assert SECRET.encode() not in plain
    assert echo not in plain
    assert any(d.reason == "secret_redacted" for d in bearer.port.records)


BAD_ANSWERS = [
    ("two lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "bad_response"),
    (
        "length and chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "bad_response",
    ),
    ("bare LF", b"HTTP/1.1 200 OK\nContent-Length: 1\n\na", "upstream_closed"),
    ("not HTTP", b"SSH-2.0-x\r\n\r\n", "bad_response"),
    ("nothing", b"", "upstream_closed"),
    ("huge head", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100000 + b"\r\n\r\n", "head_too_large"),
    (
        "gzip although identity was asked",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na",
        "encoded_response",
    ),
    ("gzip, chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "bad_response"),
    ("unasked 101", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", "unsolicited_upgrade"),
]


@pytest.mark.parametrize(("name", "answer", "why"), BAD_ANSWERS, ids=[b[0] for b in BAD_ANSWERS])
def test_bad_answer_is_a_502(bearer, name, answer, why):
    fresh(bearer)
    bearer.upstream.script = raw(answer)
    got = bearer.ask(get(b"/v1/x", auth(bearer)))
    assert status(got) == 502
    assert reason(got) in (why, "bad_response")


def test_cut_answer_is_cut_for_the_client_too(bearer):
    fresh(bearer)
    bearer.upstream.script = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
    conn = bearer.connect()
    conn.sendall(get(b"/v1/x", auth(bearer)))
    with pytest.raises((ConnectionError, ssl.SSLError)):
        while conn.recv(4096):
            pass
        raise ConnectionError("ended in order, which a client takes for whole") if False else ssl.SSLError("closed")


def test_redirect_is_passed_and_carries_nothing(bearer):
    fresh(bearer)
    bearer.upstream.script = raw(
        b"HTTP/1.1 302 Found\r\nLocation: https://evil.test/\r\nSet-Cookie: s=1\r\nAlt-Svc: h3\r\nContent-Length: 0\r\n\r\n",
        close=False,
    )
    answer = bearer.ask(get(b"/v1/x", auth(bearer)))
    assert status(answer) == 302
    assert b"Location: https://evil.test/" in answer
    assert b"Set-Cookie" not in answer
    assert b"Alt-Svc" not in answer


def test_unsolicited_bytes_end_an_idle_connection():
    twice = raw(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", close=False
    )
    with Rig(twice, BEARER) as rig:
        conn = rig.connect()
        assert rig.ask(get(b"/v1/x", auth(rig)), conn).endswith(b"ok")
        rig.upstream.script = ok(b"good")
        assert rig.ask(get(b"/v1/x", auth(rig)), conn).endswith(b"good")


def test_events_are_not_held_back(bearer):
    fresh(bearer)
    gate = threading.Event()

    def script(request, conn):
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        conn.sendall(b"d\r\ndata: first\n\n\r\n")
        gate.wait(10)
        conn.sendall(b"0\r\n\r\n")
        return True

    bearer.upstream.script = script
    conn = bearer.connect()
    conn.sendall(get(b"/v1/x", auth(bearer)))
    seen = b""
    while b"data: first\n\n" not in seen:
        seen += conn.recv(4096)
    gate.set()
    conn.close()


def test_answer_before_the_end_of_the_request(bearer):
    fresh(bearer)

    def early(request, conn):
        return None

    upstream = bearer.upstream
    upstream.script = early
    conn = bearer.connect()
    conn.sendall(get(b"/v1/x", auth(bearer), b"Content-Length: 1000", method=b"POST"))
    conn.sendall(b"x" * 10)
    conn.close()


def test_head_request(bearer):
    fresh(bearer)
    bearer.upstream.script = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", close=False)
    conn = bearer.connect()
    conn.sendall(get(b"/v1/x", auth(bearer), method=b"HEAD"))
    assert conn.recv(4096) == b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"
    bearer.upstream.script = ok()
    assert bearer.ask(get(b"/v1/x", auth(bearer)), conn).endswith(b"hello")


def test_old_client_gets_no_chunks(bearer):
    fresh(bearer)
    bearer.upstream.script = raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", close=False
    )
    conn = bearer.connect()
    conn.sendall(get(b"/v1/x", auth(bearer)).replace(b"HTTP/1.1", b"HTTP/1.0"))
    seen = b""
    while data := conn.recv(4096):
        seen += data
    assert seen.endswith(b"\r\n\r\nok")
    assert b"chunked" not in seen


def test_large_bodies_both_ways_are_whole():
    size = 8 * 1024 * 1024
    blob = os.urandom(size)
    with Rig(ok(blob), BEARER) as rig:
        conn = rig.connect()
        conn.settimeout(30)
        received = []

        def pull():
            received.append(read_message(conn))

        thread = threading.Thread(target=pull)
        thread.start()
        conn.sendall(get(b"/up", auth(rig), method=b"PUT", body=blob))
        thread.join(30)
        assert received[0].partition(b"\r\n\r\n")[2] == blob
        assert rig.upstream.received[0].partition(b"\r\n\r\n")[2] == blob


# -- upstream trust --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["wrong name", "untrusted", "expired"])
def test_unverified_upstream_gets_no_credential(how):
    born = time.time() - (400 * 86400 if how == "expired" else 0)
    upstream = Upstream(ok(), host="other.test" if how == "wrong name" else HOST, born=born)
    with Rig(None, BEARER, upstream=upstream, trust=how != "untrusted") as rig:
        answer = rig.ask(get(b"/v1/x", auth(rig)))
        assert (status(answer), reason(answer)) == (502, "upstream_certificate")
        assert upstream.received == []


def test_dead_upstream():
    with Rig(ok(), BEARER) as rig:
        rig.upstream.close()
        answer = rig.ask(get(b"/v1/x", auth(rig)))
        assert status(answer) == 502


# -- secrets ---------------------------------------------------------------------------------------------------------


def test_rotation_counts_for_the_next_request(tmp_path):
    key = tmp_path / "key"
    key.write_text("first-secret-value\n")
    key.chmod(0o600)
    with Rig(ok(), {"credential": {"source": f"file:{key}", "env": "K"}}) as rig:
        conn = rig.connect()
        rig.ask(get(b"/a", auth(rig)), conn)
        key.write_text("second-secret-value\n")
        rig.ask(get(b"/b", auth(rig)), conn)
        new = tmp_path / "new"
        new.write_text("third-secret-value\n")
        new.chmod(0o600)
        new.rename(key)
        rig.ask(get(b"/c", auth(rig)), conn)
        assert [r.split(b"Bearer ")[1].split(b"\r\n")[0] for r in rig.upstream.received] == [
            b"first-secret-value", b"second-secret-value", b"third-secret-value"]  # fmt: skip
        # a pooled connection that carried another secret is never used again
        assert rig.upstream.connections == 3
        key.unlink()
        answer = rig.ask(get(b"/d", auth(rig)), conn)
        assert (status(answer), reason(answer)) == (503, "credential_unavailable")
        assert len(rig.upstream.received) == 3


def test_file_that_others_may_read_is_refused(tmp_path):
    key = tmp_path / "key"
    key.write_text("first-secret-value\n")
    key.chmod(0o644)
    with Rig(ok(), {"credential": {"source": f"file:{key}", "env": "K"}}) as rig:
        answer = rig.ask(get(b"/a", auth(rig)))
        assert (status(answer), reason(answer)) == (503, "credential_unavailable")
        assert "0600" in rig.port.records[-1].detail["cause"]


def test_secrets_process_gone_fails_closed():
    with Rig(ok(), BEARER) as rig:
        rig.process.control.close()
        deadline = time.monotonic() + 5
        while not rig.gone and time.monotonic() < deadline:
            time.sleep(0.01)
        assert rig.gone
        with pytest.raises((OSError, ssl.SSLError)):
            rig.connect()
        assert rig.upstream.received == []


def test_audit_that_cannot_be_written_stops_everything():
    with Rig(ok(), BEARER) as rig:
        rig.ask(get(b"/a", auth(rig)))
        rig.port.fail_records = True
        with pytest.raises((OSError, ssl.SSLError)):
            answer = rig.ask(get(b"/b", auth(rig)))
            assert not answer
            raise OSError
        wait_for(lambda: rig.port.failures)
        assert len(rig.upstream.received) == 1


@pytest.mark.parametrize("warm", [True, False])
def test_record_that_is_deferred_and_cannot_be_written_stops_everything(warm):
    """Whether the request waits for the end of the round or for a new connection to the upstream."""
    with Rig(ok(), BEARER) as rig:
        if warm:
            rig.ask(get(b"/a", auth(rig)))
        conn = rig.connect()
        before, dialled = len(rig.upstream.received), rig.upstream.connections
        rig.port.commits = False
        with pytest.raises((OSError, ssl.SSLError)):
            answer = rig.ask(get(b"/b", auth(rig)), conn)
            assert not answer
            raise OSError
        wait_for(lambda: rig.port.failures)
        assert (len(rig.upstream.received), rig.upstream.connections) == (before, dialled)


# -- kinds of credentials --------------------------------------------------------------------------------------------

B64 = base64.b64encode

KINDS = [
    ("header", {"kind": "header", "name": "X-Api-Key", "env": "K"}, lambda p: (b"/a", b"x-api-key: " + p), b"x-api-key: " + SECRET.encode()),
    ("query", {"kind": "query", "name": "key", "env": "K"}, lambda p: (b"/a?x=1&key=" + p, b"X: y"), b"GET /a?x=1&key=" + SECRET.encode() + b" "),
    ("basic", {"kind": "basic", "user": "me", "env": "K"}, lambda p: (b"/a", b"Authorization: Basic " + B64(b"me:" + p)), b"authorization: Basic " + B64(b"me:" + SECRET.encode())),
    ("git without any", {"kind": "git"}, lambda p: (b"/a", b"X: y"), b"authorization: Basic " + B64(b"x-access-token:" + SECRET.encode())),
    ("git with placeholder", {"kind": "git", "env": "K", "format": "github"}, lambda p: (b"/a", b"Authorization: Basic " + B64(b"x:" + p)), b"authorization: Basic " + B64(b"x-access-token:" + SECRET.encode())),
]  # fmt: skip


@pytest.mark.parametrize(("name", "credential", "make", "expected"), KINDS, ids=[k[0] for k in KINDS])
def test_kind_of_credential(name, credential, make, expected):
    with Rig(
        ok(b"ok " + B64(b"me:" + SECRET.encode())), {"credential": {"source": "env:REAL_KEY", **credential}}
    ) as rig:
        path, field = make(rig.placeholder.encode())
        answer = rig.ask(get(path, field))
        assert status(answer) == 200, answer
        assert expected in rig.upstream.received[0]
        assert rig.placeholder.encode() not in rig.upstream.received[0]
        assert B64(b"me:" + SECRET.encode()) not in answer


def test_sigv4_is_made_anew():
    pytest.importorskip("botocore", reason="botocore signs as a client would")
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    credential = {
        "kind": "sigv4",
        "source": "env:REAL_KEY",
        "key_id": "env:REAL_ID",
        "region": "eu-west-1",
        "service": "s3",
        "env": "AWS_ACCESS_KEY_ID",
    }
    with Rig(ok(), {"credential": credential}, env={"REAL_ID": "AKIAREALREALREAL0000"}) as rig:

        def signed(region="eu-west-1", key=None):
            request = AWSRequest("GET", f"https://{HOST}/bucket/key?list-type=2")
            S3SigV4Auth(
                Credentials(key or rig.placeholder, rig.compiled.environment["AWS_SECRET_ACCESS_KEY"]), "s3", region
            ).add_auth(request)
            fields = [f"{n}: {v}".encode() for n, v in request.headers.items()]
            return rig.ask(get(b"/bucket/key?list-type=2", *fields))

        assert status(signed()) == 200
        (seen,) = rig.upstream.received
        assert b"Credential=AKIAREALREALREAL0000/" in seen
        assert rig.placeholder.encode() not in seen
        assert SECRET.encode() not in seen
        assert reason(signed(region="us-east-1")) == "sigv4_scope"
        assert reason(signed(key="AKIAATTACKERATTACKER")) == "foreign_credential"
        assert len(rig.upstream.received) == 1


def test_unbound_host_strips_credentials():
    with Rig(ok(), {"methods": ["GET"]}) as rig:
        answer = rig.ask(
            get(
                b"/a?key=abc&q=1",
                b"Authorization: Bearer x",
                b"Cookie: a=b",
                b"X-Api-Key: k",
                b"X-Acme-Token: t",
                b"Accept: */*",
            )
        )
        assert status(answer) == 200
        (seen,) = rig.upstream.received
        assert seen.startswith(b"GET /a?q=1 HTTP/1.1")
        for word in (b"Bearer", b"a=b", b"api-key", b"token"):
            assert word not in seen
        assert rig.port.records[-1].detail["stripped"] == [
            "authorization",
            "cookie",
            "key",
            "x-acme-token",
            "x-api-key",
        ]
        assert status(rig.ask(get(b"/a", method=b"POST"))) == 405


# -- budgets, asking -------------------------------------------------------------------------------------------------


def test_request_budget_survives_reconnecting():
    with Rig(ok(), BEARER, limits=Limits(requests=2)) as rig:
        assert [status(rig.ask(get(b"/a", auth(rig)))) for _ in range(3)] == [200, 200, 429]
        assert len(rig.upstream.received) == 2


def test_rate_says_when():
    with Rig(ok(), {**BEARER, "budget": {"rate": 1}}) as rig:
        assert status(rig.ask(get(b"/a", auth(rig)))) == 200
        answer = rig.ask(get(b"/a", auth(rig)))
        assert status(answer) == 429
        assert b"Retry-After: 1" in answer


def test_download_budget_cuts():
    with Rig(ok(b"x" * 5000), {**BEARER, "budget": {"bytes_down": 4000}}) as rig:
        conn = rig.connect()
        conn.sendall(get(b"/a", auth(rig)))
        with pytest.raises((OSError, ssl.SSLError)):
            while conn.recv(100):
                pass
            raise OSError


@pytest.mark.parametrize("body", [b"", b"x" * 100])
def test_heads_of_answers_count_for_the_download_budget(body):
    """An upstream could else bring anything in, in fields."""
    with Rig(ok(body, b"X-Data: " + b"d" * 1500), {**BEARER, "budget": {"bytes_down": 4000}}) as rig:
        conn = rig.connect()
        for _ in range(2):
            assert status(rig.ask(get(b"/a", auth(rig)), conn)) == 200
        answer = rig.ask(get(b"/a", auth(rig)), conn)
        assert (status(answer), reason(answer)) == (502, "budget_bytes_down")
        assert b"ddd" not in answer
        assert rig.port.refusals[-1].reason == "budget_bytes_down"


def test_upload_budget_cuts():
    with Rig(ok(), {**BEARER, "budget": {"bytes_up": 4000}}) as rig:
        answer = rig.ask(get(b"/a", auth(rig), method=b"POST", body=b"x" * 5000))
        assert (status(answer), reason(answer)) == (413, "budget_bytes_up")


@pytest.mark.parametrize(
    ("verdict", "code", "why"),
    [("approved", 200, ""), ("denied", 403, "approval_denied"), ("timeout", 403, "approval_timeout")],
)
def test_ask_holds_the_request(verdict, code, why):
    entry = {**BEARER, "rules": [{"effect": "ask", "methods": ["DELETE"]}, {"methods": ["GET"]}]}
    with Rig(ok(), entry) as rig:
        rig.port.verdict = verdict
        answer = rig.ask(get(b"/a", auth(rig), method=b"DELETE"))
        assert (status(answer), reason(answer)) == (code, why)
        assert len(rig.upstream.received) == (code == 200)
        assert rig.port.records[0].effect == "ask"


# -- WebSocket -------------------------------------------------------------------------------------------------------

KEY = B64(b"0123456789abcdef")


def ws_server(frames: bytes, extra: bytes = b""):
    def script(request, conn):
        conn.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
            + accept_value(KEY)
            + b"\r\n"
            + extra
            + b"\r\n"
            + frames
        )
        while data := conn.recv(4096):
            rig_box.append(data)
        return

    return script


rig_box: list[bytes] = []


def ws_request(rig, *fields):
    return get(
        b"/ws",
        auth(rig),
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: " + KEY,
        *fields,
    )


def masked(payload: bytes, opcode=1) -> bytes:
    mask = b"\x01\x02\x03\x04"
    size = bytes((0x80 | len(payload),)) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return bytes((0x80 | opcode,)) + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload))


def wait_for(condition, show=lambda: ""):
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition(), show()


def test_websocket_both_ways():
    rig_box.clear()
    with Rig(ws_server(b"\x81\x05hello"), {**BEARER, "websocket": True}) as rig:
        conn = rig.connect()
        conn.sendall(ws_request(rig, b"Sec-WebSocket-Extensions: permessage-deflate"))
        seen = b""
        while b"hello" not in seen:
            seen += conn.recv(4096)
        assert seen.startswith(b"HTTP/1.1 101 ")
        assert b"permessage" not in rig.upstream.received[0]
        conn.sendall(masked(b"to you"))
        wait_for(lambda: b"".join(rig_box) == masked(b"to you"))
        conn.sendall(masked(rig.placeholder.encode()))
        tail = b""
        while data := conn.recv(4096):
            tail += data
        assert tail == b"\x88\x02\x03\xf0"
        assert rig.port.records[-1].reason == "canary"
        assert b"".join(rig_box) == masked(b"to you")


def test_websocket_whose_upstream_ends_first_is_over_with_the_client():
    def script(request, conn):
        ws_server_head = ws_server(b"\x88\x00")
        conn.settimeout(0.01)
        with contextlib.suppress(TimeoutError):
            ws_server_head(request, conn)
        conn.settimeout(20)

    with Rig(script, {**BEARER, "websocket": True}) as rig:
        conn = rig.connect()
        conn.sendall(ws_request(rig))
        while conn.recv(4096):
            pass
        assert rig.call(lambda: [c.upstream.eof for c in rig.termination.clients]) == [True]
        conn.close()
        wait_for(lambda: not rig.call(lambda: len(rig.termination.clients)))


def test_websocket_never_brings_the_secret_back():
    with Rig(ws_server(b"\x81" + bytes((len(SECRET),)) + SECRET.encode()), {**BEARER, "websocket": True}) as rig:
        conn = rig.connect()
        conn.sendall(ws_request(rig))
        seen = b""
        try:
            while data := conn.recv(4096):
                seen += data
        except (OSError, ssl.SSLError):
            pass
        assert SECRET.encode() not in seen
        assert rig.port.records[-1].reason == "secret_in_answer"


@pytest.mark.parametrize(
    "frame", [b"\xc1\x80abcd", b"\x83\x80abcd", b"\x81\x01a", b"\x89\xfe\x00\x80abcd", b"\x81\xfe\x00\x05abcdhello"]
)
def test_malformed_frames_end_the_socket(frame):
    with Rig(ws_server(b""), {**BEARER, "websocket": True}) as rig:
        conn = rig.connect()
        conn.sendall(ws_request(rig))
        assert conn.recv(4096).startswith(b"HTTP/1.1 101")
        conn.sendall(frame)
        tail = b""
        while data := conn.recv(4096):
            tail += data
        assert tail == b"\x88\x02\x03\xf0"
        assert rig.port.records[-1].reason == "bad_frame"


@pytest.mark.parametrize(
    "answer",
    [
        b"Sec-WebSocket-Accept: wrong",
        b"Sec-WebSocket-Accept: " + accept_value(KEY) + b"\r\nSec-WebSocket-Extensions: permessage-deflate",
    ],
)
def test_wrong_handshake_is_a_502(answer):
    with Rig(
        raw(b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\n" + answer + b"\r\n\r\n"), {**BEARER, "websocket": True}
    ) as rig:
        got = rig.ask(ws_request(rig))
        assert (status(got), reason(got)) == (502, "unsolicited_upgrade")


# -- the connection --------------------------------------------------------------------------------------------------


def test_only_http11_is_offered(bearer):
    fresh(bearer)
    context = bearer.context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    conn = context.wrap_socket(socket.create_connection(bearer.address, timeout=10), server_hostname=HOST)
    assert conn.selected_alpn_protocol() == "http/1.1"
    conn.close()


def test_leaf_is_strictly_valid(bearer):
    context = bearer.context()
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    conn = context.wrap_socket(socket.create_connection(bearer.address, timeout=10), server_hostname=HOST)
    assert conn.getpeercert()["subjectAltName"] == (("DNS", HOST),)
    conn.close()


def test_half_closed_client_still_gets_its_answer(bearer):
    fresh(bearer)
    with Rig(ok(b"late"), {"methods": ["GET"]}, tls=False) as rig:
        conn = rig.connect(tls=False)
        conn.sendall(get(b"/a"))
        conn.shutdown(socket.SHUT_WR)
        assert read_message(conn).endswith(b"late")


def test_clients_that_never_finish_their_handshake_are_ended(bearer):
    """One of them once ended the sweep, and with it every other client's deadline."""
    fresh(bearer)
    silent = [bearer.connect(tls=False) for _ in range(3)]
    silent[1].sendall(b"\x16\x03\x01")

    def clients():
        return len(bearer.termination.clients)

    wait_for(lambda: bearer.call(clients) == 3, lambda: bearer.call(clients))
    bearer.call(lambda: [setattr(c, "deadline", 0.0) for c in bearer.termination.clients])
    wait_for(lambda: bearer.call(clients) == 0, lambda: bearer.call(clients))
    for conn in silent:
        conn.close()


def test_nothing_is_left_open_after_many_connections(bearer):
    fresh(bearer)
    for _ in range(20):
        bearer.ask(get(b"/v1/x", auth(bearer)))
        conn = bearer.connect()
        conn.sendall(b"GET /v1")
        conn.close()

    def left():
        return [(c.state, c.eof, c.responding, len(c.pending), c.buffer[:20]) for c in bearer.termination.clients]

    wait_for(lambda: not bearer.call(left), lambda: bearer.call(left))
    assert bearer.call(lambda: bearer.termination.budget.task.connections) == 0


# -- token endpoints ---------------------------------------------------------------------------------------------------

TOKENS = json.dumps(
    {"access_token": "REAL-access-token-1", "refresh_token": "REAL-refresh-token-1", "expires_in": 60}
).encode()


def test_issued_tokens_are_placeholders_inside_and_real_outside():
    with Rig(ok(TOKENS), {"token_endpoint": True}) as rig:
        answer = rig.ask(get(b"/token", method=b"POST", body=b"grant_type=authorization_code&code=x"))
        body = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert b"REAL" not in answer
        assert b"Content-Length: %d" % len(answer.partition(b"\r\n\r\n")[2]) in answer
        assert any(d.reason == "tokens_replaced" for d in rig.port.records)
        # the refresh goes back to the endpoint as the real token, with its length put right
        rig.ask(
            get(
                b"/token",
                method=b"POST",
                body=b"grant_type=refresh_token&refresh_token=" + body["refresh_token"].encode(),
            )
        )
        head, _, sent = rig.upstream.received[-1].partition(b"\r\n\r\n")
        assert sent == b"grant_type=refresh_token&refresh_token=REAL-refresh-token-1"
        assert b"Content-Length: %d" % len(sent) in head
        # to another host, in any form, it is evidence of theft
        assert rig.termination.canary.seen(body["access_token"].encode())


def test_issued_token_is_real_on_the_hosts_that_take_it(monkeypatch):
    from saggar.egress.terms import Terms

    with Rig(ok(b"hello REAL-access-token-1"), {"tokens_from": "auth"}) as rig:
        rig.call(
            lambda: rig.termination.issue(
                {"PLACEHOLDERPLACEHOLDER": "REAL-access-token-1", "OTHERSOTHERSOTHERS01": "REAL-other-token-2"}, "auth"
            )
        )
        rig.call(lambda: rig.termination.issue({"ELSEWHEREELSEWHERE01": "REAL-third-token-3"}, "elsewhere"))
        answer = rig.ask(get(b"/me", b"Authorization: Bearer PLACEHOLDERPLACEHOLDER"))
        assert b"authorization: Bearer REAL-access-token-1" in rig.upstream.received[0]
        assert b"REAL" not in answer
        for value in (
            b"Bearer ELSEWHEREELSEWHERE01",
            b"Bearer unknown-token-000",
            b"Basic UExBQ0VIT0xERVJQTEFDRUhPTERFUjp4",
        ):
            assert status(rig.ask(get(b"/me", b"Authorization: " + value))) == 403
        assert len(rig.upstream.received) == 1
        assert isinstance(rig.terms, Terms)


@pytest.mark.parametrize(
    "body", [b"access_token=REAL-access-token-1", b'{"access_token":"REAL-1","access_token":"REAL-2"}', b"x" * 70000]
)
def test_token_answer_that_cannot_be_read_is_not_passed_on(body):
    with Rig(ok(body), {"token_endpoint": True}) as rig:
        answer = rig.ask(get(b"/token", method=b"POST", body=b"a=b"))
        assert status(answer) == 502
        assert reason(answer).startswith("token_answer_")
        assert b"REAL" not in answer


@pytest.mark.parametrize(
    ("kind", "make", "sent"),
    [
        (
            b"application/json; charset=utf-8",
            b'{"refresh_token": "%s"}',
            b'{"refresh_token": "REAL/refresh+token=\\"1"}',
        ),
        (
            b"application/x-www-form-urlencoded",
            b"refresh_token=%s&a=b",
            b"refresh_token=REAL%2Frefresh%2Btoken%3D%221&a=b",
        ),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_token_goes_back_as_the_bodys_form_has_it(kind, make, sent, chunked):
    answer = json.dumps({"refresh_token": 'REAL/refresh+token="1'}).encode()
    with Rig(ok(answer), {"token_endpoint": True}) as rig:
        body = rig.ask(get(b"/token", method=b"POST", body=b"a=b")).partition(b"\r\n\r\n")[2]
        content = make % json.loads(body)["refresh_token"].encode()
        asked = get(b"/token", b"Content-Type: " + kind, method=b"POST", body=content)
        if chunked:
            pieces = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (content[:30], content[30:]))
            asked = (
                get(b"/token", b"Content-Type: " + kind, b"Transfer-Encoding: chunked", method=b"POST")
                + pieces
                + b"0\r\n\r\n"
            )
        assert status(rig.ask(asked)) == 200
        head, _, got = rig.upstream.received[-1].partition(b"\r\n\r\n")
        assert got == sent
        assert b"Content-Length: %d" % len(sent) in head
        assert b"chunked" not in head


def test_an_upstream_that_never_ends_its_handshake(monkeypatch):
    """The time that an answer may take is not the time of a handshake."""
    from saggar.egress import client_request_host

    monkeypatch.setattr(client_request_host, "UPSTREAM_HANDSHAKE_S", 0.2)
    silent = Upstream(ok(), tls=False)
    with Rig(ok(), BEARER, upstream=silent) as rig:
        conn = rig.connect()
        conn.settimeout(10)
        answer = rig.ask(get(b"/v1/x", auth(rig)), conn)
        assert (status(answer), reason(answer)) == (504, "upstream_timeout")


def test_a_token_endpoint_that_answers_with_nothing():
    """As to a revocation (RFC 7009, section 2.2)."""
    with Rig(ok(b""), {"token_endpoint": True}) as rig:
        assert status(rig.ask(get(b"/revoke", method=b"POST", body=b"token=a"))) == 200


def test_a_method_that_a_rule_names():
    """Vault lists with a method of its own; where no rule names it, it is unknown."""
    for rules, code in (([{"methods": ["LIST"], "paths": ["/v1/**"]}], 200), ([{"paths": ["/v1/**"]}], 405)):
        with Rig(ok(), {**BEARER, "rules": rules}) as rig:
            assert status(rig.ask(get(b"/v1/secret/metadata", auth(rig), method=b"LIST"))) == code
            assert len(rig.upstream.received) == (code == 200)
            assert status(rig.ask(get(b"/v1/x", auth(rig), method=b"TRACE"))) == 405


def test_refusal_of_a_head_request_has_no_body(bearer):
    fresh(bearer)
    conn = bearer.connect()
    conn.sendall(get(b"/v2/x", auth(bearer), method=b"HEAD"))
    seen = b""
    while data := conn.recv(4096):
        seen += data
    assert seen.startswith(b"HTTP/1.1 403 ")
    assert seen.endswith(b"\r\n\r\n")


def test_a_dial_that_comes_too_late_sends_nothing():
    with Rig(ok(), BEARER) as rig:
        gate = threading.Event()
        real = rig.port.dialer.dial

        async def slow(request):
            import asyncio

            while not gate.is_set():  # noqa: ASYNC110  # the gate is another thread's
                await asyncio.sleep(0.01)
            return await real(request)

        rig.port.dialer.dial = slow
        conn = rig.connect()
        conn.sendall(get(b"/a", auth(rig)))
        wait_for(lambda: rig.call(lambda: [c for c in rig.termination.clients if c.task is not None]))
        rig.call(lambda: [c.on_deadline() for c in list(rig.termination.clients)])
        answer = read_message(conn)
        assert (status(answer), reason(answer)) == (504, "upstream_timeout")
        gate.set()
        wait_for(lambda: not rig.call(lambda: len(rig.termination.clients)))
        assert rig.upstream.received == []


def test_names_under_a_wildcard_do_not_grow_the_broker(monkeypatch):

    monkeypatch.setattr(terminated_host, "MAX_LEAVES", 2)
    with Rig(ok(), BEARER) as rig:
        for i in range(4):
            rig.process.add("cell", "task", [HOST, "*.wild.test"], [rig.compiled.secret.to_json()])
            future = asyncio.run_coroutine_threadsafe(rig.termination.server_context(f"n{i}.wild.test"), rig.loop)
            future.result(10)
        assert rig.call(lambda: len(rig.termination._servers)) == 2


def test_connections_that_wait_for_one_leaf_share_its_context(monkeypatch):
    """Each made one of its own, at 1.8 ms of everybody's loop."""

    made = []
    real = terminated_host._server_context
    monkeypatch.setattr(terminated_host, "_server_context", lambda *a: made.append(1) or real(*a))
    with Rig(ok(), BEARER) as rig:
        rig.process.add("cell", "task", [HOST, "*.wild.test"], [rig.compiled.secret.to_json()])
        asked = []
        minted = rig.termination.secrets._leaf

        async def counted(cell, host):
            asked.append(host)
            return await minted(cell, host)

        rig.termination.secrets._leaf = counted

        async def many():
            names = [f"n{i % 5}.wild.test" for i in range(100)]
            return await asyncio.gather(*map(rig.termination.server_context, names))

        found = asyncio.run_coroutine_threadsafe(many(), rig.loop).result(20)
    assert len(set(found)) == len(made) == 5
    assert sorted(asked) == [f"n{i}.wild.test" for i in range(5)]


def test_client_that_ends_while_we_dial_leaves_nothing():
    with Rig(ok(), BEARER) as rig:
        gate = threading.Event()
        real = rig.port.dialer.dial

        async def slow(request):
            import asyncio

            while not gate.is_set():  # noqa: ASYNC110  # the gate is another thread's
                await asyncio.sleep(0.01)
            return await real(request)

        rig.port.dialer.dial = slow
        for part in (b"", b"x" * 10):
            gate.clear()
            conn = rig.connect()
            conn.sendall(get(b"/a", auth(rig), b"Content-Length: 100", method=b"POST") + part)
            wait_for(lambda: rig.call(lambda: [c for c in rig.termination.clients if c.task is not None]))
            conn.shutdown(socket.SHUT_WR)
            wait_for(lambda: rig.call(lambda: [c for c in rig.termination.clients if c.eof]))
            gate.set()
            wait_for(lambda: not rig.call(lambda: len(rig.termination.clients)))


def test_a_burst_of_names_is_made_few_at_a_time_and_others_are_served_meanwhile(monkeypatch):
    monkeypatch.setattr(terminated_host, "MAX_LEAVES", 50)
    with Rig(ok(), BEARER) as rig:
        made = TaskCa("t", time.time()).leaf("any.wild.test")
        asked, most = [], []
        gate = asyncio.Event()

        async def slow(cell, host):
            asked.append(host)
            most.append(len(asked))
            try:
                await gate.wait()
                return made
            finally:
                asked.remove(host)

        monkeypatch.setattr(rig.termination.secrets, "leaf", slow)
        waiting = [
            asyncio.run_coroutine_threadsafe(rig.termination.server_context(f"n{i % 200}.wild.test"), rig.loop)
            for i in range(400)
        ]
        wait_for(lambda: rig.call(lambda: len(rig.termination._making)) == 200)  # one for each name
        wait_for(lambda: max(most, default=0) == terminated_host._MINTS)
        rig.call(gate.set)
        contexts = {id(w.result(60)) for w in waiting}
        assert len(contexts) == 200
        assert max(most) <= terminated_host._MINTS
        assert rig.call(lambda: (len(rig.termination._making), len(rig.termination._servers))) == (0, 50)


def test_a_leaf_that_cannot_be_had_is_asked_for_again(monkeypatch):
    with Rig(ok(), BEARER) as rig:
        leaf = rig.termination.secrets.leaf
        failures = []

        async def fails(cell, host):
            failures.append(host)
            raise SecretsError("no")

        monkeypatch.setattr(rig.termination.secrets, "leaf", fails)
        for _ in range(2):
            with pytest.raises(SecretsError):
                asyncio.run_coroutine_threadsafe(rig.termination.server_context(HOST), rig.loop).result(20)
        assert len(failures) == 2
        monkeypatch.setattr(rig.termination.secrets, "leaf", leaf)
        assert rig.ask(get(b"/v1/x", auth(rig))).endswith(b"hello")
