"""The same over sockets: mutated messages through the terminated path, and what a strict and a lax server, or client, makes of it.

Requests: for each decision that allows there is exactly one message upstream, and httptools, h11 and the forgiving reader see in it
the method, path, host and body that were decided on. Answers: whoever reads what the client gets reads one answer, the upstream's.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import socket
import sys

import h11
import httptools
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(__file__)), "unit", "egress"))
from terminated_rig import HOST, Rig, ok
from test_terminated_differential import ANSWERS, REQUESTS, Collector, lax

from saggar.core.errors import ParseError
from saggar.egress.http_body import ChunkedReader, CloseReader, LengthReader
from saggar.egress.http_head import parse_response
from saggar.egress.trailers import is_harmless

SETTINGS = settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def rig():
    with Rig(ok(), {"rules": [{"methods": ["GET", "POST", "HEAD", "OPTIONS", "PUT"]}]}, tls=False) as rig:
        yield rig


def exchange(rig, data):
    """(all bytes of the answer, whether it ended in order) for a client that sends this and no more."""
    with socket.create_connection(rig.address, timeout=5) as conn:
        seen = b""
        try:
            conn.sendall(data)
            with contextlib.suppress(OSError):  # it may have been refused and reset by now
                conn.shutdown(socket.SHUT_WR)
            while part := conn.recv(65536):
                seen += part
        except ConnectionError:
            return seen, False
        return seen, True


def test_what_was_decided_is_what_the_upstream_sees(rig):
    reached = [0]

    @SETTINGS
    @given(message=REQUESTS)
    def check(message):
        reached[0] += check_request(rig, *message)

    check()
    # a generator that only makes refusals would show nothing
    assert reached[0] >= 30


def check_request(rig, data, body):
    """Number of requests that the upstream got whole."""
    rig.upstream.received.clear()
    rig.port.records.clear()
    exchange(rig, data.replace(b"https://", b"http://", 1) + body)
    allowed = [
        d for d in rig.port.records if d.effect == "allow" and "method" in d.detail and d.reason == "rule_allows"
    ]
    whole = []
    for request in rig.upstream.received:
        seen = Collector(httptools.HttpRequestParser)
        try:
            seen.parser.feed_data(request)
        except httptools.HttpParserError:
            # cut in the middle of a body whose framing broke: no server takes it for a request
            assert seen.complete == 0
            continue
        assert seen.messages == 1
        if seen.complete:
            whole.append((request, seen))
    assert len(whole) <= len(allowed)
    for (request, seen), decision in zip(whole, allowed, strict=False):
        method, path = decision.detail["method"].encode(), decision.detail["path"].encode()
        assert (seen.parser.get_method(), seen.url.partition(b"?")[0]) == (method, path)
        server = h11.Connection(h11.SERVER)
        server.receive_data(request)
        head = server.next_event()
        assert (head.method, head.target.partition(b"?")[0]) == (method, path)
        assert dict(head.headers)[b"host"] == HOST.encode()
        content = b""
        while not isinstance(event := server.next_event(), h11.EndOfMessage):
            content += bytes(event.data)
        assert content == seen.content
        assert server.trailing_data[0] == b""
        assert all(is_harmless(bytes(n)) for n, _ in event.headers)
        words, names, coded, length, _ = lax(request)
        assert words[:1] + [words[1].partition(b"?")[0]] == [method, path]
        assert names[b"host"] == HOST.encode()
        assert coded or length == len(content)
    return len(whole)


def believed(data, method):
    """What we make of an upstream's bytes up to its end: (status, body), None where that is no whole answer."""
    try:
        while True:
            head, sep, data = data.partition(b"\r\n\r\n")
            response = parse_response(head + sep, method)
            if response.status >= 200:
                break
            if response.status == 101:
                return None
        kind = response.body.kind
        reader = (
            ChunkedReader()
            if kind == "chunked"
            else CloseReader()
            if kind == "close"
            else LengthReader(response.body.length)
        )
        body = b"".join(reader.feed(data))
    except ParseError:
        return None
    return (response.status, body) if kind == "close" or reader.done else None


def test_what_the_client_reads_is_what_the_upstream_said(rig):
    passed = [0]

    @SETTINGS
    @given(message=ANSWERS, method=st.sampled_from([b"GET", b"HEAD", b"POST"]))
    def check(message, method):
        passed[0] += check_answer(rig, b"".join(message), method)

    check()
    assert passed[0] >= 60


def check_answer(rig, sent, method):
    """1 where the upstream's answer came through, 0 where it was refused or cut."""

    def script(request, conn):
        conn.sendall(sent)

    rig.upstream.script = script
    fields = b"Content-Length: 0\r\n" if method == b"POST" else b""
    seen, orderly = exchange(
        rig, method + b" / HTTP/1.1\r\nHost: " + HOST.encode() + b"\r\n" + fields + b"Connection: close\r\n\r\n"
    )
    if not orderly:
        return 0
    expected = believed(sent, method.decode())
    # strict
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", HOST), ("content-length", "0")]))
    client.send(h11.EndOfMessage())
    client.receive_data(seen)
    client.receive_data(b"")
    response = client.next_event()
    while isinstance(response, h11.InformationalResponse):
        assert response.status_code in (102, 103)
        response = client.next_event()
    content = b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        content += bytes(event.data)
    if b"x-saggar-reason" in dict(response.headers):
        assert response.status_code == 502
        assert expected is None
        return 0
    assert (response.status_code, content) == expected
    assert all(is_harmless(bytes(n)) for n, _ in event.headers)

    # lax
    class Socket:
        def makefile(self, *_):
            return io.BytesIO(seen)

    if not seen.startswith((b"HTTP/1.1 102", b"HTTP/1.1 103")):
        answer = http.client.HTTPResponse(Socket(), method=method.decode())
        answer.begin()
        assert (answer.status, answer.read()) == expected
    return 1
