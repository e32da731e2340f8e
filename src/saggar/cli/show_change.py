"""Print a run's changes as diffs, read through the descriptors that found them."""

from __future__ import annotations

import sys

from saggar.isolation.changes import ADDED, DELETED, DIRECTORY, FILE, LIMIT_BYTES, SYMLINK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from saggar.isolation.changes import Change, Node


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


class Shower:
    """Prints changes as they are found. A commit's own data (objects, refs, index) is counted, not shown: nobody reads it, and
    what git would obey is never among it."""

    __slots__ = ("_git", "_wanted")

    def __init__(self, wanted: Callable[[Change], bool]) -> None:
        self._wanted = wanted
        self._git = 0

    def visit(self, change: Change, upper: int, host: int) -> None:
        from saggar.isolation.apply_check import refusal

        if not self._wanted(change):
            return
        if b".git" in change.path.split(b"/") and not refusal(change, patterns=(), allowed=()):
            self._git += 1
            return
        show(change, upper, host)

    def end(self) -> None:
        if self._git:
            say(f"and {self._git} paths of git's own data, see `--name-only`")


def show(change: Change, upper: int, host: int) -> None:
    """Print one change as a diff, read through the descriptors that found it."""
    from saggar.isolation.changes import stat_line, unified

    old, new = change.before, change.after
    texts = [_content(host, old), _content(upper, new)]
    if change.kind == "mode" or (texts[0] is None and texts[1] is None):
        say(stat_line(change))
        return
    if change.kind == ADDED and new is not None and (new.kind == SYMLINK or new.mode & 0o111):
        say("new file mode 120000" if new.kind == SYMLINK else f"new file mode 100{new.mode & 0o777:03o}")
    elif change.kind == "modified" and old is not None and new is not None and (old.mode ^ new.mode) & 0o777:
        say(f"mode {old.mode & 0o777:03o} -> {new.mode & 0o777:03o}")
    before = None if old is None or old.kind == DIRECTORY else texts[0]
    after = None if change.kind == DELETED or new is None or new.kind == DIRECTORY else texts[1]
    for line in unified(change.path, before, after):
        say(line)


def _content(fd: int, node: Node | None) -> bytes | None:
    from saggar.isolation.layer_host import read_content

    if node is None:
        return None
    if node.kind == SYMLINK:
        return b"link to " + node.target + b"\n"
    return read_content(fd, node, LIMIT_BYTES) if node.kind == FILE else None
