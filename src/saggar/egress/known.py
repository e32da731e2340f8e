"""Heads that are known byte for byte, and what was made of them: the same bytes under the same terms have the same outcome.

I1  What is kept depends on the bytes, the terms and the lease alone; another lease, even of the same secret, is another outcome.
I2  Memory is bounded: `MAX_HEADS` heads of at most `HEAD_BYTES` a host, and as many of answers a cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saggar.egress.http_head import parse_response

if TYPE_CHECKING:
    from saggar.egress.admit import Admitted, Lease
    from saggar.egress.http_head import RequestHead, ResponseHead

MAX_HEADS = 64
HEAD_BYTES = 4096


class Known:
    """An admitted head without a body. written: the head that goes upstream for it, with the secret of `lease` in it."""

    __slots__ = ("admitted", "head", "lease", "written")

    def __init__(self, head: RequestHead, admitted: Admitted) -> None:
        self.head = head
        self.admitted = admitted
        self.lease: Lease | None = None
        self.written = b""


class Answers:
    """Heads of answers, read: servers say the same for a second at least, until their clock's next one."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, ResponseHead] = {}

    def read(self, raw: bytes, method: str) -> ResponseHead:
        """What `parse_response` makes of it. Raises ParseError."""
        if method == "HEAD" or len(raw) > HEAD_BYTES:
            return parse_response(raw, method)  # read by other rules, or too long to be kept
        found = self._heads.get(raw)
        if found is None:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            found = self._heads[raw] = parse_response(raw, method)
        return found
