"""What the secrets process takes away from itself before it holds the first secret, and the broker before it serves the first cell.

I1  No core dump, no `ptrace`, no `/proc/PID/mem` for another process of the same user (PR_SET_DUMPABLE 0).
I2  No new privileges; system calls that it never needs (running programs where no source is a command, tracing, mounting,
    kernel keys, BPF) kill it.
I3  Files: only reading, and only the interpreter, the system's configuration and, for the secrets process, the secret files (Landlock,
    where the kernel has it and no source is a command; a command may need anything its owner may read). The broker's audit logs
    come to it open.
I4  No TCP port is bound (Landlock 4, Linux 6.7); no signal is sent, and no abstract socket reached, outside the process (Landlock 6,
    Linux 6.12).

What the kernel cannot do is in the returned report; the caller decides whether that will do.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 4, 38, 22
_SECCOMP_MODE_FILTER = 2
_ALLOW, _KILL_PROCESS = 0x7FFF0000, 0x80000000

#: AUDIT_ARCH_* and the numbers of what is refused: always, without a command, of the broker besides, without the network
_ARCHES = {
    "x86_64": (
        0xC000003E,
        {"ptrace": 101, "mount": 165, "umount2": 166, "swapon": 167, "init_module": 175, "add_key": 248, "request_key": 249,
         "keyctl": 250, "unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
         "process_vm_writev": 311, "finit_module": 313, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425, "pidfd_getfd": 438},
        {"execve": 59, "execveat": 322},
        {"pivot_root": 155, "chroot": 161, "reboot": 169, "delete_module": 176, "kexec_load": 246, "open_tree": 428, "move_mount": 429,
         "fsopen": 430, "fsmount": 432, "mount_setattr": 442},
        {"connect": 42, "bind": 49, "listen": 50},
    ),
    "aarch64": (
        0xC00000B7,
        {"ptrace": 117, "mount": 40, "umount2": 39, "swapon": 224, "init_module": 105, "add_key": 217, "request_key": 218,
         "keyctl": 219, "unshare": 97, "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
         "process_vm_writev": 271, "finit_module": 273, "bpf": 280, "userfaultfd": 282, "io_uring_setup": 425, "pidfd_getfd": 438},
        {"execve": 221, "execveat": 281},
        {"pivot_root": 41, "chroot": 51, "reboot": 142, "delete_module": 106, "kexec_load": 104, "open_tree": 428, "move_mount": 429,
         "fsopen": 430, "fsmount": 432, "mount_setattr": 442},
        {"connect": 203, "bind": 200, "listen": 201},
    ),
}  # fmt: skip

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
#: rights over files, by the first version that knows them: 13 at first, then REFER, TRUNCATE and IOCTL_DEV
_FILE_RIGHTS = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
_BIND_TCP, _NETWORK_SINCE = 1, 4
_ABSTRACT_AND_SIGNALS, _SCOPES_SINCE = 3, 6
#: names are resolved by what lies in /etc and /run, with modules of /lib or, on some systems, of the store
_SYSTEM = (
    "/etc", "/usr", "/lib", "/lib64", "/nix/store", "/dev/null", "/dev/urandom", "/run/systemd/resolve", "/run/resolvconf",
    "/run/NetworkManager",
)  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, *values: int) -> None:
    arguments = [ctypes.c_ulong(v) for v in (*values, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def lock_down(*, files: Iterable[str], commands: bool, network: bool) -> dict[str, str]:
    """Apply I1 to I3 to this process, for good. files: the secret files' paths.

    Gives `{"dumpable", "seccomp", "landlock"}`, each `enforced`, or why not. Raises OSError where I1 cannot be had.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    report = {"dumpable": "enforced"}
    report["landlock"] = "not with a command source" if commands else _landlock(files)
    report["seccomp"] = _seccomp(commands=commands, network=network)
    return report


def lock_down_broker() -> dict[str, str]:
    """The same for the broker, whose whole work is the network; before it starts a thread (threads inherit, others are not reached).

    Gives `{"seccomp", "landlock", "outside"}`, each `enforced` or why not; `outside` is the second half of I4. Raises OSError.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    version = _landlock_version()
    report = {"landlock": _landlock([os.path.realpath("/etc/resolv.conf")], _certificates())}
    report["outside"] = (
        "enforced"
        if report["landlock"] == "enforced" and version >= _SCOPES_SINCE
        else "this kernel cannot keep signals and abstract sockets in (Linux 6.12)"
    )
    report["seccomp"] = _seccomp(commands=False, network=True, broker=True)
    return report


def _certificates() -> list[str]:
    """Where the upstreams' roots lie, if not where the system has them."""
    directories = os.environ.get("SSL_CERT_DIR", "").split(":")
    return [place for place in (os.environ.get("SSL_CERT_FILE", ""), *directories) if place.startswith("/")]


def _seccomp(*, commands: bool, network: bool, broker: bool = False) -> str:
    arch = _ARCHES.get(os.uname().machine)
    if arch is None:
        return f"no table for {os.uname().machine}"
    audit, always, running, further, calling = arch
    refused = set(always.values())
    if broker:
        refused |= set(further.values())
    if not commands:
        refused |= set(running.values())
    if not network:
        refused |= set(calling.values())
    program = build_filter(audit, sorted(refused), x32=os.uname().machine == "x86_64")
    buffer = ctypes.create_string_buffer(program)
    fprog = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(fprog)
    try:
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(holder))
    except OSError as e:
        return e.strerror or "refused"
    return "enforced"


def build_filter(audit: int, refused: list[int], *, x32: bool) -> bytes:
    """Classic BPF: kill for another architecture, for x32 numbers, and for each refused call; allow the rest."""
    load, jump_equal, jump_at_least, give = 0x20, 0x15, 0x35, 0x06
    lines = [(load, 0, 0, 4), (jump_equal, 1, 0, audit), (give, 0, 0, _KILL_PROCESS), (load, 0, 0, 0)]
    if x32:
        lines += [(jump_at_least, 0, 1, 0x40000000), (give, 0, 0, _KILL_PROCESS)]
    for number in refused:
        lines += [(jump_equal, 0, 1, number), (give, 0, 0, _KILL_PROCESS)]
    lines.append((give, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _landlock(files: Iterable[str], places: Iterable[str] = ()) -> str:
    """files: with what stands beside them; places: themselves alone. `enforced`, or why not."""
    version = _landlock_version()
    handled = sum(rights for since, rights in _FILE_RIGHTS if version >= since)
    network = _BIND_TCP if version >= _NETWORK_SINCE else 0
    scoped = _ABSTRACT_AND_SIGNALS if version >= _SCOPES_SINCE else 0
    words = (handled, network, scoped)[: 3 if scoped else 2 if network else 1]
    attribute = struct.pack(f"{len(words)}Q", *words)
    ruleset = _libc.syscall(_LANDLOCK_CREATE, attribute, len(attribute), 0)
    if ruleset < 0:
        return os.strerror(ctypes.get_errno())
    try:
        for path in {*_SYSTEM, sys.prefix, sys.base_prefix, *filter(None, sys.path), *places}:
            _allow(ruleset, path, _READ_FILE | _READ_DIR)
        for path in files:
            # the directory, so that a file which is replaced later can be read too
            _allow(ruleset, os.path.dirname(path), _READ_FILE)
        if _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0):
            return os.strerror(ctypes.get_errno())
    finally:
        os.close(ruleset)
    return "enforced"


def _landlock_version() -> int:
    """What this kernel knows of Landlock, 0 where it has none."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE, None, 0, _VERSION)))


def _allow(ruleset: int, path: str, rights: int) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                rights &= ~_READ_DIR
            _libc.syscall(_LANDLOCK_ADD, ruleset, 1, struct.pack("<Qi", rights, fd), 0)
        finally:
            os.close(fd)
