"""What a limit is, how it was held, and the arithmetic of the watchdogs; no I/O.

I1  A limit is `enforced` (the kernel refuses the excess), `watchdog` (sampled, the cell is killed on a breach) or `none`.
I2  A `none` never starts; `require = "enforced"` starts no `watchdog` either.
I3  Memory is counted once however many processes share it; what cannot be told apart is counted for the cell.
I4  Every inode counts as at least one 4 KiB block, so a million empty files are as much as four gigabytes.
"""

from __future__ import annotations

from saggar.core.decision import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

ENFORCED = "enforced"
WATCHDOG = "watchdog"
NONE = "none"

KIB = 1024
BLOCK_BYTES = 4096

# A tmpfs inode costs about 0.7 KiB of slab and a dentry 0.2 KiB (slabinfo, Linux 6.18, x86_64).
TMPFS_INODE_BYTES = 1024

# Saggar's and bubblewrap's processes are in the tree but not the user's: pid 1, and the keeper of a cell at a terminal.
OWN_TASKS = 1

# A tree that stands at its limit for this long with forks failing is a fork bomb; shorter, and a program that copes
# would be killed.
SATURATED_S = 3.0
# A shell waits up to 8 s before it tries a failed fork again.
FAILING_S = 10.0

# A disk scan may use this share of one CPU when nothing points to a breach.
SCAN_DUTY = 0.04


class Breach(Frozen):
    """A limit was passed. limit: `memory`, `tasks`, `cpu`, `disk` or `timeout`. used, allowed: in the limit's unit
    (bytes, tasks, seconds). note: what was seen, for the audit log."""

    __slots__ = ("allowed", "limit", "note", "used")
    limit: str
    used: float
    allowed: float
    note: str

    def __init__(self, limit: str, *, used: float, allowed: float, note: str = "") -> None:
        self._set(limit=limit, used=used, allowed=allowed, note=note)

    def to_json(self) -> dict[str, Any]:
        return {"limit": self.limit, "used": self.used, "allowed": self.allowed, "note": self.note}


class Holding(Frozen):
    """How one limit is held. held: `enforced`, `watchdog` or `none`. by: the means. cause, remedy: why not better."""

    __slots__ = ("by", "cause", "held", "limit", "remedy")
    limit: str
    held: str
    by: str
    cause: str
    remedy: str

    def __init__(self, limit: str, held: str, by: str, *, cause: str = "", remedy: str = "") -> None:
        self._set(limit=limit, held=held, by=by, cause=cause, remedy=remedy)


def own_groups(text: str) -> dict[str, str]:
    """`/proc/self/cgroup` → controller to path; the unified hierarchy is the key "". Lines that do not parse are left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            for controller in parts[1].split(","):
                found.setdefault(controller, parts[2])
    return found


def group_mounts(text: str) -> dict[str, tuple[str, str]]:
    """`/proc/self/mountinfo` → controller to (root inside the hierarchy, mount point); "" is the unified hierarchy."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields, after = head.split(" "), tail.split(" ")
        if len(fields) < 6 or len(after) < 3:
            continue
        place = (_unescape(fields[3]), _unescape(fields[4]))
        if after[0] == "cgroup2":
            found.setdefault("", place)
        elif after[0] == "cgroup":
            for controller in after[2].split(","):
                found.setdefault(controller, place)
    return found


def _unescape(path: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, char)
    return path


def group_directory(own: str, root: str, mount: str) -> str:
    """Where the group `own` is visible under a mount that shows `root`, or "" where it lies outside."""
    if root == "/":
        return (mount + own).rstrip("/")
    if own == root or own.startswith(root + "/"):
        return (mount + own[len(root) :]).rstrip("/")
    # a cgroup namespace shows its own root as "/" in one file and as the host's path in the other
    return mount if own == "/" else ""


def keyed(text: str) -> dict[str, int]:
    """`memory.events`, `memory.oom_control`, `/proc/PID/status`, `smaps_rollup`: name to number, in the file's unit."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        parts = line.replace(":", " ", 1).split()
        if len(parts) >= 2 and parts[1].isascii() and parts[1].isdigit():
            found[parts[0]] = int(parts[1])
    return found


class Memory(Frozen):
    """One process. anonymous: private bytes (swapped ones too). shared: bytes of tmpfs, memfd and shared mappings that
    it has mapped."""

    __slots__ = ("anonymous", "shared")
    anonymous: int
    shared: int

    def __init__(self, anonymous: int, shared: int) -> None:
        self._set(anonymous=anonymous, shared=shared)


def memory_of_status(values: Mapping[str, int]) -> Memory:
    """From `/proc/PID/status`: an upper bound, since pages shared after fork count in every process."""
    return Memory(
        KIB * (values.get("RssAnon", 0) + values.get("VmSwap", 0) + values.get("HugetlbPages", 0)),
        KIB * values.get("RssShmem", 0),
    )


def memory_of_rollup(values: Mapping[str, int]) -> Memory:
    """From `/proc/PID/smaps_rollup`: each page divided by the number of its mappers. Clean file pages are left out, the
    kernel takes them back when it must."""
    huge = values.get("Private_Hugetlb", 0) + values.get("Shared_Hugetlb", 0)
    return Memory(
        KIB * (values.get("Pss_Anon", 0) + values.get("SwapPss", 0) + huge),
        KIB * values.get("Pss_Shmem", 0),
    )


def total_memory(processes: Iterable[Memory], *, tmpfs: int, held: int) -> int:
    """The tree's bytes. tmpfs: in the cell's own mounts. held: in memfds and shared mappings, by inode.

    A shared page that is mapped is also in its file's count, so the greater of the two stands, not their sum (I3).
    """
    anonymous = shared = 0
    for process in processes:
        anonymous += process.anonymous
        shared += process.shared
    return anonymous + max(shared, tmpfs + held)


def shared_mappings(maps: str, device: tuple[int, int]) -> dict[int, int]:
    """`/proc/PID/maps` → inode to mapped bytes, of mappings on the kernel's internal tmpfs (`device`: major, minor):
    memfds and shared anonymous memory, which stay allocated when they are unmapped page by page (MADV_DONTNEED)."""
    found: dict[int, int] = {}
    want = f"{device[0]:02x}:{device[1]:02x}"
    for line in maps.splitlines():
        parts = line.split(None, 5)
        if len(parts) < 5 or parts[3] != want or not parts[1].endswith("s"):
            continue
        low, _, high = parts[0].partition("-")
        inode = int(parts[4])
        found[inode] = found.get(inode, 0) + int(high, 16) - int(low, 16)
    return found


class Saturation:
    """Tells a fork bomb from a program that meets the limit once and copes."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    def seen(self, now: float, *, full: bool) -> bool:
        """full: the tree stands at its limit. True: it has been so too long."""
        if not full:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= SATURATED_S


class ScanPace:
    """When to count a disk layer in full: the free space of its file system is asked every time (2 µs), the count (some
    microseconds a file) only when enough is gone for a breach, or when the duty allows it."""

    __slots__ = ("_cost", "_free", "_limit", "_next", "_soonest", "_used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._free: int | None = None
        self._next = 0.0
        self._soonest = 0.0
        self._cost = 0.0

    def due(self, now: float, free: int) -> bool:
        """free: bytes free on the file system, with each free inode as a block where the layer may eat inodes."""
        if self._free is None:
            self._free = free
            self._next = now + 1.0
            return False
        # half of what is left: the second half is the way that a fast writer makes during the count
        gone = self._free - free >= max((self._limit - self._used) // 2, BLOCK_BYTES)
        return (gone and now >= self._soonest) or now >= self._next

    def counted(self, now: float, cost_s: float, used: int, free: int) -> None:
        self._used, self._free, self._cost = used, free, cost_s
        self._next = now + max(1.0, cost_s / SCAN_DUTY)
        self._soonest = now + 2 * cost_s


def split_cpus(limit: float, usable: int) -> int | None:
    """CPUs to pin a tree to so that it cannot use more than `limit`; None where a fraction cannot be held by pinning."""
    if limit >= usable:
        return usable
    whole = int(limit)
    return whole if whole == limit and whole >= 1 else None
