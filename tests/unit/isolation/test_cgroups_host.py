"""What a cell is shown of its groups; making and ending groups is tested on the real kernel in `tests/attacks/isolation`."""

import pytest

from saggar.isolation import cgroups_host
from saggar.isolation.cgroups_host import view

TOP = "/sys/fs/cgroup"
APART = "".join(
    f"{n} 30 0:{n} / {TOP}/{name} rw - cgroup cgroup rw,{name}\n"
    for n, name in enumerate(("cpu", "cpuacct", "cpuset", "memory", "pids"), 31)
)
TOGETHER = "".join(
    f"{n} 30 0:{n} / {TOP}/{name} rw - cgroup cgroup rw,{name}\n"
    for n, name in enumerate(("cpu,cpuacct", "cpuset", "memory", "pids"), 31)
)
UNIFIED = f"30 24 0:26 / {TOP} rw - cgroup2 cgroup2 rw\n"


class Group:
    def __init__(self, version, path):
        self.version = version
        self.path = path


ONE = {c: Group(1, f"{TOP}/{c}/saggar-x") for c in ("pids", "memory", "cpu")}
TWO = dict.fromkeys(("pids", "memory", "cpu"), Group(2, f"{TOP}/user.slice/saggar-x"))
OWN = [(f"{TOP}/memory/saggar-x", "memory"), (f"{TOP}/cpu/saggar-x", "cpu")]
CPUSET = (f"{TOP}/cpuset/notify_on_release", "cpuset/notify_on_release")
CPUACCT = (f"{TOP}/cpuacct/notify_on_release", "cpuacct/notify_on_release")
VIEWS = [
    # groups, mounts, what is shown
    ({}, APART, []),
    ({"pids": ONE["pids"]}, APART, []),
    (ONE, APART, [*OWN, CPUSET, CPUACCT]),
    (ONE, TOGETHER, [*OWN, CPUSET]),
    (TWO, UNIFIED, [(f"{TOP}/user.slice/saggar-x", "")]),
    ({"memory": TWO["memory"], "cpu": ONE["cpu"]}, UNIFIED + APART, [(f"{TOP}/user.slice/saggar-x", "")]),
]


@pytest.mark.parametrize(("groups", "mounts", "shown"), VIEWS)
def test_a_cell_is_shown_its_own_groups_alone(monkeypatch, groups, mounts, shown):
    monkeypatch.setattr(cgroups_host, "read", lambda _: mounts)
    assert view(groups) == shown
