"""Kernel facilities, shared memory, signals, terminals and the workspace, run inside as part of one program (see `inside_base`)."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import sys
import time

from saggar.bench.escapes.inside_base import LIBC, MACHINE, attempt, call, read_token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# ---- kernel facilities ------------------------------------------------------------------------------------------


@attempt
def io_uring(_p: dict[str, Any]) -> str:
    call("io_uring_setup", 4, ctypes.create_string_buffer(120))
    return "ring made"


@attempt
def userfaultfd(_p: dict[str, Any]) -> str:
    call("userfaultfd", 1)
    return "userfaultfd made"


@attempt
def bpf_load(_p: dict[str, Any]) -> str:
    attr = struct.pack("IIII", 2, 4, 4, 1) + bytes(56)  # BPF_MAP_CREATE, array
    call("bpf", 0, attr, len(attr))
    return "map made"


@attempt
def perf_event(_p: dict[str, Any]) -> str:
    attr = struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 1 | 32) + bytes(112 - 48)
    call("perf_event_open", attr, 0, -1, -1, 0)
    return "event opened"


@attempt
def keyring_read(p: dict[str, Any]) -> str:
    """A key of the caller's session keyring: keyrings are not namespaced by pid or mount."""
    key = call("keyctl", 10, -3, b"user", p["description"].encode(), 0)  # KEYCTL_SEARCH in the session keyring
    buffer = ctypes.create_string_buffer(128)
    n = call("keyctl", 11, key, buffer, 128)
    return "key read" if p["token"].encode() in buffer.raw[:n] else ""


@attempt
def keyring_add(_p: dict[str, Any]) -> str:
    call("add_key", b"user", b"saggar-probe", b"x", 1, -2)
    return "key added"


@attempt
def open_by_handle(p: dict[str, Any]) -> str:
    """The "shocker": a file handle made from an inode number reaches past every mount."""
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount_id = ctypes.c_int()
    call("name_to_handle_at", -100, p["path"].encode(), handle, ctypes.byref(mount_id), 0)
    fd = os.open(os.path.dirname(p["path"]), os.O_RDONLY)
    call("open_by_handle_at", fd, handle, os.O_RDONLY)
    return "handle opened"


def _plain_syscall(name: str, *args: Any) -> None:
    def body(p: dict[str, Any]) -> str:
        call(p.get("syscall", name), *args)
        return f"`{name}` allowed"

    body.__name__ = f"syscall_{name}"
    attempt(body)


_plain_syscall("syslog", 2, ctypes.create_string_buffer(4096), 4096)
_plain_syscall("fanotify_init", 0, 0)


def _privileged_syscall(name: str, *args: Any) -> None:
    """Where even the control could only be had by harming the host, the control is a host capability check: the
    errno inside must be the filter's EPERM (or ENOSYS), not the argument check that comes after it."""

    def body(_p: dict[str, Any]) -> str:
        try:
            call(name, *args)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOSYS):
                raise
            return f"`{name}` reached the kernel's argument check: {errno.errorcode.get(error.errno or 0)}"
        return f"`{name}` allowed"

    body.__name__ = f"syscall_{name}"
    attempt(body)


_privileged_syscall("init_module", None, 0, None)
_privileged_syscall("delete_module", b"saggar_no_such_module", 0)
_privileged_syscall("kexec_load", 0, 99, None, 0xFFFF)
_privileged_syscall("swapon", b"/nonexistent", 0)
_privileged_syscall("acct", b"/nonexistent/file")
_privileged_syscall("quotactl", 0x800001 << 8, b"/nonexistent", 0, None)
_privileged_syscall("reboot", 1, 2, 3, None)
_privileged_syscall("clock_settime", 99, None)


# ---- shared memory, signals, terminals ---------------------------------------------------------------------------


@attempt
def sysv_shm(p: dict[str, Any]) -> str:
    segment = call("shmget", p["key"], 0, 0)
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(segment, None, 0o10000)
    return "segment read" if ctypes.string_at(address, len(p["token"])) == p["token"].encode() else ""


@attempt
def posix_mqueue(p: dict[str, Any]) -> str:
    call("mq_open", p["name"].encode(), os.O_RDONLY, 0, None)
    return "queue opened"


@attempt
def signal_host_pid(p: dict[str, Any]) -> str:
    os.kill(p["pid"], 0)
    if p.get("must_be"):
        name = open(f"/proc/{p['pid']}/cmdline", "rb").read()
        return "a process of the host" if p["must_be"][::-1].encode() in name else ""
    return "a process of the host"


@attempt
def signal_everyone(_p: dict[str, Any]) -> str:
    """kill(-1): the oracle is outside (the stand-in process must still live)."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(-1, signal.SIGUSR1)
    time.sleep(0.05)
    return ""


@attempt
def tiocsti(_p: dict[str, Any]) -> str:
    import fcntl
    import pty

    _, slave = pty.openpty()
    os.setsid()
    fcntl.ioctl(slave, 0x540E, 0)  # TIOCSCTTY
    fcntl.ioctl(slave, 0x5412, b"x")  # TIOCSTI
    return "a character pushed into the terminal"


@attempt
def tiocsti_high_bits(_p: dict[str, Any]) -> str:
    """The kernel takes 32 bits of the request, a 64-bit compare in a filter is passed (CVE-2019-10063)."""
    import pty

    _, slave = pty.openpty()
    os.setsid()
    if LIBC.ioctl(slave, ctypes.c_ulong(0x540E), 0) != 0:
        raise OSError(errno.EPERM, "TIOCSCTTY")
    number = 16 if MACHINE == "x86_64" else 29
    ctypes.set_errno(0)
    if LIBC.syscall(number, slave, ctypes.c_ulong(0x1_0000_5412), ctypes.c_char_p(b"x")) == -1:
        raise OSError(ctypes.get_errno(), "TIOCSTI")
    return "a character pushed into the terminal"


@attempt
def daemon_outlives(p: dict[str, Any]) -> str:
    """Double fork, new session, all signals ignored: the oracle outside looks for the token in /proc afterwards."""
    if os.fork() == 0:
        os.setsid()
        for number in range(1, 32):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(20)", p["token"]])
        os._exit(0)
    time.sleep(0.1)
    return ""


# ---- files of the workspace -------------------------------------------------------------------------------------


@attempt
def write_through(p: dict[str, Any]) -> str:
    """Changes a workspace file; the oracle outside compares the host's copy."""
    with open(p["path"], "w") as f:
        f.write(p["token"])
    return ""


@attempt
def write_through_mmap(p: dict[str, Any]) -> str:
    import mmap

    with open(p["path"], "r+b") as f:
        m = mmap.mmap(f.fileno(), 0)
        m[: len(p["token"])] = p["token"].encode()
        m.flush()
    return ""


@attempt
def write_through_old_fd(p: dict[str, Any]) -> str:
    """A descriptor opened before copy-up, used after it."""
    old = os.open(p["path"], os.O_RDONLY)
    with open(p["path"], "a") as f:
        f.write("x")
    fd = os.open(f"/proc/self/fd/{old}", os.O_WRONLY | os.O_TRUNC)
    os.write(fd, p["token"].encode())
    return ""


@attempt
def truncate_through(p: dict[str, Any]) -> str:
    os.truncate(p["path"], 0)
    return ""


@attempt
def unlink_through(p: dict[str, Any]) -> str:
    os.unlink(p["path"])
    return ""


@attempt
def chmod_through(p: dict[str, Any]) -> str:
    os.chmod(p["path"], 0o777)
    return ""


@attempt
def hard_link_through(p: dict[str, Any]) -> str:
    other = p["path"] + ".link"
    os.link(p["path"], other)
    with open(other, "w") as f:
        f.write(p["token"])
    return ""


@attempt
def symlink_read_outside(p: dict[str, Any]) -> str:
    """A link made inside to a file of the host."""
    link = os.path.join(p["dir"], "link-out")
    os.symlink(p["path"], link)
    return read_token(link, p["token"])


@attempt
def symlink_existing_outside(p: dict[str, Any]) -> str:
    """A link that the workspace already held."""
    return read_token(p["link"], p["token"])


@attempt
def dotdot_out(p: dict[str, Any]) -> str:
    return read_token(os.path.join(p["dir"], "../" * 20, p["path"].lstrip("/")), p["token"])


@attempt
def leave(p: dict[str, Any]) -> str:
    """Leaves files behind for a trusted hand outside to trip over: `files` maps name to text, `links` name to target,
    `hard` name to an existing name, `fifos` names. The oracle acts outside, with `saggar apply`."""
    base = p["dir"]
    for name, text in p.get("files", {}).items():
        path = os.path.join(base, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, p.get("mode", 0o755))
    for name, target in p.get("links", {}).items():
        path = os.path.join(base, name)
        if os.path.lexists(path):
            import shutil

            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    for name in p.get("fifos", ()):
        os.mkfifo(os.path.join(base, name))
    return ""


@attempt
def fill_descriptors_then_read(p: dict[str, Any]) -> str:
    """Exhausts descriptors first: a check that fails open on EMFILE would show here."""
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for fd in held[-8:]:
        os.close(fd)
    return read_token(p["path"], p["token"])


@attempt
def core_dump_leaves(p: dict[str, Any]) -> str:
    """A crash with core dumps asked for: the oracle looks for a core outside."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    if os.fork() == 0:
        os.chdir(p["dir"])
        os.abort()
    os.wait()
    return ""
