"""TLS alerts that the broker sends in place of a server (RFC 8446, section 6)."""

from __future__ import annotations

_FATAL = 2
_ACCESS_DENIED = 49


def fatal(description: int) -> bytes:
    """One unencrypted alert record; a client that waits for ServerHello prints its name."""
    return bytes((21, 3, 3, 0, 2, _FATAL, description))


#: every client measured prints `access denied` for it
ACCESS_DENIED = fatal(_ACCESS_DENIED)
#: the broker could not reach the upstream: no matter of policy
INTERNAL_ERROR = fatal(80)
