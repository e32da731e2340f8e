import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saggar.core.errors import ParseError
from saggar.egress.client_hello import MAX_MESSAGE, ClientHello, NeedMore, _assembled, parse
from saggar.testing.client_hello import ECH, alpn, body, hello, message, records, sni, vector

GOOD = {
    "plain": (hello(), b"api.allowed.test", (), False),
    "no name": (hello(None, alpn(b"h2")), None, (b"h2",), False),
    "no extensions": (records(message(body())), None, (), False),
    "alpn": (hello(b"a.test", alpn(b"h2", b"http/1.1")), b"a.test", (b"h2", b"http/1.1"), False),
    "ech": (hello(b"a.test", ECH), b"a.test", (), True),
    "one byte a record": (hello(b"a.test", size=1), b"a.test", (), False),
    "many records": (hello(b"a.test", (21, b"\0" * 5000), size=700), b"a.test", (), False),
    "bytes of a second flight": (hello(b"a.test") + b"\x14\x03\x03\0\1\1", b"a.test", (), False),
}

BAD = {
    "http": (b"GET / HTTP/1.1\r\n\r\n", "unknown_protocol"),
    "ssh": (b"SSH-2.0-x\r\n", "unknown_protocol"),
    "application data": (b"\x17\x03\x03\0\1x", "unknown_protocol"),
    "sslv2": (b"\x80\x2e\x01\0\x02", "unknown_protocol"),
    "version 2": (b"\x16\x02\0\0\1x", "unknown_protocol"),
    "server hello": (records(message(b"x" * 40, kind=2)), "unknown_protocol"),
    "empty record": (b"\x16\x03\x01\0\0", "malformed_hello"),
    "record too long": (b"\x16\x03\x01\xff\xff", "malformed_hello"),
    "empty message": (records(message(b"")), "malformed_hello"),
    "message too long": (records(b"\1" + (MAX_MESSAGE + 1).to_bytes(3, "big") + b"x" * 20), "malformed_hello"),
    "message far too long, first bytes": (b"\x16\x03\x01\x40\0\1\xff\xff\xff", "malformed_hello"),
    "two names": (records(message(body(sni(b"a.test", b"b.test")))), "malformed_hello"),
    "two extensions": (records(message(body(sni(b"a.test"), sni(b"b.test")))), "malformed_hello"),
    "two equal extensions": (records(message(body(sni(b"a.test"), alpn(b"h2"), alpn(b"h2")))), "malformed_hello"),
    "another name type": (records(message(body(sni(b"a.test", kind=1)))), "malformed_hello"),
    "empty name list": (records(message(body((0, vector(2, b""))))), "malformed_hello"),
    "empty name": (records(message(body(sni(b"")))), "malformed_hello"),
    "bytes after the name list": (records(message(body((0, vector(2, b"\0\0\1a") + b"x")))), "malformed_hello"),
    "extension beyond the end": (records(message(body()[:-0] + b"\0\5\0\0\0")), "malformed_hello"),
    "bytes after the extensions": (records(message(body(sni(b"a.test"), tail=b"x"))), "malformed_hello"),
    "half a suite": (records(message(body(suites=b"\x13\1\2"))), "malformed_hello"),
    "no suites": (records(message(body(suites=b""))), "malformed_hello"),
    "no compression": (records(message(body(compression=b""))), "malformed_hello"),
    "long session": (records(message(body(session=b"s" * 33))), "malformed_hello"),
    "a second message in the record": (records(message(body(sni(b"a.test"))) + message(b"y")), "malformed_hello"),
    "alpn with an empty name": (hello(b"a.test", alpn(b"")), "malformed_hello"),
}


@pytest.mark.parametrize("case", GOOD)
def test_parse(case):
    data, name, protocols, ech = GOOD[case]
    parsed = parse(data)
    assert isinstance(parsed, ClientHello)
    assert (parsed.server_name, parsed.alpn, parsed.ech) == (name, protocols, ech)


@pytest.mark.parametrize("case", GOOD)
def test_every_prefix_asks_for_more_and_never_for_too_much(case):
    data = GOOD[case][0]
    size = parse(data).size
    for cut in range(1, size):
        more = parse(data[:cut])
        assert isinstance(more, NeedMore)
        assert cut < more.total <= size


@pytest.mark.parametrize("case", BAD)
def test_parse_refuses(case):
    data, reason = BAD[case]
    with pytest.raises(ParseError) as caught:
        parse(data)
    assert caught.value.reason == reason


def test_reads_what_openssl_writes():
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="api.allowed.test")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    parsed = parse(out.read())
    assert (parsed.server_name, parsed.alpn) == (b"api.allowed.test", (b"h2", b"http/1.1"))


def outcome(function, data):
    try:
        return function(data)
    except ParseError as e:
        return e.reason


@given(st.sampled_from([c[0] for c in GOOD.values()] + [c[0] for c in BAD.values()]), st.data())
def test_the_short_way_is_the_long_way(data, draw):
    """One record with one message is read at once; what comes of it is what comes of reading record by record."""
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(0, 3))):
        at = draw.draw(st.integers(0, min(len(changed), 120) - 1))
        changed[at] = draw.draw(st.integers(0, 255))
    changed = bytes(changed[: draw.draw(st.integers(1, len(changed)))])
    assert outcome(parse, changed) == outcome(_assembled, changed)
