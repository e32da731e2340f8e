"""Room to pass descriptors on, whatever the cells of the same user do.

The kernel counts the descriptors that lie in Unix sockets, unread, by user, and refuses more of them to a process whose soft
RLIMIT_NOFILE is below the count: unix(7), ETOOMANYREFS. A cell of an ordinary user is that user, and the cells of a root caller are one
user among themselves. So a cell's hard limit leaves a quarter of the caller's, and what must pass descriptors on goes up to all of it.
"""

from __future__ import annotations

from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

_TOO_MANY_REFERENCES = 109
#: a limit is the whole process's: two threads may not each take the other's for what it was
_raising = allocate_lock()


def cell_limit(soft: int, hard: int) -> tuple[int, int]:
    """RLIMIT_NOFILE of a cell, soft and hard, where its caller's is that."""
    most = hard - hard // 4
    return min(soft, most), most


def with_room(send: Callable[[], T]) -> T:
    """What `send` gives, which passes descriptors on. Raises what it raises."""
    try:
        return send()
    except OSError as error:
        if error.errno != _TOO_MANY_REFERENCES:
            raise
    from resource import RLIMIT_NOFILE, getrlimit, setrlimit

    with _raising:
        soft, hard = getrlimit(RLIMIT_NOFILE)
        setrlimit(RLIMIT_NOFILE, (hard, hard))
        try:
            return send()
        finally:
            setrlimit(RLIMIT_NOFILE, (soft, hard))
