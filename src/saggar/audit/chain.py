"""Where a chain stands, from the last bytes of its log.

I1  `resume` gives exactly the last sound record's (seq, hash), and the torn bytes after it, for any log of ours.
I2  Torn bytes are evidence: they stay, and the next record (`audit.torn`) names their length and digest.
I3  Only what a killed writer can leave counts as torn: a whole JSON object with a wrong hash was edited, not torn.
"""

from __future__ import annotations

from saggar.audit.canonical import decode
from saggar.audit.record import GENESIS, digest, tail_of
from saggar.core.decision import Frozen
from saggar.core.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TORN = "audit.torn"


class Position(Frozen):
    """The end of a chain. seq: of the last record, -1 where there is none. torn: bytes after its newline,
    without a newline of their own at the end. ended: whether the log ends with a newline."""

    __slots__ = ("ended", "hash", "seq", "torn")
    seq: int
    hash: str
    torn: bytes
    ended: bool

    def __init__(
        self,
        *,
        seq: int = -1,
        hash: str = GENESIS,  # noqa: A002  # the record's own word
        torn: bytes = b"",
        ended: bool = True,
    ) -> None:
        self._set(seq=seq, hash=hash, torn=torn, ended=ended)


def resume(window: bytes, *, whole: bool) -> Position | None:
    """The position at the end of a log whose last bytes are `window`.

    whole: the window is the whole log. None: the window is too small to tell. Raises `ParseError` on a line that is
    neither sound nor torn (I3). A torn region is one line, or more when the writer that named it was killed as well.
    """
    ended = window.endswith(b"\n") or not window
    end = len(window) - (1 if window and ended else 0)
    while end > 0:
        line_at = window.rfind(b"\n", 0, end) + 1
        if line_at == 0 and not whole:
            return None
        line = window[line_at:end]
        try:
            seq, hash_ = tail_of(line)
        except ParseError:
            if not can_be_torn(line):
                raise
            end = line_at - 1
            continue
        return Position(seq=seq, hash=hash_, torn=window[end + 1 :].removesuffix(b"\n"), ended=ended)
    return Position(torn=window.removesuffix(b"\n"), ended=ended)


def can_be_torn(line: bytes) -> bool:
    """Whether a killed writer can have left this: the start of a record, so no whole JSON value."""
    try:
        decode(line)
    except ParseError as e:
        return e.reason in {"malformed", "utf8"}
    return False


def torn_detail(torn: bytes) -> dict[str, Any]:
    """`detail` of the record that follows a torn line."""
    return {"bytes": len(torn), "sha256": digest(torn)}


def names_torn(record: dict[str, Any], torn: bytes) -> bool:
    """Whether `record` is the `audit.torn` record of exactly these bytes."""
    return record.get("kind") == TORN and record.get("detail") == torn_detail(torn)
