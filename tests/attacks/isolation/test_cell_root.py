"""What the cell's root and its first process show of the host, and how a spare follows the host's mount table."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import saggar
from saggar.policy.model import LimitsPolicy, Policy, WorkspacePolicy
from saggar.runtime.engine_host import engine

sys.path.insert(0, os.path.dirname(__file__))
from launched import children, gone, inside


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    place = tmp_path / "a-name-of-the-host" / "workspace"
    place.mkdir(parents=True)
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "a-state-of-the-host"))
    monkeypatch.chdir(place)
    return place


def test_the_first_process_shows_nothing_that_the_command_does_not_see(workspace):
    # its mount namespace is the one that bubblewrap started in: the workshop and the host's tree must be gone from it
    result = inside("sed 's/^[0-9 ]*//' /proc/1/mountinfo; echo; cat /proc/1/cmdline", workspace)
    table, _, command = result.stdout.decode().partition("\n\n")
    mine = inside("cat /proc/self/mountinfo", workspace).stdout.decode()
    places = [line.split(" ")[2] for line in table.splitlines()]
    shown = [line.split(" ")[4] for line in mine.splitlines()]
    assert sorted(places) == sorted(["/", "/proc", *(("/cell" + p).removesuffix("/") for p in shown)])
    assert "a-state-of-the-host" not in table + command
    assert "site-packages" not in table + command


@pytest.mark.parametrize("name", ["root", "cwd", "exe", "environ", "maps", "mem", "fd/0", "ns/mnt", "ns/net"])
def test_the_first_process_is_out_of_reach(workspace, name):
    result = inside(f"ls -L /proc/1/{name}/ 2>&1 || cat /proc/1/{name}", workspace)
    assert result.exit_code != 0
    assert b"ermission denied" in result.stdout + result.stderr


def test_the_first_process_takes_no_signal_of_the_commands(workspace):
    assert inside("kill -9 1; kill -STOP 1; kill -TERM 1; echo alive", workspace).stdout == b"alive\n"


@pytest.mark.parametrize("place", ["/", "/etc", "/home", "/dev", "/run", "/usr", "/etc/ssl/certs", "/proc/sys"])
def test_the_root_is_read_only(workspace, place):
    result = inside(f"touch {place}/x 2>&1 || mkdir {place}/y", workspace)
    assert result.exit_code != 0, result


def test_no_directory_of_the_root_is_writable_by_its_mode(workspace):
    found = inside("find / /dev /etc -xdev -type d -perm -002", workspace).stdout.decode().split()
    # the two are other file systems; so are /dev and /etc, which all cells share
    assert sorted(found) == ["/dev/shm", "/tmp"]


def test_devices_are_the_named_ones(workspace):
    script = "for f in /dev/*; do [ -h $f ] || [ -d $f ] || echo $f; done"
    assert sorted(inside(script, workspace).stdout.decode().split()) == [
        f"/dev/{n}" for n in ("full", "null", "random", "tty", "urandom", "zero")
    ]


def test_every_mount_is_nosuid_and_all_but_devices_nodev(workspace):
    lines = [line.split(" ") for line in inside("cat /proc/self/mountinfo", workspace).stdout.decode().splitlines()]
    assert [f[4] for f in lines if "nosuid" not in f[5].split(",")] == []
    assert {f[4] for f in lines if "nodev" not in f[5].split(",")} == {
        "/dev/pts", *(f"/dev/{n}" for n in ("full", "null", "random", "tty", "urandom", "zero"))
    }  # fmt: skip


def test_a_link_leads_no_grant_out_of_the_root(workspace):
    # the workspace's links are the agent's: whatever they say, a mount lands in the cell
    target = workspace.parent / "granted"
    target.mkdir()
    (target / "file").write_text("granted")
    (workspace / "up").symlink_to("../" * 20 + str(target.parent))
    result = inside("cat up/granted/file", workspace, read=(str(workspace / "up" / "granted"),))
    assert (result.exit_code, result.stdout) == (0, b"granted"), result


def _spare() -> int:
    """The pid of the child that waits, once it does."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        for launcher in children(os.getpid()):
            if b"launcher_host" in Path(f"/proc/{launcher}/cmdline").read_bytes():
                for child in children(launcher):
                    if _built(child):
                        return int(child)
        time.sleep(0.01)
    raise AssertionError("no spare child was born")


def _built(pid) -> bool:
    """In a mount and a PID namespace of its own, so past its birth."""
    try:
        return all(os.readlink(f"/proc/{pid}/ns/{n}") != os.readlink(f"/proc/self/ns/{n}") for n in ("mnt", "pid"))
    except OSError:
        return False


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_spare_is_dropped_when_the_host_mounts_something(workspace, tmp_path):
    inside("true", workspace)
    spare = _spare()
    place = tmp_path / "mounted"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    try:
        # else a copy of the old mount table waits on
        gone(spare)
        assert inside("echo runs", workspace).stdout == b"runs\n"
    finally:
        subprocess.run(["umount", place], check=True)


SHARED = """
import os, subprocess, sys, time
import saggar
from saggar.policy.model import IsolationPolicy, Policy, WorkspacePolicy

workspace, granted, mode = sys.argv[1:]
places = [f"{workspace}/below", f"{granted}/below", "/usr/share"]
policy = Policy(workspace=WorkspacePolicy(path=workspace, mode=mode), isolation=IsolationPolicy(read=(granted,)))
subprocess.run(["mount", "--make-rshared", "/"], check=True)
script = "echo up; read go; for p in " + " ".join(places) + "; do ls -a $p/marker; done 2>/dev/null; grep later /proc/self/mountinfo"


async def main():
    for kept in (False, True):  # a child born for it, and the spare
        if kept:
            await saggar.run(["true"], policy)
            await asyncio.sleep(0.2)
        async with await saggar.spawn(["sh", "-c", script], policy) as cell:
            assert await cell.stdout.readline() == b"up\\n"
            for place in places:
                subprocess.run(["mount", "-t", "tmpfs", "later", place], check=True)
                open(f"{place}/marker", "w").close()
            cell.stdin.write(b"go\\n")
            found = await cell.stdout.read()
            await cell.wait()
        for place in places:
            subprocess.run(["umount", place], check=True)
        print(kept, found.decode().split())

import asyncio
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("mode", ["copy-on-write", "read-only", "read-write"])
def test_what_the_host_mounts_later_does_not_appear_in_a_running_cell(workspace, tmp_path, mode):
    # systemd makes `/` shared: a copy of a shared mount goes on receiving what is mounted below the original
    granted = tmp_path / "granted"
    for place in (workspace, granted):
        (place / "below").mkdir(parents=True)
    words = ["unshare", "-m", sys.executable, "-P", "-c", SHARED, workspace, granted, mode]
    env = os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(saggar.__file__)))}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "False []\nTrue []\n"), done


def test_a_spare_that_died_is_not_used(workspace):
    inside("true", workspace)
    spare = _spare()
    os.kill(spare, signal.SIGKILL)
    gone(spare)
    assert inside("echo runs", workspace).stdout == b"runs\n"
    assert engine().alive


def _pipes(pid) -> int:
    names = (os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd"))
    return sum(name.startswith("pipe:") for name in names)


def test_a_spare_that_is_lost_when_it_was_claimed_costs_no_run(workspace):
    inside("true", workspace)
    spare = _spare()
    launcher = next(c for c in children(os.getpid()) if str(spare) in children(c))
    os.kill(spare, signal.SIGSTOP)
    before = _pipes(launcher)
    found = []
    run = threading.Thread(target=lambda: found.append(inside("echo runs", workspace).stdout))
    run.start()
    until = time.monotonic() + 10
    # the pipe that its bubblewrap would speak on: the request has been sent
    while _pipes(launcher) == before and time.monotonic() < until:
        time.sleep(0.001)
    os.kill(spare, signal.SIGKILL)
    run.join(20)
    assert found == [b"runs\n"]


def test_runs_that_find_no_spare_are_born_side_by_side_and_all_end(workspace):
    # each has limits of its own, so none can take another's child; some are cancelled at whatever moment of their birth
    async def one(number):
        policy = Policy(workspace=WorkspacePolicy(path=str(workspace)), limits=LimitsPolicy(tasks=40 + number % 3))
        if number % 3:
            return (await saggar.run(["/bin/echo", str(number)], policy)).stdout.decode().strip()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(saggar.run(["/bin/sleep", "60"], policy), number / 300)
        return str(number)

    async def all_of_them():
        return await asyncio.wait_for(asyncio.gather(*(one(n) for n in range(18))), 60)

    assert asyncio.run(all_of_them()) == [str(n) for n in range(18)]
    _spare()
    launcher = next(c for c in children(os.getpid()) if b"launcher_host" in Path(f"/proc/{c}/cmdline").read_bytes())
    until = time.monotonic() + 5
    # the spare, and the template that it was born of
    while len(children(launcher)) > 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(children(launcher)) == 2
