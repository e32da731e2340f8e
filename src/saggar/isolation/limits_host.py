"""Holds the limits of one cell: control groups where this process may make them, rlimits and watchdogs elsewhere.

I1  `Limits.open` raises before anything was started when a limit would be `none`, or only watched while the policy
    wants it enforced.
I2  `attach` comes before the first process of the cell forks or execs, so nothing of the cell is ever outside.
I3  `close` leaves no group; a supervisor that dies leaves groups that `sweep` finds unlocked.

Order of use: `open`, `fork`, `attach` and `rlimits` (in the launcher's child, before exec), `nproc` (there too, after it has
entered its new user namespace), `follow`, `add_tmpfs` and `watch_disk` as the cell's mounts come up, `poll` about every 50 ms,
`cause_of_death` when it ended, `close`.
"""

from __future__ import annotations

import os
from resource import RLIMIT_CORE, RLIMIT_DATA, RLIMIT_FSIZE, RLIMIT_NPROC

from saggar.isolation import cgroups_host as cgroups
from saggar.isolation.limits import (
    FAILING_S,
    OWN_TASKS,
    Breach,
    Holding,
    Saturation,
    split_cpus,
)
from saggar.isolation.limits_holdings_host import BY_NPROC, holdings_of, refuse
from saggar.isolation.syscalls_host import current_cpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from saggar.isolation.cgroups_host import Group, Place
    from saggar.isolation.watch_host import DiskWatch, GrowthWatch, MemoryWatch
    from saggar.policy.model import LimitsPolicy

POLL_S = 0.05

# RLIMIT_DATA in memory limits, where memory is watched.
_DATA_TIMES = 4
# A process seen with this share of it mapped, that then failed, may have failed at it; allocators ask for less than the rest at a time.
_DATA_FULL = 15 / 16

_CONTROLLERS = ("pids", "memory", "cpu")
_SIGXFSZ = 25


class Limits:
    """The limits of one run, held."""

    __slots__ = (
        "_born_in",
        "_disk",
        "_failed_at",
        "_first",
        "_groups",
        "_memory",
        "_own",
        "_pinned",
        "_policy",
        "_saturation",
        "_started",
        "_task_failures",
        "_task_peak",
        "holdings",
    )

    def __init__(
        self, policy: LimitsPolicy, groups: dict[str, Group], holdings: dict[str, Holding], own: int = OWN_TASKS
    ) -> None:
        self._policy = policy
        self._own = own
        self._groups = groups
        self.holdings = holdings
        self._born_in = ""
        self._first = 0
        self._started: float | None = None
        self._saturation = Saturation()
        self._task_failures = 0
        self._failed_at = 0.0
        self._task_peak = 0
        self._memory: MemoryWatch | None = None
        self._disk: list[DiskWatch | GrowthWatch] = []
        self._pinned = split_cpus(policy.cpus, len(os.sched_getaffinity(0))) if "cpu" not in groups else None
        if "memory" not in groups:
            from saggar.isolation.watch_host import MemoryWatch

            self._memory = MemoryWatch(policy.memory_bytes)

    @classmethod
    def open(
        cls, policy: LimitsPolicy, run_id: str, *, root: bool, disk_on_host: bool = False, own: int = OWN_TASKS
    ) -> Limits:
        """Makes what can be made.

        root: the caller is root, and the cell runs as another user. disk_on_host: the cell may write into a directory on
        the host's own file system (a copy-on-write layer or a read-write workspace), not only into sized tmpfs mounts.
        own: how many processes in the tree are not the user's.

        Raises: `Unenforceable` with cause and remedy when a limit would be `none`, or only watched while
        `policy.require` is `enforced`; then nothing is left behind.
        """
        groups: dict[str, Group] = {}
        causes: dict[str, str] = {}
        for controller, place in cgroups.places(_CONTROLLERS).items():
            cause = _make(controller, place, run_id, policy, groups, own)
            if cause:
                causes[controller] = cause
        holdings = {h.limit: h for h in holdings_of(policy, groups, causes, root=root, disk_on_host=disk_on_host)}
        try:
            refuse(policy, holdings.values())
            return cls(policy, groups, holdings, own)
        except BaseException:
            _close_all(groups)
            raise

    @property
    def uncounted(self) -> bool:
        """For `seccomp.build_filter`: memory is watched, so calls whose memory cannot be seen are refused."""
        return "memory" not in self._groups

    @property
    def pinned(self) -> bool:
        """For `seccomp.build_filter`: the CPU limit is an affinity, which the cell may then not change."""
        return self._pinned is not None

    @property
    def cpus(self) -> int | None:
        """For `pin`, in the first process just before exec: how many CPUs, where the limit is an affinity."""
        return self._pinned

    @property
    def nproc(self) -> int | None:
        """RLIMIT_NPROC to set in the first process once it has entered its own new user namespace, or None."""
        return self._policy.tasks + self._own if self.holdings["tasks"].by == BY_NPROC else None

    @property
    def tmpfs_inodes(self) -> int:
        """`nr_inodes` for a sized tmpfs of the cell: every inode counts as a block (limits I4)."""
        return max(self._policy.disk_bytes // 4096, 64)

    def rlimits(self, *, own_namespace: bool = False) -> tuple[tuple[int, int], ...]:
        """`(resource, value)` for soft and hard limit alike, to set in the first process at any time before exec.

        own_namespace: they are set when the process is already in a new user namespace that no other cell shares; then
        `nproc` is among them and `wrap` is not needed.

        Never RLIMIT_AS: node and Java reserve far more than they use. RLIMIT_DATA, only where memory is watched, stops the
        one process that would fill the machine between two samples; four times the limit, since reserved counts as used
        there, and since an allocation that fails is an error without a cause while the watchdog names one.
        """
        limits = [(RLIMIT_CORE, 0), (RLIMIT_FSIZE, self._policy.disk_bytes)]
        if self._memory is not None:
            limits.append((RLIMIT_DATA, _DATA_TIMES * self._policy.memory_bytes))
        if own_namespace and self.nproc is not None:
            limits.append((RLIMIT_NPROC, self.nproc))
        return tuple(limits)

    def wrap(self, argv: list[str]) -> list[str]:
        """The command with RLIMIT_NPROC set just before it, for a launcher that cannot set `nproc` itself.

        dash calls the limit `-p`, other shells `-u`.
        """
        if self.nproc is None:
            return argv
        tasks = self._policy.tasks
        script = f'ulimit -u {tasks} 2>/dev/null || ulimit -p {tasks} || exit 126; exec "$@"'
        return ["/bin/sh", "-c", script, "sh", *argv]

    def fork(self) -> int:
        """`os.fork` for a single-threaded launcher, with the child already in a group of version 2 where that is possible;
        the child calls `attach` all the same."""
        for group in self._distinct():
            try:
                pid = group.fork()
            except OSError:
                continue
            if pid == 0:
                self._born_in = group.path
            return pid
        return os.fork()

    def follow(self, pid: int) -> None:
        """For a launcher whose child attaches itself: which process the watchdogs start from."""
        self._first = pid

    def attach(self, pid: int) -> None:
        """Puts the cell's first process under the limits, before it forks or execs; best called by that process itself.

        Raises `OSError`: the caller kills the process.
        """
        self._first = pid
        for group in self._distinct():
            if group.path != self._born_in:
                group.attach(pid)

    def admit(self, pid: int) -> list[int]:
        """For a launcher whose child `pid` was forked elsewhere and has no copy of this: the descriptors to which that writes `0`, in
        place of `attach`. Raises OSError where the groups are of version 2, which have no such file (see `Group.attach`)."""
        self._first = pid
        return [group.entrance for group in self._distinct()]

    @property
    def admits(self) -> bool:
        """Whether `admit` works here."""
        return all(group.version == 1 for group in self._distinct())

    def _distinct(self) -> list[Group]:
        """A group that holds several limits is there once."""
        return list({g.path: g for g in self._groups.values()}.values())

    def view(self) -> list[tuple[str, str]]:
        """`cgroups_host.view` of this run's groups."""
        return cgroups.view(self._groups)

    def add_tmpfs(self, fd: int) -> None:
        """A descriptor on a sized tmpfs of the cell. Its use counts as memory where memory is watched. Kept, not closed."""
        if self._memory is not None:
            self._memory.add_tmpfs(fd)

    def watch_disk(self, fd: int) -> None:
        """A directory descriptor of the cell's own writable layer on the host's file system. `close` closes it."""
        from saggar.isolation.watch_host import DiskWatch

        self._disk.append(DiskWatch(fd, self._policy.disk_bytes))

    def watch_growth(self, fd: int) -> None:
        """A directory descriptor of a read-write workspace, which was there before. `close` closes it."""
        from saggar.isolation.watch_host import GrowthWatch

        self._disk.append(GrowthWatch(fd, self._policy.disk_bytes))

    def poll(self, now: float) -> Breach | None:
        """What was passed, if anything: the supervisor then kills the cell. now: monotonic seconds."""
        if self._started is None:
            self._started = now
        return self._poll_time(now) or self._poll_groups(now) or self._poll_tree(now)

    def _poll_time(self, now: float) -> Breach | None:
        allowed = self._policy.timeout_s
        used = now - (self._started or now)
        return None if allowed is None or used < allowed else Breach("timeout", used=used, allowed=allowed)

    def _poll_groups(self, now: float) -> Breach | None:
        breach = self._oom()
        if breach is not None or "pids" not in self._groups:
            return breach
        failures = self._groups["pids"].events("pids.events").get("max", 0)
        if failures > self._task_failures:
            self._task_failures, self._failed_at = failures, now
        failing = failures > 0 and now - self._failed_at < FAILING_S
        if self._saturation.seen(now, full=failing and self._full(self._groups["pids"].number("pids.current"))):
            return self._tasks_breach(f"{failures} forks failed at the limit")
        return None

    def _full(self, count: int) -> bool:
        """A bomb's processes come and go, so a few are missing in any one sample."""
        return count - self._own >= self._policy.tasks * 0.97

    def _poll_tree(self, now: float) -> Breach | None:
        disks = [d for d in self._disk if d.due(now)]
        if not self._first or ("pids" in self._groups and self._memory is None and not disks):
            return None
        from saggar.isolation import watch_host

        pids = watch_host.tree(self._first)
        if self._memory is not None:
            used = self._memory.sample(now, pids)
            low = self._memory.host_low()
            if used > self._policy.memory_bytes or low:
                return Breach("memory", used=used, allowed=self._policy.memory_bytes, note=low)
        if "pids" not in self._groups:
            count = watch_host.tasks(pids)
            self._task_peak = max(self._task_peak, count - self._own)
            if count - self._own > self._policy.tasks or self._saturation.seen(now, full=self._full(count)):
                return self._tasks_breach(f"{count} tasks were seen, forks failing at the limit")
        return self._count_disks(now, disks, pids) if disks else None

    def _count_disks(self, now: float, disks: list[DiskWatch | GrowthWatch], pids: list[int]) -> Breach | None:
        from saggar.isolation.watch_host import Unlinked, internal_tmpfs

        skip = self._memory.devices() if self._memory is not None else frozenset()
        unlinked = Unlinked(pids, internal_tmpfs(), skip).disk
        for disk in disks:
            used = disk.sample(now, unlinked)
            if used > self._policy.disk_bytes:
                return Breach("disk", used=used, allowed=self._policy.disk_bytes)
        return None

    def _oom(self) -> Breach | None:
        group = self._groups.get("memory")
        if group is None:
            return None
        kills = group.events("memory.events" if group.version == 2 else "memory.oom_control").get("oom_kill", 0)
        if not kills:
            return None
        allowed = self._policy.memory_bytes
        return Breach("memory", used=self._memory_peak(), allowed=allowed, note=f"the kernel killed {kills} tasks")

    def _tasks_breach(self, note: str) -> Breach:
        return Breach("tasks", used=self._policy.tasks, allowed=self._policy.tasks, note=note)

    def cause_of_death(self, signal: int = 0) -> Breach | None:
        """Asked once the cell has ended by itself. signal: the one that ended the command, or 0.

        A limit that the kernel enforced shows here, even when it struck between two polls.
        """
        breach = self._oom()
        if breach is not None:
            return breach
        if signal == _SIGXFSZ:
            allowed = self._policy.disk_bytes
            return Breach("disk", used=allowed, allowed=allowed, note="one file reached the limit (SIGXFSZ)")
        return None

    def suspicion(self) -> Breach | None:
        """What may have made a command fail by itself: no cause, since many a program maps far more than it uses, and fails otherwise."""
        data_bytes = _DATA_TIMES * self._policy.memory_bytes
        if self._memory is None or self._memory.reserved < _DATA_FULL * data_bytes:
            return None
        note = "a process had mapped nearly as much as RLIMIT_DATA lets it (four times the memory limit)"
        return Breach("memory", used=self._memory.reserved, allowed=data_bytes, note=note)

    def report(self) -> dict[str, dict[str, Any]]:
        """Per limit, for the result: allowed, held, by, and what was used at most where that is known."""
        peaks: dict[str, float] = {"memory": self._memory_peak(), "tasks": self._tasks_most()}
        if self._disk:
            peaks["disk"] = max(d.peak for d in self._disk)
        allowed: dict[str, float | None] = {
            "memory": self._policy.memory_bytes,
            "tasks": self._policy.tasks,
            "cpu": self._policy.cpus,
            "disk": self._policy.disk_bytes,
            "timeout": self._policy.timeout_s,
        }
        return {
            name: {"allowed": allowed[name], "held": h.held, "by": h.by}
            | ({"peak": peaks[name]} if peaks.get(name) else {})
            for name, h in self.holdings.items()
        }

    def _memory_peak(self) -> int:
        group = self._groups.get("memory")
        if group is not None:
            return group.number("memory.peak" if group.version == 2 else "memory.max_usage_in_bytes")
        return self._memory.peak if self._memory is not None else 0

    def _tasks_most(self) -> int:
        group = self._groups.get("pids")
        if group is not None:
            return max(group.number("pids.peak") - self._own, 0)  # Linux 6.1, version 2 only until 6.10
        return self._task_peak

    def close(self) -> bool:
        """Kills what is left in the groups and removes them. False when something would not die within 5 seconds."""
        for disk in self._disk:
            disk.close()
        self._disk.clear()
        return _close_all(self._groups)


def _make(  # noqa: PLR0917  # one caller, above
    controller: str, place: Place, run_id: str, policy: LimitsPolicy, groups: dict[str, Group], own: int
) -> str:
    """Adds the controller's group with its limit to `groups`; gives the cause where that failed."""
    if not place.parent:
        return place.cause
    # version 2, and version 1 with controllers mounted together: one directory for several
    shared = next((g for g in groups.values() if g.path.rpartition("/")[0] == place.parent), None)
    try:
        group = shared or cgroups.make(place, run_id)
    except OSError as error:
        return f"cannot make a cgroup for `{controller}`: {error.strerror}"
    try:
        _SETTERS[controller](group, policy, own)
    except OSError as error:
        if shared is None:
            group.close()
        return f"cannot set the `{controller}` limit of a cgroup: {error.strerror}"
    groups[controller] = group
    return ""


def _set_memory(group: Group, policy: LimitsPolicy, _own: int) -> None:
    if group.version == 2:
        group.set("memory.max", policy.memory_bytes)
        if group.has("memory.swap.max"):
            group.set("memory.swap.max", 0)
        if group.has("memory.oom.group"):
            group.set("memory.oom.group", 1)
        return
    group.set("memory.limit_in_bytes", policy.memory_bytes)
    if group.has("memory.memsw.limit_in_bytes"):
        group.set("memory.memsw.limit_in_bytes", policy.memory_bytes)
    elif group.has("memory.swappiness"):
        group.set("memory.swappiness", 0)


def _set_pids(group: Group, policy: LimitsPolicy, own: int) -> None:
    group.set("pids.max", policy.tasks + own)


def _set_cpu(group: Group, policy: LimitsPolicy, _own: int) -> None:
    quota = max(int(policy.cpus * cgroups.CPU_PERIOD_US), 1000)  # the kernel's least is 1 ms
    if group.version == 2:
        group.set("cpu.max", f"{quota} {cgroups.CPU_PERIOD_US}")
        return
    group.set("cpu.cfs_period_us", cgroups.CPU_PERIOD_US)
    group.set("cpu.cfs_quota_us", quota)


_SETTERS: dict[str, Callable[[Group, LimitsPolicy, int], None]] = {
    "memory": _set_memory,
    "pids": _set_pids,
    "cpu": _set_cpu,
}


def _close_all(groups: dict[str, Group]) -> bool:
    unique = {g.path: g for g in groups.values()}
    gone = True
    # pids first: with its limit at 0 no fork outruns the killing in the others
    for group in sorted(unique.values(), key=lambda g: not g.has("pids.max")):
        gone = group.close() and gone
    groups.clear()
    return gone


def pin(count: int) -> None:
    """Bind this process to that many CPUs, the one that it is on among them: it has not to move (1 ms), and the scheduler, which has put
    it there, has spread the cells. Not the same for every cell: a run's worth of cells on CPU 0 would starve each other."""
    usable = sorted(os.sched_getaffinity(0))
    here = current_cpu()
    start = usable.index(here) if here in usable else 0
    os.sched_setaffinity(0, {usable[(start + i) % len(usable)] for i in range(count)})


def sweep(alive: set[str]) -> list[str]:
    """Removes the groups of dead runs, killing what is left in them. alive: run ids never to touch."""
    return cgroups.sweep(_CONTROLLERS, alive.__contains__)
