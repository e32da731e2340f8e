from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saggar.isolation import limits

KIB = 1024


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("9:name=systemd:/\n4:memory:/a/b\n0::/u\n", {"name=systemd": "/", "memory": "/a/b", "": "/u"}),
        ("2:cpu,cpuacct:/x\n", {"cpu": "/x", "cpuacct": "/x"}),
        ("0::/user.slice/a:b\n", {"": "/user.slice/a:b"}),
        ("junk\n1:memory\n1:memory:relative\n", {}),
        ("", {}),
    ],
)
def test_own_groups(text: str, found: dict[str, str]) -> None:
    assert limits.own_groups(text) == found


def test_group_mounts() -> None:
    text = (
        "30 24 0:26 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro\n"
        "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 30 0:28 /docker/1 /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory\n"
        "33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "short line\n"
    )
    found = limits.group_mounts(text)
    assert found["cpu"] == found["cpuacct"] == ("/", "/sys/fs/cgroup/cpu,cpuacct")
    assert found["memory"] == ("/docker/1", "/sys/fs/cgroup/mem ory")
    assert found[""] == ("/", "/sys/fs/cgroup/unified")


@pytest.mark.parametrize(
    ("own", "root", "mount", "directory"),
    [
        ("/", "/", "/c", "/c"),
        ("/a/b", "/", "/c", "/c/a/b"),
        ("/docker/1/x", "/docker/1", "/c", "/c/x"),
        ("/docker/1", "/docker/1", "/c", "/c"),
        ("/", "/docker/1", "/c", "/c"),
        ("/docker/12", "/docker/1", "/c", ""),  # no matching by prefix
    ],
)
def test_group_directory(own: str, root: str, mount: str, directory: str) -> None:
    assert limits.group_directory(own, root, mount) == directory


def test_keyed_reads_all_four_shapes() -> None:
    assert limits.keyed("low 0\noom_kill 3\n") == {"low": 0, "oom_kill": 3}
    assert limits.keyed("Name:\tx\nVmSwap:\t     12 kB\nThreads:\t1\n") == {"VmSwap": 12, "Threads": 1}
    assert limits.keyed("max 7\nbroken\nx -1\ny ²\n") == {"max": 7}


@given(st.text())
def test_parsers_give_a_value_for_any_text(text: str) -> None:
    limits.keyed(text)
    limits.own_groups(text)
    limits.group_mounts(text)


def test_memory_of_a_process() -> None:
    status = limits.keyed("RssAnon: 10 kB\nRssFile: 99 kB\nRssShmem: 5 kB\nVmSwap: 1 kB\n")
    assert limits.memory_of_status(status) == limits.Memory(11 * KIB, 5 * KIB)
    rollup = limits.keyed("Pss: 99 kB\nPss_Anon: 4 kB\nPss_File: 90 kB\nPss_Shmem: 3 kB\nSwapPss: 2 kB\n")
    assert limits.memory_of_rollup(rollup) == limits.Memory(6 * KIB, 3 * KIB)


def test_shared_pages_count_once() -> None:
    processes = [limits.Memory(100, 50), limits.Memory(10, 50)]
    assert limits.total_memory(processes, tmpfs=0, held=0) == 210
    assert limits.total_memory(processes, tmpfs=70, held=60) == 240  # the files hold more than is mapped
    assert limits.total_memory([], tmpfs=3, held=4) == 7


def test_shared_mappings_are_found_by_device_and_flag() -> None:
    maps = (
        "7f0000000000-7f0000004000 rw-s 00000000 00:01 11 /dev/zero (deleted)\n"
        "7f0000004000-7f0000006000 rw-s 00000000 00:01 11 /dev/zero (deleted)\n"
        "7f0000008000-7f0000009000 r--s 00000000 00:01 12 /memfd:x y (deleted)\n"
        "7f000000a000-7f000000b000 rw-p 00000000 00:01 13 /memfd:private (deleted)\n"
        "7f000000c000-7f000000d000 rw-s 00000000 fe:00 11 /a/file\n"
        "7f000000e000-7f000000f000 rw-p 00000000 00:00 0\n"
    )
    assert limits.shared_mappings(maps, (0, 1)) == {11: 0x6000, 12: 0x1000}


def test_saturation_needs_time_without_a_break() -> None:
    watch = limits.Saturation()
    assert not watch.seen(0.0, full=True)
    assert not watch.seen(2.9, full=True)
    assert not watch.seen(2.95, full=False)
    assert not watch.seen(3.0, full=True)
    assert not watch.seen(5.9, full=True)
    assert watch.seen(6.0, full=True)


class TestScanPace:
    def test_counts_when_half_of_what_is_left_is_gone(self) -> None:
        pace = limits.ScanPace(1000_000)
        assert not pace.due(0.0, 10_000_000)
        assert not pace.due(0.05, 9_600_000)
        assert pace.due(0.1, 9_500_000)
        pace.counted(0.1, 0.0, 500_000, 9_500_000)
        assert not pace.due(0.15, 9_300_000)
        assert pace.due(0.2, 9_250_000)

    def test_counts_now_and_then_anyway(self) -> None:
        pace = limits.ScanPace(1000_000)
        assert not pace.due(0.0, 100)
        assert pace.due(1.0, 100)
        pace.counted(1.0, 0.4, 0, 100)
        assert not pace.due(10.9, 100)  # 0.4 s every 10 s is 4 % of a CPU
        assert pace.due(11.1, 100)

    def test_a_noisy_host_cannot_make_it_count_all_the_time(self) -> None:
        pace = limits.ScanPace(1000_000)
        pace.due(0.0, 10_000_000)
        pace.counted(0.0, 0.5, 999_999, 10_000_000)
        assert not pace.due(0.9, 5_000_000)
        assert pace.due(1.0, 5_000_000)


@pytest.mark.parametrize(
    ("limit", "usable", "pinned"),
    [(1.0, 2, 1), (2.0, 2, 2), (8.0, 2, 2), (0.5, 2, None), (1.5, 2, None), (2.5, 2, 2), (1.5, 1, 1), (0.5, 1, None)],
)
def test_split_cpus(limit: float, usable: int, pinned: int | None) -> None:
    assert limits.split_cpus(limit, usable) == pinned
