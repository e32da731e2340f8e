"""A small stand-in for the launcher and the supervisor: the limits' tests need their seams, not the whole cell."""

from __future__ import annotations

import json
import os
import resource
import signal
import time

from saggar.isolation import seccomp
from saggar.isolation import syscalls_host as syscalls
from saggar.isolation.limits_host import pin

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else "python3"
NOBODY = 65534


class Ended:
    """breach: what `poll` said. cause: what `cause_of_death` said, suspected: what `suspicion` did. code: exit code. out: standard output."""

    def __init__(self, breach, cause, code, out, seconds, report, suspected=None) -> None:
        self.suspected = suspected
        self.breach, self.cause, self.code, self.out, self.seconds, self.report = (
            breach,
            cause,
            code,
            out,
            seconds,
            report,
        )

    @property
    def limit(self) -> str:
        found = self.breach or self.cause
        return found.limit if found else ""


def run(
    bwrap: str, limits, argv: list[str], *, tmpfs_bytes: int = 64 << 20, disk: str = "", deadline: float = 60
) -> Ended:
    out_read, out_write = os.pipe()
    go_read, go_write = os.pipe()
    info_read, info_write = os.pipe()
    filter_fd = os.memfd_create("filter")
    os.write(filter_fd, seccomp.build_filter(os.uname().machine, uncounted=limits.uncounted, pinned=limits.pinned))
    os.lseek(filter_fd, 0, os.SEEK_SET)
    for fd in (filter_fd, info_write):
        os.set_inheritable(fd, True)
    bind = ["--bind", disk, "/disk"] if disk else []
    command = [
        bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--die-with-parent",
        "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
        "--symlink", "usr/bin", "/bin",
        "--ro-bind-try", "/etc/alternatives", "/etc/alternatives", "--proc", "/proc", "--dev", "/dev",
        "--size", str(tmpfs_bytes), "--tmpfs", "/tmp", *bind, "--info-fd", str(info_write),
        "--seccomp", str(filter_fd), "--", *argv,
    ]  # fmt: skip
    pid = limits.fork()
    if pid == 0:
        try:
            _child(limits, command, go_read, out_write)
        finally:
            os._exit(125)
    for fd in (out_write, go_read, info_write, filter_fd):
        os.close(fd)
    try:
        return _supervise(limits, pid, (go_write, info_read, out_read), tmpfs_bytes, disk, deadline)
    finally:
        for fd in (go_write, info_read, out_read):
            os.close(fd)


def _child(limits, command: list[str], go: int, out: int) -> None:
    os.read(go, 1)
    if os.geteuid() != 0:
        limits.attach(os.getpid())
    else:
        # after the change of user as well: a launcher may do either
        late = os.getpid() % 2
        if not late:
            limits.attach(os.getpid())
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        if late:
            limits.attach(os.getpid())
    uid, gid = os.getuid(), os.getgid()
    os.dup2(out, 1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores both, and exec keeps that
        signal.signal(number, signal.SIG_DFL)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if limits.cpus is not None:
        pin(limits.cpus)
    for what, value in limits.rlimits(own_namespace=True):
        resource.setrlimit(what, (value, value))
    os.execv(command[0], command)


def _supervise(limits, pid: int, fds: tuple[int, int, int], tmpfs_bytes: int, disk: str, deadline: float) -> Ended:
    go, info, out = fds
    os.set_blocking(out, False)
    limits.follow(pid)
    os.write(go, b"x")
    tmpfs = -1
    if disk:
        limits.watch_disk(os.open(disk, os.O_RDONLY | os.O_DIRECTORY))
    start = time.monotonic()
    breach, text, init = None, b"", 0
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        now = time.monotonic()
        if not init:
            raw = b""
            while chunk := os.read(info, 4096):  # to its end: bubblewrap writes it in pieces
                raw += chunk
            init = json.loads(raw)["child-pid"] if raw else -1
        if init > 0 and tmpfs < 0:
            tmpfs = _tmpfs_of(limits, init, tmpfs_bytes)
        breach = breach or limits.poll(now)
        if breach or now - start > deadline:
            os.kill(pid, signal.SIGKILL)
            if init > 0:
                _kill(init)
        text += _read(out)
        time.sleep(0.05)
    text += _read(out)
    code = os.waitstatus_to_exitcode(status)
    cause = limits.cause_of_death(code - 128 if code > 128 else max(-code, 0))
    said, seconds = text.decode(errors="replace"), time.monotonic() - start
    ended = Ended(breach, cause, code, said, seconds, limits.report(), limits.suspicion())
    if tmpfs >= 0:
        os.close(tmpfs)
    return ended


def _tmpfs_of(limits, init: int, size: int) -> int:
    try:
        fd = os.open(f"/proc/{init}/root/tmp", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return -1
    stat = os.fstatvfs(fd)
    if stat.f_blocks * stat.f_frsize != size:
        os.close(fd)
        return -1
    limits.add_tmpfs(fd)
    return fd


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 20)
    except BlockingIOError:
        return b""
