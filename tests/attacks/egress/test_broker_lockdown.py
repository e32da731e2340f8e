"""What code would meet that came to run inside the broker, and that the broker itself still can do all of its work."""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saggar.egress import lockdown_host
from saggar.egress.broker_host import harden
from saggar.policy.model import EgressRule
from saggar.testing import client_hello as h
from saggar.testing.egress_cell import EgressCell

ELSEWHERE = "203.0.113.9"


def abi():
    return lockdown_host._landlock_version()


def inside(code, lock=lockdown_host.lock_down_broker):
    """Run `code` in a child that is as locked down as a broker, or as `lock` does it; how it ended. 77: OSError, 0: it worked."""
    pid = os.fork()
    if not pid:
        try:
            harden(parent_death=False)
            lock()
            code()
        except OSError as e:
            os._exit(77 if e.errno in (1, 13) else 78)
        except BaseException:
            os._exit(99)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def libc():
    return ctypes.CDLL(None, use_errno=True)


KILLED = [
    ("execve", lambda: os.execv("/bin/true", ["true"])),
    ("ptrace", lambda: libc().ptrace(16, os.getppid(), 0, 0)),
    ("process_vm_readv", lambda: libc().process_vm_readv(os.getppid(), 0, 0, 0, 0, 0)),
    ("mount", lambda: libc().mount(b"none", b"/", b"tmpfs", 0, None)),
    ("chroot", lambda: os.chroot("/")),
    ("unshare", lambda: libc().unshare(0x10000000)),
    ("setns", lambda: libc().setns(0, 0)),
    ("bpf", lambda: libc().syscall(321 if os.uname().machine == "x86_64" else 280, 0, 0, 0)),
    ("io_uring_setup", lambda: libc().syscall(425, 1, 0)),
    ("pidfd_getfd", lambda: libc().syscall(438, 0, 0, 0)),
]


@pytest.mark.parametrize(("name", "act"), KILLED, ids=[n for n, _ in KILLED])
def test_what_ends_it(name, act):
    assert inside(act) == -signal.SIGSYS


@pytest.fixture
def outside(tmp_path):
    """A process, a file and a Unix socket that are none of the broker's."""
    victim = os.fork()
    if not victim:
        while True:
            signal.pause()
    (tmp_path / "file").write_text("theirs")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        listener.listen()
        yield victim, str(tmp_path)
    assert not os.waitpid(victim, os.WNOHANG)[0], "it lives"
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)


def af(family, kind=socket.SOCK_STREAM, protocol=0):
    return lambda *_: socket.socket(family, kind, protocol)


#: each gets the victim's number and a directory
REFUSED = {
    "prlimit": lambda pid, _: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0)),
    "prlimit of the parent": lambda *_: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE),
    "kill": lambda pid, _: os.kill(pid, signal.SIGKILL),
    "kill everybody": lambda *_: os.kill(-1, 0),
    "tgkill": lambda pid, _: check(libc().syscall(234 if X86 else 131, pid, pid, 9)),
    "tkill": lambda pid, _: check(libc().syscall(200 if X86 else 130, pid, 9)),
    "pidfd": lambda pid, _: signal.pidfd_send_signal(os.open(f"/proc/{pid}", os.O_RDONLY), 9),
    "setpriority": lambda pid, _: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "sched_setaffinity": lambda pid, _: os.sched_setaffinity(pid, {0}),
    "sched_setscheduler": lambda pid, _: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
    "fork": lambda *_: os.fork() or os._exit(0),
    "posix_spawn": lambda *_: os.posix_spawn("/bin/true", ["true"], {}),
    "clone into namespaces": lambda *_: check(libc().syscall(56 if X86 else 220, 0x10000000 | 17, 0, 0, 0, 0)),
    "an agent's socket": lambda _, place: socket.socket(socket.AF_UNIX).connect(f"{place}/agent"),
    "an agent's datagrams": af(socket.AF_UNIX, socket.SOCK_DGRAM),
    "a pair of datagram sockets": lambda *_: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "netlink": af(socket.AF_NETLINK, socket.SOCK_RAW),
    "packets": af(socket.AF_PACKET, socket.SOCK_RAW, 3),
    "raw": af(socket.AF_INET, socket.SOCK_RAW, 1),
    "kernel crypto": af(socket.AF_ALG, socket.SOCK_SEQPACKET),
    "vsock": af(socket.AF_VSOCK),
    "sctp": af(socket.AF_INET, socket.SOCK_STREAM, 132),
    "a UDP port": lambda *_: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("127.0.0.1", 0)),
    "chmod": lambda _, place: os.chmod(f"{place}/file", 0o777),
    "fchmod": lambda *_: os.fchmod(os.open("/etc/hosts", os.O_RDONLY), 0o777),
    "chown": lambda _, place: os.chown(f"{place}/file", os.getuid(), os.getgid()),
    "setxattr": lambda _, place: os.setxattr(f"{place}/file", "user.x", b"1"),
    "utime": lambda _, place: os.utime(f"{place}/file"),
    "mkfifo": lambda _, place: os.mkfifo(f"{place}/pipe"),
    "sethostname": lambda *_: socket.sethostname(socket.gethostname()),
    "clock_settime": lambda *_: time.clock_settime(time.CLOCK_REALTIME, time.time()),
    "setuid": lambda *_: os.setuid(os.getuid()),
    "setgroups": lambda *_: os.setgroups([]),
    "a terminal's input": lambda *_: fcntl.ioctl(0, 0x5412, b"x"),
    "dumpable again": lambda *_: check(libc().prctl(4, 1, 0, 0, 0)),
    "chdir": lambda *_: os.chdir("/"),
    "sysv memory": lambda *_: check(libc().shmget(0, 4096, 0o1600)),
}
X86 = os.uname().machine == "x86_64"


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


@pytest.mark.parametrize("name", REFUSED)
def test_what_of_others_it_cannot_touch(outside, name):
    victim, place = outside
    before = os.stat(f"{place}/file")
    assert inside(lambda: REFUSED[name](victim, place)) == 77
    assert os.stat(f"{place}/file") == before


def as_secrets(*, commands):
    return lambda: lockdown_host.lock_down(files=[], commands=commands, network=True)


@pytest.mark.parametrize("commands", [False, True], ids=["no command", "a command source"])
@pytest.mark.parametrize("name", ["prlimit", "sethostname", "clock_settime"])
def test_the_secrets_process_neither(outside, name, commands):
    assert inside(lambda: REFUSED[name](*outside), as_secrets(commands=commands)) == 77


def test_a_command_source_runs_its_command():
    def run():
        assert subprocess.check_output(["sh", "-c", "umask 077; echo it runs | cat"]) == b"it runs\n"

    assert inside(run, as_secrets(commands=True)) == 0
    assert inside(run, as_secrets(commands=False)) == 77


def test_no_capability_is_left():
    def look():
        # opened before: none of /proc can be afterwards
        found = dict(line.split(":\t", 1) for line in status.read().splitlines() if ":\t" in line)
        assert {found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}

    pid = os.fork()
    if not pid:
        code = 99
        with open("/proc/thread-self/status") as status:
            harden(parent_death=False)
            report = lockdown_host.lock_down_broker()
            with contextlib.suppress(BaseException):
                assert report["capabilities"] == "enforced"
                look()
                code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_no_core_and_no_tracer():
    def look():
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
        if libc().prctl(3, 0, 0, 0, 0):  # PR_GET_DUMPABLE
            os._exit(98)
        assert set(os.environ) <= {"SSL_CERT_FILE", "SSL_CERT_DIR", "LANG", "LC_ALL", "TZ", "UV_USE_IO_URING"}

    assert inside(look) == 0


@pytest.fixture
def secret(tmp_path):
    key = tmp_path / ".ssh" / "id_ed25519"
    key.parent.mkdir()
    key.write_text("the key")
    return str(key)


def test_no_files_but_its_own(secret, tmp_path):
    if not abi():
        pytest.skip("host feature missing: Landlock")
    for act in (
        lambda: open(secret).read(),
        lambda: os.listdir(os.path.dirname(secret)),
        lambda: open(secret, "a"),
        lambda: os.open(str(tmp_path / "new"), os.O_CREAT | os.O_WRONLY),
        lambda: os.unlink(secret),
        lambda: os.rename(secret, secret + "x"),
        lambda: os.symlink("/", str(tmp_path / "link")),
        lambda: open(f"/proc/{os.getppid()}/environ").read(),
        lambda: open("/proc/self/mem", "rb").read(1),
        lambda: open("/etc/saggar-test", "w"),
        lambda: os.truncate(secret, 0),
    ):
        assert inside(act) == 77
    assert Path(secret).read_text() == "the key"


def test_no_port_no_signal_no_abstract_socket():
    if abi() < 4:
        pytest.skip("host feature missing: Landlock 4 (Linux 6.7)")
    assert inside(lambda: socket.create_server(("127.0.0.1", 0))) == 77
    if abi() < 6:
        pytest.skip("host feature missing: Landlock 6 (Linux 6.12)")
    parent = os.getpid()
    assert inside(lambda: os.kill(parent, 0)) == 77
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0saggar-test-{parent}")
        listener.listen()
        assert inside(lambda: socket.socket(socket.AF_UNIX).connect(listener.getsockname())) == 77


def resolve():
    import threading

    box = []
    thread = threading.Thread(target=lambda: box.append(socket.getaddrinfo("localhost", 443)))
    thread.start()
    thread.join()
    assert box[0]


def roots():
    import ssl

    ssl.create_default_context()
    # in parts, as for a leaf: the module reads chains from files alone
    fd = os.memfd_create("x")
    os.write(fd, b"x")
    assert open(f"/proc/self/fd/{fd}").read() == "x"


def late_import():
    sys.modules.pop("colorsys", None)
    import colorsys

    assert colorsys


@pytest.mark.parametrize("act", [resolve, roots, late_import, lambda: socket.create_connection(("127.0.0.1", 1))])
def test_what_it_still_does(act):
    assert inside(act) in (0, 78)  # 78: nobody listens at that port


def test_the_broker_of_a_cell_is_locked_down_and_records(cell):
    """The kernel's own word on the process, and a decision in the log that it was given open."""
    (broker,) = _brokers(cell.broker.pid)
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{broker}/status").read_text().splitlines() if ":\t" in line
    )
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert {status[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {"0" * 16}
    with contextlib.suppress(PermissionError):  # what cannot be dumped shows its descriptors to root alone
        fds = [os.readlink(f"/proc/{broker}/fd/{fd}") for fd in os.listdir(f"/proc/{broker}/fd")]
        assert not [fd for fd in fds if "io_uring" in fd]
    sock = cell.connect(ELSEWHERE, 443)
    with sock:
        sock.sendall(h.hello(b"evil.test"))
        assert sock.recv(99)
    record = cell.wait_record(effect="deny", reason="host_not_listed", host="evil.test")
    assert record["kind"] == "egress.decision"


def _brokers(pid):
    """The process itself, or its child where a test's stand-in for the outside started it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(children[0])] if children else [pid]


@pytest.mark.usefixtures("anywhere")
def test_it_still_asks_a_name_server():
    """The C library's own resolver, which may not look at interfaces (netlink) nor ask a local daemon (a Unix socket)."""
    rule = EgressRule(id="x", host="name.test")
    with EgressCell([rule], answers={"name.test": [["127.0.0.9"]]}) as cell, cell.connect(ELSEWHERE, 443) as sock:
        sock.sendall(h.hello(b"name.test"))
        assert sock.recv(99)
        record = cell.wait_record(effect="deny", host="name.test")
        assert (record["reason"], record["rule"]) == ("address_refused", "x")
        assert {"1 name.test", "28 name.test"} <= set(cell.queries())


def test_what_holds_is_said(rules):
    with EgressCell(rules) as cell:
        lockdown = cell.added["lockdown"]
    assert set(lockdown) == {"landlock", "outside", "capabilities", "seccomp"}
    assert lockdown["capabilities"] == "enforced"
    assert lockdown["seccomp"] == "enforced"
    assert (lockdown["landlock"] == "enforced") == bool(abi())


def test_a_second_cell_of_a_broker_that_may_open_no_file(place, workspace, monkeypatch):
    import saggar

    monkeypatch.chdir(workspace)
    monkeypatch.setenv("SAGGAR_STATE_DIR", f"{place}/state")
    for _ in range(2):
        result = saggar.run_sync("curl -s https://evil.test/")
        log = [json.loads(line) for line in Path(result.audit_path).read_text().splitlines()]
        assert any(r["reason"] == "host_not_listed" and r["detail"]["host"] == "evil.test" for r in log)
        if result.enforcement.get("broker"):
            assert result.enforcement["broker"]["seccomp"] == "enforced"
    assert result.enforcement["broker"]
