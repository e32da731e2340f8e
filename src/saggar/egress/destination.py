"""Where one connection or request wants to go: parsed once from bytes, then the same for policy, dial and injection.

I1  A destination is immutable, its host canonical (lower-case A-labels, no trailing dot), its port 1..65535.
I2  No destination has an address literal for a host: those are refused with the reason `ip_literal`.
I3  Parsing gives a value or `ParseError`, whatever the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from saggar.core.errors import ParseError
from saggar.core.hostname import canonical_wire_host

#: longer than any host name with a port; checked before anything looks at the bytes
_MAX_AUTHORITY = 320

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Destination:
    """One place outside. scheme: `https` (TLS, whatever it carries), `http`, or `tcp` (no name in the protocol)."""

    host: str
    port: int
    scheme: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        """As it stands in a Host header: the scheme's own port is left out."""
        return self.host if DEFAULT_PORTS.get(self.scheme) == self.port else f"{self.host}:{self.port}"


def parse_host(raw: bytes) -> str:
    """The canonical host name in `raw`, as it came on the wire (SNI, Host, CONNECT, SOCKS, DNS).

    Raises ParseError: `ip_literal` for an address in its usual form, `bad_host_name` for all else that is no name.
    """
    if len(raw) > _MAX_AUTHORITY:
        raise ParseError("the host name is too long", reason="bad_host_name")
    if b":" in raw or raw.startswith(b"["):
        raise ParseError("an address stands where a host name is needed", reason="ip_literal")
    try:
        return canonical_wire_host(raw)
    except ParseError as e:
        reason = "ip_literal" if e.reason == "host_ip_literal" else "bad_host_name"
        raise ParseError(str(e), reason=reason) from None


def parse_port(raw: bytes) -> int:
    """1..65535 in plain decimal digits. Raises ParseError (`bad_port`)."""
    if not raw.isdigit() or len(raw) > 5 or raw.startswith(b"0") or int(raw) > 65535:
        raise ParseError("the port is not a number of 1 to 65535", reason="bad_port")
    return int(raw)


def parse_authority(raw: bytes, default_port: int | None) -> tuple[str, int]:
    """(host, port) of `host[:port]`. default_port None: the port must be there.

    Raises ParseError: `bad_host_name` (user information included), `ip_literal`, `bad_port`.
    """
    if len(raw) > _MAX_AUTHORITY:
        raise ParseError("the authority is too long", reason="bad_host_name")
    if b"@" in raw:
        raise ParseError("the authority carries user information", reason="bad_host_name")
    if raw.startswith(b"[") or raw.count(b":") > 1:
        raise ParseError("an address stands where a host name is needed", reason="ip_literal")
    host, colon, port = raw.partition(b":")
    if not colon:
        if default_port is None:
            raise ParseError("the port is missing", reason="bad_port")
        return parse_host(host), default_port
    return parse_host(host), parse_port(port)
