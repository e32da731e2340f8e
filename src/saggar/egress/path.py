"""The request target, as policy sees it and as it is sent: one canonical form, or refused.

I1  A target has exactly one canonical form; `canonical(canonical(x)) == canonical(x)`.
I2  The bytes that a rule matched are the bytes that go upstream.
I3  Whatever two servers might read differently (segments that climb, encoded dots, empty segments, `;` parameters, encoded separators,
    double encoding, backslashes, fragments, non-ASCII, control bytes, overlong or broken UTF-8, characters that a server
    which normalises would take for a separator or a dot segment) has no canonical form: `ParseError`.

RFC 3986 sections 3.3, 3.4, 6.2.2; RFC 9112 section 3.2. Time is linear in the target.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from saggar.core.errors import ParseError

#: Longer targets are refused before anything looks at them (RFC 9112 asks for at least 8000).
LIMIT_BYTES = 16 * 1024

_UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
# pchar of RFC 3986 less `;`, which some servers cut a path at
_PATH = re.compile(rb"/[A-Za-z0-9\-._~!$&'()*+,=:@%/]*")
# no escape and no segment that begins with a dot: nothing further to look at
_PATH_PLAIN = re.compile(rb"(?:/[A-Za-z0-9\-_~!$&'()*+,=:@][A-Za-z0-9\-._~!$&'()*+,=:@]*)*/?")
# query characters, and those that clients send raw although RFC 3986 wants them encoded
_QUERY = re.compile(rb"[A-Za-z0-9\-._~!$&'()*+,=:@%/?;\[\]{}|^`\"<>]*")
_QUERY_PLAIN = re.compile(rb"[A-Za-z0-9\-._~!$&'()*+,=:@/?;]*")
_RAW_IN_QUERY = re.compile(rb"[\[\]{}|^`\"<>]")
_ESCAPE = re.compile(rb"%(..?)?", re.DOTALL)
_HEX2 = re.compile(rb"[0-9A-Fa-f]{2}")
_HIGH = re.compile(rb"%[89A-F]")
# what decoders that forgive read as ASCII or NUL: lead bytes of overlong forms (RFC 3629, section 3)
_OVERLONG = re.compile(rb"%(?:C[01]|E0%[89]|F0%8|F8|FC)")

# octets that must not hide behind an escape in a path, and the reason that the log gives
_HIDDEN = {
    0x2F: "path_encoded_slash",
    0x5C: "path_backslash",
    0x25: "path_double_encoding",
    0x3B: "path_parameters",
    0x23: "path_fragment",
    0x3F: "path_encoded_query",
}


@dataclass(frozen=True, slots=True)
class Target:
    """path: canonical, begins with `/`. query: canonical, without `?`, None where the target had none.
    raw: what is written on the request line."""

    path: bytes
    query: bytes | None
    raw: bytes

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Decoded query pairs in order. Split at `&` and at `;`, since servers differ: a name that hides behind
        a `;` is seen as well."""
        return query_pairs(self.query) if self.query else ()

    @property
    def whole_pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs as a server reads them that splits at `&` alone, where that makes a difference."""
        return query_pairs(self.query, split=b"&") if self.query and b";" in self.query else ()


def _refuse(message: str, reason: str) -> ParseError:
    return ParseError(message, reason=reason)


def _escape_in_path(match: re.Match[bytes], *, keep_slash: bool) -> bytes:
    digits = match.group(1)
    if digits is None or not _HEX2.fullmatch(digits):
        raise _refuse("a `%` without two hex digits in the path", "path_bad_escape")
    value = int(digits, 16)
    if value == 0x2E:
        raise _refuse("an encoded dot in the path", "path_dot_segment")
    if value in _UNRESERVED:
        return bytes((value,))
    if value < 0x20 or value == 0x7F:
        raise _refuse("an encoded control byte in the path", "path_control")
    if value >= 0x80:
        return b"%" + digits.upper()
    reason = _HIDDEN.get(value)
    if reason is not None and not (value == 0x2F and keep_slash):
        raise _refuse("an encoded separator in the path", reason)
    return b"%" + digits.upper()


def _escape_in_query(match: re.Match[bytes]) -> bytes:
    digits = match.group(1)
    if digits is None or not _HEX2.fullmatch(digits):
        raise _refuse("a `%` without two hex digits in the query", "query_bad_escape")
    value = int(digits, 16)
    if value in (0x00, 0x0A, 0x0D):
        raise _refuse("an encoded control byte in the query", "query_control")
    return bytes((value,)) if value in _UNRESERVED else b"%" + digits.upper()


def _why_not(path: bytes) -> ParseError:
    """Name the byte that kept a path from the allowed alphabet."""
    if not path.startswith(b"/"):
        return _refuse("the target does not begin with `/`", "path_not_absolute")
    if b"\\" in path:
        return _refuse("a backslash in the path", "path_backslash")
    if b";" in path:
        return _refuse("a `;` in the path", "path_parameters")
    if any(b >= 0x80 for b in path):
        return _refuse("a raw byte beyond ASCII in the path", "path_not_ascii")
    if any(b <= 0x20 or b == 0x7F for b in path):
        return _refuse("a control byte or space in the path", "path_control")
    return _refuse("a byte in the path that must be percent-encoded", "path_bad_byte")


def _check_text(path: bytes) -> None:
    """Escapes beyond ASCII, in canonical spelling: strict UTF-8, and nothing that folds to a separator or a dot segment."""
    if not _HIGH.search(path):
        return
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise _refuse("the path's escapes are not UTF-8", "path_not_utf8") from None
    # NFKC makes `/` of U+FF0F, `..` of U+2025: a server that normalises after routing would see another path
    folded = unicodedata.normalize("NFKC", text)
    if folded.count("/") != text.count("/") or "\\" in folded or any(s in (".", "..") for s in folded.split("/")[1:]):
        raise _refuse("a character in the path that folds to a separator or a dot", "path_lookalike")


def _check_segments(path: bytes, *, keep_slash: bool) -> None:
    segments = path.split(b"/")[1:]
    if keep_slash and b"%2F" in path:
        # a server that decodes `%2F` before splitting sees these pieces
        segments = path.replace(b"%2F", b"/").split(b"/")[1:]
    last = len(segments) - 1
    for i, segment in enumerate(segments):
        if segment in (b".", b".."):
            raise _refuse("a dot segment in the path", "path_dot_segment")
        if not segment and i != last:
            raise _refuse("an empty segment (`//`) in the path", "path_empty_segment")


@lru_cache(maxsize=4096)
def canonical_path(path: bytes, *, keep_slash: bool = False) -> bytes:
    """Canonical path of `path`, or ParseError.

    keep_slash: let `%2F` stand as data inside one segment (npm's `@scope%2Fname`, GitLab's `group%2Fproject`); the
    pieces beside it are then checked as segments too.
    """
    if not _PATH.fullmatch(path):
        raise _why_not(path)
    if b"%" in path:
        path = _ESCAPE.sub(lambda m: _escape_in_path(m, keep_slash=keep_slash), path)
        _check_text(path)
    if not _PATH_PLAIN.fullmatch(path):
        if b"/." in path:
            # `.` alone says nothing and apt's flat repositories send it (RFC 3986 section 5.2.4); `..` could climb
            pieces = path.split(b"/")
            path = b"/".join([p for p in pieces[:-1] if p != b"."] + [b"" if pieces[-1] == b"." else pieces[-1]])
        _check_segments(path, keep_slash=keep_slash)
    return path


def canonical_query(query: bytes) -> bytes:
    """Canonical query (without `?`), or ParseError: upper-case escapes, unreserved octets plain, the rest encoded."""
    if _QUERY_PLAIN.fullmatch(query):
        return query
    if not _QUERY.fullmatch(query):
        if b"#" in query:
            raise _refuse("a fragment in the target", "path_fragment")
        raise _refuse("a byte in the query that must be percent-encoded", "query_bad_byte")
    if b"%" in query:
        query = _ESCAPE.sub(_escape_in_query, query)
        if _OVERLONG.search(query):
            raise _refuse("an overlong form of UTF-8 in the query", "query_not_utf8")
    return _RAW_IN_QUERY.sub(lambda m: b"%%%02X" % m.group()[0], query)


def canonical(target: bytes, *, keep_slash: bool = False) -> Target:
    """Parse an origin-form target. Raises ParseError with one of the `path_*` and `query_*` reasons."""
    if len(target) > LIMIT_BYTES:
        raise _refuse(f"a target of more than {LIMIT_BYTES} bytes", "target_too_long")
    if b"#" in target:
        raise _refuse("a fragment in the target", "path_fragment")
    path, mark, query = target.partition(b"?")
    clean = canonical_path(path, keep_slash=keep_slash)
    if not mark:
        return Target(clean, None, clean)
    cleaned = canonical_query(query)
    return Target(clean, cleaned, clean + b"?" + cleaned)


def _decode(part: bytes) -> str:
    if b"%" in part or b"+" in part:
        part = _ESCAPE.sub(lambda m: bytes((int(m.group(1), 16),)), part.replace(b"+", b" "))
    return part.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=1024)
def query_pairs(query: bytes, *, split: bytes = b"&;") -> tuple[tuple[str, str], ...]:
    """Decoded `(name, value)` pairs of a canonical query. split: the signs that stand between pairs, `&` first."""
    pairs = []
    for sign in split[1:]:
        query = query.replace(bytes((sign,)), b"&")
    for piece in query.split(b"&"):
        if piece:
            name, _, value = piece.partition(b"=")
            pairs.append((_decode(name), _decode(value)))
    return tuple(pairs)


def split_absolute(target: bytes) -> tuple[bytes, bytes, bytes] | None:
    """`(scheme, authority, origin-form)` of an absolute-form target, None where it is not one (RFC 9112 section 3.2.2).

    A target without a path has `/` (RFC 9110 section 4.2.3); what stands before a query alone counts as that.
    """
    if target.startswith(b"/"):
        return None
    scheme, mark, rest = target.partition(b"://")
    if not mark:
        return None
    end = len(rest)
    for sign in (b"/", b"?", b"#"):
        at = rest.find(sign)
        if at >= 0:
            end = min(end, at)
    origin = rest[end:]
    if not origin.startswith(b"/"):
        origin = b"/" + origin
    return scheme.lower(), rest[:end], origin
