"""Linux calls that Python 3.11 has no name for: namespaces, mounts by descriptor, process control.

On the launcher's path: it goes to libc through `_ctypes`, because importing the `ctypes` package costs 5 ms and this
costs 0.2. Every function raises OSError with the kernel's errno. Numbers: `linux/sched.h`, `linux/mount.h`, `linux/prctl.h`;
the three mount calls have one number on every architecture (generic table, 5.2 and later).
"""

from __future__ import annotations

import _ctypes
import os
from struct import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_NO_NEW_PRIVS = 38
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT = 47

OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
AT_RECURSIVE = 0x8000
AT_EMPTY_PATH = 0x1000
AT_SYMLINK_NOFOLLOW = 0x100
AT_FDCWD = -100
MOVE_MOUNT_F_EMPTY_PATH = 4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
RESOLVE_NO_MAGICLINKS = 2
RESOLVE_NO_SYMLINKS = 4
RESOLVE_BENEATH = 8
RESOLVE_IN_ROOT = 0x10
MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
MOUNT_ATTR_NOEXEC = 8
MOUNT_ATTR_IDMAP = 0x0010_0000

_CLONE_INTO_CGROUP = 0x2_0000_0000
_CLONE_PARENT = 0x8000
_SIGCHLD = 17
_NR_CLONE3 = 435
_NR_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_NR_OPEN_TREE = 428
_NR_MOVE_MOUNT = 429
_NR_OPENAT2 = 437
_NR_MOUNT_SETATTR = 442


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]  # not subscriptable at run time
    _type_ = "l"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


_handle = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # typeshed forgets: None is this process


def _libc(name: str) -> Any:
    return _Function(_ctypes.dlsym(_handle, name))


_syscall = _libc("syscall")
_unshare = _libc("unshare")
_setns = _libc("setns")
_mount = _libc("mount")
_umount2 = _libc("umount2")
_prctl = _libc("prctl")
_sethostname = _libc("sethostname")
_getcpu = _libc("sched_getcpu")


class _Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]  # as above
    _type_ = "c"


def buffer(data: bytes) -> tuple[object, int]:
    """(holder, address) of a copy of `data` that lives as long as the holder. `array` would import `collections`, 2 ms."""
    kind: Any = type("_Buffer", (_ctypes.Array,), {"_length_": len(data), "_type_": _Byte})
    holder = kind.from_buffer_copy(data)
    return holder, _ctypes.addressof(holder)


def _check(value: int, what: str) -> int:
    # libc's `int` functions leave the upper half of the register undefined: look at the low 32 bits
    result = value & 0xFFFF_FFFF
    if result == 0xFFFF_FFFF:
        number = _ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _check(_unshare(_Long(flags)), "unshare")


def fork_into(cgroup_fd: int) -> int:
    """Fork with the child born in a cgroup of version 2 (clone3 with CLONE_INTO_CGROUP, Linux 5.7): 0.4 ms, where moving it
    afterwards takes a lock of the whole machine and 9 to 17 ms.

    For a single-threaded process whose child soon execs: neither Python's nor libc's fork handlers run.
    """
    return _clone3(_CLONE_INTO_CGROUP, signal=_SIGCHLD, cgroup_fd=cgroup_fd)


def fork_sibling(namespaces: int = 0) -> int:
    """Fork a child of this process's own parent (clone3 with CLONE_PARENT), into these new namespaces; for which the same holds."""
    return _clone3(_CLONE_PARENT | namespaces)


def _clone3(flags: int, *, signal: int = 0, cgroup_fd: int = 0) -> int:
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup
    args = pack("=11Q", flags, 0, 0, 0, signal, 0, 0, 0, 0, 0, cgroup_fd)
    return _check(_syscall(_Long(_NR_CLONE3), args, _Long(len(args))), "clone3")


def setns(fd: int, kind: int = 0) -> None:
    _check(_setns(fd, _Long(kind)), "setns")


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2). `data` is the file system's own option string."""
    enc = os.fsencode
    _check(_mount(enc(source), enc(target), enc(kind), _Long(flags), enc(data) if data else None), "mount")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    _check(_umount2(os.fsencode(target), flags), "umount2")


def pivot_root_here() -> None:
    """Make the current directory, a mount of its own, the root, and let the old root go with everything below it.

    pivot_root(2) with both names the same: the old root ends up mounted over the new one, where umount2 finds it.
    """
    number = _NR_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, "pivot_root: no number for this architecture")
    _check(_syscall(_Long(number), b".", b"."), "pivot_root")
    umount(".")
    os.chdir("/")


def prctl(option: int, value: int | bytes = 0) -> None:
    argument = value if isinstance(value, bytes) else _Long(value)
    zero = _Long(0)
    _check(_prctl(option, argument, zero, zero, zero), "prctl")


def open_tree(path: str, *, dir_fd: int = AT_FDCWD, clone: bool = True, recursive: bool = True) -> int:
    """A descriptor of a mount, or of a detached clone of one (and of those beneath it): open_tree(2), Linux 5.2.

    Recursive by default: a copied mount table's mounts are locked together, and cloning one without its children fails.
    An empty path means `dir_fd` itself.
    """
    flags = OPEN_TREE_CLOEXEC | (OPEN_TREE_CLONE if clone else 0) | (AT_RECURSIVE if clone and recursive else 0)
    flags |= AT_SYMLINK_NOFOLLOW
    flags |= AT_EMPTY_PATH if not path else 0
    return _check(_syscall(_Long(_NR_OPEN_TREE), _Long(dir_fd), os.fsencode(path), _Long(flags)), "open_tree")


def open_in_root(root_fd: int, path: str) -> int:
    """An O_PATH descriptor of `path` with every link and `..` resolved as if `root_fd` were the root: openat2(2), Linux 5.6."""
    return _openat2(root_fd, path, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)


def open_plain(path: str, dir_fd: int = AT_FDCWD) -> int:
    """An O_PATH descriptor of `path`, where no component of it is a symbolic link, the last one included; else OSError ELOOP.
    Below `dir_fd`, where that is given, it does not lead out of it either."""
    beneath = 0 if dir_fd == AT_FDCWD else RESOLVE_BENEATH
    return _openat2(dir_fd, path, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | beneath)


def _openat2(dir_fd: int, path: str, resolve: int) -> int:
    how = pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, resolve)
    return _check(_syscall(_Long(_NR_OPENAT2), _Long(dir_fd), os.fsencode(path), how, _Long(len(how))), "openat2")


def current_cpu() -> int:
    """The CPU that this thread runs on, or last ran on."""
    return _check(_getcpu(), "sched_getcpu")


def set_hostname(name: str) -> None:
    data = os.fsencode(name)
    _check(_sethostname(data, _Long(len(data))), "sethostname")


def move_mount(fd: int, target: str, *, dir_fd: int = AT_FDCWD) -> None:
    """Attach the mount `fd` at `target`: move_mount(2), Linux 5.2. An empty target means `dir_fd` itself."""
    _check(
        _syscall(
            _Long(_NR_MOVE_MOUNT),
            _Long(fd),
            b"",
            _Long(dir_fd),
            os.fsencode(target),
            _Long(MOVE_MOUNT_F_EMPTY_PATH | (0 if target else MOVE_MOUNT_T_EMPTY_PATH)),
        ),
        "move_mount",
    )


def mount_setattr(
    fd: int, *, set_: int = 0, clear: int = 0, userns_fd: int = -1, recursive: bool = True, private: bool = False
) -> None:
    """Change the attributes of a detached mount: mount_setattr(2), Linux 5.12. userns_fd: the mapping for MOUNT_ATTR_IDMAP. private: in
    the same step, end what propagates mounts to it."""
    attributes = pack("=QQQQ", set_, clear, MS_PRIVATE if private else 0, max(userns_fd, 0))
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    _check(
        _syscall(_Long(_NR_MOUNT_SETATTR), _Long(fd), b"", _Long(flags), attributes, _Long(len(attributes))),
        "mount_setattr",
    )


def die_with_parent(parent: int, signal: int = 9) -> None:
    """Ask for `signal` when the parent thread ends, and raise ProcessLookupError if it has ended already.

    To be repeated after every change of credentials (setresuid, unshare of a user namespace): the kernel clears it.
    """
    prctl(PR_SET_PDEATHSIG, signal)
    if parent and os.getppid() != parent:
        raise ProcessLookupError(3, "the parent is gone")


def capabilities() -> int:
    """The effective capabilities of this process, as a bit set."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"CapEff:"):
                return int(line.split()[1], 16)
    return 0
