"""A streaming scanner that keeps our secrets out of what an upstream sends back.

I1  No rendering of a secret (`needles.renderings`) leaves the redactor, whatever the cuts between pieces.
I2  Lengths never change, so `Content-Length`, ranges and frame sizes stay true: a secret in its own form becomes the
    placeholder (cut or filled with `*`), any other rendering becomes `*`.
I3  More than half of a rendering does not leave either: what an answer ends with. Of a part (206) it is a quarter, at both
    ends: who chooses where parts begin and end gets a secret's first bytes with one and its last bytes with another.
I4  Bytes that cannot be the beginning of a rendering pass at once: an event stream is not delayed.
"""

from __future__ import annotations

from saggar.core.errors import ParseError
from saggar.egress.find import LONG, lies_in
from saggar.egress.needles import MIN_BYTES, Needles, renderings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Secrets:
    """Compiled once per secret version; shared by all streams of one host."""

    __slots__ = ("alike", "count", "needles")

    def __init__(self, secrets: Iterable[tuple[bytes, str]], *, basic_user: bytes = b"") -> None:
        """secrets: `(secret, placeholder or "")`. Raises ParseError for a secret too short to be told from chance."""
        pairs: dict[bytes, bytes] = {}
        self.count = 0
        for secret, placeholder in secrets:
            if len(secret) < MIN_BYTES:
                raise ParseError(
                    f"a secret of fewer than {MIN_BYTES} bytes cannot be kept out of answers", reason="secret_too_short"
                )
            self.count += 1
            for form in renderings(secret, basic_user=basic_user):
                shown = placeholder.encode()[: len(form)] if form == secret else b""
                pairs[form] = shown + b"*" * (len(form) - len(shown))
        self.needles = Needles(pairs)
        #: escapers leave a secret's first letters alone: what begins alike is looked for once
        self.alike = tuple((start, tuple((n, pairs[n]) for n in group)) for start, group in self.needles.alike())

    def clean(self, data: bytes) -> bytes:
        """`data` as a whole, redacted; the same object where there was nothing."""
        if len(data) < self.needles.least:
            return data
        if len(data) >= LONG:
            for start, pairs in self.alike:
                if lies_in(start, data):
                    data = _without(data, pairs)
            return data
        for start, pairs in self.alike:
            if start in data:
                data = _without(data, pairs)
        return data


def _without(data: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    for needle, shown in pairs:
        if needle in data:
            data = data.replace(needle, shown)
    return data


class Redactor:
    """One response body. `feed` gives what may pass now; `end` the rest. partial: it is a part of something (206), whose
    beginning may be the end of a secret."""

    __slots__ = ("_held", "_of", "_opening", "_secrets", "hits")

    def __init__(self, secrets: Secrets, *, partial: bool = False) -> None:
        self._secrets = secrets
        self._held = b""
        self._opening = partial
        self._of = 4 if partial else 2
        self.hits = 0

    def feed(self, piece: bytes) -> bytes:
        secrets = self._secrets
        data = self._held + piece if self._held else piece
        if self._opening:
            if len(data) < secrets.needles.hold:
                self._held = data
                return b""
            data = self._open(data)
        clean = secrets.clean(data)
        if clean is not data:
            self.hits += 1
        held = secrets.needles.held(clean)
        if held:
            self._held = clean[-held:]
            return clean[:-held]
        self._held = b""
        return clean

    def last(self, piece: bytes) -> bytes:
        """`feed` and `end` in one: nothing follows, so nothing need be held."""
        data = self._held + piece if self._held else piece
        self._held = b""
        if self._opening:
            data = self._open(data)
        clean = self._secrets.clean(data)
        if clean is not data:
            self.hits += 1
        needles = self._secrets.needles
        if needles.held(clean) and (begun := needles.begun(clean, of=self._of)):
            self.hits += 1
            clean = clean[:-begun] + b"*" * begun
        return clean

    def _open(self, data: bytes) -> bytes:
        """The first bytes of a part."""
        self._opening = False
        ended = self._secrets.needles.ended(data, of=self._of)
        if not ended:
            return data
        self.hits += 1
        return b"*" * ended + data[ended:]

    def clean(self, whole: bytes) -> bytes:
        """What stands beside the body (its trailers), redacted; nothing is held."""
        clean = self._secrets.clean(whole)
        if clean is not whole:
            self.hits += 1
        return clean

    def end(self) -> bytes:
        return self.last(b"")
