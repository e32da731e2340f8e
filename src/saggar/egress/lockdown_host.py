"""What the secrets process takes away from itself before it holds the first secret, and the broker before it serves the first cell.

I1  No core dump, no `ptrace`, no `/proc/PID/mem` for another process of the same user (PR_SET_DUMPABLE 0).
I2  No new privileges, none of root's capabilities, and no system call but those of `own_calls`: no file is made, changed or
    given other rights, no process started, limited or signalled, no socket but TCP and UDP, nothing of the machine's set.
    A command source's programs inherit the filter, so with one only the worst calls are refused.
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
import stat
import struct
import sys
from contextlib import suppress

from saggar.egress import own_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 4, 38, 22
_SECCOMP_MODE_FILTER = 2
#: capset(2): the version of its words; the right to read any file
_CAPABILITIES, _DAC_READ_SEARCH = 0x20080522, 1 << 2

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

    Gives `{"dumpable", "seccomp", "landlock", "capabilities"}`, each `enforced`, or why not. Raises OSError where I1 cannot be had.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    report = {"dumpable": "enforced"}
    files = list(files)
    report["landlock"] = "not with a command source" if commands else _landlock(files)
    report["capabilities"] = "not with a command source" if commands else _capabilities(files)
    report["seccomp"] = _seccomp(commands=commands, network=network)
    return report


def lock_down_broker() -> dict[str, str]:
    """The same for the broker, whose whole work is the network; before it starts a thread (threads inherit, others are not reached).

    Gives `{"seccomp", "landlock", "outside", "capabilities"}`, each `enforced` or why not; `outside` is the second half of I4. Raises OSError.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    version = _landlock_version()
    report = {"landlock": _landlock([os.path.realpath("/etc/resolv.conf")], _certificates())}
    report["outside"] = (
        "enforced"
        if report["landlock"] == "enforced" and version >= _SCOPES_SINCE
        else "this kernel cannot keep signals and abstract sockets in (Linux 6.12)"
    )
    report["capabilities"] = _capabilities(())
    report["seccomp"] = _seccomp(commands=False, network=True)
    return report


def refuse_rings() -> None:
    """No io_uring from here on: before the event loop is made, which does without. Raises OSError."""
    arch = os.uname().machine
    if arch in own_calls.AUDIT_ARCH:
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _filter(own_calls.without_rings(arch))


def _certificates() -> list[str]:
    """Where the upstreams' roots lie, if not where the system has them."""
    directories = os.environ.get("SSL_CERT_DIR", "").split(":")
    return [place for place in (os.environ.get("SSL_CERT_FILE", ""), *directories) if place.startswith("/")]


def _seccomp(*, commands: bool, network: bool) -> str:
    arch = os.uname().machine
    if arch not in own_calls.AUDIT_ARCH:
        return f"no table for {arch}"
    if commands:
        program = own_calls.open_to_commands(arch, network=network)
    else:
        program = own_calls.closed(arch, os.getpid(), network=network)
    return _filter(program)


def _filter(program: bytes) -> str:
    buffer = ctypes.create_string_buffer(program)
    fprog = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(fprog)
    try:
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(holder))
    except OSError as e:
        return e.strerror or "refused"
    return "enforced"


def _capabilities(files: Iterable[str]) -> str:
    """Give up root's rights; all but that of reading where its own program or `files` belong to another user. `enforced`, or
    what is left and why."""
    if not _capset(0, _DAC_READ_SEARCH) and not _capset(0, 0):
        return os.strerror(ctypes.get_errno())
    places = [place for place in {sys.prefix, sys.base_prefix, *sys.path, *map(os.path.dirname, files)} if place]
    if all(map(_may_read, places)) or not _capset(_DAC_READ_SEARCH, _DAC_READ_SEARCH):
        return "enforced" if _capset(0, 0) else os.strerror(ctypes.get_errno())
    if all(map(_may_read, places)):
        return "kept the right to read files: its program or a secret's file lies in another user's directory"
    return "enforced" if _capset(0, 0) else os.strerror(ctypes.get_errno())


def _capset(effective: int, permitted: int) -> bool:
    header = struct.pack("Ii", _CAPABILITIES, 0)
    return not _libc.capset(header, struct.pack("6I", effective, permitted, 0, 0, 0, 0))


def _may_read(place: str) -> bool:
    """Whether what is there, if anything, can be read."""
    try:
        directory = stat.S_ISDIR(os.stat(place).st_mode)
    except PermissionError:
        return False
    except OSError:
        return True
    return os.access(place, os.R_OK | (os.X_OK if directory else 0), effective_ids=True)


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
