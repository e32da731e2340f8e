"""The resolver's wire format inside a cell (RFC 1035, 6891, 9460), as far as a stub needs it.

I1  Bytes give a `Query` or `ParseError`, in time bounded by `MAX_QUERY` bytes.
I2  An answer holds only what the broker decided: no bytes of the query but its id, its question and its EDNS presence.
I3  No query leaves: the answers are synthetic addresses, nothing, or NXDOMAIN.
"""

from __future__ import annotations

from dataclasses import dataclass

from saggar.core.errors import ParseError

MAX_QUERY = 1232

A, PTR, AAAA, OPT, ANY = 1, 12, 28, 41, 255
_IN = 1
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = 0, 1, 2, 3, 4, 5

#: short, so that a name revoked or added while the task runs is asked for again
TTL_S = 20

_TYPES = {1: "A", 2: "NS", 5: "CNAME", 6: "SOA", 10: "NULL", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA", 33: "SRV"} | {
    64: "SVCB",
    65: "HTTPS",
    251: "IXFR",
    252: "AXFR",
    255: "ANY",
}


@dataclass(frozen=True, slots=True)
class Query:
    """name: the raw labels joined by dots, without the last one (b"" is the root). question: the bytes to echo."""

    id: int
    name: bytes
    type: int
    recursion: bool
    edns: bool
    opcode: int
    question: bytes

    @property
    def type_name(self) -> str:
        return _TYPES.get(self.type, f"TYPE{self.type}")


def parse_query(data: bytes) -> Query:
    """Read one query. Raises ParseError (`malformed_query`)."""
    if not 12 <= len(data) <= MAX_QUERY:
        raise _broken("the query has a forbidden length")
    flags = int.from_bytes(data[2:4], "big")
    counts = [int.from_bytes(data[at : at + 2], "big") for at in (4, 6, 8, 10)]
    if flags & 0x8000 or counts[0] != 1 or counts[1] or counts[2] or counts[3] > 2:
        raise _broken("the query's header is no query's")
    name, at = _name(data, 12)
    if len(data) < at + 4:
        raise _broken("the question is cut")
    kind, class_ = (int.from_bytes(data[i : i + 2], "big") for i in (at, at + 2))
    question = data[12 : at + 4]
    at += 4
    if class_ != _IN:
        raise _broken("the question's class is not IN")
    edns = False
    for _ in range(counts[3]):
        at, is_opt = _additional(data, at)
        edns = edns or is_opt
    if at != len(data):
        raise _broken("something follows the query")
    return Query(int.from_bytes(data[:2], "big"), name, kind, bool(flags & 0x0100), edns, flags >> 11 & 15, question)


def _broken(text: str) -> ParseError:
    return ParseError(text, reason="malformed_query")


def _name(data: bytes, at: int) -> tuple[bytes, int]:
    labels: list[bytes] = []
    start = at
    while True:
        if at >= len(data):
            raise _broken("the name is cut")
        size = data[at]
        at += 1
        if size == 0:
            return b".".join(labels), at
        # a pointer or an extended label has no place in a question's name
        if size > 63 or at + size > len(data) or at + size - start > 254:
            raise _broken("the name is malformed")
        label = data[at : at + size]
        if b"." in label:
            raise _broken("a label holds a dot")
        labels.append(label)
        at += size


def _additional(data: bytes, at: int) -> tuple[int, bool]:
    _, at = _name(data, at)
    if len(data) < at + 10:
        raise _broken("an additional record is cut")
    kind = int.from_bytes(data[at : at + 2], "big")
    end = at + 10 + int.from_bytes(data[at + 8 : at + 10], "big")
    if end > len(data):
        raise _broken("an additional record is cut")
    return end, kind == OPT


def response(query: Query, code: int, addresses: tuple[bytes, ...] = ()) -> bytes:
    """The answer: `code`, and one record for each packed address of 4 or 16 bytes."""
    flags = 0x8080 | (query.opcode << 11) | (0x0100 if query.recursion else 0) | code
    parts = [
        query.id.to_bytes(2, "big"),
        flags.to_bytes(2, "big"),
        b"\x00\x01",
        len(addresses).to_bytes(2, "big"),
        b"\x00\x00",
        b"\x00\x01" if query.edns else b"\x00\x00",
        query.question,
    ]
    for packed in addresses:
        kind = A if len(packed) == 4 else AAAA
        parts.append(b"\xc0\x0c" + kind.to_bytes(2, "big") + b"\x00\x01" + TTL_S.to_bytes(4, "big"))
        parts.append(len(packed).to_bytes(2, "big") + packed)
    if query.edns:
        parts.append(b"\x00\x00\x29" + MAX_QUERY.to_bytes(2, "big") + b"\x00\x00\x00\x00\x00\x00")
    return b"".join(parts)


def failure(data: bytes, code: int = FORMERR) -> bytes | None:
    """The answer to what did not parse: the id and the code, nothing of the rest. None where there is no id, or
    where it is itself an answer: two resolvers must not keep each other talking."""
    if len(data) < 12 or data[2] & 0x80:
        return None
    return data[:2] + (0x8080 | code).to_bytes(2, "big") + b"\x00" * 8
