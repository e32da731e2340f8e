"""The first flight of a TLS client (RFC 8446, section 4.1.2; RFC 6066, section 3; RFC 9849).

I1  Bytes give a `ClientHello`, `NeedMore`, or `ParseError`; nothing else, whatever they are.
I2  At most `MAX_HELLO` bytes are ever asked for, and each call costs time in proportion to its input.
I3  A name is given only when exactly one stands there; a second one, a second extension of one type, or bytes that are
    left over make the message malformed: what we read must be what the server reads.
"""

from __future__ import annotations

from dataclasses import dataclass

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


class _Reader:
    """A cursor that never reads past its end."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._end = len(data)

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > self._end:
            raise ParseError("the hello ends inside a field", reason="malformed_hello")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int, least: int, most: int) -> bytes:
        size = self.number(width)
        if not least <= size <= most:
            raise ParseError("the hello has a field of a forbidden length", reason="malformed_hello")
        return self.take(size)

    @property
    def left(self) -> int:
        return self._end - self._at


def parse(data: bytes) -> ClientHello | NeedMore:
    """Read the first flight from `data`, which starts at the first byte of the connection.

    Raises ParseError: `unknown_protocol` where it is no TLS handshake, `malformed_hello` where it is a broken one.
    """
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


def _body(body: bytes, size: int) -> ClientHello:
    reader = _Reader(body)
    reader.take(2 + 32)
    reader.vector(1, 0, 32)
    if len(reader.vector(2, 2, 0xFFFE)) % 2:
        raise ParseError("the hello has half a cipher suite", reason="malformed_hello")
    reader.vector(1, 1, 255)
    name: bytes | None = None
    alpn: tuple[bytes, ...] = ()
    ech = False
    if reader.left:
        extensions = _Reader(reader.vector(2, 0, 0xFFFF))
        seen: set[int] = set()
        while extensions.left:
            kind = extensions.number(2)
            content = extensions.vector(2, 0, 0xFFFF)
            if kind in seen:
                raise ParseError("the hello has one extension twice", reason="malformed_hello")
            seen.add(kind)
            if kind == _SERVER_NAME:
                name = _server_name(content)
            elif kind == _ALPN:
                alpn = _protocols(content)
            elif kind == _ECH:
                ech = True
    if reader.left:
        raise ParseError("something follows the hello's extensions", reason="malformed_hello")
    return ClientHello(name, alpn, ech, size)


def _server_name(content: bytes) -> bytes:
    outer = _Reader(content)
    names = _Reader(outer.vector(2, 1, 0xFFFF))
    if outer.left or names.number(1) != 0:
        raise ParseError("the hello's server name is not one host name", reason="malformed_hello")
    name = names.vector(2, 1, 0xFFFF)
    if names.left:
        raise ParseError("the hello has two server names", reason="malformed_hello")
    return name


def _protocols(content: bytes) -> tuple[bytes, ...]:
    outer = _Reader(content)
    names = _Reader(outer.vector(2, 2, 0xFFFF))
    if outer.left:
        raise ParseError("something follows the hello's protocols", reason="malformed_hello")
    found: list[bytes] = []
    while names.left:
        found.append(names.vector(1, 1, 255))
    return tuple(found)
