"""Read what a run changed: its upper layer beside the host's workspace, both by descriptor.

I1  Every entry is opened once, from its directory's descriptor, with O_NOFOLLOW, and judged by that descriptor: names are
    single components, so nothing can lead elsewhere. Another file system below either tree is not entered.
I2  The layer is hostile: whole files, whiteouts (0/0 devices, or files marked `user.overlay.whiteout`) and opaque
    directories are read; metacopy and redirect marks, foreign owners, foreign hard links and special files are refused.
I3  Nothing of the host is read but what has a counterpart in the layer, or lies below a directory that the run replaced.
I4  At most MAX_DEPTH levels and MAX_CHANGES changes.
"""

from __future__ import annotations

import errno
import os
from stat import S_ISCHR, S_ISDIR, S_ISLNK, S_ISREG

from saggar.core.errors import UsageError
from saggar.isolation.changes import (
    ADDED,
    DELETED,
    DIRECTORY,
    FILE,
    MODE,
    MODIFIED,
    OTHER,
    SYMLINK,
    TYPE,
    WHITEOUT,
    Change,
    Node,
    allowed_mode,
)
from saggar.isolation.shown import shown
from saggar.isolation.workspace_scan_host import REPOSITORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from saggar.isolation.state_host import RunDir

MAX_DEPTH = 128
MAX_CHANGES = 500_000
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 18
_XATTR = "user.overlay."


def node_of(fd: int, *, layer: bool = False) -> Node:
    """What the O_PATH descriptor `fd` is. layer: also read overlayfs's marks (I2)."""
    s = os.fstat(fd)
    kind = FILE if S_ISREG(s.st_mode) else DIRECTORY if S_ISDIR(s.st_mode) else SYMLINK if S_ISLNK(s.st_mode) else OTHER
    origin: bool | None = None
    opaque = False
    broken = ""
    if layer and kind == OTHER and S_ISCHR(s.st_mode) and s.st_rdev == 0:
        kind = WHITEOUT
    elif layer and kind in (FILE, DIRECTORY):
        marks = _marks(fd)
        origin = "origin" in marks
        opaque = marks.get("opaque") == b"y"
        if "metacopy" in marks or "redirect" in marks:
            broken = "layer_format"
        if kind == FILE and "whiteout" in marks:
            kind = WHITEOUT
    return Node(
        kind=kind,
        mode=s.st_mode & 0o7777,
        size=s.st_size,
        target=os.readlink(b"", dir_fd=fd) if kind == SYMLINK else b"",
        uid=s.st_uid,
        gid=s.st_gid,
        inode=s.st_ino,
        device=s.st_dev,
        nlink=s.st_nlink,
        mtime_ns=s.st_mtime_ns,
        ctime_ns=s.st_ctime_ns,
        origin=origin,
        opaque=opaque,
        broken=broken,
    )


def _marks(fd: int) -> dict[str, bytes]:
    """The overlay attributes of one entry. fgetxattr refuses O_PATH; the /proc name is the descriptor, not a path."""
    name = f"/proc/self/fd/{fd}"
    return {
        x[len(_XATTR) :]: _mark(name, x)
        for x in os.listxattr(name)
        if x.startswith(_XATTR) and "." not in x[len(_XATTR) :]
    }


def _mark(name: str, attribute: str) -> bytes:
    try:
        return os.getxattr(name, attribute)
    except PermissionError:
        return b""  # the owner took the read permission away; being there is what most marks say


def open_node(fd: int, node: Node) -> int:
    """Open the file or directory behind an O_PATH descriptor for reading; an owner's missing read permission is lent for it."""
    flags = _DIRECTORY & ~os.O_NOFOLLOW if node.kind == DIRECTORY else os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    name = f"/proc/self/fd/{fd}"
    try:
        return os.open(name, flags)
    except PermissionError:
        if node.uid != os.geteuid():
            raise
    os.chmod(name, node.mode | 0o500)
    try:
        return os.open(name, flags)
    finally:
        # a directory keeps the loan: its entries are looked up through it. The mode that counts is in `node`
        if node.kind != DIRECTORY:
            os.chmod(name, node.mode)


class Layer:
    """A run's upper layer beside its workspace. `changes()` walks both once.

    upper_fd, host_fd: directories. base: first host id of the cell's range for a root caller's run, else 0.
    Each of `refused` is (path, reason): entries that cannot be a change of the run (I2). `directories` are the host's
    directories that were looked into: path (ends in `/`, the top is "") to what they were.
    """

    __slots__ = (
        "_device",
        "_host_device",
        "_linked",
        "_links",
        "_uid",
        "base",
        "directories",
        "host_fd",
        "refused",
        "upper_fd",
    )

    def __init__(self, upper_fd: int, host_fd: int, *, base: int = 0) -> None:
        self.upper_fd = upper_fd
        self.host_fd = host_fd
        self.base = base
        self.directories: dict[bytes, Node] = {}
        self._uid = os.geteuid()
        self._device = os.fstat(upper_fd).st_dev
        self._host_device = os.fstat(host_fd).st_dev
        self._links: dict[int, int] = {}
        self._linked: dict[int, tuple[int, bytes]] = {}
        self.refused: list[tuple[bytes, str]] = []

    def close(self) -> None:
        """Give both descriptors back."""
        _close(self.upper_fd, self.host_fd)
        self.upper_fd = self.host_fd = -1

    def changes(self, visit: Callable[[Change, int, int], None] | None = None) -> list[Change]:
        """All changes, parents before what is in them, names sorted.

        visit: called for each with O_PATH descriptors of the layer's and the host's entry (-1 where there is none),
        valid during the call. Raises OSError where either tree cannot be read.
        """
        found: list[Change] = []
        for change, upper, host in self._walk(self.upper_fd, self.host_fd, b"", merged=True, git=None, depth=0):
            if len(found) >= MAX_CHANGES:
                raise OSError(errno.EOVERFLOW, f"more than {MAX_CHANGES} changes")
            found.append(change)
            if visit is not None:
                visit(change, upper, host)
        for inode, (nlink, path) in self._linked.items():
            if self._links[inode] != nlink:
                self.refused.append((path, "hard_link_from_outside"))
        return found

    def _walk(
        self, upper_dir: int, host_dir: int, path: bytes, *, merged: bool, git: bytes | None, depth: int
    ) -> Iterator[tuple[Change, int, int]]:
        """The changes below one directory of the layer. merged: the host's entries shine through. host_dir: or -1."""
        if depth > MAX_DEPTH:
            self.refused.append((path, "too_deep"))
            return
        if host_dir >= 0:
            self.directories[path] = node_of(host_dir)
        names = sorted(map(os.fsencode, os.listdir(upper_dir)))
        git = _git_below(names, host_dir, git, merged=merged)
        hidden = frozenset() if merged or host_dir < 0 else self._hidden(names, host_dir)
        for name in sorted([*names, *hidden]):
            where = path + name
            inside = None if git is None else git + name
            upper = os.open(name, _PATH, dir_fd=upper_dir) if name not in hidden else -1
            host = _open_or_none(name, host_dir)
            try:
                yield from self._entry(upper, host, where, merged=merged, git=inside, depth=depth)
            finally:
                _close(upper, host)

    def _hidden(self, names: list[bytes], host_dir: int) -> frozenset[bytes]:
        """The host's names that an opaque directory hides: the run deleted them."""
        fd = os.open(b".", _DIRECTORY, dir_fd=host_dir)
        try:
            return frozenset(map(os.fsencode, os.listdir(fd))).difference(names)
        finally:
            os.close(fd)

    def _entry(
        self, upper: int, host: int, path: bytes, *, merged: bool, git: bytes | None, depth: int
    ) -> Iterator[tuple[Change, int, int]]:
        after = node_of(upper, layer=True) if upper >= 0 else Node(kind=WHITEOUT)
        before = node_of(host) if host >= 0 else None
        if after.kind == WHITEOUT:
            if before is not None:
                yield Change(path, DELETED, before=before, after=None, in_git=git), -1, host
            return
        reason = self._refusal(after, path)
        if reason:
            self.refused.append((path, reason))
            if after.kind != DIRECTORY or reason == "other_file_system":
                return
        kind = self._kind(upper, after, host, before)
        if kind:
            yield Change(path, kind, before=before, after=after, in_git=git), upper, host
        if after.kind != DIRECTORY:
            return
        below = before is not None and before.kind == DIRECTORY
        if below and before is not None and before.device != self._host_device:
            self.refused.append((path, "other_file_system"))
            return
        opened = open_node(upper, after)
        try:
            shine = merged and below and not after.opaque
            inner = None if git is None else git + b"/"
            yield from self._walk(opened, host if below else -1, path + b"/", merged=shine, git=inner, depth=depth + 1)
        finally:
            os.close(opened)

    def _refusal(self, node: Node, path: bytes) -> str:
        if node.device != self._device:
            return "other_file_system"
        if node.broken:
            return node.broken
        if node.kind == OTHER:
            return "special_file"
        if self.base:
            if not self.base <= node.uid < self.base + 65536:
                return "foreign_owner"
        elif node.uid != self._uid:
            return "foreign_owner"
        if node.kind == FILE and node.nlink > 1:
            self._links[node.inode] = self._links.get(node.inode, 0) + 1
            self._linked[node.inode] = (node.nlink, path)
        return ""

    def _kind(self, upper: int, after: Node, host: int, before: Node | None) -> str:
        """How the layer's entry differs from the host's, or "" where it does not."""
        if before is None:
            return ADDED
        if before.kind != after.kind:
            return TYPE
        if after.kind == SYMLINK:
            return "" if before.target == after.target else MODIFIED
        if after.kind == FILE and not same_content(upper, after, host, before):
            return MODIFIED
        return MODE if allowed_mode(after) != allowed_mode(before) else ""


#: stands for "in a git directory that the run itself laid out": nothing is allowed in one, see `protected`
_PLANTED = b".git/"
_GIT_LAYOUT = (b"HEAD", b"objects", b"refs")


def _git_below(names: list[bytes], host_dir: int, git: bytes | None, *, merged: bool) -> bytes | None:
    """The prefix of `in_git` for the entries of a directory, None outside git directories.

    A directory with HEAD, objects and refs is a git directory wherever it stands: git takes configuration and hooks from a
    bare repository that it is called in. One that only becomes so with the run's entries is told apart.
    """
    on_host = [n for n in _GIT_LAYOUT if _exists(n, host_dir)]
    if len(on_host) == len(_GIT_LAYOUT):
        return b""
    folded = {n.lower() for n in names}
    if all(n.lower() in folded or (merged and n in on_host) for n in _GIT_LAYOUT):
        return _PLANTED
    return git


def _exists(name: bytes, dir_fd: int) -> bool:
    if dir_fd < 0:
        return False
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def _open_or_none(name: bytes, dir_fd: int) -> int:
    if dir_fd < 0:
        return -1
    try:
        return os.open(name, _PATH, dir_fd=dir_fd)
    except FileNotFoundError:
        return -1


def _close(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def same_content(one: int, node: Node, other: int, other_node: Node) -> bool:
    """Whether two regular files (O_PATH) hold the same bytes. Holes that both have are not read."""
    if node.size != other_node.size:
        return False
    a, b = open_node(one, node), open_node(other, other_node)
    try:
        at = 0
        while at < node.size:
            at = min(_data_after(a, at, node.size), _data_after(b, at, node.size))
            if at >= node.size:
                return True
            if os.pread(a, _CHUNK, at) != os.pread(b, _CHUNK, at):
                return False
            at += _CHUNK
    finally:
        _close(a, b)
    return True


def _data_after(fd: int, at: int, size: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as e:
        if e.errno == errno.ENXIO:
            return size
        return at  # the file system knows no holes


def copy_data(source: int, target: int, size: int, *, limit: int = 1 << 62) -> int:
    """Copy `size` bytes of `source` to the empty file `target`, holes as holes; the number of bytes that are data.

    A source that shrinks gives zeros. Raises OSError(ENOSPC) beyond `limit` bytes of data.
    """
    at = done = 0
    while at < size:
        at = _data_after(source, at, size)
        if at >= size:
            break
        chunk = os.pread(source, min(_CHUNK, size - at), at)
        if not chunk:
            break
        done += len(chunk)
        if done > limit:
            raise OSError(errno.ENOSPC, "more data than the layer could hold")
        view = memoryview(chunk)
        while view:
            written = os.pwrite(target, view, at)
            at += written
            view = view[written:]
    os.ftruncate(target, size)
    return done


def read_content(fd: int, node: Node, limit: int) -> bytes:
    """Up to `limit` + 1 bytes of a regular file (O_PATH): a longer answer than `limit` says that there is more."""
    opened = open_node(fd, node)
    try:
        return os.pread(opened, limit + 1, 0)
    finally:
        os.close(opened)


def open_layer(run: RunDir) -> Layer:
    """The layer of a run and its workspace, which must still be the directory that the run began with.

    Raises UsageError: a run without a layer (read-only, read-write, none, applied), a workspace that is gone or replaced.
    """
    meta = run.meta()
    path = meta.get("workspace", "")
    try:
        upper = os.open("layer/upper", _DIRECTORY, dir_fd=run.fd)
    except FileNotFoundError:
        done = "was applied" if meta.get("applied") else f"has a `{meta.get('mode', 'none')}` workspace"
        raise UsageError(f"the run `{run.id}` has no changes kept apart: it {done}") from None
    return _beside(run, upper, path, "workspace")


def open_repository_layer(run: RunDir) -> Layer | None:
    """The layer over the repository that the run's workspace is linked to, None where there was none. Raises UsageError as above."""
    path = run.meta().get("repository", "")
    if not path:
        return None
    try:
        upper = os.open(f"layer/{REPOSITORY}/upper", _DIRECTORY, dir_fd=run.fd)
    except FileNotFoundError:
        return None
    return _beside(run, upper, path, "repository")


def _beside(run: RunDir, upper: int, path: str, what: str) -> Layer:
    """The layer `upper`, taken over, and the host's directory `path`. Raises UsageError."""
    meta = run.meta()
    try:
        host = os.open(path, _DIRECTORY)
    except OSError as e:
        os.close(upper)
        raise UsageError(f"the {what} `{shown(path)}` of run `{run.id}` cannot be opened: {e.strerror}") from None
    status = os.fstat(host)
    if [status.st_dev, status.st_ino] != meta.get(f"{what}_id"):
        _close(upper, host)
        raise UsageError(f"the {what} `{shown(path)}` is not the directory that run `{run.id}` began with")
    return Layer(upper, host, base=int(meta.get("base", 0)))
