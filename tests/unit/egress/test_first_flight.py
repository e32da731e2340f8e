import pytest

from saggar.egress.client_hello import NeedMore
from saggar.egress.first_flight import CONNECT, HTTP, SOCKS, TLS, UNKNOWN, classify


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x16", TLS),
        (b"\x05\x01\x00", SOCKS),
        (b"\x04\x01", UNKNOWN),
        (b"GET / HTTP/1.1\r\n", HTTP),
        (b"GET / HTTP/1.1\n", HTTP),
        (b"FROB / HTTP/1.1\r\n", HTTP),
        (b"CONNECT a.test:443 HTTP/1.1\r\n", CONNECT),
        (b"PRI * HTTP/2.0\r\n", HTTP),
        (b"GE", NeedMore(3)),
        (b"GET / HT", NeedMore(9)),
        (b"GET " + b"a" * 30000, HTTP),
        (b"SSH-2.0-OpenSSH_9\r\n", UNKNOWN),
        (b"EHLO a.test\r\n", UNKNOWN),
        (b"QUIT\r\n", UNKNOWN),
        (b"get / HTTP/1.1\r\n", UNKNOWN),
        (b"A" * 40, UNKNOWN),
        (b"\r\n", UNKNOWN),
        (b"\0", UNKNOWN),
        (b"\x80\x2e\x01", UNKNOWN),
    ],
)
def test_classify(data, expected):
    assert classify(data) == expected
