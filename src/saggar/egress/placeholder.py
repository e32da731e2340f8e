"""Keys that are worthless: what a client finds where it insists on a key.

I1  A placeholder is unique to the task and the credential, and is no key of anybody's.
I2  It has the form that the service's own clients check (`sk-…`, `ghp_…`, `AKIA…`, a JWT).
I3  Seen anywhere but in its declared slot on its bound host it is evidence of theft: found as it is, in base64 at any
    alignment (so in Basic too), percent-encoded, `\\u`-escaped, and across borders of writes and chunks.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from saggar.core.errors import ParseError
from saggar.egress.needles import Needles, base64_cores, unescape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"

#: format -> (prefix, alphabet, random characters, suffix); lengths are those of the service's own keys
FORMATS: dict[str, tuple[str, str, int, str]] = {
    "generic": ("saggar_", _BASE62, 40, ""),
    "openai": ("sk-", _BASE62, 48, ""),
    "openai-project": ("sk-proj-", _BASE62, 48, ""),
    "anthropic": ("sk-ant-api03-", _BASE62, 93, "AA"),
    "github": ("ghp_", _BASE62, 36, ""),
    "gitlab": ("glpat-", _BASE62, 20, ""),
    "google": ("AIza", _BASE62, 35, ""),
    "huggingface": ("hf_", _BASE62, 34, ""),
    "npm": ("npm_", _BASE62, 36, ""),
    "pypi": ("pypi-AgEIcHlwaS5vcmc", _BASE62, 120, ""),
    "slack": ("xoxb-", _BASE62, 48, ""),
    "stripe": ("sk_test_", _BASE62, 24, ""),
    "aws": ("AKIA", _BASE32, 16, ""),
    "aws-secret": ("", _BASE62, 40, ""),
}
_TEXT_LIMIT = 1024


def mint(form: str, random: Callable[[int], bytes]) -> str:
    """A fresh placeholder of `form` (a key of FORMATS, or `jwt`). random: n bytes of the caller's secure source.

    Raises ParseError for an unknown form.
    """
    if form == "jwt":
        return _jwt(random)
    if form not in FORMATS:
        raise ParseError(
            f"placeholder format `{form[:40]}` is not one of {', '.join(sorted([*FORMATS, 'jwt']))}",
            reason="bad_format",
        )
    prefix, alphabet, count, suffix = FORMATS[form]
    return prefix + _draw(alphabet, count, random) + suffix


def _draw(alphabet: str, count: int, random: Callable[[int], bytes]) -> str:
    """`count` characters, each equally likely: draws beyond the last whole multiple are thrown away."""
    top = 256 - 256 % len(alphabet)
    out: list[str] = []
    while len(out) < count:
        out.extend(alphabet[b % len(alphabet)] for b in random(count) if b < top)
    return "".join(out[:count])


def _jwt(random: Callable[[int], bytes]) -> str:
    """Three base64url segments that decode; expires in the year 2100; the signature is random, so nobody's."""
    head = b'{"alg":"HS256","typ":"JWT"}'
    body = b'{"sub":"placeholder","exp":4102444800}'
    encoded = [base64.urlsafe_b64encode(p).rstrip(b"=").decode() for p in (head, body)]
    return ".".join([*encoded, _draw(_BASE62, 43, random)])


def core(placeholder: str) -> bytes:
    """The unique part: what a search looks for, so that a cut prefix does not hide it."""
    if placeholder.startswith("eyJ"):
        return placeholder.rpartition(".")[2].encode()
    for prefix, _, count, suffix in sorted(FORMATS.values(), key=lambda f: -len(f[0])):
        if prefix and placeholder.startswith(prefix) and len(placeholder) == len(prefix) + count + len(suffix):
            return placeholder[len(prefix) : len(placeholder) - len(suffix)].encode()
    return placeholder.encode()


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a placeholder may stand. kind: `bearer`, `basic`, `header`, `query`. name: lower-case header name, or the
    query parameter's. scheme: what stands before the value in the header, with its space."""

    kind: str
    name: str
    scheme: str = ""


class Canary:
    """Finds the placeholders of one task. One instance a task; `Stream` for bodies."""

    __slots__ = ("hold", "needles", "placeholders", "quick")

    def __init__(self, placeholders: Iterable[str]) -> None:
        self.placeholders = tuple(placeholders)
        cores = [core(p) for p in self.placeholders]
        found = set(cores)
        for c in cores:
            found.update(base64_cores(c))
            found.add(c.hex().encode())
        self.needles = Needles(found)
        self.quick = self.needles.needles
        # the longest escape of one character is `\u00XX`
        self.hold = 6 * max((len(n) for n in self.quick), default=0)

    def seen(self, data: bytes) -> bool:
        """Whether any placeholder occurs in `data`, in any of the renderings of I3."""
        for needle in self.quick:
            if needle in data:
                return True
        if b"%" in data or b"\\" in data:
            plain = unescape(data)
            if plain is not None:
                return any(n in plain for n in self.quick)
        return False


class CanaryStream:
    """The same over pieces of one body: keeps the end of what it saw, at most `Canary.hold` bytes."""

    __slots__ = ("_canary", "_tail")

    def __init__(self, canary: Canary) -> None:
        self._canary = canary
        self._tail = b""

    def seen(self, piece: bytes) -> bool:
        """Whether a placeholder ends in `piece`. Call with every piece in order, before it is forwarded."""
        canary = self._canary
        if not canary.quick:
            return False
        window = self._tail + piece
        if canary.seen(window):
            return True
        self._tail = window[-canary.hold :]
        return False
