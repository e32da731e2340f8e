"""Build a cell's root by descriptors (open_tree, mount_setattr, move_mount), in the child, before bubblewrap.

bubblewrap reads its whole mount table again for every mount that it makes, and a cell has forty: 4.7 ms, where this takes 1.
It is left with one bind of the finished tree.

I1  What shows something of the host is read-only, nosuid and nodev before it is attached; only device nodes that are named here
    are usable as such.
    No mount that the host makes later appears in it: the child's copy of the host's mounts is private before anything is cloned.
I2  A place that the policy names is resolved with the cell's root as the root: no link leads a mount out of it.
I3  Mounts that only serve to build the rest stand in the host's old tree, and go with it (`leave_host`).

The layout, below one directory of the host that cells show nothing of: `root` becomes the root of bubblewrap's mount namespace, with
the cell's tree in `root/cell`; `scratch` is the sized tmpfs; the rest is the workshop.
"""

from __future__ import annotations

import os

from saggar.isolation import rootfs
from saggar.isolation import syscalls_host as sys_
from saggar.isolation.bwrap_argv import CELL, HOSTNAME, SCRATCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from saggar.isolation.rootfs_host import System

#: Directories that a cell shows nothing of, so that they may be covered while it is built.
_PLACES = ("/sys", "/mnt", "/media", "/srv", "/boot")
#: Where bubblewrap's own copy lies in its mount namespace.
PROGRAM = "/b"

_SHOWN = sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV
_DEVICE = sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NOEXEC
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = (
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("/proc/kcore", "core"),
    ("pts/ptmx", "ptmx"),
)
#: The root's own files, some 200 KiB of copies of /etc and bubblewrap among them.
_ROOT_OPTIONS = "size=64m,mode=0755"


def first_place(workspace: Mapping[str, Any]) -> str:
    """Where to build: a directory that neither the workspace nor its layer lies below. Raises OSError where there is none."""
    needed = [workspace.get("path", ""), workspace.get("layer", {}).get("path", "")]
    for place in _PLACES:
        if os.path.isdir(place) and not any((path + "/").startswith(place + "/") for path in needed):
            return place
    raise OSError(2, "no directory to build the cell in: this system has neither /sys nor /mnt")


class Furnishing:
    """What every cell of a launcher is furnished with, worked out once: all paths are relative to `root`, in the order in which they are
    made, each directory before what it holds.

    directories; files: (path, content, mode); accounts: (path, place) of files that depend on the user inside; links: (target, path);
    mounts: (source, path, attributes), sources of the host's tree or relative.
    """

    __slots__ = ("accounts", "directories", "files", "links", "mounts")

    def __init__(self, system: System, program: Iterable[tuple[str, bytes]]) -> None:
        """program: files of bubblewrap's own copy, by path below PROGRAM; none where the system's is used."""
        self.directories: list[str] = []
        self.files: list[tuple[str, bytes, int]] = []
        self.accounts: list[tuple[str, str]] = []
        self.links: list[tuple[str, str]] = []
        self.mounts: list[tuple[str, str, int]] = []
        self._system(system)
        self._devices()
        # from here on the order matters: what covers a part of /proc comes after it
        self._directory("cell/proc")
        self.mounts.append(("proc", "cell/proc", 0))
        self.mounts += [(f"cell/proc/{n}", f"cell/proc/{n}", _SHOWN) for n in system.read_only]
        self.mounts += [("/dev/null", f"cell{place}", _SHOWN) for place in system.masked_files]
        self.mounts += [("../none", f"cell{place}", _SHOWN) for place in system.masked_directories]
        for name, place, _ in SCRATCH:
            self._directory(f"cell{place}")
            self.mounts.append((f"../scratch/{name}", f"cell{place}", 0))
        self._directory("cell/run")
        self._directory("cell/sys/fs/cgroup")
        self._bubblewrap(program)

    def _directory(self, path: str) -> None:
        if path in ("", "cell") or path in self.directories:
            return
        self._directory(path.rpartition("/")[0])
        self.directories.append(path)

    def _file(self, path: str, content: bytes = b"", mode: int = 0o444) -> None:
        self._directory(path.rpartition("/")[0])
        self.files.append((path, content, mode))

    def _system(self, system: System) -> None:
        users = rootfs.accounts(0, 0)
        for path in system.system:
            (self._directory if os.path.isdir(path) else self._file)(f"cell{path}")
            self.mounts.append((path, f"cell{path}", _SHOWN))
        for place, content in system.files:
            if place in users:
                self._directory(f"cell{place}".rpartition("/")[0])
                self.accounts.append((f"cell{place}", place))
            else:
                self._file(f"cell{place}", content)
        for target, place in system.links:
            self._directory(f"cell{place}".rpartition("/")[0])
            self.links.append((target, f"cell{place}"))

    def _devices(self) -> None:
        self._directory("cell/dev/pts")
        for name in _DEVICES:
            self._file(f"cell/dev/{name}")
            self.mounts.append((f"/dev/{name}", f"cell/dev/{name}", _DEVICE))
        self.links += [(target, f"cell/dev/{name}") for target, name in _DEVICE_LINKS]

    def _bubblewrap(self, program: Iterable[tuple[str, bytes]]) -> None:
        """A copy, since a bind would name the place of the wheel in /proc/1/mountinfo; and what it is loaded from."""
        for path, content in program:
            self._file(f"{PROGRAM[1:]}/{path}", content, 0o555)
        tops = {
            p.split("/")[1] for p in (*self.directories, *(path for _, path in self.links)) if p.startswith("cell/")
        }
        self.links += [(f"cell/{n}", n) for n in (*(p[1:] for p in rootfs.SYSTEM), "etc") if n in tops]


class Root:
    """A cell's root while it is built. cell_fd, scratch_fd: its top and the scratch tmpfs, by descriptor; shop: where workspace and
    grants are put together."""

    __slots__ = ("_place", "cell_fd", "scratch_fd")

    def __init__(self, place: str, scratch: tuple[int, int]) -> None:
        """Mount what the rest stands on, and /proc. place: see `first_place`. scratch: bytes and inodes. For the first process of a
        PID namespace, with the capabilities of the user namespace that owns it. Raises OSError."""
        self._place = place
        sys_.mount("saggar", place, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, _ROOT_OPTIONS)
        for name in ("root", "scratch", "m", "w", "f", "none"):
            os.mkdir(f"{place}/{name}", 0o755)
        root = self._root
        _attach(root, root)
        for name in ("tmp", "proc", "cell"):
            os.mkdir(f"{root}/{name}", 0o755)
        _attach(self._cell, self._cell)
        flags = sys_.MS_NOSUID | sys_.MS_NODEV
        # the kernel allows it only where a whole /proc is in sight: before the host's is gone
        sys_.mount("proc", f"{root}/proc", "proc", flags | sys_.MS_NOEXEC)
        self.cell_fd = os.open(self._cell, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        size, inodes = scratch
        self._make_scratch(flags, f"size={size},nr_inodes={inodes},mode=0755")
        self.scratch_fd = os.open(f"{place}/scratch", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def _root(self) -> str:
        return f"{self._place}/root"

    @property
    def _cell(self) -> str:
        return f"{self._place}/root{CELL}"

    @property
    def shop(self) -> str:
        """The workspace is mounted together below this directory, whose mounts do not outlive `leave_host`."""
        return f"{self._place}/w"

    def _make_scratch(self, flags: int, options: str) -> None:
        scratch = f"{self._place}/scratch"
        sys_.mount("saggar", scratch, "tmpfs", flags, options)
        for name, _, mode in SCRATCH:
            os.mkdir(f"{scratch}/{name}")
            os.chmod(f"{scratch}/{name}", mode)

    def furnish(self, furnishing: Furnishing, user: tuple[int, int]) -> None:
        """Everything that does not depend on the run. user: (uid, gid) inside. Raises OSError."""
        os.chdir(self._root)
        for path in furnishing.directories:
            os.mkdir(path, 0o755)
        accounts = rootfs.accounts(*user)
        for path, content, mode in furnishing.files:
            _write(path, content, mode)
        for path, place in furnishing.accounts:
            _write(path, accounts[place], 0o444)
        for target, path in furnishing.links:
            os.symlink(target, path)
        for source, path, attributes in furnishing.mounts:
            _attach(source, path, attributes)
        sys_.mount(
            "devpts", "cell/dev/pts", "devpts", sys_.MS_NOSUID | sys_.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"
        )
        os.chdir("/")
        sys_.set_hostname(HOSTNAME)

    def show_groups(self, shown: Iterable[tuple[int, bool, str]]) -> None:
        """The cell's own control groups, read-only. shown: (detached tree, whether it is a directory, path below /sys/fs/cgroup)."""
        for tree, directory, name in shown:
            target = f"{self._cell}/sys/fs/cgroup/{name}"
            os.makedirs(target if directory else os.path.dirname(target), 0o755, exist_ok=True)
            if not directory:
                _write(target, b"", 0o444)
            sys_.mount_setattr(tree, set_=_SHOWN)
            sys_.move_mount(tree, target)
            os.close(tree)

    # what the run brings

    def write(self, place: str, content: bytes, mode: int = 0o444) -> None:
        """A file of the cell's root, read-only as that will be, or of its scratch."""
        above = self._mountpoint(os.path.dirname(place), directory=True)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            _fill(os.open(os.path.basename(place), flags, mode, dir_fd=above), content)
        finally:
            os.close(above)

    def cover(self, place: str, content: bytes, number: int) -> None:
        """A file laid over one that is there."""
        source = f"{self._place}/f/{number}"
        _write(source, content, 0o444)
        self._move(source, place, _SHOWN, directory=False)

    def grant(self, fd: int, number: int, *, directory: bool) -> str:
        """Attach the detached tree `fd` in the workshop; gives the path, for `own_inodes` and `put`."""
        path = f"{self._place}/m/{number}"
        if directory:
            os.mkdir(path, 0o755)
        else:
            _write(path, b"", 0o444)
        sys_.move_mount(fd, path)
        return path

    def put(self, source: str, place: str, *, writable: bool, directory: bool = True) -> None:
        """Move the mount that stands at `source` to `place` of the cell."""
        attributes = sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV if writable else _SHOWN
        self._move(source, place, attributes, directory=directory)

    def console(self, path: str) -> None:
        """The caller's terminal by a name of the cell's, for programs that ask what it is called."""
        _write(f"{self._cell}/dev/console", b"", 0o444)
        _attach(path, f"{self._cell}/dev/console", _DEVICE)

    def _move(self, source: str, place: str, attributes: int, *, directory: bool) -> None:
        at = self._mountpoint(place, directory=directory)
        tree = sys_.open_tree(source)
        try:
            sys_.mount_setattr(tree, set_=attributes)
            sys_.move_mount(tree, "", dir_fd=at)
        finally:
            os.close(tree)
            os.close(at)

    def _mountpoint(self, place: str, *, directory: bool) -> int:
        try:
            return sys_.open_in_root(self.cell_fd, place)
        except FileNotFoundError:
            pass
        above = self._mountpoint(os.path.dirname(place), directory=True)
        name = os.path.basename(place)
        try:
            if directory:
                os.mkdir(name, 0o755, dir_fd=above)
            else:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444, dir_fd=above))
        finally:
            os.close(above)
        return sys_.open_in_root(self.cell_fd, place)

    def leave_host(self) -> None:
        """Make the cell's root read-only, and `root` the root of this mount namespace; nothing of the host's tree stays in it."""
        sys_.mount_setattr(self.cell_fd, set_=sys_.MOUNT_ATTR_RDONLY, recursive=False)
        os.close(self.cell_fd)
        os.chdir(self._root)
        sys_.pivot_root_here()


def _attach(source: str, target: str, attributes: int = 0) -> None:
    tree = sys_.open_tree(source)
    try:
        if attributes:
            sys_.mount_setattr(tree, set_=attributes)
        sys_.move_mount(tree, target)
    finally:
        os.close(tree)


def _write(path: str, content: bytes, mode: int) -> None:
    _fill(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), content)


def _fill(fd: int, content: bytes) -> None:
    try:
        done = os.write(fd, content) if content else 0
        while done < len(content):
            done += os.write(fd, content[done:])
    finally:
        os.close(fd)
