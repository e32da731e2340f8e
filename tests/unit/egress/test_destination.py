import pytest

from saggar.core.errors import ParseError
from saggar.egress.destination import Destination, parse_authority, parse_host, parse_port

GOOD = {
    b"api.allowed.test": "api.allowed.test",
    b"API.Allowed.TEST": "api.allowed.test",
    b"xn--bcher-kva.test": "xn--bcher-kva.test",
    b"a_b.test": "a_b.test",
    b"localhost": "localhost",
}

BAD = {
    # rows 5 to 9 of the behaviours
    b"api.allowed.test.": "bad_host_name",
    b"evil.test\0.wild.test": "bad_host_name",
    b"api.allowed.test\r": "bad_host_name",
    b"api.allowed.test\n": "bad_host_name",
    b"api allowed.test": "bad_host_name",
    b"api%00.test": "bad_host_name",
    b"api%2eallowed.test": "bad_host_name",
    b"api\\allowed.test": "bad_host_name",
    b"user@api.allowed.test": "bad_host_name",
    b"a,b.test": "bad_host_name",
    b"_a.test": "bad_host_name",
    b"a_.test": "bad_host_name",
    b"a..test": "bad_host_name",
    b".test": "bad_host_name",
    b"": "bad_host_name",
    b"a" * 64 + b".test": "bad_host_name",
    b"a." * 127 + b"test": "bad_host_name",
    "büch.test".encode(): "bad_host_name",
    "ａpi.test".encode(): "bad_host_name",
    "api\u00ad.test".encode(): "bad_host_name",
    "api。test".encode(): "bad_host_name",
    "①②⑦.⓪.⓪.①".encode(): "bad_host_name",
    b"127.1": "bad_host_name",
    b"0x7f000001": "bad_host_name",
    b"2130706433": "bad_host_name",
    b"0177.0.0.1": "bad_host_name",
    b"0": "bad_host_name",
    b"1.2.3.4.5": "bad_host_name",
    b"a.0x1": "bad_host_name",
    b"[api.allowed.test]": "ip_literal",
    b"[::1]": "ip_literal",
    b"::1%lo": "ip_literal",
    b"192.0.2.1": "ip_literal",
}


@pytest.mark.parametrize("raw", GOOD)
def test_parse_host(raw):
    assert parse_host(raw) == GOOD[raw]


@pytest.mark.parametrize("raw", BAD)
def test_parse_host_refuses(raw):
    with pytest.raises(ParseError) as caught:
        parse_host(raw)
    assert caught.value.reason == BAD[raw]


@pytest.mark.parametrize(
    ("raw", "default", "expected"),
    [
        (b"a.test", 80, ("a.test", 80)),
        (b"a.test:8080", 80, ("a.test", 8080)),
        (b"a.test:8080", None, ("a.test", 8080)),
        (b"a.test", None, "bad_port"),
        (b"a.test:", 80, "bad_port"),
        (b"a.test:0", 80, "bad_port"),
        (b"a.test:080", 80, "bad_port"),
        (b"a.test:65536", 80, "bad_port"),
        (b"a.test:+80", 80, "bad_port"),
        ("a.test:８０".encode(), 80, "bad_port"),
        (b"a.test:80:80", 80, "ip_literal"),
        (b"[::1]:80", 80, "ip_literal"),
        (b"u:p@a.test", 80, "bad_host_name"),
        (b"u@a.test:80", 80, "bad_host_name"),
        (b":80", 80, "bad_host_name"),
        (b"a" * 400, 80, "bad_host_name"),
    ],
)
def test_parse_authority(raw, default, expected):
    try:
        result = parse_authority(raw, default)
    except ParseError as e:
        result = e.reason
    assert result == expected


def test_parse_port_takes_ascii_digits_only():
    assert parse_port(b"443") == 443
    for raw in (b"", b"-1", b" 80", b"80 ", b"1e3", b"999999"):
        with pytest.raises(ParseError):
            parse_port(raw)


def test_authority_leaves_the_schemes_own_port_out():
    assert Destination("a.test", 443, "https").authority == "a.test"
    assert Destination("a.test", 80, "https").authority == "a.test:80"
    assert Destination("a.test", 80, "http").authority == "a.test"
    assert str(Destination("a.test", 80, "http")) == "a.test:80"
