"""CONNECT (RFC 9110, section 9.3.6) and SOCKS5 (RFC 1928): how a client that insists on a proxy names its destination.

I1  Bytes give a value, `NeedMore` or `ParseError`.
I2  Only names are taken: an address in CONNECT or SOCKS is `ip_literal`, as everywhere else.
I3  At most `MAX_HEAD` bytes are ever asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from saggar.core.errors import ParseError
from saggar.egress.client_hello import NeedMore
from saggar.egress.destination import parse_authority, parse_host

MAX_HEAD = 8 * 1024

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ConnectTarget:
    """host and port as asked for; size: bytes of the head, to be taken off the connection."""

    host: str
    port: int
    size: int


def parse_connect(data: bytes) -> ConnectTarget | NeedMore:
    """Read one CONNECT head from the front of `data`.

    Raises ParseError: `malformed_request`, `head_too_large`, or what `parse_authority` raises.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) >= MAX_HEAD:
            raise ParseError("the CONNECT head is too long", reason="head_too_large")
        return NeedMore(len(data) + 1)
    if end > MAX_HEAD:
        raise ParseError("the CONNECT head is too long", reason="head_too_large")
    lines = data[:end].split(b"\r\n")
    words = lines[0].split(b" ")
    if len(words) != 3 or words[0] != b"CONNECT" or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise ParseError("the CONNECT line is malformed", reason="malformed_request")
    host, port = parse_authority(words[1], None)
    for line in lines[1:]:
        _check_field(line, host, port)
    return ConnectTarget(host, port, end + 4)


def _check_field(line: bytes, host: str, port: int) -> None:
    name, colon, value = line.partition(b":")
    if not colon or not name or name.strip() != name or any(c < 0x21 or c > 0x7E for c in name):
        raise ParseError("a CONNECT header is malformed", reason="malformed_request")
    if any(c < 0x20 and c != 9 for c in value):
        raise ParseError("a CONNECT header is malformed", reason="malformed_request")
    lowered = name.lower()
    if lowered in (b"content-length", b"transfer-encoding"):
        raise ParseError("a CONNECT request has a body", reason="malformed_request")
    if lowered == b"host":
        # clients disagree on whether the port stands there; a different name never does
        named, _ = parse_authority(value.strip(b" \t"), port)
        if named != host:
            raise ParseError("Host and the CONNECT target differ", reason="name_mismatch")


SOCKS_NO_AUTH = b"\x05\x00"
SOCKS_NO_METHOD = b"\x05\xff"

#: RFC 1928, section 6
SOCKS_OK = 0
SOCKS_NOT_ALLOWED = 2
SOCKS_UNREACHABLE = 4
SOCKS_COMMAND_UNSUPPORTED = 7
SOCKS_ADDRESS_UNSUPPORTED = 8


def socks_reply(code: int) -> bytes:
    """A reply with a constant bound address: the broker's own says nothing to a cell."""
    return b"\x05" + bytes((code,)) + b"\x00\x01\x00\x00\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class Greeting:
    """anonymous: the client offers the method without authentication, the only one there is."""

    anonymous: bool
    size: int


def parse_greeting(data: bytes) -> Greeting | NeedMore:
    """Read the SOCKS5 greeting. Raises ParseError (`malformed_request`)."""
    if len(data) < 2:
        return NeedMore(2)
    if data[0] != 5 or data[1] == 0:
        raise ParseError("the SOCKS greeting is malformed", reason="malformed_request")
    total = 2 + data[1]
    if len(data) < total:
        return NeedMore(total)
    return Greeting(0 in data[2:total], total)


def parse_socks_request(data: bytes) -> ConnectTarget | NeedMore:
    """Read the SOCKS5 request. Raises ParseError: `malformed_request`, `method_refused` (BIND, UDP), `ip_literal`,
    `bad_host_name`, `bad_port`."""
    if len(data) < 5:
        return NeedMore(5)
    if data[0] != 5 or data[2] != 0 or data[3] not in (1, 3, 4):
        raise ParseError("the SOCKS request is malformed", reason="malformed_request")
    if data[1] != 1:
        raise ParseError("only the SOCKS command CONNECT is served", reason="method_refused")
    if data[3] != 3:
        raise ParseError("an address stands where a host name is needed", reason="ip_literal")
    end = 5 + data[4]
    if len(data) < end + 2:
        return NeedMore(end + 2)
    port = int.from_bytes(data[end : end + 2], "big")
    if not port:
        raise ParseError("the port is not a number of 1 to 65535", reason="bad_port")
    return ConnectTarget(parse_host(data[5:end]), port, end + 2)
