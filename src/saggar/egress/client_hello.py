"""The first flight of a TLS client (RFC 8446, section 4.1.2; RFC 6066, section 3; RFC 9849).

I1  Bytes give a `ClientHello`, `NeedMore`, or `ParseError`; nothing else, whatever they are.
I2  At most `MAX_HELLO` bytes are ever asked for, and each call costs time in proportion to its input.
I3  A name is given only when exactly one stands there; a second one, a second extension of one type, or bytes that are
    left over make the message malformed: what we read must be what the server reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812  # it is a class

from saggar.core.errors import ParseError

_HANDSHAKE = 22
_CLIENT_HELLO = 1
_MAX_FRAGMENT = 1 << 14
#: of the handshake message; post-quantum key shares and many tickets stay below 8 KiB
MAX_MESSAGE = 32 * 1024
#: of the records that carry it
MAX_HELLO = MAX_MESSAGE + 8 * 1024

_SERVER_NAME = 0
_ALPN = 16
_ECH = 0xFE0D
#: extensions whose content is looked at
_READ = frozenset({_SERVER_NAME, _ALPN})
#: type and length
_EXTENSION = Struct(">HH").unpack_from


@dataclass(frozen=True, slots=True)
class NeedMore:
    """The message is not complete; come back with at least `total` bytes in all."""

    total: int


@dataclass(frozen=True, slots=True)
class ClientHello:
    """server_name: the raw bytes of the SNI host name, None without one. ech: an encrypted_client_hello is offered,
    real or GREASE (they cannot be told apart from outside). size: bytes of the records read."""

    server_name: bytes | None
    alpn: tuple[bytes, ...]
    ech: bool
    size: int


def parse(data: bytes) -> ClientHello | NeedMore:
    """Read the first flight from `data`, which starts at the first byte of the connection.

    Raises ParseError: `unknown_protocol` where it is no TLS handshake, `malformed_hello` where it is a broken one.
    """
    # nearly every hello is one record with one message in it
    size = len(data) > 9 and (data[3] << 8 | data[4])
    if (
        4 < size <= _MAX_FRAGMENT
        and len(data) >= 5 + size
        and data[:2] == b"\x16\x03"
        and data[2] <= 4
        and data[5:6] == b"\x01"
        and size == 4 + (data[6] << 16 | data[7] << 8 | data[8])
    ):
        return _body(data[9 : 5 + size], 5 + size)
    return _assembled(data)


def _assembled(data: bytes) -> ClientHello | NeedMore:
    """The same for a message in any number of records."""
    message = bytearray()
    at = 0
    while True:
        fragment = _fragment(data, at)
        if isinstance(fragment, NeedMore):
            return fragment
        message += fragment
        at += 5 + len(fragment)
        if len(message) >= 4:
            if message[0] != _CLIENT_HELLO:
                raise ParseError("the first handshake message is no ClientHello", reason="unknown_protocol")
            wanted = 4 + int.from_bytes(message[1:4], "big")
            if wanted > MAX_MESSAGE:
                raise ParseError("the hello is too long", reason="malformed_hello")
            if len(message) >= wanted:
                break
        if at > MAX_HELLO:
            raise ParseError("the hello is cut into too many records", reason="malformed_hello")
    if len(message) != wanted:
        raise ParseError("something follows the hello in its record", reason="malformed_hello")
    return _body(bytes(message[4:]), at)


def _fragment(data: bytes, at: int) -> bytes | NeedMore:
    header = data[at : at + 5]
    for index, allowed in ((0, (_HANDSHAKE,)), (1, (3,)), (2, (0, 1, 2, 3, 4))):
        if len(header) > index and header[index] not in allowed:
            raise ParseError("the bytes are no TLS handshake", reason="unknown_protocol")
    if len(header) < 5:
        return NeedMore(at + 5)
    size = int.from_bytes(header[3:5], "big")
    if not 0 < size <= _MAX_FRAGMENT:
        raise ParseError("the hello has a record of a forbidden length", reason="malformed_hello")
    end = at + 5 + size
    if len(data) < end:
        # a message that is too long is refused as soon as its length can be read, not after it was waited for
        if (
            at == 0
            and len(data) >= 9
            and data[5] == _CLIENT_HELLO
            and 4 + int.from_bytes(data[6:9], "big") > MAX_MESSAGE
        ):
            raise ParseError("the hello is too long", reason="malformed_hello")
        return NeedMore(end)
    return data[at + 5 : end]


def _short(what: str) -> ParseError:
    return ParseError(f"the hello's {what}", reason="malformed_hello")


def _skip(body: bytes, at: int, width: int, least: int, most: int) -> int:
    """Where the vector at `at` ends. Raises ParseError where its length is forbidden or beyond the end."""
    start = at + width
    size = int.from_bytes(body[at:start], "big")
    if start > len(body) or not least <= size <= most or start + size > len(body):
        raise _short("fields do not fit")
    return start + size


def _body(body: bytes, size: int) -> ClientHello:
    at = 2 + 32
    if len(body) <= at:
        raise _short("head is cut")
    at = _skip(body, at, 1, 0, 32)
    suites = at
    at = _skip(body, at, 2, 2, 0xFFFE)
    if (at - suites) % 2:
        raise _short("last cipher suite is cut")
    at = _skip(body, at, 1, 1, 255)
    if at == len(body):
        return ClientHello(None, (), ech=False, size=size)
    end = _skip(body, at, 2, 0, 0xFFFF)
    if end != len(body):
        raise _short("extensions are followed by something")
    found = _extensions(body, at + 2, end)
    name, protocols = found.get(_SERVER_NAME), found.get(_ALPN)
    return ClientHello(
        None if name is None else _server_name(name),
        () if protocols is None else _protocols(protocols),
        ech=_ECH in found,
        size=size,
    )


def _extensions(body: bytes, at: int, end: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    # on the path of every new connection, ten to twenty rounds
    try:
        while at < end:
            kind, size = _EXTENSION(body, at)
            content = at + 4
            at = content + size
            if kind in found:
                raise ParseError("the hello has one extension twice", reason="malformed_hello")
            found[kind] = body[content:at] if kind in _READ else b""
    except StructError:
        raise _short("last extension is cut") from None
    if at != end:
        raise _short("last extension is cut")
    return found


def _server_name(content: bytes) -> bytes:
    # list length, type, name length: one entry of the type host_name that fills the list
    if len(content) < 6 or content[2] != 0:
        raise _short("server name is not one host name")
    listed, size = int.from_bytes(content[:2], "big"), int.from_bytes(content[3:5], "big")
    if listed != len(content) - 2 or size != len(content) - 5:
        raise _short("server name is not one host name")
    return content[5:]


def _protocols(content: bytes) -> tuple[bytes, ...]:
    if len(content) < 4 or int.from_bytes(content[:2], "big") != len(content) - 2:
        raise _short("protocols do not fill their list")
    found: list[bytes] = []
    at = 2
    while at < len(content):
        end = _skip(content, at, 1, 1, 255)
        found.append(content[at + 1 : end])
        at = end
    return tuple(found)
