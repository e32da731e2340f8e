"""What we decide on is what the upstream sees: other parsers read our re-serialised heads as we did.

Strict: httptools (llhttp). Lax: `http.server` and `email`, of the standard library, which mend what they can.
"""

import io
from http.server import BaseHTTPRequestHandler

import httptools
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saggar.core.errors import ParseError
from saggar.egress.http_body import ChunkedReader, chunk
from saggar.egress.http_head import parse_request, parse_response, write_request, write_response

SETTINGS = settings(deadline=500, max_examples=400, suppress_health_check=[HealthCheck.too_slow])

SEEDS = (
    b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
    b"POST /a?b=c HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\nX: y\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nTE: trailers\r\n\r\n",
    b"PUT /x;y/%2e%2e HTTP/1.0\r\nHost: A.test:80\r\nExpect: 100-continue\r\nCookie: a=b\r\n\r\n",
    b"DELETE //b.test/x HTTP/1.1\r\nHost: a.test\r\nX-HTTP-Method-Override: GET\r\nContent-Length: 0\r\n\r\n",
)
#: bytes that split, join or hide lines and fields
SPICE = st.sampled_from(
    [
        b"\r",
        b"\n",
        b"\r\n",
        b" ",
        b"\t",
        b"\0",
        b":",
        b"\x0b",
        b"\x85",
        b"\xa0",
        b"Host: b.test\r\n",
        b"Content-Length: 1\r\n",
    ]
    + [
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b" chunked",
        b"0\r\n\r\n",
        b"#",
        b"//",
        b"\\",
        b";",
    ]
)


@st.composite
def requests(draw):
    data = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.one_of(SPICE, st.binary(max_size=3))) + data[at + draw(st.integers(0, 3)) :]
    return data


class Strict:
    """What llhttp makes of one request."""

    def __init__(self, data):
        self.target, self.fields, self.body, self.done = b"", [], b"", False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.method = parser.get_method()

    def on_url(self, url):
        self.target += url

    def on_header(self, name, value):
        self.fields.append((name.lower(), value))

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        assert not self.done, "two requests"
        self.done = True


class Lax(BaseHTTPRequestHandler):
    """What the standard library's server makes of one head."""

    def __init__(self, data):
        self.rfile, self.wfile = io.BytesIO(data), io.BytesIO()
        self.requestline, self.client_address = "", ("", 0)
        self.raw_requestline = self.rfile.readline(65537)
        self.fine = self.parse_request()

    def log_message(self, *_):
        pass


def accepted(data):
    """Our reading and what we send on; None where we refuse."""
    head, sep, rest = data.partition(b"\r\n\r\n")
    try:
        request = parse_request(head + sep)
        if request.body.kind == "chunked":
            reader = ChunkedReader()
            body = b"".join(reader.feed(rest))
            if not reader.done:
                return None
        else:
            body = rest[: request.body.length]
            if len(body) < request.body.length:
                return None
    except ParseError:
        return None
    wire = write_request(request, "a.test") + (chunk(body) + b"0\r\n\r\n" if request.body.kind == "chunked" else body)
    return request, body, wire


def check(data):
    found = accepted(data)
    if found is None:
        return False
    request, body, wire = found
    strict = Strict(wire)
    assert strict.done
    assert (strict.method.decode(), strict.target, strict.body) == (request.method, request.target, body)
    assert [v for n, v in strict.fields if n == b"host"] == [b"a.test"]
    names = [n for n, _ in strict.fields]
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
    assert not {b"x-http-method-override", b"te", b"upgrade"} & set(names)
    lax = Lax(wire)
    # the lax server folds leading slashes of a target by itself; that is its mending, not a second meaning of ours
    if lax.fine and not request.target.startswith(b"//"):
        assert (lax.command, lax.path.encode("latin-1")) == (request.method, request.target)
        assert lax.headers.get_all("Host") == ["a.test"]
        assert len(lax.headers.get_all("Content-Length") or ()) <= 1
    return True


@pytest.mark.parametrize("data", SEEDS)
def test_the_seeds_are_accepted(data):
    assert check(data)


@SETTINGS
@given(requests())
def test_an_accepted_request_means_the_same_to_all(data):
    check(data)


RESPONSES = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\nabc",
    b"HTTP/1.1 204\r\nDate: x\r\n\r\n",
)


@st.composite
def responses(draw):
    data = draw(st.sampled_from(RESPONSES))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.one_of(SPICE, st.binary(max_size=3))) + data[at + draw(st.integers(0, 3)) :]
    return data


class StrictResponse:
    def __init__(self, data):
        self.fields, self.body = [], b""
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(data)
        self.status = parser.get_status_code()

    def on_header(self, name, value):
        self.fields.append((name.lower(), value))

    def on_body(self, body):
        self.body += body


@SETTINGS
@given(responses())
def test_a_response_that_is_passed_on_means_the_same_to_the_client(data):
    head, sep, rest = data.partition(b"\r\n\r\n")
    try:
        response = parse_response(head + sep, "GET")
    except ParseError:
        return
    if response.status < 200:
        return
    body = b"abc" if response.body.kind != "none" else b""
    framing = response.body if response.body.kind != "length" else type(response.body)("length", len(body))
    out = write_response(response, body=framing, keep_alive=False)
    out += chunk(body) + b"0\r\n\r\n" if framing.kind == "chunked" else body
    strict = StrictResponse(out)
    assert (strict.status, strict.body) == (response.status, body)
    names = [n for n, _ in strict.fields]
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
    assert not {b"alt-svc", b"upgrade", b"keep-alive"} & set(names)
