"""HTTP/1.1 bodies (RFC 9112, section 6 and 7): chunked coding read strictly, and written anew.

I1  Bytes give data or `ParseError` (`bad_framing`); what is held back is bounded by `_MAX_LINE` and `_MAX_TRAILERS`.
    Trailers are read as strictly as a head's fields.
I2  Chunk sizes are plain hexadecimal digits; extensions are read, bounded and dropped; every line ends in CRLF.
I3  The same bytes give the same data however they are cut into pieces.
"""

from __future__ import annotations

import re

from saggar.core.errors import ParseError
from saggar.egress.http_head import read_field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_LINE = 4096
_MAX_TRAILERS = 16 * 1024
_MAX_TRAILER_FIELDS = 64
_HEX = frozenset(b"0123456789abcdefABCDEF")
#: the size as everybody writes it: chunks of one byte cost 1.4 us each (measured)
_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})\r\n")


def _bad(text: str) -> ParseError:
    return ParseError(text, reason="bad_framing")


class ChunkedReader:
    """Feed bytes, get body data. `done` once the last chunk and its trailers were read; `rest` then holds what
    follows the message; `trailers` the fields behind the body, names in lower case (`trailers.py` says what passes)."""

    __slots__ = ("_held", "_left", "_state", "_trailer_bytes", "done", "rest", "trailers")

    def __init__(self) -> None:
        self._held = b""
        self._state = "size"
        self._left = 0
        self.done = False
        self.rest = b""
        self.trailers: list[tuple[bytes, bytes]] = []
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The body data in `data`, in order. Raises ParseError."""
        if self._held:
            data = self._held + data
        found: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.done:
            if self._state == "data":
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                found.append(piece)
                if not self._left:
                    self._state = "data_end"
            elif self._state == "data_end":
                end = data[at : at + 2]
                if not b"\r\n".startswith(end):
                    raise _bad("a chunk does not end in CRLF")
                if len(end) < 2:
                    break
                at += 2
                self._state = "size"
            elif self._state == "size" and (plain := _SIZE.match(data, at)) is not None:
                at = plain.end()
                self._left = int(plain[1], 16)
                self._state = "data" if self._left else "trailers"
            elif (after := self._line(data, at)) is not None:
                at = after
            else:
                break
        self._held = b"" if self.done else data[at:]
        if self.done:
            self.rest = data[at:]
        return found

    def _line(self, data: bytes, at: int) -> int | None:
        """Read the line at `at`: where the next one begins, None where it is not whole."""
        newline = data.find(b"\n", at)
        if newline >= 0 and (newline == at or data[newline - 1] != 13):
            raise _bad("a line ends in something other than CRLF")
        if newline < 0:
            if len(data) - at > _MAX_LINE:
                raise _bad("a chunk line is too long")
            return None
        line = data[at : newline - 1]
        if len(line) > _MAX_LINE or b"\r" in line or b"\0" in line:
            raise _bad("a chunk line is malformed")
        if self._state == "size":
            self._size(line)
        else:
            self._trailer(line)
        return newline + 1

    def _size(self, line: bytes) -> None:
        digits, _, _ = line.partition(b";")
        digits = digits.rstrip(b" \t") if b";" in line else digits
        if not digits or len(digits) > 12 or not _HEX.issuperset(digits):
            raise _bad("a chunk size is no hexadecimal number")
        self._left = int(digits, 16)
        self._state = "data" if self._left else "trailers"

    def _trailer(self, line: bytes) -> None:
        if not line:
            self.done = True
            return
        self._trailer_bytes += len(line)
        if self._trailer_bytes > _MAX_TRAILERS or len(self.trailers) >= _MAX_TRAILER_FIELDS:
            raise _bad("the trailers are too long")
        try:
            self.trailers.append(read_field(line))
        except ParseError as e:
            raise _bad(f"a trailer is malformed: {e}") from None


class LengthReader:
    """The same for a body of a known length."""

    __slots__ = ("_left", "done", "rest")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        if self.done:
            self.rest += data
            return []
        piece = data[: self._left]
        self._left -= len(piece)
        if not self._left:
            self.done = True
            self.rest = data[len(piece) :]
        return [piece]


class CloseReader:
    """The same for a response that ends with its connection: `done` is set by whoever sees the end."""

    __slots__ = ("done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        return [data]


def chunk(data: bytes) -> bytes:
    """One chunk; empty data would end the body, so it gives nothing."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


LAST_CHUNK = b"0\r\n\r\n"


def last_chunk(trailers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The end of a chunked body, with fields behind it."""
    return b"0\r\n%s\r\n" % b"".join([b"%s: %s\r\n" % t for t in trailers])
