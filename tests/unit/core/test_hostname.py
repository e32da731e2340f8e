"""Host names: every refusal by its reason, on the wire and in a policy."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from saggar.core.errors import ParseError
from saggar.core.hostname import canonical_host, canonical_wire_host

GOOD = [
    (b"api.allowed.test", "api.allowed.test"),
    (b"API.Allowed.TEST", "api.allowed.test"),
    (b"localhost", "localhost"),
    (b"a", "a"),
    (b"my_bucket.example.test", "my_bucket.example.test"),
    (b"r3---sn-4g5e.example.test", "r3---sn-4g5e.example.test"),
    (b"1.2.3.4.example", "1.2.3.4.example"),
    (b"3com.test", "3com.test"),
    (b"0xdeadbeefz", "0xdeadbeefz"),
    (b"xn--bcher-kva.example", "xn--bcher-kva.example"),
    (b"XN--BCHER-KVA.example", "xn--bcher-kva.example"),
    (b"a" * 63 + b".test", "a" * 63 + ".test"),
    (b".".join([b"a" * 49] * 5) + b".tst", ".".join(["a" * 49] * 5) + ".tst"),
]

BAD = [
    (b"", "host_empty"),
    (b".", "host_empty_label"),
    (b"api.allowed.test.", "host_trailing_dot"),
    (b"api.allowed.test..", "host_empty_label"),
    (b".api.allowed.test", "host_empty_label"),
    (b"api..test", "host_empty_label"),
    (b"evil.test\0.wild.test", "host_byte"),
    (b"127.0.0.1\0.wild.test", "host_byte"),
    (b"a\r.test", "host_byte"),
    (b"a\n.test", "host_byte"),
    (b"a\t.test", "host_byte"),
    (b"a .test", "host_byte"),
    (b" a.test", "host_byte"),
    (b"a%00.test", "host_byte"),
    (b"a%2etest", "host_byte"),
    (b"a\\b.test", "host_byte"),
    (b"user@a.test", "host_byte"),
    (b"a.test,b.test", "host_byte"),
    (b"a/b.test", "host_byte"),
    (b"a.test:443", "host_byte"),
    (b"a.test#x", "host_byte"),
    (b"a?.test", "host_byte"),
    (b"*.wild.test", "host_byte"),
    (b"a\x7f.test", "host_byte"),
    (b"_a.test", "host_underscore"),
    (b"a_.test", "host_underscore"),
    (b"-a.test", "host_hyphen"),
    (b"a-.test", "host_hyphen"),
    (b"a" * 64 + b".test", "host_label_too_long"),
    (b".".join([b"a" * 49] * 5) + b".test", "host_too_long"),
    (b"a." * 5000, "host_too_long"),
    ("bücher.test".encode(), "host_non_ascii"),
    ("ａpi.test".encode(), "host_non_ascii"),
    ("a\u00adb.test".encode(), "host_non_ascii"),
    ("a\u200bb.test".encode(), "host_non_ascii"),
    ("api。test".encode(), "host_non_ascii"),
    ("①②⑦.⓪.⓪.①".encode(), "host_non_ascii"),
    (b"\xff", "host_non_ascii"),
    (b"192.0.2.1", "host_ip_literal"),
    (b"127.0.0.1", "host_ip_literal"),
    (b"::1", "host_ip_literal"),
    (b"[::1]", "host_ip_literal"),
    (b"[::ffff:127.0.0.1]", "host_ip_literal"),
    (b"::1%lo", "host_byte"),
    (b"[api.allowed.test]", "host_byte"),
    (b"[v1.x]", "host_byte"),
    (b"127.1", "host_numeric"),
    (b"2130706433", "host_numeric"),
    (b"0177.0.0.1", "host_numeric"),
    (b"127.0.0.01", "host_numeric"),
    (b"256.0.0.1", "host_numeric"),
    (b"1.2.3.4.5", "host_numeric"),
    (b"0", "host_numeric"),
    (b"0x7f000001", "host_numeric"),
    (b"0X7F.1.0x1", "host_numeric"),
    (b"0x", "host_numeric"),
    (b"api.allowed.0x1", "host_numeric"),
    (b"api.allowed.9", "host_numeric"),
    (b"xn--", "host_hyphen"),
    (b"xn--a.test", "host_punycode"),
    (b"xn--abc-.test", "host_hyphen"),
    (b"xn--99999999.test", "host_punycode"),
    (b"xn--abc.xn--0", "host_punycode"),
    (b"xn--localhost-.test", "host_hyphen"),
    (b"xn--a_b-kva.test", "host_punycode"),
]


@pytest.mark.parametrize(("raw", "host"), GOOD)
def test_wire_names_that_are_names(raw, host):
    assert canonical_wire_host(raw) == host


@pytest.mark.parametrize(("raw", "reason"), BAD)
def test_wire_names_that_are_not(raw, reason):
    with pytest.raises(ParseError) as e:
        canonical_wire_host(raw)
    assert e.value.reason == reason


CONFIG = [
    ("bücher.example", "xn--bcher-kva.example"),
    ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ("straße.example", "xn--strae-oqa.example"),
    ("例え.テスト", "xn--r8jz45g.xn--zckzah"),
    ("παράδειγμα.δοκιμή", "xn--hxajbheg2az3al.xn--jxalpdlp"),
    ("مثال.إختبار", "xn--mgbh0fb.xn--kgbechtv"),
    ("उदाहरण.परीक्षा", "xn--p1b6ci4b4b3a.xn--11b5bs3a9aj6g"),
    ("*.wild.test", "*.wild.test"),
    ("*.WILD.test", "*.wild.test"),
    ("*.bücher.example", "*.xn--bcher-kva.example"),
]


@pytest.mark.parametrize(("text", "host"), CONFIG)
def test_configured_names(text, host):
    assert canonical_host(text, allow_wildcard=True) == host
    assert canonical_host(host, allow_wildcard=True) == host


CONFIG_BAD = [
    ("", "host_empty"),
    ("*", "host_wildcard"),
    ("*.", "host_wildcard"),
    ("*.com", "host_wildcard"),
    ("*..com", "host_wildcard"),
    ("**.wild.test", "host_wildcard"),
    ("*.*.test", "host_wildcard"),
    ("a*b.test", "host_wildcard"),
    ("api.*.test", "host_wildcard"),
    ("api.test.*", "host_wildcard"),
    ("*wild.test", "host_wildcard"),
    ("*.wild.test.", "host_trailing_dot"),
    ("*.127.0.0.1", "host_ip_literal"),
    ("*." + ".".join(["a" * 49] * 5) + ".ab", "host_too_long"),
    ("Bücher.example", "host_idna"),
    ("bu\u0308cher.example", "host_idna"),
    ("ａpi.example", "host_idna"),
    ("a\u00adb.example", "host_idna"),
    ("a\u200bb.example", "host_idna"),
    ("a\u200db.example", "host_idna"),
    ("a\ufe0fb.example", "host_idna"),
    ("api。example", "host_idna"),
    ("①②⑦.⓪.⓪.①", "host_idna"),
    ("😀.example", "host_idna"),
    ("\u0301a.example", "host_idna"),
    ("ab--ü.example", "host_idna"),
    ("-ü.example", "host_idna"),
    ("ü_.example", "host_idna"),
    ("aא.example", "host_idna"),
    ("אa.example", "host_idna"),
    ("a\0ü.example", "host_idna"),
    ("\ud800.example", "host_idna"),
    ("xn--ls8h.example", "host_punycode"),
    ("ü" * 63 + ".example", "host_label_too_long"),
]


@pytest.mark.parametrize(("text", "reason"), CONFIG_BAD)
def test_configured_names_refused(text, reason):
    with pytest.raises(ParseError) as e:
        canonical_host(text, allow_wildcard=True)
    assert e.value.reason == reason
    str(e.value).encode()


def test_wildcard_only_where_asked_for():
    with pytest.raises(ParseError) as e:
        canonical_host("*.wild.test")
    assert e.value.reason == "host_wildcard"


LDH = set(string.ascii_lowercase + string.digits + "-_.")
hostish = st.one_of(
    st.binary(max_size=80),
    st.text(st.sampled_from("aAz09-_.x[]:%\0 *"), max_size=40).map(str.encode),
    st.text(st.sampled_from("abc019-"), max_size=30).map(lambda t: b"xn--" + t.encode()),
    st.lists(st.sampled_from(["xn--", "0x", "127", "a", "é", "_", "-", ""]), max_size=6).map(
        lambda p: ".".join(p).encode()
    ),
)


@given(hostish)
@example(b"xn--a-")
@example(b"xn--" + b"9" * 59)
def test_i1_i2_i4_wire(raw):
    try:
        host = canonical_wire_host(raw)
    except ParseError as e:
        assert e.reason.startswith("host_")
        return
    assert set(host) <= LDH
    assert len(host) <= 253
    assert all(0 < len(label) <= 63 for label in host.split("."))
    assert not host.rsplit(".", 1)[-1].isdigit()
    assert canonical_wire_host(host.encode()) == host
    assert canonical_wire_host(raw.swapcase()) == host
    assert canonical_host(host) == host


@given(st.text(max_size=40) | st.text(st.characters(categories=["L", "M", "N"]), max_size=20))
def test_i1_i2_i4_configured(text):
    try:
        host = canonical_host(text, allow_wildcard=True)
    except ParseError as e:
        assert e.reason.startswith("host_")
        return
    assert set(host.removeprefix("*.")) <= LDH
    assert canonical_host(host, allow_wildcard=True) == host


def test_i4_linear_time():
    start = time.perf_counter()
    for raw in (b"a." * 500_000, b"xn--" + b"9" * 500_000, b"\xff" * 1_000_000, b"[" * 1_000_000, b"." * 1000):
        with pytest.raises(ParseError):
            canonical_wire_host(raw)
    assert time.perf_counter() - start < 0.5
