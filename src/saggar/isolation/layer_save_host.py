"""Take a memory layer out of a cell that ended: copied by descriptor into the run's directory, marks included.

The supervisor's descriptor keeps the tmpfs alive after the cell's mount namespace is gone, so this runs when nothing of
the cell can write any more. The layer's size is bounded by the tmpfs, and holes stay holes.

I1  Every entry is opened once, by its directory's descriptor, without following links.
I2  Whiteouts, opaque marks and origins arrive as they were, so that `layer_host` reads one format.
"""

from __future__ import annotations

import os

from saggar.isolation.changes import DIRECTORY, FILE, OTHER, SYMLINK, WHITEOUT, Node
from saggar.isolation.layer_host import MAX_DEPTH, copy_data, node_of, open_node
from saggar.isolation.workspace_scan_host import REPOSITORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.isolation.state_host import RunDir

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def save_memory_layer(run: RunDir, upper_fd: int) -> None:
    """Copy the layer behind `upper_fd` to the run's `layer/upper`, and the one of a linked repository beside it. Closes `upper_fd`.

    Raises OSError (a full disk): the run's record then says `layer = "lost"`.
    """
    run.update(layer="lost")
    try:
        left_out = _save(run, "upper", upper_fd, ".")
        if run.meta().get("repository"):
            left_out += _save(run, f"{REPOSITORY}/upper", upper_fd, f"../{REPOSITORY}/upper")
    finally:
        os.close(upper_fd)
    run.update(layer="disk", too_deep=left_out)


def _save(run: RunDir, name: str, upper_fd: int, source_name: str) -> int:
    """Copy one layer; how many directories were left out. source_name: of the launcher's own making, the cell never saw its parent."""
    target = os.open(f"layer/{name}", _DIRECTORY, dir_fd=run.fd)
    try:
        # a listing of another open file: the cell may have moved the offset of this one
        source = os.open(source_name, _DIRECTORY, dir_fd=upper_fd)
        try:
            copy = _Copy(target, os.fstatvfs(upper_fd))
            copy.directory(source, _Place(target, "", 0))
        finally:
            os.close(source)
    finally:
        os.close(target)
    return copy.left_out


class _Place:
    """A directory being filled. path: below the top, ends in `/`."""

    __slots__ = ("depth", "fd", "path")

    def __init__(self, fd: int, path: str, depth: int) -> None:
        self.fd = fd
        self.path = path
        self.depth = depth


class _Copy:
    """One copy. budget: bytes that the tmpfs can hold at most; only a broken link count could ask for more."""

    __slots__ = ("_budget", "_links", "_top", "left_out")

    def __init__(self, top: int, room: os.statvfs_result) -> None:
        self._top = top
        self._budget = room.f_blocks * room.f_frsize
        self._links: dict[int, str] = {}
        self.left_out = 0

    def directory(self, source: int, place: _Place) -> None:
        """Copy the entries of one directory."""
        if place.depth > MAX_DEPTH:
            self.left_out += 1
            return
        for name in os.listdir(source):
            fd = os.open(name, _PATH, dir_fd=source)
            try:
                self._entry(fd, node_of(fd, layer=True), name, place)
            finally:
                os.close(fd)

    def _entry(self, fd: int, node: Node, name: str, place: _Place) -> None:
        if node.kind == DIRECTORY:
            self._below(fd, node, name, place)
        elif node.kind == FILE:
            self._file(fd, node, name, place)
        elif node.kind == SYMLINK:
            os.symlink(node.target, name, dir_fd=place.fd)
            _own(node, name, place.fd)
        elif node.kind == WHITEOUT:
            # a 0/0 device is the one that needs no CAP_MKNOD (Linux 5.8)
            os.mknod(name, 0o20000, 0, dir_fd=place.fd)
        elif node.kind == OTHER:
            os.mkfifo(name, 0, dir_fd=place.fd)
            _own(node, name, place.fd)

    def _below(self, fd: int, node: Node, name: str, place: _Place) -> None:
        os.mkdir(name, 0o700, dir_fd=place.fd)
        made = os.open(name, _DIRECTORY, dir_fd=place.fd)
        opened = open_node(fd, node)
        try:
            self.directory(opened, _Place(made, f"{place.path}{name}/", place.depth + 1))
            if node.opaque:
                os.setxattr(made, "user.overlay.opaque", b"y")
            _mark_origin(node, made)
            _own(node, name, place.fd)
            os.fchmod(made, node.mode)
            os.utime(made, ns=(node.mtime_ns, node.mtime_ns))
        finally:
            os.close(opened)
            os.close(made)

    def _file(self, fd: int, node: Node, name: str, place: _Place) -> None:
        if node.nlink > 1 and self._link(node, name, place):
            return
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=place.fd)
        opened = open_node(fd, node)
        try:
            self._budget -= copy_data(opened, made, node.size, limit=self._budget)
            _mark_origin(node, made)
            _own(node, name, place.fd)
            os.fchmod(made, node.mode & 0o777)
            os.utime(made, ns=(node.mtime_ns, node.mtime_ns))
        finally:
            os.close(opened)
            os.close(made)

    def _link(self, node: Node, name: str, place: _Place) -> bool:
        first = self._links.setdefault(node.inode, place.path + name)
        if first == place.path + name:
            return False
        try:
            os.link(first, name, src_dir_fd=self._top, dst_dir_fd=place.fd, follow_symlinks=False)
        except OSError:
            return False  # a path beyond PATH_MAX, or a directory that its owner may no longer search: a copy then
        return True


def _mark_origin(node: Node, fd: int) -> None:
    if node.origin:
        os.setxattr(fd, "user.overlay.origin", b"")
    if node.broken:
        os.setxattr(fd, "user.overlay.redirect", b"")


def _own(node: Node, name: str, target: int) -> None:
    if os.geteuid() == 0:
        os.chown(name, node.uid, node.gid, dir_fd=target, follow_symlinks=False)
