"""One canonical form of a host name, decided before anything else looks at the name.

I1  A canonical name is lower-case ASCII: labels of 1 to 63 letters, digits, hyphens and inner underscores, at most 253
    in all, no trailing dot, a last label that no resolver takes for part of an address.
I2  Canonical names are fixed points, and two spellings of one name give one canonical name or a `ParseError`.
I3  Nothing outside I1 gets through: no NUL, control, space, `%`, `\\`, `@`, `,`, no byte above 0x7f on the wire, no IP
    literal in any notation (`127.1`, `0x7f000001` and circled digits reach 127.0.0.1 through `getaddrinfo`).
I4  Every input is answered with a name or a `ParseError`, in time linear in its length (names over 1 KiB are refused
    unread).

Names in a policy may be written with Unicode labels and are stored as A-labels (RFC 5891 section 4); what comes over
the wire must be ASCII already. Where IDNA 2008 allows a character in some contexts only (RFC 5892 appendix A), it is
refused here.
"""

from __future__ import annotations

from saggar.core.errors import ParseError

#: names under which clouds serve credentials to whoever asks from the host's network
METADATA_NAMES = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.azure.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.internal",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "metadata.tencentyun.com",
    }
)

_ALLOWED = b"abcdefghijklmnopqrstuvwxyz0123456789-_."
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdef")


def canonical_wire_host(raw: bytes) -> str:
    """The canonical name for the bytes of an SNI, Host, CONNECT or SOCKS5 name, port already taken off.

    Raises `ParseError`; its `reason` is `host_empty`, `host_too_long`, `host_non_ascii`, `host_byte`,
    `host_ip_literal`, `host_numeric`, `host_trailing_dot`, `host_empty_label`, `host_label_too_long`, `host_hyphen`,
    `host_underscore` or `host_punycode`.
    """
    if not raw:
        raise ParseError("the host name is empty", reason="host_empty")
    if len(raw) > 1024:
        raise ParseError("the host name is longer than 253 characters", reason="host_too_long")
    if not raw.isascii():
        raise ParseError("the host name has bytes above 0x7f", reason="host_non_ascii")
    lower = raw.lower()
    odd = lower.translate(None, _ALLOWED)
    if odd:
        # before any other check: a NUL or a bracket must not depend on what stands around it
        if odd.translate(None, b":[]") == b"" and _looks_ipv6(lower):
            raise ParseError("the host is an IP literal", reason="host_ip_literal")
        raise ParseError(f"the host name has the byte 0x{odd[0]:02x}", reason="host_byte")
    return _canonical_ascii(lower.decode("ascii"))


def canonical_host(text: str, *, allow_wildcard: bool = False) -> str:
    """The canonical name for a host as written in a policy or flag; Unicode labels become A-labels.

    allow_wildcard: accept `*.` in front of at least two labels, meaning exactly one label there. Whether the base is
    a public suffix is not known here. Raises `ParseError` (reasons as above, and `host_wildcard`, `host_idna`).
    """
    base = text
    prefix = ""
    if "*" in text:
        base = text.removeprefix("*.")
        if not allow_wildcard or "*" in base or base == text or "." not in base.strip("."):
            raise ParseError("`*` stands only as `*.` in front of a name of two or more labels", reason="host_wildcard")
        prefix = "*."
    if not base:
        raise ParseError("the host name is empty", reason="host_empty")
    if len(base) > 1024:
        raise ParseError("the host name is longer than 253 characters", reason="host_too_long")
    if not base.isascii():
        base = ".".join(label if label.isascii() else _to_alabel(label) for label in base.split("."))
    host = canonical_wire_host(base.encode())
    if prefix and len(host) + 2 > 253:
        raise ParseError("the host name is longer than 253 characters", reason="host_too_long")
    return prefix + host


def _canonical_ascii(host: str) -> str:
    if host[-1] == ".":
        reason = "host_empty_label" if host[-2:] in (".", "..") else "host_trailing_dot"
        raise ParseError("the host name ends with a dot", reason=reason)
    labels = host.split(".")
    _check_last(labels)
    if len(host) > 253:
        raise ParseError("the host name is longer than 253 characters", reason="host_too_long")
    for label in labels:
        if not label:
            raise ParseError("the host name has an empty label", reason="host_empty_label")
        if len(label) > 63:
            raise ParseError("a label of the host name is longer than 63 characters", reason="host_label_too_long")
        if label[0] == "-" or label[-1] == "-":
            raise ParseError("a label of the host name starts or ends with `-`", reason="host_hyphen")
        if label[0] == "_" or label[-1] == "_":
            raise ParseError("a label of the host name starts or ends with `_`", reason="host_underscore")
        if label.startswith("xn--"):
            _check_alabel(label)
    return host


def _check_last(labels: list[str]) -> None:
    """A last label that `inet_aton` reads as a number makes the whole an address (WHATWG URL, "ends in a number")."""
    last = labels[-1]
    if _DIGITS.issuperset(last) and last:
        if len(labels) == 4 and all(_is_octet(label) for label in labels):
            raise ParseError("the host is an IP literal", reason="host_ip_literal")
        raise ParseError("the last label of the host name is a number", reason="host_numeric")
    if last.startswith("0x") and _HEX.issuperset(last[2:]):
        raise ParseError("the last label of the host name is a number", reason="host_numeric")


def _is_octet(label: str) -> bool:
    return 0 < len(label) <= 3 and _DIGITS.issuperset(label) and str(int(label)) == label and int(label) <= 255


def _looks_ipv6(lower: bytes) -> bool:
    inner = lower[1:-1] if lower[:1] == b"[" and lower[-1:] == b"]" else lower
    return inner.count(b":") >= 2 and not inner.translate(None, b"0123456789abcdef:.")


def _check_alabel(label: str) -> None:
    """An `xn--` label must decode, to a valid U-label, and be that label's only spelling (RFC 5891 section 5.4)."""
    encoded = label[4:]
    try:
        # one IndexError and one OverflowError were seen from this codec on hostile input
        decoded = encoded.encode("ascii").decode("punycode")
        again = decoded.encode("punycode").decode("ascii")
    except (ValueError, IndexError, OverflowError):
        raise ParseError(f"`{label}` is not punycode", reason="host_punycode") from None
    if again != encoded or decoded.isascii():
        raise ParseError(f"`{label}` is not the punycode of any name", reason="host_punycode")
    try:
        _check_ulabel(decoded)
    except ParseError as e:
        raise ParseError(f"`{label}` is not the punycode of any name: {e}", reason="host_punycode") from None


def _to_alabel(label: str) -> str:
    if len(label) > 63:
        raise ParseError("a label of the host name is longer than 63 characters", reason="host_label_too_long")
    _check_ulabel(label)
    return "xn--" + label.encode("punycode").decode("ascii")


def _check_ulabel(label: str) -> None:
    from saggar.core.idna import check_ulabel

    check_ulabel(label)
