"""SIGKILL at any moment: of the supervisor, the launcher, the broker, bubblewrap. Nothing of the cell is left."""

import glob
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saggar.isolation.state_host import State

SRC = str(Path(__file__).resolve().parents[2] / "src")
ROUNDS = 100
#: in what a cell's processes are called here, so that two of these tests side by side never take one for the other's
OWN = f"{os.getpid():07d}"


def word(number):
    """A duration for `sleep` by which a test knows its own processes."""
    return f"{number}.{OWN}"


def wait_for(condition, timeout=10):
    """Poll `condition` until it gives something true; the last value otherwise."""
    until = time.monotonic() + timeout
    while True:
        value = condition()
        if value or time.monotonic() > until:
            return value
        time.sleep(0.005)


def pids_with(word):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if word in file.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            continue
    return found


class Place:
    """A workspace, a state directory and a temporary directory, and what a run may leave in them."""

    def __init__(self, tmp_path):
        self.work = tmp_path / "work"
        self.temp = tmp_path / "temp"
        self.state = tmp_path / "state"
        self.root = tmp_path
        self.work.mkdir()
        self.temp.mkdir()

    def start(self, *args, **more):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "PYTHONPATH": SRC,
            "PYTHONDONTWRITEBYTECODE": "1",
            "SAGGAR_STATE_DIR": str(self.state),
            "TMPDIR": str(self.temp),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "saggar", *args],
            cwd=self.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=more.pop("stdout", subprocess.DEVNULL),
            stderr=more.pop("stderr", subprocess.DEVNULL),
            start_new_session=True,
            **more,
        )

    def sweep_is_due(self):
        """Starts sweep at most once a minute; as if that minute were over."""
        (self.state / "swept").unlink()

    def runs(self):
        try:
            return os.listdir(self.state / "runs")
        except OSError:
            return []

    def groups(self, launchers=()):
        """Control groups of this place's runs, and of the children that wait in these launchers."""
        names = tuple(f"saggar-{i}" for i in self.runs()) + tuple(f"saggar-{p}-" for p in launchers)
        found = glob.glob("/sys/fs/cgroup/**/saggar-*", recursive=True)
        return [g for g in found if names and g.rpartition("/")[2].startswith(names)]

    def assert_nothing_left(self, mark, launchers=()):
        assert wait_for(lambda: not pids_with(mark)), [Path(f"/proc/{p}/cmdline").read_bytes() for p in pids_with(mark)]
        assert wait_for(lambda: not self.groups(launchers)), self.groups(launchers)
        assert os.listdir(self.temp) == []
        assert os.listdir(self.work) == []
        assert set(os.listdir(self.root)) <= {"work", "temp", "state", "home"}
        with open("/proc/self/mountinfo") as table:
            mounts = table.read()
        assert str(self.root) not in mounts
        assert "saggar" not in mounts


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_sigkill_of_the_supervisor_at_100_random_moments(place):
    moments = random.Random(20261130)
    for number in range(ROUNDS):
        mark = word(3230000 + number)
        process = place.start("run", "--", "sh", "-c", f"setsid sleep {mark} & sleep {mark}")
        # a whole start takes some 80 ms: from before the fork of the launcher to well into the command
        time.sleep(moments.uniform(0.0, 0.2))
        process.kill()
        process.wait()
        place.assert_nothing_left(mark.encode())
    # what the killed ones left in the state directory is known as dead, by whoever starts next
    done = place.start("run", "--", "true")
    assert done.wait(timeout=20) == 0


API = """
import asyncio, sys, saggar
async def main():
    assert (await saggar.run(["true"])).ok
    async with await saggar.spawn(["sh", "-c", f"echo up; setsid sleep {sys.argv[1]} & sleep {sys.argv[1]}"]) as process:
        print((await process.stdout.readline()).decode(), flush=True)
        await process.wait()
asyncio.run(main())
"""


def test_sigkill_of_a_program_that_uses_the_api(place):
    """Its launcher, the child that waits for the next run, and the cell: all gone, and their groups."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place.root / "home"),
        "PYTHONPATH": SRC,
        "PYTHONDONTWRITEBYTECODE": "1",
        "SAGGAR_STATE_DIR": str(place.state),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", API, word(3246)], cwd=place.work, env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"up\n"
    launchers = [p for p in _children(process.pid) if b"launcher_host" in Path(f"/proc/{p}/cmdline").read_bytes()]
    below = [p for launcher in launchers for p in _children(launcher)]
    assert launchers
    assert below
    process.kill()
    process.wait()
    process.stdout.close()
    place.assert_nothing_left(word(3246).encode(), launchers)
    assert wait_for(lambda: not any(os.path.exists(f"/proc/{p}") for p in [*launchers, *below]))


def _children(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += map(int, file.read().split())
    return found


def test_the_next_start_knows_the_dead(place):
    process = place.start("run", "--", "sh", "-c", f"echo up; sleep {word(3240)}", stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    (dead,) = place.runs()
    process.kill()
    process.wait()
    process.stdout.close()
    place.assert_nothing_left(word(3240).encode())
    place.sweep_is_due()
    assert place.start("run", "--", "true").wait(timeout=20) == 0

    def cause():
        run = State(str(place.state)).open_run(dead)
        return run.meta().get("cause")

    assert wait_for(cause) == "supervisor_died"


def _launcher_of(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return int(file.read().split()[0])


def _brokers_of(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        pids = file.read().split()
    return [int(p) for p in pids if b"saggar.egress.broker_host" in Path(f"/proc/{p}/cmdline").read_bytes()]


def test_sigkill_of_the_launcher(place, tmp_path):
    out = tmp_path / "home"
    process = place.start(
        "run", "--json", str(out), "--", "sh", "-c", f"echo up; sleep {word(3241)}", stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"up\n"
    launcher = _launcher_of(process)
    os.kill(launcher, signal.SIGKILL)
    assert process.wait(timeout=10) == 70
    process.stdout.close()
    result = json.loads(out.read_text())
    assert (result["cause"], result["exit_code"]) == ("launcher_died", None)
    place.assert_nothing_left(word(3241).encode(), [launcher])


def test_sigkill_of_launcher_and_supervisor_together(place):
    process = place.start(
        "run", "--", "sh", "-c", f"echo up; setsid sleep {word(3242)} & sleep {word(3242)}", stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"up\n"
    launcher = _launcher_of(process)
    process.send_signal(signal.SIGSTOP)
    os.kill(launcher, signal.SIGKILL)
    process.kill()
    process.wait()
    process.stdout.close()
    # the kernel ties bubblewrap's monitor to the launcher, and its pid 1 to the monitor
    assert wait_for(lambda: not pids_with(word(3242).encode()))
    # a group that nobody removed is the next start's to remove
    place.sweep_is_due()
    assert place.start("run", "--", "true").wait(timeout=20) == 0
    assert wait_for(lambda: not place.groups([launcher])), place.groups([launcher])


def test_sigkill_of_bubblewrap_is_no_success(place, tmp_path):
    out = tmp_path / "home"
    process = place.start(
        "run", "--json", str(out), "--", "sh", "-c", f"echo up; sleep {word(3243)}", stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"up\n"
    monitors = [p for p in pids_with(word(3243).encode()) if Path(f"/proc/{p}/comm").read_text() == "bwrap\n"]
    os.kill(min(monitors), signal.SIGKILL)
    assert process.wait(timeout=10) != 0
    process.stdout.close()
    result = json.loads(out.read_text())
    assert result["exit_code"] is None
    assert result["cause"] == "infrastructure"
    # whoever reads that nothing ran runs it again
    assert "the command had started" in result["message"]
    with open(result["audit_path"]) as file:
        end = next(r for r in map(json.loads, file) if r["kind"] == "run.end")
    assert (end["detail"]["started"], end["detail"]["ended_by_signal"]) == (True, 9)
    assert end["detail"]["note"] == result["message"]
    place.assert_nothing_left(word(3243).encode())


def test_sigkill_of_the_broker_ends_the_cell(place, tmp_path):
    out = tmp_path / "home"
    script = (
        "import socket, time\n"
        "s = socket.create_connection(('203.0.113.9', 443)); print('up', flush=True)\n"
        f"time.sleep({word(3244)})"
    )
    process = place.start("run", "--json", str(out), "--", "python3", "-c", script, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"

    (pid,) = wait_for(lambda: _brokers_of(process))
    os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=10) == 70
    process.stdout.close()
    assert json.loads(out.read_text())["cause"] == "broker_died"
    place.assert_nothing_left(word(3244).encode())


def test_the_broker_dies_with_the_supervisor(place):
    script = f"import socket, time; s = socket.create_connection(('203.0.113.9', 443)); print('up', flush=True); time.sleep({word(3245)})"
    process = place.start("run", "--", "python3", "-c", script, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"

    (pid,) = wait_for(lambda: _brokers_of(process))
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_for(lambda: not os.path.exists(f"/proc/{pid}/cmdline") or not Path(f"/proc/{pid}/cmdline").read_bytes())
    place.assert_nothing_left(word(3245).encode())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_to_the_supervisor_reach_the_command(place, number):
    script = 'for s in TERM HUP INT; do trap "echo $s; exit 3" $s; done; echo up; while :; do sleep 0.05; done'
    process = place.start("run", "--", "sh", "-c", script, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    assert process.stdout.readline().strip().decode() == number.name.removeprefix("SIG")
    assert process.wait(timeout=10) == 3
    process.stdout.close()
