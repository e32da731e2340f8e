"""How each limit of a cell is held on this host, and the refusal where it is not."""

from __future__ import annotations

import os

from saggar.core.errors import Unenforceable
from saggar.isolation.limits import ENFORCED, NONE, WATCHDOG, Holding, split_cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from saggar.isolation.cgroups_host import Group
    from saggar.policy.model import LimitsPolicy

BY_NPROC = "RLIMIT_NPROC in the cell's user namespace"

# The kernel counts RLIMIT_NPROC per user namespace since 5.14; before, per user of the machine.
_NPROC_PER_NAMESPACE = (5, 14)

REMEDY_DELEGATE = (
    "delegate cgroups to this user: `systemd-run --user --scope -p Delegate=yes saggar run …`, or once as root a drop-in"
    " /etc/systemd/system/user@.service.d/delegate.conf with `[Service]` and `Delegate=cpu cpuset io memory pids`"
)


def holdings_of(
    policy: LimitsPolicy, groups: dict[str, Group], causes: dict[str, str], *, root: bool, disk_on_host: bool
) -> list[Holding]:
    remedy = "" if root else REMEDY_DELEGATE
    found = []
    if "memory" in groups:
        found.append(Holding("memory", ENFORCED, _by(groups["memory"])))
    else:
        by = "tree memory sampled every 50 ms, RLIMIT_DATA beneath"
        found.append(Holding("memory", WATCHDOG, by, cause=causes["memory"], remedy=remedy))
    found.append(_hold_tasks(groups, causes, remedy))
    found.append(_hold_cpu(policy, groups, causes, remedy))
    if disk_on_host:
        found.append(
            Holding(
                "disk",
                WATCHDOG,
                "free space asked every 50 ms, the layer counted when enough is gone, RLIMIT_FSIZE beneath",
                cause="the cell writes to a file system of the host, which has no quota for one directory",
                remedy="use a workspace mode that keeps nothing on the host's disk (`read-only` or `none`)",
            )
        )
    else:
        found.append(Holding("disk", ENFORCED, "sized tmpfs"))
    found.append(Holding("timeout", ENFORCED, "the supervisor's clock"))
    return found


def _by(group: Group) -> str:
    return f"cgroup v{group.version}"


def _hold_tasks(groups: dict[str, Group], causes: dict[str, str], remedy: str) -> Holding:
    if "pids" in groups:
        return Holding("tasks", ENFORCED, _by(groups["pids"]))
    if _kernel() >= _NPROC_PER_NAMESPACE:
        return Holding("tasks", ENFORCED, BY_NPROC)
    cause = f"{causes['pids']}, and this kernel counts RLIMIT_NPROC per user of the machine (before Linux 5.14)"
    return Holding("tasks", WATCHDOG, "the tree counted every 50 ms", cause=cause, remedy=remedy)


def _hold_cpu(policy: LimitsPolicy, groups: dict[str, Group], causes: dict[str, str], remedy: str) -> Holding:
    if "cpu" in groups:
        return Holding("cpu", ENFORCED, _by(groups["cpu"]))
    if split_cpus(policy.cpus, len(os.sched_getaffinity(0))) is not None:
        return Holding("cpu", ENFORCED, "pinned to as many CPUs, sched_setaffinity refused")
    return Holding(
        "cpu",
        NONE,
        "",
        cause=f"{causes['cpu']}, and a fraction of a CPU (`{policy.cpus}`) cannot be held by pinning",
        remedy=f"give a whole number of CPUs, or {remedy}" if remedy else "give a whole number of CPUs",
    )


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".", 2)[:2]
    digits = minor[: len(minor) - len(minor.lstrip("0123456789"))]
    return int(major), int(digits or 0)


def refuse(policy: LimitsPolicy, holdings: Any) -> None:
    for holding in holdings:
        if holding.held == NONE:
            message = f"the `{holding.limit}` limit cannot be held on this host"
        elif holding.held == WATCHDOG and policy.require == ENFORCED:
            message = f"the `{holding.limit}` limit can only be watched here, and the policy wants it enforced"
        else:
            continue
        remedy = holding.remedy or 'set `limits.require = "any"` to accept a watchdog'
        raise Unenforceable(message, cause=holding.cause, remedy=remedy)
