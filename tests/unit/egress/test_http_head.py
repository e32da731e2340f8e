import pytest

from saggar.core.errors import ParseError
from saggar.egress.http_head import (
    MAX_HEAD,
    NO_BODY,
    Body,
    find_end,
    parse_request,
    parse_response,
    refusal,
    write_request,
    write_response,
)

H = b"Host: a.test\r\n"


def get(line=b"GET / HTTP/1.1", fields=H):
    return line + b"\r\n" + fields + b"\r\n"


BAD_REQUESTS = {
    # row 36
    "two hosts": (get(fields=H + H), "malformed_request"),
    "no host": (get(fields=b""), "malformed_request"),
    "host with user": (get(fields=b"Host: u@a.test\r\n"), "bad_host_name"),
    "host with a bad port": (get(fields=b"Host: a.test:x\r\n"), "bad_port"),
    "host is an address": (get(fields=b"Host: 192.0.2.1\r\n"), "ip_literal"),
    "host is a v6 address": (get(fields=b"Host: [::1]\r\n"), "ip_literal"),
    "host with a trailing dot": (get(fields=b"Host: a.test.\r\n"), "bad_host_name"),
    "empty host": (get(fields=b"Host:\r\n"), "bad_host_name"),
    # row 37
    "absolute form to another place": (get(b"GET http://b.test/ HTTP/1.1"), "name_mismatch"),
    "absolute form to another port": (get(b"GET http://a.test:81/ HTTP/1.1"), "name_mismatch"),
    "absolute form with user": (get(b"GET http://u@a.test/ HTTP/1.1"), "bad_host_name"),
    "absolute form without host": (get(b"GET http:/// HTTP/1.1"), "malformed_request"),
    "absolute https": (get(b"GET https://a.test/ HTTP/1.1"), "malformed_request"),
    # row 38
    "CL and TE": (get(fields=H + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), "bad_framing"),
    "two CL": (get(fields=H + b"Content-Length: 5\r\nContent-Length: 5\r\n"), "bad_framing"),
    "CL list": (get(fields=H + b"Content-Length: 5,5\r\n"), "bad_framing"),
    "CL plus": (get(fields=H + b"Content-Length: +5\r\n"), "bad_framing"),
    "CL hex": (get(fields=H + b"Content-Length: 0x5\r\n"), "bad_framing"),
    "CL empty": (get(fields=H + b"Content-Length:\r\n"), "bad_framing"),
    "CL huge": (get(fields=H + b"Content-Length: " + b"9" * 30 + b"\r\n"), "bad_framing"),
    "TE xchunked": (get(fields=H + b"Transfer-Encoding: xchunked\r\n"), "bad_framing"),
    "TE chunked, identity": (get(fields=H + b"Transfer-Encoding: chunked, identity\r\n"), "bad_framing"),
    "TE gzip, chunked": (get(fields=H + b"Transfer-Encoding: gzip, chunked\r\n"), "bad_framing"),
    "two TE": (get(fields=H + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), "bad_framing"),
    "TE on 1.0": (get(b"GET / HTTP/1.0", H + b"Transfer-Encoding: chunked\r\n"), "bad_framing"),
    "TE with a vertical tab": (get(fields=H + b"Transfer-Encoding: \x0bchunked\r\n"), "malformed_request"),
    "bare LF": (b"GET / HTTP/1.1\nHost: a.test\r\n\r\n", "malformed_request"),
    "bare LF between fields": (get(fields=b"Host: a.test\nX: y\r\n"), "malformed_request"),
    "bare CR": (get(fields=b"Host: a.test\r\nX: a\rb\r\n"), "malformed_request"),
    "obs-fold": (get(fields=H + b"X: a\r\n b\r\n"), "malformed_request"),
    "obs-fold first": (get(fields=b" X: a\r\n" + H), "malformed_request"),
    "space before colon": (get(fields=H + b"Content-Length : 5\r\n"), "malformed_request"),
    "NUL in a value": (get(fields=H + b"X: a\0b\r\n"), "malformed_request"),
    "no colon": (get(fields=H + b"X\r\n"), "malformed_request"),
    "empty name": (get(fields=H + b": x\r\n"), "malformed_request"),
    "non-ASCII name": (get(fields=H + b"X\xc3\xa4: x\r\n"), "malformed_request"),
    "two spaces": (get(b"GET  / HTTP/1.1"), "malformed_request"),
    "tab in the line": (get(b"GET\t/ HTTP/1.1"), "malformed_request"),
    "trailing space": (get(b"GET / HTTP/1.1 "), "malformed_request"),
    "HTTP/0.9": (b"GET /\r\n\r\n", "malformed_request"),
    "HTTP/2": (get(b"GET / HTTP/2"), "malformed_request"),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\n", "malformed_request"),
    "HTTP/1.2": (get(b"GET / HTTP/1.2"), "malformed_request"),
    "lower-case http": (get(b"GET / http/1.1"), "malformed_request"),
    # row 39, as far as it needs no rule on paths
    "fragment": (get(b"GET /a#b HTTP/1.1"), "malformed_request"),
    "backslash": (get(b"GET /a\\b HTTP/1.1"), "malformed_request"),
    "non-ASCII target": (get("GET /ä HTTP/1.1".encode()), "malformed_request"),
    "quote in the target": (get(b'GET /"a HTTP/1.1'), "malformed_request"),
    "empty target": (get(b"GET  HTTP/1.1"), "malformed_request"),
    "relative target": (get(b"GET a HTTP/1.1"), "malformed_request"),
    "asterisk with GET": (get(b"GET * HTTP/1.1"), "malformed_request"),
    "long target": (get(b"GET /" + b"a" * 17000 + b" HTTP/1.1"), "head_too_large"),
    "many fields": (get(fields=H + b"X: y\r\n" * 201), "head_too_large"),
    # row 45
    "TRACE": (get(b"TRACE / HTTP/1.1"), "method_refused"),
    "CONNECT as a method": (get(b"CONNECT a.test:443 HTTP/1.1"), "method_refused"),
    "unknown method": (get(b"FROB / HTTP/1.1"), "method_refused"),
    "lower-case method": (get(b"get / HTTP/1.1"), "method_refused"),
    "unknown expectation": (get(fields=H + b"Expect: 200-ok\r\n"), "malformed_request"),
    "not complete": (b"GET / HTTP/1.1\r\nHost: a.test\r\n", "malformed_request"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_parse_request_refuses(case):
    head, reason = BAD_REQUESTS[case]
    with pytest.raises(ParseError) as caught:
        parse_request(head)
    assert caught.value.reason == reason


def test_parse_request():
    request = parse_request(
        get(
            b"POST /a/b?c=d HTTP/1.1",
            b"host: A.Test:8080\r\nContent-Length: 5\r\nConnection: close, X-Key\r\nExpect: 100-continue\r\n",
        )
    )
    assert (request.method, request.target, request.host, request.port) == ("POST", b"/a/b?c=d", "a.test", 8080)
    assert (request.body, request.keep_alive, request.expects_continue) == (Body("length", 5), False, True)


@pytest.mark.parametrize(
    ("line", "target"),
    [
        (b"GET http://a.test HTTP/1.1", b"/"),
        (b"GET http://A.TEST/x HTTP/1.1", b"/x"),
        (b"GET HTTP://a.test:80/x?y HTTP/1.1", b"/x?y"),
        (b"GET http://a.test?y HTTP/1.1", b"/?y"),
    ],
)
def test_absolute_form_becomes_a_path(line, target):
    request = parse_request(get(line))
    assert (request.absolute, request.target, request.host, request.port) == (True, target, "a.test", 80)


def test_keep_alive_by_version():
    assert parse_request(get()).keep_alive
    assert not parse_request(get(b"GET / HTTP/1.0")).keep_alive
    assert parse_request(get(b"GET / HTTP/1.0", H + b"Connection: Keep-Alive\r\n")).keep_alive


def test_write_request_is_made_anew():
    fields = (
        b"Host: A.Test\r\nConnection: X-Api-Key, close\r\nX-Api-Key: k\r\nTE: trailers\r\nX-HTTP-Method-Override: DELETE\r\n"
        b"X-Forwarded-Host: evil.test\r\nX-Original-URL: /admin\r\nForwarded: host=evil.test\r\nX-Rewrite-URL: /\r\n"
        b"Proxy-Authorization: Basic eA==\r\nKeep-Alive: 5\r\nContent-Length: 3\r\naccept:   */*  \r\nHTTP2-Settings: x\r\n"
    )
    head = write_request(parse_request(get(b"POST http://a.test/x HTTP/1.0", fields)), "a.test")
    # rows 40 and 41: the client's Connection list takes nothing away, overrides do not pass
    assert head == (b"POST /x HTTP/1.1\r\nHost: a.test\r\nX-Api-Key: k\r\naccept: */*\r\nContent-Length: 3\r\n\r\n")


def response(line=b"HTTP/1.1 200 OK", fields=b"Content-Length: 2\r\n", method="GET"):
    return parse_response(line + b"\r\n" + fields + b"\r\n", method)


BAD_RESPONSES = {
    "two CL": {"fields": b"Content-Length: 2\r\nContent-Length: 2\r\n"},
    "CL and TE": {"fields": b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"},
    "TE gzip": {"fields": b"Transfer-Encoding: gzip\r\n"},
    "bare LF": {"fields": b"X: y\nZ: w\r\n"},
    "obs-fold": {"fields": b"X: y\r\n z\r\n"},
    "space before colon": {"fields": b"X : y\r\n"},
    "status of two digits": {"line": b"HTTP/1.1 20 OK"},
    "status 600": {"line": b"HTTP/1.1 600 Odd"},
    "no status": {"line": b"HTTP/1.1"},
    "HTTP/2": {"line": b"HTTP/2 200 OK"},
    "ICY": {"line": b"ICY 200 OK"},
    "many fields": {"fields": b"X: y\r\n" * 300},
}


@pytest.mark.parametrize("case", BAD_RESPONSES)
def test_parse_response_refuses(case):
    with pytest.raises(ParseError) as caught:
        response(**BAD_RESPONSES[case])
    assert caught.value.reason == "bad_response"


@pytest.mark.parametrize(
    ("kwargs", "body"),
    [
        ({}, Body("length", 2)),
        ({"method": "HEAD"}, NO_BODY),
        ({"line": b"HTTP/1.1 204 No Content", "fields": b""}, NO_BODY),
        ({"line": b"HTTP/1.1 304 Not Modified"}, NO_BODY),
        ({"line": b"HTTP/1.1 103 Early Hints", "fields": b""}, NO_BODY),
        ({"fields": b""}, Body("close")),
        ({"fields": b"Transfer-Encoding: chunked\r\n"}, Body("chunked")),
        ({"line": b"HTTP/1.1 200"}, Body("length", 2)),
    ],
)
def test_response_body(kwargs, body):
    assert response(**kwargs).body == body


def test_write_response_drops_hops_and_alt_svc():
    parsed = response(fields=b'Alt-Svc: h3=":443"\r\nConnection: x\r\nX: y\r\nContent-Length: 2\r\n')
    assert write_response(parsed, body=parsed.body, keep_alive=True) == (
        b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 2\r\n\r\n"
    )
    assert b"Connection: close\r\n" in write_response(parsed, body=Body("chunked"), keep_alive=False)


def test_find_end_is_bounded():
    assert find_end(b"GET / HTTP/1.1\r\n\r\nrest") == 18
    assert find_end(b"GET /") == -1
    with pytest.raises(ParseError) as caught:
        find_end(b"a" * (MAX_HEAD + 1))
    assert caught.value.reason == "head_too_large"


def test_refusal_has_its_status():
    assert refusal("host_not_listed", "no").startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert refusal("name_mismatch", "no").startswith(b"HTTP/1.1 421 ")
    assert refusal("anything_else", "no").startswith(b"HTTP/1.1 403 ")
    assert refusal("bad_framing", "no", head_only=True).endswith(b"\r\n\r\n")
