"""Every parser of the egress wall: a value or `ParseError`, in bounded time, for whatever bytes.

I1 of client_hello, connect, dns_message, http_head, http_body, packet, destination; I3 of http_body.
"""

import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saggar.core.errors import ParseError
from saggar.egress import dns_message as dns
from saggar.egress.addresses import refusal
from saggar.egress.client_hello import MAX_HELLO, ClientHello, NeedMore
from saggar.egress.client_hello import parse as parse_hello
from saggar.egress.connect import MAX_HEAD, parse_connect, parse_greeting, parse_socks_request
from saggar.egress.destination import parse_authority, parse_host
from saggar.egress.first_flight import classify
from saggar.egress.http_body import ChunkedReader, chunk
from saggar.egress.http_head import find_end, parse_request, parse_response, write_request
from saggar.egress.packet import parse_reply

SETTINGS = settings(deadline=200, suppress_health_check=[HealthCheck.too_slow], max_examples=300)


def mutated(*seeds):
    """Bytes near to something valid: a seed with pieces cut, doubled, or replaced."""

    def change(data, at, count, new):
        at %= len(data) + 1
        return data[:at] + new + data[at + count :]

    near = st.builds(change, st.sampled_from(seeds), st.integers(0, 400), st.integers(0, 6), st.binary(max_size=8))
    return st.one_of(st.binary(max_size=600), near)


def _hello():
    name = b"api.allowed.test"
    sni = (
        b"\0\0"
        + (len(name) + 5).to_bytes(2, "big")
        + (len(name) + 3).to_bytes(2, "big")
        + b"\0"
        + len(name).to_bytes(2, "big")
        + name
    )
    body = b"\3\3" + b"r" * 32 + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(sni).to_bytes(2, "big") + sni
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\3\1" + len(message).to_bytes(2, "big") + message


REQUEST = b"POST /a?b HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\nX: y\r\n\r\n"
CONNECT = b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"
QUERY = b"\x12\x34\1\0\0\1\0\0\0\0\0\1\3api\4test\0\0\1\0\1\0\0\x29\4\xd0\0\0\0\0\0\0"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\n"

PARSERS = {
    "hello": (parse_hello, mutated(_hello())),
    "connect": (parse_connect, mutated(CONNECT)),
    "greeting": (parse_greeting, mutated(b"\5\2\0\1")),
    "socks": (parse_socks_request, mutated(b"\5\1\0\3\6a.test\1\xbb")),
    "query": (dns.parse_query, mutated(QUERY)),
    "request": (lambda d: parse_request(d + b"\r\n\r\n"), mutated(REQUEST[:-4])),
    "response": (lambda d: parse_response(d + b"\r\n\r\n", "GET"), mutated(RESPONSE[:-4])),
    "end": (find_end, mutated(REQUEST)),
    "host": (parse_host, mutated(b"api.allowed.test", b"xn--bcher-kva.test")),
    "authority": (lambda d: parse_authority(d, 80), mutated(b"api.allowed.test:443")),
    "packet": (parse_reply, mutated(b"\x45" + b"\0" * 60, b"\x60" + b"\0" * 80)),
    "chunked": (lambda d: ChunkedReader().feed(d), mutated(b"3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n")),
    "first flight": (lambda d: classify(d or b"x"), mutated(REQUEST, CONNECT)),
}


@pytest.mark.parametrize("name", PARSERS)
def test_a_value_or_parse_error(name):
    parser, data = PARSERS[name]

    @SETTINGS
    @given(data)
    def check(data):
        try:
            parser(data)
        except ParseError as e:
            assert e.reason

    check()


@SETTINGS
@given(mutated(_hello()))
def test_a_hello_never_asks_for_more_than_the_limit_or_for_nothing(data):
    try:
        result = parse_hello(data)
    except ParseError:
        return
    if isinstance(result, NeedMore):
        assert len(data) < result.total <= MAX_HELLO + 16384 + 5
    else:
        assert isinstance(result, ClientHello)
        assert result.size <= len(data)


@SETTINGS
@given(mutated(CONNECT))
def test_connect_asks_for_at_most_its_limit(data):
    try:
        result = parse_connect(data)
    except ParseError:
        return
    if isinstance(result, NeedMore):
        assert result.total <= MAX_HEAD


@SETTINGS
@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_chunked_gives_back_what_was_written_however_it_is_cut(pieces, cuts):
    wire = b"".join(chunk(p) for p in pieces) + b"0\r\n\r\nREST"
    reader, found, at, i = ChunkedReader(), b"", 0, 0
    while at < len(wire) and not reader.done:
        step = cuts[i % len(cuts)]
        found += b"".join(reader.feed(wire[at : at + step]))
        at, i = at + step, i + 1
    assert found == b"".join(pieces)
    assert reader.rest + wire[at:] == b"REST"


TOKEN = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=12)
VALUE = st.text(string.ascii_letters + string.digits + " ,;=/", max_size=20).map(str.strip)


@SETTINGS
@given(
    st.sampled_from(["GET", "POST", "DELETE"]),
    st.text(string.ascii_letters + string.digits + "/-._~%?=&", max_size=40),
    st.lists(st.tuples(TOKEN, VALUE), max_size=8),
)
def test_what_is_written_parses_to_the_same_request(method, path, fields):
    """I4 of http_head: one more round changes nothing."""
    named = [
        (n, v)
        for n, v in fields
        if n.lower() not in ("host", "content-length", "transfer-encoding", "expect", "upgrade")
    ]
    head = f"{method} /{path} HTTP/1.1\r\nHost: a.test\r\n" + "".join(f"{n}: {v}\r\n" for n, v in named) + "\r\n"
    first = parse_request(head.encode())
    again = parse_request(write_request(first, "a.test"))
    assert (again.method, again.target, again.host, again.port, again.body) == (
        first.method,
        first.target,
        first.host,
        first.port,
        first.body,
    )
    assert write_request(again, "a.test") == write_request(first, "a.test")


@SETTINGS
@given(mutated(QUERY))
def test_an_answer_is_never_longer_than_its_query_and_one_record(data):
    try:
        query = dns.parse_query(data)
    except ParseError:
        return
    assert len(dns.response(query, 0, (b"\0" * 4,))) <= len(data) + 16 + 11
    assert query.question in data


@SETTINGS
@given(st.integers(0, 2**32 - 1))
def test_an_embedded_address_is_refused_where_the_address_is(value):
    """I2 of addresses: mapped and translated forms are no way round."""
    from ipaddress import IPv4Address, IPv6Address

    plain = refusal(str(IPv4Address(value)))
    nat64 = refusal(str(IPv6Address((0x64FF9B << 96) | value)))
    assert bool(plain) == bool(nat64)
    for prefix in (0, 0xFFFF << 32, 0xFFFF << 48):
        assert refusal(str(IPv6Address(prefix | value)))


@SETTINGS
@given(st.binary(max_size=80))
def test_a_host_is_canonical_or_refused(raw):
    try:
        host = parse_host(raw)
    except ParseError:
        return
    assert parse_host(host.encode()) == host
    assert host == host.lower()
    assert not host.endswith(".")
