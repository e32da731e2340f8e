import pytest

from saggar.core.errors import ParseError
from saggar.egress.client_hello import NeedMore
from saggar.egress.connect import (
    ConnectTarget,
    Greeting,
    parse_connect,
    parse_greeting,
    parse_socks_request,
    socks_reply,
)


def head(target=b"a.test:443", fields=b"Host: a.test:443\r\n"):
    return b"CONNECT " + target + b" HTTP/1.1\r\n" + fields + b"\r\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (head(), ConnectTarget("a.test", 443, 49)),
        (head(b"A.TEST:443", b""), ConnectTarget("a.test", 443, 31)),
        (head(fields=b"Host: a.test\r\n") + b"\x16\x03", ConnectTarget("a.test", 443, 45)),
        (b"CONNECT a.test:443 HT", NeedMore(22)),
        (head(b"a.test"), "bad_port"),
        (head(b"a.test:0"), "bad_port"),
        (head(b"[::1]:443"), "ip_literal"),
        (head(b"192.0.2.1:443"), "ip_literal"),
        (head(b"127.1:443"), "bad_host_name"),
        (head(b"a.test.:443"), "bad_host_name"),
        (head(b"evil.test\0.a.test:443"), "bad_host_name"),
        (head(b"u@a.test:443"), "bad_host_name"),
        (head(b"http://a.test:443"), "ip_literal"),
        (head(fields=b"Host: b.test:443\r\n"), "name_mismatch"),
        (head(fields=b"Content-Length: 4\r\n"), "malformed_request"),
        (head(fields=b"Transfer-Encoding: chunked\r\n"), "malformed_request"),
        (head(fields=b"Bad Field: x\r\n"), "malformed_request"),
        (head(fields=b"X: a\rb\r\n"), "malformed_request"),
        (b"CONNECT a.test:443\r\n\r\n", "malformed_request"),
        (b"CONNECT  a.test:443 HTTP/1.1\r\n\r\n", "malformed_request"),
        (b"CONNECT " + b"a" * 9000, "head_too_large"),
    ],
)
def test_parse_connect(data, expected):
    try:
        result = parse_connect(data)
    except ParseError as e:
        result = e.reason
    assert result == expected


def socks(host=b"a.test", port=443, *, command=1, kind=3, reserved=0):
    return bytes((5, command, reserved, kind, len(host))) + host + port.to_bytes(2, "big")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (socks(), ConnectTarget("a.test", 443, 13)),
        (socks() + b"more", ConnectTarget("a.test", 443, 13)),
        (socks()[:4], NeedMore(5)),
        (socks()[:8], NeedMore(13)),
        (socks(command=2), "method_refused"),
        (socks(command=3), "method_refused"),
        (socks(kind=1), "ip_literal"),
        (socks(kind=4), "ip_literal"),
        (socks(kind=9), "malformed_request"),
        (socks(reserved=1), "malformed_request"),
        (socks(port=0), "bad_port"),
        (socks(b""), "bad_host_name"),
        (socks(b"127.0.0.1"), "ip_literal"),
        (socks(b"evil.test\0.a.test"), "bad_host_name"),
    ],
)
def test_parse_socks_request(data, expected):
    try:
        result = parse_socks_request(data)
    except ParseError as e:
        result = e.reason
    assert result == expected


def test_greeting():
    assert parse_greeting(b"\5\1\0") == Greeting(anonymous=True, size=3)
    assert parse_greeting(b"\5\2\1\2") == Greeting(anonymous=False, size=4)
    assert parse_greeting(b"\5") == NeedMore(2)
    assert parse_greeting(b"\5\3\0") == NeedMore(5)
    with pytest.raises(ParseError):
        parse_greeting(b"\5\0")


def test_socks_reply_tells_no_address():
    assert socks_reply(2) == b"\5\2\0\1\0\0\0\0\0\0"
