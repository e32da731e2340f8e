"""The renderings under which a known string may travel, and how to find them in a stream.

I1  Every rendering of `renderings` of every string is found, also where it crosses a border between chunks.
I2  Bytes that could be the beginning of a rendering are held back, and no others: an event stream is never delayed by
    more than a piece of a needle.
I3  Work is linear in the bytes for a fixed set of needles; memory is bounded by the longest needle.

Finding is `bytes.find` per needle: 1 MiB for 10 needles costs 1.3 ms, an alternation in `re` 10.5 ms (measured).
"""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Shorter strings are found everywhere by accident; sources with such secrets are refused.
MIN_BYTES = 8


def base64_cores(raw: bytes) -> list[bytes]:
    """What base64 of any text that contains `raw` must contain: one core for each of the three alignments.

    A core leaves out the digits that also depend on the neighbours (RFC 4648 section 4).
    """
    cores = []
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + raw)
        # digits of the `shift` leading bytes, and the one digit that mixes the last of them with ours
        start = (shift * 8 + 5) // 6
        end = (shift + len(raw)) * 8 // 6
        cores.append(whole[start:end])
    return cores


def _json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _named(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _with(text: str, signs: str, form: str) -> str:
    """`text` with each of `signs` written as `form` of its code."""
    return "".join(form % ord(c) if c in signs else c for c in text)


#: what JSON encoders write as `\\u00xx` beyond the standard's own: .NET's, Gson's, template engines', Go's, and everything
_JSON_SIGNS = (
    "&'+<>`",
    "<>&='",
    "<>&'",
    "<>&",
    "".join(chr(c) for c in range(0x20, 0x7F) if not chr(c).isalnum() and chr(c) not in "-_.~"),
)
#: what HTML encoders write as numbers beside `&amp;`, `&lt;` and `&gt;`: decimal, then hexadecimal
_HTML_SIGNS = (("", ""), ("", "'"), ("'", ""), ("'+", ""), ("", "'`="), ("'", "/`="), ("", "'/"))
#: what percent-encoders leave as it is: all, paths, JavaScript's two, forms
_SAFE = ("", "/", "!'()*~", ";,/?:@&=+$-_.!~*'()#", "*")


def _percent(raw: bytes) -> Iterator[str]:
    for safe in _SAFE:
        once = quote(raw, safe=safe)
        yield from (once, once.replace("%20", "+"))
    yield quote(quote(raw, safe=""), safe="")


def _in_json(text: str) -> Iterator[str]:
    plain = _json(text)
    for form in (plain, _json(plain)):
        yield from (form, form.replace("/", "\\/"))
    yield _json(plain.replace("/", "\\/"))
    for signs in _JSON_SIGNS:
        # the quote and the backslash that the standard escapes may be numbers as well
        for form in (plain, text):
            for number in ("\\u%04x", "\\u%04X"):
                told = _with(form, signs if form is plain else signs + '"\\', number)
                yield from (told, told.replace("/", "\\/"))


def _in_html(text: str) -> Iterator[str]:
    for decimal, hexadecimal in _HTML_SIGNS:
        form = _named(text)
        for sign in decimal:
            form = form.replace(sign, f"&#{ord(sign)};")
        for sign in hexadecimal:
            form = form.replace(sign, f"&#x{ord(sign):X};")
        yield from (form.replace('"', "&quot;"), form.replace('"', "&#34;"))


def renderings(raw: bytes, *, basic_user: bytes = b"") -> list[bytes]:
    """All fixed renderings of `raw`, longest first, none twice: as it is, percent-encoded (both hex cases, what each kind of
    encoder must and every byte, twice), base64 and base64url at three alignments, escaped for JSON and HTML as the usual
    encoders do it, hex, and as Basic. Of a secret of letters, digits, `-` and `_` there are eleven."""
    text = raw.decode("latin-1")
    found = {raw, raw.hex().encode(), raw.hex().upper().encode()}
    for form in _percent(raw):
        found.update((form.encode(), _lower_hex(form.encode())))
    found.add(b"".join(b"%%%02X" % b for b in raw))
    found.add(b"".join(b"%%%02x" % b for b in raw))
    found.add(b"".join(b"\\u%04x" % b for b in raw))
    found.add(b"".join(b"\\u%04X" % b for b in raw))
    found.add(b"".join(b"\\x%02x" % b for b in raw))
    found.update(form.encode("latin-1") for form in (*_in_json(text), *_in_html(text)))
    for core in base64_cores(raw):
        found.update((core, core.translate(_URLSAFE)))
        if b"+" in core or b"/" in core:
            found.update((quote(core, safe="").encode(), core.replace(b"/", b"\\/"), core.replace(b"+", b"\\u002B")))
    if basic_user:
        for core in base64_cores(basic_user + b":" + raw):
            found.update((core, core.translate(_URLSAFE)))
    return sorted((f for f in found if len(f) >= MIN_BYTES), key=lambda n: (-len(n), n))


_URLSAFE = bytes.maketrans(b"+/", b"-_")


def _lower_hex(encoded: bytes) -> bytes:
    pieces = encoded.split(b"%")
    return b"%".join([pieces[0], *(p[:2].lower() + p[2:] for p in pieces[1:])])


def _shared(group: list[bytes]) -> bytes:
    """What all of them begin with: what the least and the greatest do."""
    low, high = min(group), max(group)
    return low[: next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]


#: fewer bytes than these may stand somewhere by chance
_CHANCE = 3


def _most(needle: bytes, data: bytes, *, first: bool, of: int) -> int:
    """The longest part of `needle`, more than one `of`th of it and not all, that `data` ends with (`first`: the needle's
    beginning), or begins with (its end)."""
    for size in range(len(needle) - 1, max(len(needle) // of, _CHANCE), -1):
        if data.endswith(needle[:size]) if first else data.startswith(needle[-size:]):
            return size
    return 0


class Needles:
    """A set of needles. hold: the longest one's length less one: no more bytes than that are ever held back. least: the
    shortest one's length."""

    __slots__ = ("_firsts", "_heads", "hold", "least", "needles")

    def __init__(self, needles: Iterable[bytes]) -> None:
        self.needles = tuple(sorted(set(needles), key=lambda n: (-len(n), n)))
        self.hold = max((len(n) for n in self.needles), default=1) - 1
        self.least = min((len(n) for n in self.needles), default=0)
        self._firsts = bytes(sorted({n[0] for n in self.needles}))
        self._heads = {f: tuple(n for n in self.needles if n[0] == f) for f in self._firsts}

    def alike(self) -> list[tuple[bytes, tuple[bytes, ...]]]:
        """(what they all begin with, needles): each needle once, the longest of a group first. A search takes the steps of its
        needle's length: a few long needles are found faster one by one than by the little that they share."""
        groups: dict[bytes, list[bytes]] = {}
        for needle in self.needles:
            groups.setdefault(needle[:MIN_BYTES], []).append(needle)
        found = []
        for group in groups.values():
            start = _shared(group)
            if 1 / len(start) <= sum(1 / len(n) for n in group):
                found.append((start, tuple(group)))
            else:
                found += [(n, (n,)) for n in group]
        return found

    def found(self, data: bytes) -> bool:
        """Whether any needle lies wholly in `data`."""
        return any(n in data for n in self.needles)

    def held(self, data: bytes) -> int:
        """How many bytes at the end of `data` could be the beginning of a needle."""
        tail = data[-self.hold :] if self.hold else b""
        size = len(tail)
        best = 0
        for first, heads in self._heads.items():
            at = tail.find(first)
            while 0 <= at < size - best:
                rest = tail[at:]
                if any(n.startswith(rest) for n in heads):
                    best = size - at
                    break
                at = tail.find(first, at + 1)
        return best

    def begun(self, data: bytes, *, of: int = 2) -> int:
        """How many bytes at the end of `data` are more than half (one `of`th) of a needle's beginning, 0 where none are: so
        much of a secret lets the rest be guessed."""
        return max((_most(n, data, first=True, of=of) for n in self.needles), default=0)

    def ended(self, data: bytes, *, of: int) -> int:
        """How many bytes at the start of `data` are more than one `of`th of a needle, its end."""
        return max((_most(n, data, first=False, of=of) for n in self.needles), default=0)


def _digits() -> Iterator[bytes]:
    return (bytes((d,)) for d in b"0123456789abcdefABCDEF")


_PERCENT = re.compile(rb"%([0-9a-fA-F]{2})")
_ESCAPE = re.compile(rb"\\(?:[uU]00|[xX])([0-9a-fA-F]{2})")
#: backslashes that begin none of these, a run at once
_STRAY = re.compile(rb"(?:\\(?!(?:[uU]00|[xX])[0-9a-fA-F]{2}))+")
#: both digits, in any case, to their byte
_BYTES = {a + b: bytes((int(a + b, 16),)) for a in _digits() for b in _digits()}


def _byte(found: re.Match[bytes]) -> bytes:
    return _BYTES[found[1]]


def unescape(data: bytes) -> bytes | None:
    """`data` with percent- and `\\u00xx`-escapes undone, None where it has none. Mixed escapes are undone once each.

    A backslash before anything else is taken out. One pass of compiled code for each kind: bodies of nothing but escapes cost
    100 to 190 ns a byte (measured), those without a well-formed one 20: still dear, so whoever calls it has its time counted.
    """
    plain = None
    if b"%" in data:
        plain = _PERCENT.sub(_byte, data)
    if b"\\" in data:
        base = data if plain is None else plain
        if _ESCAPE.search(base) is None:
            return base.translate(None, b"\\")
        plain = _ESCAPE.sub(_byte, _STRAY.sub(b"", base))
    return plain
