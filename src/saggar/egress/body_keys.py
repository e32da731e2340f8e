"""Keys that are not this task's, in the body of a request to a host with our credential (`foreign_keys = "refuse"`).

I1  A key in the form that a known service issues is found however the body is cut, also with `\\u`-, `\\x`- or percent-escapes.
I2  A body that is to be read and cannot be (compressed, or in a charset that hides ASCII) is refused, not passed.
I3  Work is linear in the body, at most `HOLD` bytes are looked at twice, nothing is held back.

What it does not see: keys in no known form, in base64, in archives and images, or in pieces that the upstream puts together.
"""

from __future__ import annotations

import re

from saggar.egress.headers import KEY_FORMS
from saggar.egress.needles import unescape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: the longest form (a JWT's head is bounded below), each byte of a key of 42 escaped as `\\u00XX`
HOLD = 256

# In prose and code some forms of headers are too common: a certificate is no key, `s.` a method. 25 to 45 MB/s (measured).
_KEY = re.compile(
    KEY_FORMS.replace("-----BEGIN", "-----BEGIN [A-Z ]{0,20}PRIVATE KEY")
    .replace(r"|s\.[A-Za-z0-9]{24}", "")
    .replace(r"eyJ[A-Za-z0-9_\-]{8,}\.eyJ", r"eyJ[A-Za-z0-9_\-]{8,200}\.eyJ")
    .encode()
)
_TEXT = re.compile(
    rb"(?:text/|multipart/|application/(?:json|javascript|xml|yaml|x-yaml|graphql|x-ndjson|ndjson|jsonl|sql|x-www-form-urlencoded)\b)|[^;]*\+(?:json|xml|yaml)\b"
)
_CHARSETS = (b"utf-8", b"utf8", b"us-ascii", b"iso-8859-1", b"latin1", b"windows-1252")


def to_be_read(fields: Iterable[tuple[bytes, bytes]]) -> tuple[bool, str]:
    """Whether a body under these head fields (lower-case names) is looked at, and why it cannot be, "" where it can."""
    types = [v.lower() for n, v in fields if n == b"content-type"]
    if types and not any(_TEXT.match(t.strip()) for t in types):
        return False, ""
    codings = [v.strip().lower() for n, v in fields if n == b"content-encoding"]
    if any(c not in (b"", b"identity") for c in codings):
        return True, "a compressed body cannot be looked at"
    for kind in types:
        charset = kind.partition(b"charset=")[2].strip(b" \"'").partition(b";")[0].strip(b" \"'")
        if charset and charset not in _CHARSETS:
            return True, "the body's charset cannot be looked at"
    return True, ""


class KeyStream:
    """One body. Call `seen` with every piece in order, before it is forwarded."""

    __slots__ = ("_tail", "beginning")

    def __init__(self) -> None:
        self._tail = b""
        #: of the key that was found, as far as it tells its form: never to be shown or logged
        self.beginning = b""

    def seen(self, piece: bytes) -> bool:
        """Whether a key ends in `piece`."""
        # UTF-16 without a declaration is ASCII with NULs between
        window = self._tail + (piece.replace(b"\0", b"") if b"\0" in piece else piece)
        start = 1 if len(self._tail) == HOLD else 0
        self._tail = window[-HOLD:]
        # the byte before `start` was seen with the last piece: it says whether a word begins behind it
        found = _KEY.search(window, start)
        if found is None and (b"\\" in window or b"%" in window):
            plain = unescape(window)
            found = _KEY.search(plain, start) if plain is not None else None
        if found is None:
            return False
        self.beginning = found.group()
        return True

    def reason(self, placeholders: Iterable[str]) -> tuple[str, str]:
        """(reason, what is wrong) of what was found: a placeholder of the task's has a key's form as well."""
        if any(p.encode().startswith(self.beginning) for p in placeholders):
            return "canary", "a placeholder stands where it does not belong"
        return "foreign_credential", "a key that is not this task's stands in the body"
