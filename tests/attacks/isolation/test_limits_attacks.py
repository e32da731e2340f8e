"""Programs that try to exhaust the machine, under control groups and under watchdogs: each ends with a typed cause.

The watchdog half runs as any user: control groups are left out by taking their places away, the kernel is not faked.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import pytest

from saggar.core.errors import Unenforceable
from saggar.isolation import cgroups_host
from saggar.isolation.limits_host import Limits, sweep
from saggar.policy.model import MIB, LimitsPolicy

sys.path.insert(0, os.path.dirname(__file__))
import harness

ALLOCATE = "import mmap, os, sys, time, ctypes\nM = 1 << 20\n"
WAIT = "\nprint('held', flush=True)\ntime.sleep(30)\n"

HOGS = {
    "anonymous": "x = [bytearray(os.urandom(4096) * 256) for _ in range(400)]",
    "anonymous-in-six-forks": "for _ in range(6):\n    if os.fork() == 0: break\nx = bytearray(60 * M)\nx[::4096] = b'x' * (60 * 256)",
    "shared-mapping": "m = mmap.mmap(-1, 400 * M)\nfor i in range(0, 400 * M, 4096): m[i] = 1",
    "shared-mapping-by-children": (
        "m = mmap.mmap(-1, 400 * M)\nfor c in range(4):\n    if os.fork() == 0:\n"
        "        for i in range(c * 100 * M, (c + 1) * 100 * M, 4096): m[i] = 1\n        os._exit(0)\n"
        "for _ in range(4): os.wait()"
    ),
    "shared-mapping-dropped": (
        "ms = [mmap.mmap(-1, 40 * M) for _ in range(10)]\nfor m in ms:\n"
        "    for i in range(0, 40 * M, 4096): m[i] = 1\n    m.madvise(mmap.MADV_DONTNEED)"
    ),
    "memfd-by-write": "f = os.memfd_create('x')\nfor _ in range(400): os.write(f, b'x' * M)",
    "memfd-by-fallocate": "fs = [os.memfd_create('x') for _ in range(8)]\n[os.posix_fallocate(f, 0, 50 * M) for f in fs]",
    "memfd-mapped-then-closed": (
        "ms = []\nfor _ in range(8):\n    f = os.memfd_create('x')\n    os.write(f, b'x' * 50 * M)\n"
        "    ms.append(mmap.mmap(f, 50 * M))\n    os.close(f)"
    ),
    "memfd-and-anonymous": (
        "f = os.memfd_create('x')\nfor _ in range(120): os.write(f, b'x' * M)\n"
        "x = bytearray(120 * M)\nx[::4096] = b'x' * (120 * 256)"
    ),
    "tmpfs-and-anonymous": (
        "f = open('/tmp/x', 'wb')\nfor _ in range(60): f.write(b'x' * M)\nf.flush()\n"
        "x = bytearray(190 * M)\nx[::4096] = b'x' * (190 * 256)"
    ),
}  # fmt: skip

#: under the limit: must live
FRUGAL = {
    "shared-once": "m = mmap.mmap(-1, 120 * M)\nfor i in range(0, 120 * M, 4096): m[i] = 1\nfor _ in range(5):\n    if os.fork() == 0:\n        x = sum(m[i] for i in range(0, 120 * M, 4096)); time.sleep(1); os._exit(0)\nfor _ in range(5): os.wait()",
    "copy-on-write-forks": "x = bytearray(120 * M)\nx[::4096] = b'x' * (120 * 256)\nfor _ in range(5):\n    if os.fork() == 0: time.sleep(1); os._exit(0)\nfor _ in range(5): os.wait()",
    "reserved-only": "m = [mmap.mmap(-1, 900 * M, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=0) for _ in range(9)]",
    "memfd-mapped": "f = os.memfd_create('x')\nos.write(f, b'x' * 90 * M)\nm = mmap.mmap(f, 90 * M)\ny = sum(m[i] for i in range(0, 90 * M, 4096)); time.sleep(0.5)",
}  # fmt: skip


@pytest.fixture(params=["cgroup", "watchdog"])
def means(request, monkeypatch) -> str:
    if request.param == "watchdog":
        _without_groups(monkeypatch)
    elif any(not p.parent for p in cgroups_host.places(("memory", "pids", "cpu")).values()):
        pytest.skip("no writable cgroup hierarchy for this user")
    return request.param


def _without_groups(monkeypatch) -> None:
    monkeypatch.setattr(
        cgroups_host, "places", lambda names: {n: cgroups_host.Place(0, "", "taken away by the test") for n in names}
    )


def _open(policy: LimitsPolicy, *, disk: bool = False) -> Limits:
    return Limits.open(
        policy, f"r20260101T000000-{os.urandom(3).hex()}", root=os.geteuid() == 0, disk_on_host=disk, own=2
    )


def _run(bwrap: str, policy: LimitsPolicy, code: str, *, disk: str = "", **kw) -> harness.Ended:
    limits = _open(policy, disk=bool(disk))
    try:
        return harness.run(bwrap, limits, [harness.PYTHON, "-I", "-S", "-c", code], disk=disk, **kw)
    finally:
        assert limits.close()


@pytest.mark.parametrize("hog", HOGS)
def test_memory_hogs_end_with_cause_memory(bwrap: str, means: str, hog: str) -> None:
    before = _available()
    ended = _run(bwrap, LimitsPolicy(memory_bytes=200 * MIB), ALLOCATE + HOGS[hog] + WAIT, tmpfs_bytes=64 * MIB)
    assert ended.limit == "memory", (ended.breach, ended.cause, ended.code, ended.out)
    assert ended.seconds < 20
    assert ended.report["memory"]["held"] == ("enforced" if means == "cgroup" else "watchdog")
    _wait_until(lambda: _available() > before - 300 * MIB)


RESERVE = """
import mmap, time
kept = []
try:
    while True: kept.append(mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
except OSError as error:
    print(error.errno)
time.sleep(0.3)
"""


def test_who_fails_for_want_of_addresses_where_memory_is_watched_is_suspected_of_it(bwrap: str, monkeypatch) -> None:
    """RLIMIT_DATA refuses what was never touched: the watchdog sees no memory used, and the program has an error without a cause.
    It is no more than a suspicion: a program may map that much, and fail for a reason of its own."""
    _without_groups(monkeypatch)
    ended = _run(bwrap, LimitsPolicy(memory_bytes=200 * MIB), RESERVE + "raise SystemExit(1)")
    assert (ended.code, ended.out, ended.breach) == (1, "12\n", None)
    assert ended.cause is None
    assert (ended.suspected.limit, ended.suspected.allowed) == ("memory", 800 * MIB)


@pytest.mark.parametrize("program", FRUGAL)
def test_frugal_programs_live(bwrap: str, means: str, program: str) -> None:
    ended = _run(bwrap, LimitsPolicy(memory_bytes=200 * MIB), ALLOCATE + FRUGAL[program] + "\nprint('lived')")
    assert (ended.code, ended.out, ended.limit) == (0, "lived\n", ""), ended.breach


REAL = {
    "node": ["/usr/bin/node", "-e", "const a=[];for(let i=0;i<2e6;i++)a.push({i});console.log('lived')"],
    "java": ["/usr/bin/java", "--version"],
    "git": ["/usr/bin/git", "-C", "/tmp", "init", "-q"],
}


@pytest.mark.parametrize("name", REAL)
def test_real_programs_live_under_the_default_limits(bwrap: str, means: str, name: str) -> None:
    argv = REAL[name]
    if not os.path.exists(argv[0]):
        pytest.skip(f"{name} is not installed on this host")
    limits = _open(LimitsPolicy())
    try:
        ended = harness.run(bwrap, limits, argv)
    finally:
        assert limits.close()
    assert (ended.code, ended.limit) == (0, ""), (ended.out, ended.breach)


BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
THREADS = "import threading, time\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(60,)).start()\n    except RuntimeError: pass\n"


@pytest.mark.parametrize("code", [BOMB, THREADS], ids=["forks", "threads"])
def test_bombs_end_with_cause_tasks(bwrap: str, means: str, code: str) -> None:
    ended = _run(bwrap, LimitsPolicy(tasks=64), code)
    assert ended.limit == "tasks", (ended.breach, ended.cause, ended.code)
    assert ended.seconds < 20


def test_the_shell_bomb_ends_with_cause_tasks(bwrap: str, means: str) -> None:
    limits = _open(LimitsPolicy(tasks=64))
    try:
        ended = harness.run(bwrap, limits, ["/usr/bin/bash", "-c", ":(){ :|:& };:; sleep 60"])
    finally:
        assert limits.close()
    assert ended.limit == "tasks", (ended.breach, ended.cause, ended.code)


def test_a_program_that_meets_the_limit_and_copes_lives(bwrap: str, means: str) -> None:
    code = (
        "import os, time\nkids = []\ntry:\n    while True:\n        p = os.fork()\n"
        "        if p == 0: time.sleep(20); os._exit(0)\n        kids.append(p)\n"
        "except OSError as e: print(e.errno, len(kids))\nfor k in kids: os.kill(k, 9); os.waitpid(k, 0)\n"
    )
    ended = _run(bwrap, LimitsPolicy(tasks=64), code)
    assert (ended.code, ended.out, ended.breach) == (0, "11 63\n", None)


def test_cpu_is_held_for_the_whole_tree(bwrap: str, means: str) -> None:
    if os.cpu_count() == 1:
        pytest.skip("one CPU: there is nothing to hold")
    code = (
        "import os, time\nbefore, start = sum(os.times()[:4]), time.monotonic()\nfor _ in range(3):\n    if os.fork() == 0: break\nelse: start = -start\n"
        "try: os.sched_setaffinity(0, range(os.cpu_count()))\nexcept OSError: pass\n"
        "end = time.monotonic() + 2\n"
        "while time.monotonic() < end: pass\n"
        "try:\n    while True: os.wait()\nexcept ChildProcessError: pass\n"
        "if start < 0: print((sum(os.times()[:4]) - before) / (time.monotonic() + start))\n"
    )
    ended = _run(bwrap, LimitsPolicy(cpus=1.0), code)
    # a quota is given out in periods of 100 ms, so the first and the last may be full
    assert 0.3 < float(ended.out) < 1.25, ended.out


@pytest.mark.parametrize(
    "code",
    [
        "import os\nfor n in range(20):\n    f = open(f'/disk/{n}', 'wb')\n    for _ in range(10): f.write(os.urandom(1 << 20))",
        "import os\nfs = []\nfor n in range(20):\n    f = open(f'/disk/{n}', 'wb', 0); os.unlink(f'/disk/{n}'); fs.append(f)\n    for _ in range(10): f.write(os.urandom(1 << 20))",
        "import os\nos.mkdir('/disk/d')\nfor n in range(20):\n    os.chmod('/disk/d', 0o700)\n    f = open(f'/disk/d/{n}', 'wb')\n    os.chmod('/disk/d', 0)\n    for _ in range(10): f.write(os.urandom(1 << 20))",
        "import os\nd = '/disk'\nfor n in range(150): d += '/d'; os.mkdir(d)\nfor n in range(20):\n    f = open(f'{d}/{n}', 'wb')\n    for _ in range(10): f.write(os.urandom(1 << 20))",
        "for n in range(40000): open(f'/disk/{n}', 'wb').close()",
        "import os\nfor n in range(40000): os.symlink('x', f'/disk/{n}')",
        "import os\nfor n in range(40000): os.mkdir(f'/disk/{n}')",
    ],
    ids=["files", "unlinked", "mode-000", "deep", "empty-files", "symlinks", "directories"],
)  # fmt: skip
def test_disk_fillers_end_with_cause_disk(bwrap: str, means: str, code: str) -> None:
    base = "/var/tmp"
    with tempfile.TemporaryDirectory(dir=base, ignore_cleanup_errors=True) as disk:
        if os.geteuid() == 0:
            os.chown(disk, harness.NOBODY, harness.NOBODY)
        policy = LimitsPolicy(disk_bytes=64 * MIB)
        code = (
            f"import sys\nsys.setrecursionlimit(9999)\n{code}\nimport time; print('full', flush=True); time.sleep(30)"
        )
        try:
            ended = _run(bwrap, policy, code, disk=disk)
        finally:
            os.system(f"chmod -R u+rwx {disk} 2>/dev/null")
        assert ended.limit == "disk", (ended.breach, ended.cause, ended.code, ended.out)
        assert ended.report["disk"]["held"] == "watchdog"
        assert ended.seconds < 25


def test_a_sized_tmpfs_holds_by_itself(bwrap: str, means: str) -> None:
    code = "try:\n    with open('/tmp/x', 'wb') as f:\n        while True: f.write(b'x' * (1 << 20))\nexcept OSError as e: print(e.errno)"
    ended = _run(bwrap, LimitsPolicy(), code, tmpfs_bytes=16 * MIB)
    assert (ended.code, ended.out, ended.limit) == (0, "28\n", "")
    assert ended.report["disk"]["held"] == "enforced"


def test_one_huge_file_ends_with_cause_disk(bwrap: str, means: str) -> None:
    code = "f = open('/tmp/x', 'wb')\nf.truncate(1 << 40)"
    limits = _open(LimitsPolicy(disk_bytes=8 * MIB))
    try:
        ended = harness.run(bwrap, limits, ["/usr/bin/dd", "if=/dev/zero", "of=/tmp/x", "bs=1M"], tmpfs_bytes=16 * MIB)
        assert ended.limit == "disk", (ended.code, ended.out)
        ended = _run(bwrap, LimitsPolicy(disk_bytes=8 * MIB), code)
        assert ended.code != 0  # Python ignores SIGXFSZ and raises EFBIG
    finally:
        limits.close()


def test_the_clock(bwrap: str, means: str) -> None:
    ended = _run(bwrap, LimitsPolicy(timeout_s=0.5), "import time; time.sleep(60)")
    assert ended.limit == "timeout"
    assert ended.seconds < 3


def test_nothing_is_left_and_a_sweep_spares_the_living(bwrap: str, means: str) -> None:
    limits = _open(LimitsPolicy())
    paths = [g.path for g in limits._groups.values()]
    assert bool(paths) == (means == "cgroup")
    assert not set(sweep(set())) & set(paths)  # locked by us
    assert all(os.path.isdir(p) for p in paths)
    assert limits.close()
    assert not any(os.path.exists(p) for p in paths)


def test_a_dead_supervisors_groups_are_swept(means: str) -> None:
    if means != "cgroup":
        pytest.skip("no groups without cgroups")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        limits = _open(LimitsPolicy())
        sleeper = os.fork()
        if sleeper == 0:
            os.closerange(3, 256)
            os.setsid()
            time.sleep(100)
            os._exit(0)
        limits.attach(sleeper)
        os.write(write, "\n".join([str(sleeper), *(g.path for g in limits._groups.values())]).encode())
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    sleeper, *paths = os.read(read, 9999).decode().split()
    sweep(set())  # or another run's on this host, which is as good
    _wait_until(lambda: not any(os.path.exists(p) for p in paths))
    _wait_until(lambda: _gone(int(sleeper)))


def test_a_name_in_use_is_never_swept(means: str) -> None:
    if means != "cgroup":
        pytest.skip("no groups without cgroups")
    places = cgroups_host.places(("pids",))
    path = f"{places['pids'].parent}/saggar-r20260101T000000-alive1"
    os.mkdir(path)
    try:
        assert path not in sweep({"r20260101T000000-alive1"})
    finally:
        os.rmdir(path)


def test_a_child_can_be_born_in_a_group() -> None:
    mounts = cgroups_host.group_mounts(cgroups_host.read("/proc/self/mountinfo"))
    own = cgroups_host.own_groups(cgroups_host.read("/proc/self/cgroup"))
    parent = cgroups_host.group_directory(own.get("", ""), *mounts[""]) if "" in mounts and "" in own else ""
    if not parent or not os.access(parent, os.W_OK):
        pytest.skip("no writable cgroup v2 hierarchy for this user")
    group = cgroups_host.make(cgroups_host.Place(2, parent), f"test-{os.getpid()}")
    try:
        read, write = os.pipe()
        pid = group.fork()
        if pid == 0:
            os.write(write, cgroups_host.read("/proc/self/cgroup").encode())
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert os.path.basename(group.path) in os.read(read, 9999).decode()
    finally:
        assert group.close()


def test_a_fraction_of_a_cpu_needs_a_group(monkeypatch) -> None:
    _without_groups(monkeypatch)
    with pytest.raises(Unenforceable) as info:
        _open(LimitsPolicy(cpus=0.5))
    assert "`cpu` limit cannot be held" in str(info.value)
    assert "whole number of CPUs" in info.value.remedy


def test_enforced_refuses_a_watchdog(monkeypatch) -> None:
    _without_groups(monkeypatch)
    with pytest.raises(Unenforceable) as info:
        Limits.open(LimitsPolicy(require="enforced"), "r20260101T000000-abc123", root=False)
    assert "`memory` limit can only be watched" in str(info.value)
    assert "delegate.conf" in info.value.remedy


def test_enforced_refuses_a_layer_on_the_hosts_disk(means: str) -> None:
    with pytest.raises(Unenforceable):
        _open(LimitsPolicy(require="enforced"), disk=True)


def _gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _available() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


def _wait_until(condition, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come"
        time.sleep(0.02)
