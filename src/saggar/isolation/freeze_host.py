"""Every process of a cell, stopped and continued.

A question at the terminal that the cell shares must not be painted over, nor its answer read, by what it is about. A group's
SIGSTOP leaves those that made a group or a session of their own; so the tree is walked until nothing in it runs.
"""

from __future__ import annotations

import _signal
import os

from saggar.isolation.cgroups_host import read
from saggar.isolation.watch_host import tree

#: rounds until a cell that forks as fast as it is stopped is let be: each round stops all that it saw
_ROUNDS = 100


def freeze(root: int, frozen: list[int]) -> bool:
    """Stop `root` and all its descendants; the pids that were stopped here go into `frozen`. Whether nothing runs any more."""
    seen = set(frozen)
    for _ in range(_ROUNDS):
        fresh = [pid for pid in tree(root) if pid not in seen]
        if not fresh:
            return True
        for pid in fresh:
            seen.add(pid)
            if not _is_stopped(pid):
                # what stood still already is not ours to continue
                frozen.append(pid)
                _send(pid, _signal.SIGSTOP)
    return False


def thaw(frozen: list[int]) -> None:
    """Continue what `freeze` stopped, children first: a parent that waits sees them run."""
    for pid in reversed(frozen):
        _send(pid, _signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(fields) and fields[0] == "T"


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return  # it ended
