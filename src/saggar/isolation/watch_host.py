"""Watchdogs over a cell's process tree, for hosts and users without control groups.

I1  What one sample misses, a later one sees: nothing that is held longer than one round stays uncounted.
I2  A sample costs little when nothing is near its limit: cheap upper bounds first, exact figures only when they are passed.

The cell has a PID namespace whose init adopts every orphan, so the tree by parent links is complete.
"""

from __future__ import annotations

import os
from time import CLOCK_REALTIME, clock_gettime, monotonic, process_time

from saggar.isolation.cgroups_host import read
from saggar.isolation.limits import (
    BLOCK_BYTES,
    KIB,
    SCAN_DUTY,
    TMPFS_INODE_BYTES,
    ScanPace,
    keyed,
    memory_of_rollup,
    memory_of_status,
    shared_mappings,
    total_memory,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


# Shared memory of the whole machine must grow by this before descriptors are searched again.
_SHMEM_STEP = 16 * KIB * KIB
# Exact figures and searches may use this share of one CPU.
_EXACT_DUTY = 0.1
# Below this share of the machine's memory, and with a limit's worth gone since the start, the cell is to blame (I1 fails
# only for what the kernel shows nowhere: socket buffers, descriptors in flight).
_HOST_FLOOR = 0.08
# Directories held open at once while a layer is counted.
_DEEPEST = 100


def tree(root: int) -> list[int]:
    """The process and all its descendants. A process that forks while this looks may hide a child until the next call."""
    found = [root]
    for pid in found:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            found.extend(int(word) for word in read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def tasks(pids: Iterable[int]) -> int:
    """Threads of all these processes."""
    total = 0
    for pid in pids:
        try:
            total += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return total


def internal_tmpfs() -> int:
    """Device number of the kernel's own tmpfs, on which memfds and shared anonymous mappings live."""
    fd = os.memfd_create("saggar-probe", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


class Unlinked:
    """Files that have no name but are held open by the tree, each counted once. memory: bytes in memfds.
    disk: bytes on other file systems."""

    __slots__ = ("disk", "memory")

    def __init__(self, pids: Iterable[int], internal: int, skip: frozenset[int]) -> None:
        """internal: device of `internal_tmpfs`. skip: devices whose use `statvfs` tells in full (the cell's tmpfs)."""
        inodes: dict[tuple[int, int], int] = {}
        for pid in pids:
            try:
                names = os.listdir(f"/proc/{pid}/fd")
            except OSError:
                continue
            for name in names:
                try:
                    stat = os.stat(f"/proc/{pid}/fd/{name}")
                except OSError:
                    continue
                if stat.st_nlink == 0 and stat.st_dev not in skip:
                    inodes[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
        self.memory = 0
        self.disk = 0
        mapped: dict[int, int] = {}
        device = (os.major(internal), os.minor(internal))
        for pid in pids:
            mapped |= shared_mappings(read(f"/proc/{pid}/maps"), device)
        for (dev, ino), size in inodes.items():
            if dev == internal:
                self.memory += size
                mapped.pop(ino, None)
            else:
                self.disk += max(size, BLOCK_BYTES)
        # no descriptor left: how much of it is allocated cannot be asked, so all that is mapped counts (limits I3)
        self.memory += sum(mapped.values())


class MemoryWatch:
    """Bytes that the tree holds in memory."""

    __slots__ = (
        "_available",
        "_held",
        "_host",
        "_internal",
        "_limit",
        "_next_exact",
        "_next_search",
        "_shmem",
        "_tmpfs",
        "_total",
        "peak",
        "reserved",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: the most that one process had mapped as data, used or not: what RLIMIT_DATA counts
        self.reserved = 0
        self._tmpfs: list[int] = []
        self._internal = internal_tmpfs()
        self._held = 0
        self._shmem = -_SHMEM_STEP
        self._next_exact = self._next_search = 0.0
        self.peak = 0
        self._host = keyed(read("/proc/meminfo"))
        self._total = KIB * self._host.get("MemTotal", 0)
        self._available = KIB * self._host.get("MemAvailable", 0)

    def add_tmpfs(self, fd: int) -> None:
        self._tmpfs.append(fd)

    def devices(self) -> frozenset[int]:
        return frozenset(os.fstat(fd).st_dev for fd in self._tmpfs)

    @property
    def internal(self) -> int:
        return self._internal

    def sample(self, now: float, pids: list[int]) -> int:
        """Bytes used, an upper bound while it is below the limit; exact where it is above."""
        self._host = keyed(read("/proc/meminfo"))
        self._search(now, pids)
        seen = [keyed(read(f"/proc/{pid}/status")) for pid in pids]
        self.reserved = max([self.reserved, *(KIB * status.get("VmData", 0) for status in seen)])
        bound = [memory_of_status(status) for status in seen]
        used = total_memory(bound, tmpfs=self._tmpfs_bytes(), held=self._held)
        if used > self._limit:
            if now < self._next_exact:
                return self.peak
            used = self._exact(now, pids)
        self.peak = max(self.peak, used)
        return used

    def host_low(self) -> str:
        """Why the machine itself is running out while this cell runs, or ""."""
        left = KIB * self._host.get("MemAvailable", 0)
        if self._total and left < self._total * _HOST_FLOOR and self._available - left > self._limit:
            return f"the machine has {left} bytes left, {self._available - left} fewer than when the run began"
        return ""

    def _exact(self, now: float, pids: list[int]) -> int:
        start = monotonic()
        found = [memory_of_rollup(keyed(read(f"/proc/{pid}/smaps_rollup"))) for pid in pids]
        self._held = Unlinked(pids, self._internal, self.devices()).memory
        self._next_exact = now + (monotonic() - start) * (1 / _EXACT_DUTY - 1)
        return total_memory(found, tmpfs=self._tmpfs_bytes(), held=self._held)

    def _search(self, now: float, pids: list[int]) -> None:
        """Looks for memory that no process has mapped, when the machine's shared memory grew enough to matter."""
        shmem = KIB * self._host.get("Shmem", 0)
        if now >= self._next_search and (shmem - self._shmem >= _SHMEM_STEP or self._held):
            start = monotonic()
            self._held = Unlinked(pids, self._internal, self.devices()).memory
            self._shmem = shmem
            self._next_search = now + (monotonic() - start) * (1 / _EXACT_DUTY - 1)
        self._shmem = min(self._shmem, shmem)

    def _tmpfs_bytes(self) -> int:
        used = 0
        for fd in self._tmpfs:
            stat = os.fstatvfs(fd)
            used += (stat.f_blocks - stat.f_bfree) * stat.f_frsize
            used += (stat.f_files - stat.f_ffree) * TMPFS_INODE_BYTES
        return used


class DiskWatch:
    """Bytes that the cell has written into a directory on a file system of the host (its copy-on-write layer)."""

    __slots__ = ("_fd", "_limit", "_pace", "_start", "peak")

    def __init__(self, fd: int, limit: int) -> None:
        self._fd = fd
        self._limit = limit
        self._pace = ScanPace(limit)
        self._start = _free(fd)
        self.peak = 0

    def due(self, now: float) -> bool:
        return self._pace.due(now, _free(self._fd))

    def sample(self, now: float, unlinked: int) -> int:
        """Counts the whole layer. unlinked: bytes of files that the tree holds without a name."""
        start = process_time()
        found, blind = allocated(self._fd, stop_at=self._limit)
        used = found + unlinked
        free = _free(self._fd)
        if blind:
            used = max(used, self._start - free)
        self.peak = max(self.peak, used)
        self._pace.counted(now, process_time() - start, used, free)
        return used

    def close(self) -> None:
        os.close(self._fd)


class GrowthWatch:
    """Bytes by which a run has made a directory of the host grow that was not empty before (a read-write workspace).

    Two upper bounds, and the lesser counts: what the file system lost since the run began (others may have taken it), and
    the size of all that changed since then (an old file counts in full when one byte of it changed).
    """

    __slots__ = ("_fd", "_limit", "_next", "_since", "_start", "peak")

    def __init__(self, fd: int, limit: int) -> None:
        self._fd = fd
        self._limit = limit
        self._start = _free(fd)
        # the clock that stamps files is behind the fine one by up to a tick
        self._since = clock_gettime(CLOCK_REALTIME) - 0.02
        self._next = 0.0
        self.peak = 0

    def due(self, now: float) -> bool:
        return now >= self._next and self._start - _free(self._fd) > self._limit

    def sample(self, now: float, unlinked: int) -> int:
        """Counts what changed. unlinked: bytes of files that the tree holds without a name."""
        start = process_time()
        lost = self._start - _free(self._fd)
        changed, blind = allocated(self._fd, stop_at=self._limit, since=self._since)
        used = lost if blind else min(lost, changed + unlinked)
        self.peak = max(self.peak, used)
        self._next = now + (process_time() - start) / SCAN_DUTY
        return used

    def close(self) -> None:
        os.close(self._fd)


def _free(fd: int) -> int:
    """Bytes free on a file system, each free inode counted as a block; btrfs and others have no inode table and say 0."""
    stat = os.fstatvfs(fd)
    return stat.f_bfree * stat.f_frsize + (stat.f_ffree * BLOCK_BYTES if stat.f_files else 0)


def allocated(directory: int, *, stop_at: int, since: float = 0.0) -> tuple[int, bool]:
    """Allocated bytes below an open directory, each inode once and as at least one block; stops soon after `stop_at`.

    since: leaves out inodes whose last change is older (seconds since 1970).

    The second value says that something could not be looked into: a directory that its owner may not read (mode 000),
    or one too deep to hold open. By descriptor and never through a symbolic link: the tree changes while this walks.
    """
    total, blind = 0, False
    seen: set[int] = set()
    top = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    size, names = _allocated_here(top, seen, since)
    total += size
    levels = [(top, names)]
    try:
        while levels and total <= stop_at:
            here, names = levels[-1]
            if not names:
                os.close(here)
                levels.pop()
                continue
            name = names.pop()
            child = _open_below(name, here) if len(levels) < _DEEPEST else -1
            if child < 0:
                blind = blind or child == -1
                continue
            size, below = _allocated_here(child, seen, since)
            total += size
            levels.append((child, below))
    finally:
        for here, _ in levels:
            os.close(here)
    return total, blind


def _allocated_here(here: int, seen: set[int], since: float) -> tuple[int, list[str]]:
    """Bytes of the entries of one directory, and the names of its subdirectories."""
    total, below = 0, []
    try:
        entries = list(os.scandir(here))
    except OSError:
        return 0, []
    for entry in entries:
        try:
            stat = entry.stat(follow_symlinks=False)
        except OSError:  # gone
            continue
        if entry.is_dir(follow_symlinks=False):
            below.append(entry.name)
        elif stat.st_nlink > 1:
            if stat.st_ino in seen:
                continue
            seen.add(stat.st_ino)
        if stat.st_ctime < since:
            continue
        total += max(stat.st_blocks * 512, BLOCK_BYTES)
    return total, below


def _open_below(name: str, here: int) -> int:
    """A descriptor, -1 when there is something that cannot be read, -2 when it is gone."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    except (FileNotFoundError, NotADirectoryError):
        return -2
    except OSError:
        return -1
