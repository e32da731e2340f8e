"""Strict readings of the strings that carry authority: URLs, paths, addresses, decimals, and look-alikes of them.

I1  Each function gives a value or `ParseError` with its own reason, in time linear in the input.
I2  Two spellings of one resource never both parse: the canonical spelling does, every other is refused.

Nothing is repaired. A value that a tool would read in another way than we do is refused, because the constraint was
checked on our reading (confused deputy by parser differential).
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal

from saggar.core.errors import ParseError

MAX_AUTHORITY_CHARS = 4096
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,27})(?:\.[0-9]{1,12})?", re.ASCII)
_HOST_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,15}", re.ASCII)
#: RFC 3986 pchar without pct-encoded, plus "/"; "%" is checked apart
_URL_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})*", re.ASCII)
_URL_TAIL = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*", re.ASCII)
_DEFAULT_PORT = {"http": 80, "https": 443, "ws": 80, "wss": 443}

# Scripts whose letters pass for Latin ones. A word that mixes them with Latin, or any of the few whole-script
# spellings of a Latin word, cannot be told apart by a human at the approval card (UTS 39, section 5).
_SCRIPT_PREFIXES = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "GEORGIAN", "LISU")
_CYRILLIC_TWINS = frozenset("авсԁеһіјӏпорԛѕԝхуԍмтькгАВСЕНІЈКМОРЅТХУԌ")
_GREEK_TWINS = frozenset("ανορυικτωΑΒΕΖΗΙΚΜΝΟΡΤΥΧ")


def check_authority_text(text: str) -> None:
    """Refuse what a human, a rule and a tool could read in three ways. Raises `ParseError`."""
    if text.isascii():
        if not text.isprintable():
            raise ParseError("a control character in an authority value", reason="unicode_control")
        if len(text) > MAX_AUTHORITY_CHARS:
            raise ParseError(f"longer than {MAX_AUTHORITY_CHARS} characters", reason="too_long")
        return
    if len(text) > MAX_AUTHORITY_CHARS:
        raise ParseError(f"longer than {MAX_AUTHORITY_CHARS} characters", reason="too_long")
    for ch in text:
        category = unicodedata.category(ch)
        if category == "Cs":
            raise ParseError("a lone surrogate", reason="surrogate")
        if category in ("Cf", "Cc", "Co", "Cn", "Zl", "Zp") or ch in "\u115f\u1160\u3164\uffa0\u2800\u034f":
            raise ParseError("an invisible character in an authority value", reason="unicode_invisible")
        if category == "Zs" and ch != " ":
            raise ParseError("a space that is not U+0020", reason="unicode_invisible")
        if category in ("Nd", "No", "Nl"):
            raise ParseError("a digit that is not 0 to 9", reason="unicode_digit")
    if not unicodedata.is_normalized("NFC", text):
        raise ParseError("not in Unicode normalisation form C", reason="unicode_not_nfc")
    if unicodedata.normalize("NFKC", text) != text:
        raise ParseError("a compatibility form (full-width, ligature, letter-like)", reason="unicode_compatibility")
    _check_scripts(text)


def _check_scripts(text: str) -> None:
    for word in re.split(r"[^\w]+", text):
        if word.isascii():
            continue
        scripts = {_script(ch) for ch in word if ch.isalpha()} - {""}
        if len(scripts) > 1 and "LATIN" in scripts:
            raise ParseError("one word mixes scripts that look alike", reason="unicode_lookalike")
        letters = {ch for ch in word if ch.isalpha()}
        if letters and (letters <= _CYRILLIC_TWINS or letters <= _GREEK_TWINS):
            raise ParseError("a word that reads as Latin but is not", reason="unicode_lookalike")
        if any(ch in "ıȷɑɡɩʋſƖǃ" for ch in word):
            raise ParseError("a letter that reads as another", reason="unicode_lookalike")


def _script(ch: str) -> str:
    name = unicodedata.name(ch, "")
    return next((s for s in _SCRIPT_PREFIXES if name.startswith(s)), "")


def parse_decimal(text: str) -> Decimal:
    """`-?digits[.digits]`, ASCII, no exponent, no leading zero, no minus zero."""
    if len(text) > 48 or not _DECIMAL.fullmatch(text):
        raise ParseError("not a plain decimal number", reason="number_form")
    value = Decimal(text)
    if value == 0 and text.startswith("-"):
        raise ParseError("minus zero", reason="number_form")
    return value


def parse_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """A canonical literal: no leading zeros, no zone, no IPv4 inside IPv6, lower-case RFC 5952 form."""
    if len(text) > 45 or not text.isascii():
        raise ParseError("not an address literal", reason="ip_form")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ParseError("not an address literal", reason="ip_form") from None
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.scope_id):
        raise ParseError("an IPv4 address in an IPv6 one, or a zone", reason="ip_form")
    if str(address) != text:
        raise ParseError("an address that is not in its canonical form", reason="ip_form")
    return address


def parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    if len(text) > 49 or not text.isascii() or "/" not in text:
        raise ParseError("not a network in CIDR form", reason="cidr_form")
    try:
        network = ipaddress.ip_network(text, strict=True)
    except ValueError:
        raise ParseError("not a network in CIDR form (host bits must be zero)", reason="cidr_form") from None
    if str(network) != text:
        raise ParseError("a network that is not in its canonical form", reason="cidr_form")
    return network


def check_path(text: str) -> str:
    """A canonical absolute POSIX path: no `.`, `..`, `//`, trailing slash, control character or backslash."""
    if not text.startswith("/"):
        raise ParseError("not an absolute path", reason="path_relative")
    check_authority_text(text)
    if "\\" in text:
        raise ParseError("a backslash in a path", reason="path_form")
    if text == "/":
        return text
    for part in text[1:].split("/"):
        if part in (".", ".."):
            raise ParseError("a dot segment in a path", reason="path_traversal")
        if not part:
            raise ParseError("an empty segment in a path", reason="path_form")
    return text


def check_host(text: str) -> str:
    """A canonical host name or address literal: lower-case A-labels, no trailing dot; IPv6 without brackets."""
    if not text or len(text) > 253 or not text.isascii():
        raise ParseError("not a host name in lower-case A-labels", reason="host_form")
    if ":" in text:
        return str(parse_ip(text))
    labels = text.split(".")
    if not all(_HOST_LABEL.fullmatch(label) for label in labels):
        raise ParseError("not a host name in lower-case A-labels", reason="host_form")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        return str(parse_ip(text))  # WHATWG hosts ending in a number are addresses: 0x7f.1, 127.1, 2130706433
    return text


@dataclass(frozen=True, slots=True)
class Url:
    """A URL whose every part has one reading. path starts with `/`; tail is query and fragment."""

    scheme: str
    host: str
    port: int
    path: str
    tail: str


def parse_url(text: str) -> Url:
    """`scheme://host[:port]/path[?query]`: no user info, no default port spelt out, no dot segment, no encoded `/`.

    Source: RFC 3986; WHATWG URL where the two differ (backslash, numeric hosts) the spelling is refused.
    """
    if len(text) > MAX_AUTHORITY_CHARS or not text.isascii() or not text.isprintable() or " " in text:
        raise ParseError("not a URL in plain ASCII", reason="url_form")
    scheme, colon, rest = text.partition("://")
    if not colon or not _SCHEME.fullmatch(scheme):
        raise ParseError("not a URL with a lower-case scheme", reason="url_form")
    cut = min((i for i in (rest.find("/"), rest.find("?"), rest.find("#")) if i >= 0), default=len(rest))
    authority, rest = rest[:cut], rest[cut:]
    if "@" in authority:
        raise ParseError("user information in a URL", reason="url_userinfo")
    if "\\" in text:
        raise ParseError("a backslash in a URL", reason="url_form")
    host, port = _split_port(authority, scheme)
    cut = min((i for i in (rest.find("?"), rest.find("#")) if i >= 0), default=len(rest))
    path, tail = rest[:cut] or "/", rest[cut:]
    _check_url_path(path)
    if not _URL_PATH.fullmatch(path) or (tail and not _URL_TAIL.fullmatch(tail[1:].replace("#", "", 1))):
        raise ParseError("a character or escape that a URL cannot hold", reason="url_form")
    return Url(scheme, host, port, path, tail)


def _split_port(authority: str, scheme: str) -> tuple[str, int]:
    default = _DEFAULT_PORT.get(scheme, 0)
    if authority.startswith("["):
        inner, bracket, after = authority[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise ParseError("a broken IPv6 literal in a URL", reason="url_form")
        host, digits = check_host(inner), after[1:] if after else None
    else:
        name, colon, after = authority.partition(":")
        host, digits = check_host(name), after if colon else None
    if digits is None:
        return host, default
    if not (digits.isascii() and digits.isdigit()) or digits.startswith("0") or not 0 < int(digits[:6]) < 65536:
        raise ParseError("not a port number", reason="url_port")
    if int(digits) == default:
        raise ParseError("a default port that is spelt out", reason="url_port")
    return host, int(digits)


def _check_url_path(path: str) -> None:
    lowered = path.lower()
    if "%2f" in lowered or "%5c" in lowered or "%2e" in lowered or "%00" in lowered or "%25" in lowered:
        raise ParseError("an encoded slash, dot, percent or NUL in a URL path", reason="url_encoded_separator")
    if "//" in path:
        raise ParseError("an empty segment in a URL path", reason="url_form")
    if any(part in (".", "..") for part in path.split("/")):
        raise ParseError("a dot segment in a URL path", reason="url_traversal")
