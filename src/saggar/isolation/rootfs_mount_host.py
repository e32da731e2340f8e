"""Build a cell's root by descriptors (open_tree, mount_setattr, move_mount), in the child, before bubblewrap.

bubblewrap reads its whole mount table again for every mount that it makes, and a cell has forty: 4.7 ms, where this takes 1.
It is left with one bind of the finished tree.

I1  What shows something of the host is read-only, nosuid and nodev before it is attached; only device nodes that are named here
    are usable as such.
    No mount that the host makes later appears in it: the child's copy of the host's mounts is private before anything is cloned.
I2  A place that the policy names is resolved with the cell's root as the root: no link leads a mount out of it.
I3  The template's file system takes no write once it is made, by whatever mount: nothing in it passes from cell to cell.
I4  Mounts that only serve to build the rest stand in the host's old tree, and go with it (`leave_host`).

Two parts. `furnish` makes the template: what is the same for every cell of a kind, in a file system that is read-only from then on; a
child that is forked from a process that has one gets it with its copy of the mounts (`template_host`). `Root` is one cell's own: its
root directory, scratch space, /proc and terminals, into which it takes clones of the template's parts.

The layout, below one directory of the host that cells show nothing of: the template's `r` is the root of bubblewrap's mount namespace,
`etc` and `dev` are shown as they are. `c` is the cell's own: `c/cell` is its root, `c/scratch` the sized tmpfs, the rest the workshop.
"""

from __future__ import annotations

import os

from saggar.isolation import rootfs
from saggar.isolation import syscalls_host as sys_
from saggar.isolation.bwrap_argv import CELL, HOSTNAME, SCRATCH
from saggar.isolation.cgroups_host import SAYS_NOTHING

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
#: The template's own files are some 200 KiB of copies of /etc, and bubblewrap.
_ROOT_OPTIONS = "size=64m,mode=0755"
#: From the root of the cell while it is built: its own part of the layout, and the template.
_OWN = "../.."
_TEMPLATE = "../../.."
_FLAGS = sys_.MS_NOSUID | sys_.MS_NODEV
#: What the place covers of the host and a cell is shown a part of: its control groups.
_GROUPS = "/sys/fs/cgroup"


def first_place(workspace: Mapping[str, Any]) -> str:
    """Where to build: a directory that neither the workspace nor its layer lies below. Raises OSError where there is none."""
    needed = [workspace.get("path", ""), workspace.get("layer", {}).get("path", "")]
    for place in _PLACES:
        if os.path.isdir(place) and not any((path + "/").startswith(place + "/") for path in needed):
            return place
    raise OSError(2, "no directory to build the cell in: this system has neither /sys nor /mnt")


class Furnishing:
    """What every cell of a launcher is furnished with, worked out once. All paths are relative, in the order in which they are made, each
    directory before what it holds.

    Of the template: directories; files: (path, content, mode); accounts: (path, place) of files that depend on the user inside; links:
    (target, path); mounts: (source, path, attributes).
    Of each cell, relative to its root: cell_directories; cell_links; cell_mounts, whose sources are of the host's tree, of the cell's own
    workshop, or of the template.
    """

    __slots__ = ("accounts", "cell_directories", "cell_links", "cell_mounts", "directories", "files", "links", "mounts")

    def __init__(self, system: System, program: Iterable[tuple[str, bytes]]) -> None:
        """program: files of bubblewrap's own copy, by path below PROGRAM; none where the system's is used."""
        self.directories: list[str] = ["c", "groups", "shown", "none", "r", "r/tmp", "r/proc", f"r{CELL}"]
        self.files: list[tuple[str, bytes, int]] = []
        self.accounts: list[tuple[str, str]] = []
        self.links: list[tuple[str, str]] = []
        self.mounts: list[tuple[str, str, int]] = []
        self.cell_directories: list[str] = []
        self.cell_links: list[tuple[str, str]] = []
        self.cell_mounts: list[tuple[str, str, int]] = []
        self._system(system)
        self._devices()
        self._file("null")
        self.mounts.append(("/dev/null", "null", _SHOWN))
        # from here on the order matters: what covers a part of /proc comes after it
        self._add("proc")
        self.cell_mounts.append(("../proc", "proc", 0))
        self.cell_mounts += [(f"proc/{n}", f"proc/{n}", _SHOWN) for n in system.read_only]
        # these two are read-only where they are cloned from
        self.cell_mounts += [(f"{_TEMPLATE}/null", place[1:], 0) for place in system.masked_files]
        self.cell_mounts += [(f"{_TEMPLATE}/none", place[1:], 0) for place in system.masked_directories]
        for name, place, _ in SCRATCH:
            if not place.startswith("/dev/"):
                self._add(place[1:])
            self.cell_mounts.append((f"{_OWN}/scratch/{name}", place[1:], 0))
        self._add("run")
        self._add("sys/fs/cgroup")
        self.cell_mounts.append((f"{_TEMPLATE}/shown", "sys/fs/cgroup", 0))
        self._bubblewrap(program)

    def _directory(self, path: str) -> None:
        if not path or path in self.directories:
            return
        self._directory(path.rpartition("/")[0])
        self.directories.append(path)

    def _add(self, path: str) -> None:
        """A directory of the cell's own."""
        if not path or path in self.cell_directories:
            return
        self._add(path.rpartition("/")[0])
        self.cell_directories.append(path)

    def _file(self, path: str, content: bytes = b"", mode: int = 0o444) -> None:
        self._directory(path.rpartition("/")[0])
        self.files.append((path, content, mode))

    def _system(self, system: System) -> None:
        users = rootfs.accounts(0, 0)
        self._add("etc")
        self.cell_mounts.append((f"{_TEMPLATE}/etc", "etc", 0))
        self._directory("etc")
        for path in system.system:
            if path.startswith("/etc/"):
                (self._directory if os.path.isdir(path) else self._file)(path[1:])
                self.mounts.append((path, path[1:], _SHOWN))
            elif os.path.isdir(path):
                self._add(path[1:])
                self.cell_mounts.append((path, path[1:], _SHOWN))
        for place, content in system.files:
            if place == rootfs.HOSTS_PLACE:
                # the cell's own, by a link: a mount of it would cost twice as much
                self._directory("etc")
                self.links.append((f"..{rootfs.HOSTS_FILE}", place[1:]))
            elif place in users:
                self._directory(place[1:].rpartition("/")[0])
                self.accounts.append((place[1:], place))
            else:
                self._file(place[1:], content)
        for target, place in system.links:
            if place.startswith("/etc/"):
                self._directory(place[1:].rpartition("/")[0])
                self.links.append((target, place[1:]))
            else:
                self._add(place[1:].rpartition("/")[0])
                self.cell_links.append((target, place[1:]))

    def _devices(self) -> None:
        self._add("dev")
        self.cell_mounts.append((f"{_TEMPLATE}/dev", "dev", 0))
        self._directory("dev/pts")
        self._directory("dev/shm")
        for name in _DEVICES:
            self._file(f"dev/{name}")
            self.mounts.append((f"/dev/{name}", f"dev/{name}", _DEVICE))
        self.links += [(target, f"dev/{name}") for target, name in _DEVICE_LINKS]

    def _bubblewrap(self, program: Iterable[tuple[str, bytes]]) -> None:
        """A copy, since a bind would name the place of the wheel in /proc/1/mountinfo; and what it is loaded from."""
        for path, content in program:
            self._file(f"r{PROGRAM}/{path}", content, 0o555)
        tops = {p.split("/")[0] for p in (*self.cell_directories, *(path for _, path in self.cell_links))}
        self.links += [(f"{CELL[1:]}/{n}", f"r/{n}") for n in (*(p[1:] for p in rootfs.SYSTEM), "etc") if n in tops]


def furnish(
    place: str, furnishing: Furnishing, user: tuple[int, int], shown: Iterable[tuple[str, str]], *, console: bool
) -> None:
    """Make the template at `place` (see `first_place`), in a mount namespace of the caller's own whose mounts are private. user: (uid,
    gid) inside. shown: what a cell is shown of control groups (`cgroups_host.view`). console: whether the terminal is to have a name
    inside. Raises OSError."""
    # the place may be above them
    groups = sys_.open_tree(_GROUPS) if os.path.isdir(_GROUPS) else -1
    sys_.mount("saggar", place, "tmpfs", _FLAGS, _ROOT_OPTIONS)
    os.chdir(place)
    for path in furnishing.directories:
        os.mkdir(path, 0o755)
    accounts = rootfs.accounts(*user)
    for path, content, mode in furnishing.files:
        _write(path, content, mode)
    if console:
        _write("dev/console", b"", 0o444)
    for path, name in furnishing.accounts:
        _write(path, accounts[name], 0o444)
    for target, path in furnishing.links:
        os.symlink(target, path)
    for source, path, attributes in furnishing.mounts:
        _attach(source, path, attributes)
    if groups >= 0:
        sys_.move_mount(groups, "groups")
        os.close(groups)
    _furnish_groups(place, shown)
    # the file system, not this mount alone; what is cloned of it is read-only as well
    sys_.mount("saggar", place, "tmpfs", _FLAGS | sys_.MS_REMOUNT | sys_.MS_RDONLY, _ROOT_OPTIONS)
    os.chdir("/")


def _furnish_groups(place: str, shown: Iterable[tuple[str, str]]) -> None:
    """Places for the directories, which each cell has its own of; the files, which say the same to all. Word for its runtimes and no wall,
    so what cannot be shown is left out."""
    for source, name in shown:
        path = f"shown/{name}"
        try:
            if not name.endswith(SAYS_NOTHING):
                # not looked at: a template is made when the cell whose directory this was is gone
                os.makedirs(path, 0o755, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            _write(path, b"", 0o444)
            _attach(_uncovered(place, source), path, _SHOWN)
        except OSError:
            continue


def _uncovered(place: str, path: str) -> str:
    """Where in a template's mount namespace that part of the control groups is."""
    return f"{place}/groups{path[len(_GROUPS) :]}" if path.startswith(f"{_GROUPS}/") else path


class Root:
    """A cell's root while it is built. cell_fd, scratch_fd: its top and the scratch tmpfs, by descriptor; shop: where workspace and
    grants are put together."""

    __slots__ = ("_etc", "_place", "cell_fd", "scratch_fd")

    def __init__(self, template: str, furnishing: Furnishing, scratch: tuple[int, int]) -> None:
        """Everything that does not depend on the run. template: the place that was furnished. scratch: bytes and inodes. For the first
        process of a PID namespace, with the capabilities of the user namespace that owns it. Raises OSError."""
        self._place = place = f"{template}/c"
        self._etc = -1
        sys_.mount("saggar", place, "tmpfs", _FLAGS, _ROOT_OPTIONS)
        os.chdir(place)
        for name in ("root", "cell", "scratch", "m", "w", "f"):
            os.mkdir(name, 0o755)
        _attach(f"{template}/r", "root")
        # the kernel allows it only where a whole /proc is in sight: before the host's is gone
        sys_.mount("proc", "root/proc", "proc", _FLAGS | sys_.MS_NOEXEC)
        _attach("cell", f"root{CELL}")
        size, inodes = scratch
        self._make_scratch(f"size={size},nr_inodes={inodes},mode=0755")
        self.scratch_fd = os.open("scratch", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chdir(f"root{CELL}")
        self.cell_fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for path in furnishing.cell_directories:
            os.mkdir(path, 0o755)
        for target, path in furnishing.cell_links:
            os.symlink(target, path)
        for source, path, attributes in furnishing.cell_mounts:
            _attach(source, path, attributes)
        sys_.mount("devpts", "dev/pts", "devpts", sys_.MS_NOSUID | sys_.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
        os.chdir("/")
        sys_.set_hostname(HOSTNAME)

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

    def _make_scratch(self, options: str) -> None:
        sys_.mount("saggar", "scratch", "tmpfs", _FLAGS, options)
        for name, _, mode in SCRATCH:
            os.mkdir(f"scratch/{name}")
            os.chmod(f"scratch/{name}", mode)

    def show_groups(self, shown: Iterable[tuple[str, str]]) -> None:
        """The cell's own control groups, read-only; see `_furnish_groups`."""
        template = self._place.rpartition("/")[0]
        for source, name in shown:
            if name.endswith(SAYS_NOTHING):
                continue
            try:
                _attach(_uncovered(template, source), f"{self._cell}/sys/fs/cgroup/{name}", _SHOWN)
            except OSError:
                continue

    # what the run brings

    def own_etc(self, furnishing: Furnishing, user: tuple[int, int]) -> None:
        """Put an /etc of the cell's own over the template's, for a run that brings a place below it which is not there."""
        os.chdir(self._place)
        accounts = rootfs.accounts(*user)
        for path in furnishing.directories:
            if (path + "/").startswith("etc/"):
                os.mkdir(path, 0o755)
        for path, content, mode in furnishing.files:
            if path.startswith("etc/"):
                _write(path, content, mode)
        for path, place in furnishing.accounts:
            _write(path, accounts[place], 0o444)
        for target, path in furnishing.links:
            if path.startswith("etc/"):
                os.symlink(target, path)
        # its own mount later, for it to be read-only
        _attach("etc", "etc")
        for _, path, _ in furnishing.mounts:
            if path.startswith("etc/"):
                # read-only where it is cloned from
                _attach(f"../{path}", path)
        _attach("etc", f"{self._cell}/etc")
        self._etc = os.open(f"{self._cell}/etc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chdir("/")

    def write_hosts(self, content: bytes) -> None:
        """Before anything of the policy's is put in place, so that nothing leads elsewhere."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        _fill(os.open(rootfs.HOSTS_FILE[1:], flags, 0o444, dir_fd=self.cell_fd), content)

    def has(self, place: str) -> bool:
        try:
            os.close(sys_.open_in_root(self.cell_fd, place))
        except OSError:
            return False
        return True

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
        for fd in (self.cell_fd, self._etc):
            if fd >= 0:
                sys_.mount_setattr(fd, set_=sys_.MOUNT_ATTR_RDONLY, recursive=False)
                os.close(fd)
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
