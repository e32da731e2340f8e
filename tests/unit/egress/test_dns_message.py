import pytest

from saggar.core.errors import ParseError
from saggar.egress import dns_message as dns


def query(name=b"\3api\4test\0", kind=1, *, id_=b"\x12\x34", flags=b"\1\0", counts=(1, 0, 0, 0), tail=b"", class_=1):
    head = id_ + flags + b"".join(c.to_bytes(2, "big") for c in counts)
    return head + name + kind.to_bytes(2, "big") + class_.to_bytes(2, "big") + tail


OPT = b"\0\0\x29\x04\xd0\0\0\0\0\0\0"

BAD = {
    "empty": b"",
    "short": b"\0" * 11,
    "too long": query(tail=b"\0" * 2000),
    "an answer": query(flags=b"\x81\0"),
    "no question": query(counts=(0, 0, 0, 0)),
    "two questions": query(counts=(2, 0, 0, 0)),
    "an answer record": query(counts=(1, 1, 0, 0)),
    "many additional": query(counts=(1, 0, 0, 9), tail=OPT * 9),
    "pointer": query(name=b"\xc0\x0c"),
    "pointer loop": query(name=b"\3api\xc0\x0c"),
    "label beyond the end": query(name=b"\x3fabc"),
    "no end of name": b"\0" * 2 + b"\1\0\0\1" + b"\0" * 6 + b"\3api",
    "name too long": query(
        name=b"\x3f" + b"a" * 63 + b"\x3f" + b"a" * 63 + b"\x3f" + b"a" * 63 + b"\x3f" + b"a" * 63 + b"\0"
    ),
    "dot in a label": query(name=b"\5a.b.c\0"),
    "chaos class": query(class_=3),
    "trailing bytes": query(tail=b"x"),
    "cut additional": query(counts=(1, 0, 0, 1), tail=b"\0\0\x29"),
}


@pytest.mark.parametrize("case", BAD)
def test_parse_refuses(case):
    with pytest.raises(ParseError):
        dns.parse_query(BAD[case])


def test_parse_reads_name_type_and_edns():
    parsed = dns.parse_query(query(kind=28, counts=(1, 0, 0, 1), tail=OPT))
    assert (parsed.name, parsed.type_name, parsed.edns, parsed.recursion) == (b"api.test", "AAAA", True, True)


def test_response_echoes_the_question_and_nothing_else():
    data = query(name=b"\3ApI\4tEsT\0", counts=(1, 0, 0, 1), tail=OPT)
    reply = dns.response(dns.parse_query(data), dns.NOERROR, (b"\xc6\x12\1\0",))
    assert reply == (
        b"\x12\x34\x81\x80\0\1\0\1\0\0\0\1" + b"\3ApI\4tEsT\0\0\1\0\1"
        b"\xc0\x0c\0\1\0\1\0\0\0\x14\0\4\xc6\x12\1\0" + b"\0\0\x29\x04\xd0\0\0\0\0\0\0"
    )


def test_failure_carries_the_id_alone():
    assert dns.failure(b"\x12\x34\1\0" + b"x" * 40) == b"\x12\x34\x80\x81" + b"\0" * 8
    assert dns.failure(b"short") is None
    assert dns.failure(query(flags=b"\x80\0")) is None
