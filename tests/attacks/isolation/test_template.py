"""What cells are born of: it passes nothing from one to the next, and its loss costs no run."""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import saggar
from saggar.isolation import syscalls_host
from saggar.isolation.launcher_host import Launcher
from saggar.policy.model import Policy, WorkspacePolicy
from saggar.runtime import api_host
from saggar.runtime.caller_host import Options

sys.path.insert(0, os.path.dirname(__file__))
from launched import children, gone, inside


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    place = tmp_path / "workspace"
    place.mkdir()
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(place)
    return place


@pytest.fixture(autouse=True)
def _born_when_asked_for(monkeypatch):
    """No spare: each run's child is born of the template."""
    monkeypatch.setattr(api_host, "Options", lambda **more: Options(spare=False, **more))


def _template() -> int:
    """Its pid, once it waits: a mount namespace of its own, and the launcher's PID namespace."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        for launcher in children(os.getpid()):
            if b"launcher_host" in Path(f"/proc/{launcher}/cmdline").read_bytes():
                for child in children(launcher):
                    if _other(child, "mnt") and _other(child, "net") and not _other(child, "pid"):
                        return int(child)
        time.sleep(0.01)
    raise AssertionError("no template was made")


def _other(pid, name) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    except OSError:
        return False


def _ready(workspace):
    inside("true", workspace)
    pid = _template()
    inside("true", workspace)
    return pid


def test_it_serves_run_after_run_and_stays_in_no_cells_network(workspace):
    pid = _ready(workspace)
    home = os.readlink(f"/proc/{pid}/ns/net")
    seen = {inside("readlink /proc/self/ns/net", workspace).stdout for _ in range(3)}
    # the kernel gives the number of one that is gone again
    assert home.encode() + b"\n" not in seen
    assert (_template(), os.readlink(f"/proc/{pid}/ns/net")) == (pid, home)
    # its streams, its channel, the launcher's pidfd, its own network namespace
    assert len(os.listdir(f"/proc/{pid}/fd")) == 6


def test_each_cell_has_its_own_root_directory(workspace, tmp_path):
    _ready(workspace)
    granted = tmp_path / "granted-to-one"
    granted.mkdir()
    assert inside(f"ls -d {granted}", workspace, read=(str(granted),)).stdout
    assert inside(f"ls -d {granted}; true", workspace).stdout == b""


def test_a_grant_below_etc_is_the_cells_own(workspace):
    _ready(workspace)
    result = inside("cat /etc/hostname && grep -c agent /etc/passwd && ls /etc/ssl /etc/alternatives >/dev/null && touch /etc/x", workspace,
                    read=("/etc/hostname",))  # fmt: skip
    assert result.stdout == Path("/etc/hostname").read_bytes() + b"1\n"
    assert result.exit_code != 0
    assert inside("ls /etc/hostname", workspace).exit_code != 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_does_not_answer_is_not_waited_for(workspace, number):
    pid = _ready(workspace)
    os.kill(pid, number)
    assert inside("echo runs", workspace).stdout == b"runs\n"
    gone(pid)
    assert _template() != pid


LEASE = """
import fcntl, os
for path in ("/etc/passwd", "/etc/hosts", "own"):
    with open(path, "a") if path == "own" else open(path) as file:
        fcntl.fcntl(file, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    # the kernel gives a lease on a file of one's own that nobody else has open
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        print("leased", path)
    except OSError as error:
        print(error.errno, path)
"""


def test_no_cell_holds_up_the_next_one_by_a_lease_on_what_both_open(workspace):
    """Whoever opened /etc/passwd or the loader's cache in another cell waited 45 s, or until the holder ended."""
    Path(workspace, "control").touch()
    with open(Path(workspace, "control")) as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    _ready(workspace)
    script = Path(workspace, "lease.py")
    script.write_text(LEASE)
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    result = saggar.run_sync([python, "-I", "lease.py"], Policy(workspace=WorkspacePolicy(path=str(workspace))))
    assert result.stdout == b"1 /etc/passwd\n1 /etc/hosts\n1 own\n", result.stderr


def _orphans_killed():
    """In a process of its own: which of two unknown children the launcher takes for lost."""
    maker = os.fork()
    if maker == 0:
        signal.pause()
    between = os.fork()
    if between == 0:
        syscalls_host.unshare(syscalls_host.CLONE_NEWUSER | syscalls_host.CLONE_NEWPID)
        if syscalls_host.fork_sibling() == 0:
            time.sleep(20)
        os._exit(0)
    os.waitpid(between, 0)
    assert len(children(os.getpid())) == 2
    births = SimpleNamespace(spare=None, orphans=True, known=set)
    Launcher._kill_orphans(SimpleNamespace(_births=births, _cells={}, _orphans=True, _unborn=lambda: False))
    left = children(os.getpid())
    os.kill(maker, signal.SIGKILL)
    return left == [str(maker)]


def test_only_a_first_process_is_taken_for_an_orphan():
    """A template's loss ended the maker of another cell between its two words, and that run with it."""
    pid = os.fork()
    if pid == 0:
        right = False
        try:
            right = _orphans_killed()
        finally:
            os._exit(0 if right else 1)
    assert os.waitpid(pid, 0)[1] == 0
