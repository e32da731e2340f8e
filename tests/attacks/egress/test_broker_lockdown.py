"""What code would meet that came to run inside the broker, and that the broker itself still can do all of its work."""

import ctypes
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import pytest

from saggar.egress import lockdown_host
from saggar.egress.broker_host import harden
from saggar.testing import client_hello as h
from saggar.testing.egress_cell import EgressCell

ELSEWHERE = "203.0.113.9"


def abi():
    return lockdown_host._landlock_version()


def inside(code):
    """Run `code` in a child that is as locked down as a broker; how it ended. 77: OSError, 0: it worked."""
    pid = os.fork()
    if not pid:
        try:
            harden(parent_death=False)
            lockdown_host.lock_down_broker()
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
    ("posix_spawn", lambda: os.posix_spawn("/bin/sh", ["sh", "-c", "exit 1"], {}) and os.wait()[1] and os._exit(99)),
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
    ended = inside(act)
    # a program started by `posix_spawn` is killed in the child that would have been it
    assert ended in (-signal.SIGSYS, 99) if name == "posix_spawn" else ended == -signal.SIGSYS


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


def test_what_holds_is_said(rules):
    with EgressCell(rules) as cell:
        lockdown = cell.added["lockdown"]
    assert set(lockdown) == {"landlock", "outside", "seccomp"}
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
