"""A cell's control groups, version 1 or 2, made under a group that this process may write.

I1  Only directories named `saggar-<run>` are ever killed in or removed, and only when nobody holds their lock.
I2  A group that cannot be made or written is a cause to report, never a weaker limit taken silently.

The supervisor holds a `flock` on each directory: the kernel drops it when the supervisor dies, however it dies, and
`sweep` of any other supervisor (with any state directory) can tell a dead run's group from a live one's.
Sources: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from __future__ import annotations

import errno
import fcntl
import os
from time import sleep

from saggar.isolation.limits import group_directory, group_mounts, keyed, own_groups
from saggar.isolation.syscalls_host import fork_into

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PREFIX = "saggar-"
CPU_PERIOD_US = 100_000

_SIGKILL = 9


def read(path: str) -> str:
    """The whole of a small kernel file, or "" where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        chunks = []
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
    except OSError:
        return ""
    finally:
        os.close(fd)
    return b"".join(chunks).decode("utf-8", "surrogateescape")


def write(path: str, value: str) -> None:
    """One write, as control files want it. Raises `OSError`."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


class Place:
    """Where groups for one controller can be made. version: 1 or 2. parent: directory, or "" with the cause."""

    __slots__ = ("cause", "parent", "version")

    def __init__(self, version: int, parent: str, cause: str = "") -> None:
        self.version = version
        self.parent = parent
        self.cause = cause


def places(controllers: Iterable[str]) -> dict[str, Place]:
    """For each controller the nearest group that this process may write."""
    mounts = group_mounts(read("/proc/self/mountinfo"))
    own = own_groups(read("/proc/self/cgroup"))
    first = {c: _place_v1(c, mounts, own) for c in controllers if c in mounts and c in own}
    second = [c for c in controllers if c not in first]
    if not second:
        return first
    if "" not in mounts or "" not in own:
        return first | {c: Place(0, "", f"no cgroup hierarchy with `{c}` is mounted") for c in second}
    return first | _places_v2(second, group_directory(own[""], *mounts[""]), mounts[""][1])


def _place_v1(controller: str, mounts: dict[str, tuple[str, str]], own: dict[str, str]) -> Place:
    parent = group_directory(own[controller], *mounts[controller])
    if not parent or not os.access(parent, os.W_OK):
        return Place(1, "", f"the cgroup v1 directory of `{controller}` is not writable by this user")
    return Place(1, parent)


def _places_v2(controllers: list[str], start: str, top: str) -> dict[str, Place]:
    """One parent for all, since a process has one place in version 2: the one that offers most, nearest first.

    The parent must have no processes of its own (but for the root), so the search goes upwards. Moving a process needs
    write access to the common ancestor's `cgroup.procs`: the parent's, as it is one.
    """
    kernel = read(f"{top}/cgroup.controllers").split()
    best = ""
    offered: list[str] = []
    here = start
    while here:
        if os.access(here, os.W_OK) and os.access(f"{here}/cgroup.procs", os.W_OK):
            offers = [c for c in controllers if _offers(here, c)]
            if len(offers) > len(offered):
                best, offered = here, offers
        if here == top or len(offered) == len(controllers):
            break
        here = here.rpartition("/")[0]
    return {
        c: Place(2, best)
        if c in offered
        else Place(
            2,
            "",
            f"no cgroup above this process is delegated to this user with `{c}`"
            if c in kernel
            else f"the kernel does not offer `{c}` in cgroup v2 here",
        )
        for c in controllers
    }


def _offers(directory: str, controller: str) -> bool:
    control = f"{directory}/cgroup.subtree_control"
    if controller in read(control).split():
        return True
    if controller not in read(f"{directory}/cgroup.controllers").split():
        return False
    try:
        write(control, f"+{controller}")
    except OSError:  # EBUSY: it has processes of its own; EACCES: not ours
        return False
    return True


#: A JVM believes in version 1 only where it sees a mount of each of these as well; what it reads there may fail.
_ALSO_WANTED = ("cpuset", "cpuacct")
#: A file that every group of version 1 has, and that says nothing: what is shown of a hierarchy that the cell has no group in.
SAYS_NOTHING = "notify_on_release"


def view(groups: dict[str, Group]) -> list[tuple[str, str]]:
    """What a cell is shown of its own groups, as (directory or file, place below /sys/fs/cgroup): language runtimes size their
    heaps and thread pools by it. Empty where no group holds the memory limit.
    """
    if "memory" not in groups:
        return []
    if groups["memory"].version == 2:
        return [(groups["memory"].path, "")]
    shown: list[tuple[str, str]] = [
        (groups[c].path, c) for c in ("memory", "cpu") if c in groups and groups[c].version == 1
    ]
    mounts = group_mounts(read("/proc/self/mountinfo"))
    ours = {mounts[controller][1] for _, controller in shown if controller in mounts}
    for controller in _ALSO_WANTED:
        top = mounts.get(controller, ("", ""))[1]
        if top and top not in ours:
            shown.append((f"{top}/{SAYS_NOTHING}", f"{controller}/{SAYS_NOTHING}"))
    return shown


class Group:
    """One directory of one hierarchy, locked by this process."""

    __slots__ = ("_join", "_lock", "path", "version")

    def __init__(self, version: int, path: str, lock: int) -> None:
        self.version = version
        self.path = path
        self._lock = lock
        # opened now: the right to write is the opener's, and the child may have given it up
        name = "tasks" if version == 1 else "cgroup.procs"
        self._join = os.open(f"{path}/{name}", os.O_WRONLY | os.O_CLOEXEC)

    def set(self, name: str, value: int | str) -> None:
        write(f"{self.path}/{name}", str(value))

    def has(self, name: str) -> bool:
        return os.access(f"{self.path}/{name}", os.F_OK)

    def number(self, name: str) -> int:
        text = read(f"{self.path}/{name}").strip()
        return int(text) if text.isascii() and text.isdigit() else 0

    def events(self, name: str) -> dict[str, int]:
        return keyed(read(f"{self.path}/{name}"))

    def attach(self, pid: int) -> None:
        """Moves a process here, with all its threads; itself where it is single-threaded.

        Moving another process takes a lock of the whole machine: 15 to 20 ms from cold, seen on Linux 6.18; a thread
        that moves itself through version 1's `tasks` does without it, 0.1 ms for three groups. Version 2 has no such file.
        """
        if pid == os.getpid():
            os.write(self._join, b"0")
        else:
            self.set("cgroup.procs", pid)

    @property
    def entrance(self) -> int:
        """Where a process writes `0` to come in; version 1's `tasks`."""
        if self.version != 1:
            raise OSError(errno.EOPNOTSUPP, "version 2 has no such file")
        return self._join

    def fork(self) -> int:
        """Fork with the child here from birth. Raises `OSError` where the kernel cannot; the caller forks and attaches."""
        if self.version == 1:
            raise OSError(errno.EOPNOTSUPP, "version 1 has no such fork")
        return fork_into(self._lock)

    def close(self, *, deadline_s: float = 5.0) -> bool:
        """Kills what is left, removes the directory, drops the lock. False when something would not die."""
        gone = remove(self.path, self.version, deadline_s=deadline_s)
        os.close(self._lock)
        os.close(self._join)
        return gone


def make(place: Place, run_id: str) -> Group:
    """A new locked group. Raises `OSError`."""
    path = f"{place.parent}/{PREFIX}{run_id}"
    for _ in range(5):
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            remove(path, place.version)
            continue
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # a sweep came between
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a sweep holds it, and will remove it
            os.close(lock)
            continue
        if os.access(path, os.F_OK):
            return Group(place.version, path, lock)
        os.close(lock)
    raise OSError(errno.EAGAIN, "the cgroup is removed as fast as it is made", path)


def remove(path: str, version: int, *, deadline_s: float = 5.0) -> bool:
    """SIGKILL to every member until none is left, then `rmdir`, children first. True when the directory is gone."""
    left = deadline_s
    pause = 0.0005
    while True:
        _remove_below(path, version)
        if _try_rmdir(path):
            return True
        if left <= 0:
            return False
        _kill(path, version)
        # nothing can be waited on here: v1 has no event for "empty"
        sleep(pause)
        left -= pause
        pause = min(pause * 2, 0.02)


def _remove_below(path: str, version: int) -> None:
    try:
        children = [e.path for e in os.scandir(path) if e.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for child in children:
        _kill(child, version)
        _remove_below(child, version)
        _try_rmdir(child)


def _try_rmdir(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _kill(path: str, version: int) -> None:
    if version == 2:
        try:
            write(f"{path}/cgroup.kill", "1")  # Linux 5.14
        except OSError:
            pass
        else:
            return
    if os.access(f"{path}/pids.max", os.W_OK):  # no fork outruns the loop
        write(f"{path}/pids.max", "0")
    for word in read(f"{path}/cgroup.procs").split():
        try:
            os.kill(int(word), _SIGKILL)
        except OSError:
            continue


def sweep(controllers: Iterable[str], alive: Callable[[str], bool]) -> list[str]:
    """Removes groups that no supervisor holds. alive: run ids that must not be touched whatever their lock says.
    Returns the paths removed."""
    removed: list[str] = []
    for place in {p.parent: p for p in places(controllers).values() if p.parent}.values():
        try:
            names = [e.name for e in os.scandir(place.parent) if e.name.startswith(PREFIX)]
        except OSError:
            continue
        removed += [
            f"{place.parent}/{name}"
            for name in names
            if not alive(name[len(PREFIX) :]) and _remove_unheld(f"{place.parent}/{name}", place.version)
        ]
    return removed


def _remove_unheld(path: str, version: int) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return remove(path, version)
    except OSError:  # a live supervisor holds it
        return False
    finally:
        os.close(lock)
