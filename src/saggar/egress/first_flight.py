"""What a client speaks, from its first bytes.

I1  The answer is one of the known protocols, `unknown`, or `NeedMore`; anything that is not surely known is unknown.
I2  At most `MAX_LINE` bytes are asked for.
"""

from __future__ import annotations

from saggar.egress.client_hello import NeedMore

TLS, HTTP, CONNECT, SOCKS, UNKNOWN = "tls", "http", "connect", "socks", "unknown"

MAX_LINE = 20 * 1024
_MAX_METHOD = 24
_METHOD = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ-_")


def classify(data: bytes) -> str | NeedMore:
    """The protocol of a connection that begins with `data` (not empty)."""
    first = data[0]
    if first == 22:
        return TLS
    if first == 5:
        return SOCKS
    if first not in _METHOD:
        return UNKNOWN
    method, space, _ = data[: _MAX_METHOD + 1].partition(b" ")
    if not _METHOD.issuperset(method) or len(method) > _MAX_METHOD:
        return UNKNOWN
    if not space:
        return NeedMore(len(data) + 1)
    end = data.find(b"\n")
    if end < 0:
        return NeedMore(len(data) + 1) if len(data) < MAX_LINE else HTTP
    # other protocols greet with words too; only a line that ends in HTTP's version is worth an HTTP answer
    if b"HTTP/" not in data[:end].rpartition(b" ")[2]:
        return UNKNOWN
    return CONNECT if method == b"CONNECT" else HTTP
