"""An index of git's among a run's changes, read by descriptor; the judgement is `git_index`'s."""

from __future__ import annotations

import os

from saggar.isolation.changes import FILE, MODE
from saggar.isolation.git_index import MAX_INDEX, digest_size, index_fault, is_index
from saggar.isolation.layer_host import open_node
from saggar.isolation.protected import components

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.isolation.changes import Change

_SETTINGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST = 1 << 20


def fault_of(change: Change, upper: int, host_fd: int, *, inside: bool = False) -> str:
    """Why `change` may not be brought back, where it is an index; else "". upper: the run's entry (O_PATH). host_fd: what the path is
    relative to; inside: that is a git directory itself. Raises OSError."""
    above, _, name = change.path.rpartition(b"/")
    after = change.after
    if after is None or after.kind != FILE or change.kind == MODE or not is_index(name):
        return ""
    if not inside and change.in_git is None and ".git" not in components(above):
        return ""
    with open(open_node(upper, after), "rb") as file:
        return index_fault(file.read(MAX_INDEX + 1), digest_size(_settings(above, host_fd)))


def _settings(above: bytes, host_fd: int) -> bytes:
    """The host's, of the git directory `above`, or of the one whose worktree that is."""
    tops = [above]
    parts = above.split(b"/")
    if len(parts) > 1 and parts[-2] == b"worktrees":
        tops.append(b"/".join(parts[:-2]))
    for top in tops:
        try:
            with open(os.open(top + b"/config" if top else b"config", _SETTINGS, dir_fd=host_fd), "rb") as file:
                return file.read(_MOST)
        except OSError:
            continue
    return b""
