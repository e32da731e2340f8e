"""What we decide on is what the upstream sees: re-serialised messages read by httptools, h11, a strict and a lax reader.

Heads are valid ones with bytes changed at random and with lines from a list of known troublemakers. Whatever we accept, the
four readers must agree on; whatever we refuse, nobody gets.
"""

from __future__ import annotations

import h11
import httptools
from hypothesis import example, given
from hypothesis import strategies as st

from saggar.core.errors import ParseError
from saggar.egress.admit import Admitted, admit, write_request
from saggar.egress.answer import write_answer
from saggar.egress.destination import Destination
from saggar.egress.http_body import ChunkedReader, LengthReader, chunk, last_chunk
from saggar.egress.http_head import parse_request, parse_response
from saggar.egress.relay_host import agreed_head
from saggar.egress.terms import Terms
from saggar.egress.trailers import is_harmless, judge
from saggar.egress.websocket import accept_value

HOST = b"api.allowed.test"
PLACE = Destination(HOST.decode(), 443, "https")
OPEN = Terms()

TROUBLE = [
    b"Content-Length: 5", b"Content-Length: 5, 5", b"Content-Length: +5", b"Content-Length:5", b"Content-Length : 5", b"Content_Length: 5",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: Chunked", b"Transfer-Encoding: xchunked", b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: identity", b"Transfer-Encoding:\tchunked", b"Transfer-Encoding: chunked, chunked", b"Transfer_Encoding: chunked",
    b"Host: api.allowed.test", b"Host: evil.test", b"Host:api.allowed.test", b"Connection: close", b"Connection: keep-alive, Host",
    b"X: a\r b", b"X: a\n b", b" folded", b"\tfolded", b"X: \0", b"X:", b": x", b"X", b"Expect: 100-continue", b"Upgrade: h2c",
    b"Upgrade: websocket", b"TE: trailers", b"Trailer: Content-Length", b"Accept: */*", b"X: \xff\xfe", b"X-Forwarded-Host: evil.test",
    b"Content-Type: text/plain\x0b", b"X: a\x85b", b"X:\x0ca",
]  # fmt: skip
HARMLESS = [
    b"Accept: */*", b"User-Agent: x/1 (y; z)", b"X-Empty:", b"Content-Type: text/plain", b"X:  a \t b  ", b"X: \xe4\xf6", b"Accept: a, b;q=0",
    b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Connection: close", b"If-None-Match: \"x\"", b"X_under: 1",
]  # fmt: skip
TARGETS = [
    b"/", b"/a", b"/a%2Fb", b"/a/../b", b"//a", b"/a?b=c", b"/a?b=c#d", b"*", b"https://api.allowed.test/a", b"https://evil.test/a", b"/a b",
    b"/a\tb", b"/%41", b"/a;b", b"/\xc3\xa4", b"/a?x=%7e", b"/a?q={}", b"/a\\b", b"",
]  # fmt: skip
METHODS = [b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"get", b"GET ", b"CONNECT", b"TRACE", b"G\tET", b"M-SEARCH"]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 ", b"HTTP/01.1"]
BODIES = [
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nHost: evil.test\r\nContent-Length: 9\r\nX-Fine: 1\r\nAuthorization: Bearer x\r\n\r\n",
    b"0\r\nTransfer-Encoding: chunked\r\nX_HTTP_Method_Override: PUT\r\nGrpc-Status: 0\r\n\r\n",
    b"0\r\nGET /x HTTP/1.1\r\nHost: b\r\n\r\n",
    b"5\nhello\n0\n\n",
    b"GET /x HTTP/1.1\r\nHost: b\r\n\r\n",
]


@st.composite
def messages(draw, first):
    lines = [draw(first)]
    lines += draw(st.lists(st.sampled_from(HARMLESS), max_size=4))
    # mostly one thing wrong, or nothing: a message with five faults is refused for the first and tells nothing
    lines += draw(st.sampled_from([[], [], [], *([t] for t in TROUBLE)]))
    if draw(st.integers(0, 9)):
        lines.insert(draw(st.integers(1, len(lines))), b"Host: " + HOST)
    end = draw(st.sampled_from([b"\r\n"] * 18 + [b"\n", b"\r"]))
    data = bytearray(end.join(lines) + b"\r\n\r\n")
    for _ in range(draw(st.sampled_from([0, 0, 0, 1]))):
        at = draw(st.integers(0, len(data) - 5))
        data[at] = draw(st.integers(0, 255))
    return bytes(data), draw(st.sampled_from(BODIES))


REQUESTS = messages(
    st.builds(
        lambda m, t, v: b" ".join((m, t, v)),
        st.sampled_from([*METHODS[:5] * 3, *METHODS]),
        st.sampled_from([*TARGETS[:2] * 8, *TARGETS]),
        st.sampled_from([*VERSIONS[:1] * 12, *VERSIONS]),
    )
)
ANSWERS = messages(
    st.builds(
        lambda v, c, p: b" ".join((v, c, p)),
        st.sampled_from([*VERSIONS[:1] * 12, *VERSIONS]),
        st.sampled_from(
            [b"200", b"200", b"200", b"204", b"304", b"302", b"500", b"099", b"2000", b"20", b"200 ", b"101", b"103"]
        ),
        st.sampled_from([b"OK", b"", b"No Content", b"a\tb", b"\xff"]),
    )
)


def sent(data, body):
    """What we would send for these bytes, None where we refuse."""
    try:
        head = parse_request(data, default_port=443)
        found = admit(head, PLACE, OPEN, None)
        if not isinstance(found, Admitted):
            return None
        out = write_request(found, head.body, PLACE.authority, target=found.target.raw, fields=found.fields)
        reader = ChunkedReader() if head.body.kind == "chunked" else LengthReader(head.body.length)
        content = b"".join(reader.feed(body))
        if not reader.done:
            return None
        rest = reader.rest
    except ParseError:
        return None
    if head.body.kind == "chunked":
        passing, _, _ = judge(reader.trailers, OPEN)
        out += chunk(content) + last_chunk(passing)
    else:
        out += content
    return found, content, rest, out


class Collector:
    """httptools, as a server would use it."""

    def __init__(self, kind):
        self.messages, self.headers, self.content, self.url, self.complete = 0, [], b"", b"", 0
        self.parser = kind(self)

    def on_message_begin(self):
        self.messages += 1

    def on_url(self, url):
        self.url += url

    def on_header(self, name, value):
        self.headers.append((name.lower(), value))

    def on_body(self, data):
        self.content += data

    def on_message_complete(self):
        self.complete += 1


def lax(data):
    """A server that forgives everything: any line end, folds, blanks before colons, the first length, `chunked` anywhere."""
    text = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    head, _, body = text.partition(b"\n\n")
    lines = head.replace(b"\n ", b" ").replace(b"\n\t", b" ").split(b"\n")
    fields = [
        (n.strip().lower().replace(b"_", b"-"), v.strip()) for n, _, v in (line.partition(b":") for line in lines[1:])
    ]
    names = dict(fields)
    coded = any(n == b"transfer-encoding" and b"chunked" in v.lower() for n, v in fields)
    length = next((int(v) for n, v in fields if n == b"content-length"), 0)
    return lines[0].split(), names, coded, length, body


@given(REQUESTS)
@example((b"GET /a HTTP/1.1\r\nHost: api.allowed.test\r\nX: a\x85b\r\n\r\n", b""))
@example(
    (
        b"POST /a HTTP/1.1\r\nHost: api.allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n",
    )
)
def test_requests_mean_the_same_to_everybody(message):
    result = sent(*message)
    if result is None:
        return
    found, content, _, out = result
    # httptools
    seen = Collector(httptools.HttpRequestParser)
    seen.parser.feed_data(out)
    assert (seen.messages, seen.complete) == (1, 1)
    assert seen.parser.get_method() == found.method.encode()
    assert seen.url == found.target.raw
    assert seen.content == content
    assert [n for n, _ in seen.headers].count(b"host") == 1
    # h11
    server = h11.Connection(h11.SERVER)
    server.receive_data(out)
    request = server.next_event()
    assert (request.method, request.target) == (found.method.encode(), found.target.raw)
    assert dict(request.headers)[b"host"] == HOST
    body = b""
    while not isinstance(event := server.next_event(), h11.EndOfMessage):
        body += bytes(event.data)
    assert body == content
    assert server.trailing_data[0] == b""
    # httptools is a server that merges trailers into the head: they change nothing there
    trailers = [(bytes(n), bytes(v)) for n, v in event.headers]
    assert all(is_harmless(n) for n, _ in trailers)
    assert [(bytes(n), bytes(v)) for n, v in request.headers] + trailers == [(n, v) for n, v in seen.headers]
    # the lax one
    words, names, coded, length, rest = lax(out)
    assert words == [found.method.encode(), found.target.raw, b"HTTP/1.1"]
    assert names[b"host"] == HOST
    assert not (coded and b"content-length" in names)
    assert coded or length == len(content)
    assert coded or len(rest) == len(content.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


@given(ANSWERS, st.sampled_from(["GET", "HEAD", "POST"]), st.integers(0, 1))
def test_answers_mean_the_same_to_everybody(message, method, version):
    data, body = message
    request = parse_request(
        b"%s / HTTP/1.%d\r\nHost: api.allowed.test\r\n\r\n" % (method.encode(), version), default_port=443
    )
    try:
        head = parse_response(data, method)
        if head.status < 200:
            return
        out, framing, _ = write_answer(head, request, bound=False, scanned=False, keep=True)
    except ParseError:
        return
    content = b"payload"
    if framing == "length":
        content = b"z" * head.body.length
        out += content
    elif framing == "chunked":
        out += b"7\r\npayload\r\n0\r\n\r\n"
    elif framing == "close":
        out += content
    else:
        content = b""
    if version == 0 and framing == "close":
        return
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", "api.allowed.test")]))
    client.send(h11.EndOfMessage())
    client.receive_data(out)
    response = client.next_event()
    assert response.status_code == head.status
    got = b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        got += bytes(event.data)
    assert got == content
    assert client.trailing_data[0] == b""
    if method != "HEAD":
        seen = Collector(httptools.HttpResponseParser)
        seen.parser.feed_data(out)
        assert seen.parser.get_status_code() == head.status
        assert (seen.content, seen.complete) == (content, 1)
    words, names, coded, length, _ = lax(out)
    assert words[1] == b"%d" % head.status
    assert not (coded and b"content-length" in names)


KEY = b"MDEyMzQ1Njc4OWFiY2RlZg=="
SOCKETS = Terms(websocket=True)


@given(
    st.lists(st.sampled_from([*HARMLESS[:7], *TROUBLE]), max_size=3),
    st.sampled_from([b"websocket", b"WebSocket", b"websocket, h2c", b"h2c", b"websocket\tx"]),
    st.booleans(),
)
def test_an_upgrade_means_the_same_to_everybody(lines, protocol, version):
    first = b"GET /ws HTTP/1.%d\r\nHost: %s\r\nUpgrade: %s\r\nSec-WebSocket-Key: %s\r\n" % (
        version,
        HOST,
        protocol,
        KEY,
    )
    try:
        head = parse_request(first + b"".join(line + b"\r\n" for line in lines) + b"\r\n", default_port=443)
    except ParseError:
        return
    found = admit(head, PLACE, SOCKETS, None)
    if not isinstance(found, Admitted):
        return
    assert found.websocket
    out = write_request(found, head.body, PLACE.authority, target=found.target.raw, fields=found.fields)
    again = parse_request(out, default_port=443)
    assert (again.upgrade, again.get(b"sec-websocket-key"), again.host) == (b"websocket", KEY, HOST.decode())
    seen = Collector(httptools.HttpRequestParser)
    try:
        seen.parser.feed_data(out)
    except httptools.HttpParserUpgrade as e:
        assert e.args[0] == len(out)
    assert seen.parser.should_upgrade()
    assert [v for n, v in seen.headers if n == b"upgrade"] == [b"websocket"]
    assert b"sec-websocket-extensions" not in dict(seen.headers)
    _, names, coded, length, _ = lax(out)
    assert names[b"upgrade"] == b"websocket"
    assert coded == (head.body.kind == "chunked")
    assert coded or length == head.body.length


@given(
    st.lists(
        st.sampled_from([*HARMLESS, *TROUBLE, b"Sec-WebSocket-Accept: x", b"Sec-WebSocket-Extensions: x"]), max_size=3
    ),
    st.booleans(),
)
def test_an_agreed_upgrade_is_one_for_the_client_too(lines, right):
    request = parse_request(
        b"GET /ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nSec-WebSocket-Key: %s\r\n\r\n" % (HOST, KEY),
        default_port=443,
    )
    accept = accept_value(KEY) if right else accept_value(b"other")
    raw = b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n" % accept
    try:
        head = parse_response(raw + b"".join(line + b"\r\n" for line in lines) + b"\r\n", "GET")
    except ParseError:
        return
    out = agreed_head(request, head)
    if out is None:
        return
    assert right
    client = h11.Connection(h11.CLIENT)
    client.send(
        h11.Request(
            method="GET", target="/ws", headers=[("host", HOST), ("upgrade", "websocket"), ("connection", "upgrade")]
        )
    )
    client.send(h11.EndOfMessage())
    client.receive_data(out)
    response = client.next_event()
    assert response.status_code == 101
    headers = {bytes(n): bytes(v) for n, v in response.headers}
    assert headers[b"sec-websocket-accept"] == accept_value(KEY)
    assert set(headers) <= {b"connection", b"upgrade", b"sec-websocket-accept", b"sec-websocket-protocol"}


@given(st.binary(max_size=300))
def test_any_bytes_give_a_value_or_a_parse_error(data):
    for parse in (
        lambda d: parse_request(d + b"\r\n\r\n", default_port=443),
        lambda d: parse_response(d + b"\r\n\r\n", "GET"),
    ):
        try:
            parse(data)
        except ParseError as e:
            assert e.reason
