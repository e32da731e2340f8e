"""WebSocket frames, read as far as the wall needs (RFC 6455 section 5).

I1  Only well-formed frames pass: known opcodes, no reserved bits (no extension was agreed), lengths in their shortest form,
    control frames whole and short; client frames masked, server frames not.
I2  Payloads can be looked at: `feed` gives them unmasked, beside the very bytes to forward.
I3  A reader holds back at most one frame header (14 bytes).
"""

from __future__ import annotations

import base64
import hashlib

from saggar.core.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from saggar.egress.needles import Needles

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KNOWN = frozenset({0x0, 0x1, 0x2, 0x8, 0x9, 0xA})


def accept_value(key: bytes) -> bytes:
    """What a server must answer to `Sec-WebSocket-Key` (RFC 6455 section 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


def valid_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        return False


class FrameReader:
    """One direction. masked: frames of a client. `frames` counts frames, `closing` tells that a close frame passed."""

    __slots__ = ("_at", "_buffer", "_left", "_mask", "_masked", "_open", "closing", "control", "frames")

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        self._buffer = b""
        self._left = 0
        self._mask = b""
        self._at = 0
        self._open = False
        self.frames = 0
        self.closing = False
        #: the frame that was read last is a control frame
        self.control = False

    @property
    def between(self) -> bool:
        """Whether what was read ends with a message's end."""
        return not (self._left or self._buffer or self._open)

    def feed(self, data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """([(header, plain payload piece)], bytes). The pieces in order; the bytes are those of `data` (and of what was held)
        that may be forwarded as they came. Raises ParseError (`bad_frame`)."""
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        pieces: list[tuple[bytes, bytes]] = []
        at, size = 0, len(data)
        while at < size:
            if self._left:
                part = data[at : at + self._left]
                pieces.append((b"", self._plain(part)))
                self._left -= len(part)
                at += len(part)
                continue
            header = self._header(data, at)
            if header is None:
                self._buffer = data[at:]
                break
            pieces.append((data[at : at + header], b""))
            at += header
        return pieces, data[:at]

    def _plain(self, part: bytes) -> bytes:
        if not self._masked:
            return part
        shift = self._at % 4
        self._at += len(part)
        return unmask(part, self._mask[shift:] + self._mask[:shift])

    def _header(self, data: bytes, at: int) -> int | None:
        """Length of the header at `at`, None where it is not whole; sets what the payload needs."""
        if len(data) - at < 2:
            return None
        first, second = data[at], data[at + 1]
        opcode, masked, length = first & 0x0F, bool(second & 0x80), second & 0x7F
        if first & 0x70 or opcode not in _KNOWN:
            raise ParseError("a frame has a reserved bit or an unknown opcode", reason="bad_frame")
        if masked != self._masked:
            raise ParseError("a frame is masked in the wrong direction", reason="bad_frame")
        if opcode >= 8 and (length > 125 or not first & 0x80):
            raise ParseError("a control frame is long or in pieces", reason="bad_frame")
        extra = 2 if length == 126 else 8 if length == 127 else 0
        total = 2 + extra + (4 if masked else 0)
        if len(data) - at < total:
            return None
        if extra:
            length = int.from_bytes(data[at + 2 : at + 2 + extra], "big")
            if length >> 63 or length < (126 if extra == 2 else 65536):
                raise ParseError("a frame's length is not in its shortest form", reason="bad_frame")
        self._mask = data[at + total - 4 : at + total] if masked else b""
        self._left = length
        self._at = 0
        self.frames += 1
        self.closing = self.closing or opcode == 8
        self.control = opcode >= 8
        if not self.control:
            self._open = not first & 0x80
        return total


class Lanes:
    """Tells the payload of messages from that of control frames, which may stand between two pieces of a message."""

    __slots__ = ("_in_control",)

    def __init__(self) -> None:
        self._in_control = False

    def apart(self, parts: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
        """parts: what `FrameReader.feed` gave. (of messages, of control frames)"""
        messages: list[bytes] = []
        control: list[bytes] = []
        for header, payload in parts:
            if header:
                self._in_control = bool(header[0] & 0x08)
            else:
                (control if self._in_control else messages).append(payload)
        return b"".join(messages), b"".join(control)


#: what waits at most, most of it pings that came while a message stood still
_MAX_HELD = 64 * 1024


class FrameSieve:
    """What of an upstream's frames may go on.

    Held back are payload bytes that could begin a rendering of the secret, as in a body (`redact`), but only while a message
    is under way: who waits for a whole one gets it. More than half of a rendering at a message's end counts as all of it.
    """

    __slots__ = ("_control", "_held", "_in_control", "_needles", "_tail")

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        #: payload of messages that went on, as much as could belong to a rendering; and of control frames, which may stand
        #: between two pieces of a message
        self._tail = b""
        self._control = b""
        self._in_control = False
        #: (bytes, they are payload of a message) that wait
        self._held: list[tuple[bytes, bool]] = []

    def feed(self, parts: Iterable[tuple[bytes, bytes]], reader: FrameReader) -> bytes | None:
        """parts: what `reader.feed` gave just now. What may go on, None where the secret is in it. Raises ParseError."""
        needles = self._needles
        for header, payload in parts:
            if header:
                self._in_control = bool(header[0] & 0x08)
            elif self._in_control:
                self._control = (self._control + payload)[-needles.hold - len(payload) :]
                if needles.found(self._control) or (needles.held(self._control) and needles.begun(self._control)):
                    return None
            self._held.append((header or payload, not header and not self._in_control))
        plain = self._tail + b"".join([raw for raw, counts in self._held if counts])
        if needles.found(plain):
            return None
        keep = needles.held(plain)
        if keep and reader.between:
            if needles.begun(plain):
                return None
            keep = 0
        keep = min(keep, len(plain) - len(self._tail))
        self._tail = plain[: len(plain) - keep][-needles.hold :]
        return self._release(keep)

    def _release(self, keep: int) -> bytes:
        """What stands before the last `keep` bytes of payload."""
        held = self._held
        if not keep:
            self._held = []
            return b"".join([raw for raw, _ in held])
        at = len(held)
        while keep > 0:
            at -= 1
            keep -= len(held[at][0]) if held[at][1] else 0
        first = held[at][0]
        passing = -keep  # of the first one's bytes
        self._held = [(first[passing:], True), *held[at + 1 :]]
        if sum(len(raw) for raw, _ in self._held) > _MAX_HELD:
            raise ParseError("too many control frames within a message", reason="bad_frame")
        return b"".join([*(raw for raw, _ in held[:at]), first[:passing]])


def unmask(data: bytes, mask: bytes) -> bytes:
    """XOR with the repeated mask, as one number: some 1 GB/s where a loop does 10 MB/s."""
    size = len(data)
    whole = mask * (size // 4 + 1)
    return (int.from_bytes(data, "little") ^ int.from_bytes(whole[:size], "little")).to_bytes(size, "little")
