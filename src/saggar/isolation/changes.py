"""What a run changed in its workspace, as values. Pure.

I1  A change names one path (bytes, relative to the workspace, `/` between components, no `.` or `..`).
I2  Text made for a terminal holds no control, no bidirectional and no invisible character of a name or a content.
I3  Rendering a diff takes time bounded by LIMIT_BYTES and LIMIT_CELLS, whatever the contents are.
"""

from __future__ import annotations

from saggar.core.decision import Frozen
from saggar.isolation.shown import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ADDED, MODIFIED, DELETED, TYPE, MODE = "added", "modified", "deleted", "type", "mode"
FILE, DIRECTORY, SYMLINK, WHITEOUT, OTHER = "file", "directory", "symlink", "whiteout", "other"

LIMIT_BYTES = 1 << 20
#: lines before times lines after, once common head and tail are cut: difflib is quadratic on hostile input
LIMIT_CELLS = 4_000_000


class Node(Frozen):
    """One directory entry as fstat saw it. kind: FILE, DIRECTORY, SYMLINK, WHITEOUT or OTHER (fifo, socket, device).

    origin: True when overlayfs copied it up from the layer below, None where it cannot say (symbolic links).
    opaque: a directory that hides what is below. target: of a symbolic link. broken: why a layer entry is refused, or "".
    """

    __slots__ = (
        "broken",
        "ctime_ns",
        "device",
        "gid",
        "inode",
        "kind",
        "mode",
        "mtime_ns",
        "nlink",
        "opaque",
        "origin",
        "size",
        "target",
        "uid",
    )
    broken: str
    ctime_ns: int
    device: int
    gid: int
    inode: int
    kind: str
    mode: int
    mtime_ns: int
    nlink: int
    opaque: bool
    origin: bool | None
    size: int
    target: bytes
    uid: int

    def __init__(
        self,
        *,
        kind: str,
        mode: int = 0,
        size: int = 0,
        target: bytes = b"",
        uid: int = 0,
        gid: int = 0,
        inode: int = 0,
        device: int = 0,
        nlink: int = 1,
        mtime_ns: int = 0,
        ctime_ns: int = 0,
        origin: bool | None = None,
        opaque: bool = False,
        broken: str = "",
    ) -> None:
        self._set(
            kind=kind,
            mode=mode,
            size=size,
            target=target,
            uid=uid,
            gid=gid,
            inode=inode,
            device=device,
            nlink=nlink,
            mtime_ns=mtime_ns,
            ctime_ns=ctime_ns,
            origin=origin,
            opaque=opaque,
            broken=broken,
        )

    def same_object(self, other: Node) -> bool:
        """Whether both looks saw the same file in the same state. Not by ctime: a rename of ours moves that."""
        return (self.device, self.inode, self.kind, self.mode, self.mtime_ns, self.size, self.target) == (
            other.device,
            other.inode,
            other.kind,
            other.mode,
            other.mtime_ns,
            other.size,
            other.target,
        )


class Change(Frozen):
    """One path that differs from the host's. kind: ADDED, MODIFIED, DELETED, TYPE or MODE.

    before: the host's entry now, or None. after: the run's, or None. in_git: the path relative to the innermost directory
    that is laid out as a git directory, or None: git would take its configuration and hooks from there.
    """

    __slots__ = ("after", "before", "in_git", "kind", "path")
    after: Node | None
    before: Node | None
    in_git: bytes | None
    kind: str
    path: bytes

    def __init__(
        self, path: bytes, kind: str, *, before: Node | None, after: Node | None, in_git: bytes | None = None
    ) -> None:
        self._set(path=path, kind=kind, before=before, after=after, in_git=in_git)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": shown(self.path),
            "kind": self.kind,
            "before": _node_json(self.before),
            "after": _node_json(self.after),
        }


def _node_json(node: Node | None) -> dict[str, Any] | None:
    if node is None:
        return None
    value: dict[str, Any] = {"type": node.kind, "mode": f"{node.mode & 0o7777:04o}", "size": node.size}
    if node.kind == SYMLINK:
        value["target"] = shown(node.target)
    return value


def allowed_mode(node: Node) -> int:
    """The permission bits of a run's entry that may come out: never set-user-ID or set-group-ID."""
    return node.mode & (0o1777 if node.kind == DIRECTORY else 0o777)


# -- text for a terminal ----------------------------------------------------------------------------------------------


def is_text(data: bytes) -> bool:
    """Whether `data` is shown line by line: UTF-8 without NUL."""
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def unified(path: bytes, before: bytes | None, after: bytes | None) -> Iterator[str]:
    """The lines of a unified diff without their newlines, or one line that says why there is none (I3)."""
    name = shown(path)
    old, new = before or b"", after or b""
    if len(old) > LIMIT_BYTES or len(new) > LIMIT_BYTES:
        yield f"{name}: {len(old)} -> {len(new)} bytes, too large to show"
        return
    if not is_text(old) or not is_text(new):
        yield f"{name}: binary, {len(old)} -> {len(new)} bytes"
        return
    yield f"--- {'/dev/null' if before is None else 'a/' + name}"
    yield f"+++ {'/dev/null' if after is None else 'b/' + name}"
    yield from _hunks(_lines(old), _lines(new))


def _lines(data: bytes) -> list[str]:
    lines = data.decode().split("\n")
    if lines[-1]:
        lines[-1] += "\n\\ No newline at end of file"
    else:
        lines.pop()
    return lines


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    head = 0
    shortest = min(len(old), len(new))
    while head < shortest and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shortest - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    if (len(old) - head - tail) * (len(new) - head - tail) > LIMIT_CELLS:
        yield f"@@ {len(old) - head - tail} lines become {len(new) - head - tail}, too many to compare @@"
        return
    from difflib import SequenceMatcher

    context = max(head - 3, 0)
    last = max(tail - 3, 0)
    one, other = old[context : len(old) - last], new[context : len(new) - last]
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for group in matcher.get_grouped_opcodes(3):
        first, final = group[0], group[-1]
        yield f"@@ -{_span(first[1], final[2], context)} +{_span(first[3], final[4], context)} @@"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from _marked(" ", one[i1:i2])
                continue
            yield from _marked("-", one[i1:i2])
            yield from _marked("+", other[j1:j2])


def _span(start: int, stop: int, offset: int) -> str:
    length = stop - start
    begin = start + offset + (1 if length else 0)
    return f"{begin}" if length == 1 else f"{begin},{length}"


def _marked(mark: str, lines: Any) -> Iterator[str]:
    for line in lines:
        text, newline, note = line.partition("\n")
        yield mark + shown(text, keep="\t")
        if newline:
            yield note


def stat_line(change: Change) -> str:
    """One line for a change: letter, path, and what is special about it."""
    letter = {ADDED: "A", MODIFIED: "M", DELETED: "D", TYPE: "T", MODE: "m"}[change.kind]
    name = shown(change.path)
    before, after = change.before, change.after
    note = ""
    if after is not None and after.kind == SYMLINK:
        note = f" -> {shown(after.target)}"
    elif change.kind == MODE and before is not None and after is not None:
        note = f" {before.mode & 0o7777:04o} -> {allowed_mode(after):04o}"
    elif change.kind == TYPE and before is not None and after is not None:
        note = f" ({before.kind} -> {after.kind})"
    elif change.kind == MODIFIED and before is not None and after is not None:
        note = f" ({before.size} -> {after.size} bytes)"
    slash = "/" if (after or before or Node(kind=FILE)).kind == DIRECTORY else ""
    return f"{letter} {name}{slash}{note}"
