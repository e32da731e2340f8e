"""The system-call filter of a cell: one table of refusals, and the classic-BPF program made of it.

I1  Every row of `REFUSALS` is refused on every architecture that has the call, with the row's errno.
I2  A foreign architecture's call kills the process; x32 calls and calls newer than this table do not exist (ENOSYS).
I3  No argument test looks at memory: what a pointer names can change after the filter has looked.
I4  Argument tests compare the low 32 bits: the kernel truncates these arguments to `int`, so a set high half hides nothing.
    `above` is for sizes and compares all 64.

A call that no row names and that is not newer than the table is allowed. The kernel (5.11 and later) finds out once per
filter which calls are allowed whatever their arguments and answers those from a bitmap, so the length of the table costs
an allowed call nothing. Sources: seccomp(2), `linux/filter.h`, the default profile that container engines share.
"""

from __future__ import annotations

from struct import Struct

from saggar.core.decision import Frozen
from saggar.core.errors import InvariantBroken, Unenforceable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    #: `(kind, argument index, values)`; kinds: `bits` (any bit of the mask), `among`, `other` (none of the values), `above`
    #: (greater than the value, as 64 bits)
    Test = tuple[str, int, tuple[int, ...]]

# Linux errno values: equal on both architectures, and the `errno` module is one import more on the run path
EPERM = 1
ENOSYS = 38
EPROTONOSUPPORT = 93
EAFNOSUPPORT = 97

# clone(2) flags that make a namespace. CLONE_NEWTIME (0x80) lies in clone's signal byte and exists for unshare only.
_NAMESPACE_FLAGS = 0x7E02_0000
_NEWTIME = 0x80

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
_INET_PROTOCOLS = (0, 1, 6, 17, 58)  # any, ICMP, TCP, UDP, ICMPv6

# A socket of a host program is reached by its inode, and no mount option forbids it; an overlay has inodes of its own, a bind
# mount has the host's. A pair of datagram sockets can be connected anew, pairs of streams and packets cannot.
_HOST_SOCKETS = "reaches the Unix sockets that host programs keep in a directory that is shown as it is"
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_NONBLOCK, _SOCK_CLOEXEC = 1, 5, 0x800, 0x8_0000
_CONNECTED_PAIRS = tuple(
    kind | nonblock | cloexec
    for kind in (_SOCK_STREAM, _SOCK_SEQPACKET)
    for nonblock in (0, _SOCK_NONBLOCK)
    for cloexec in (0, _SOCK_CLOEXEC)
)

_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423

# fcntl's commands; the second is of Linux 6.19
_F_SETLEASE, _F_SETDELEG = 1024, 1040

# PER_LINUX, PER_LINUX32, UNAME26, both, and the query that changes nothing
_PERSONALITIES = (0x0, 0x8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF)


class Refusal(Frozen):
    """One row. call: name. errno: what the caller sees. reason: why. tests: all must hold; none means always.
    only: "" for every cell, `uncounted` where a watchdog holds memory (it cannot see what the call makes), `pinned` where
    an affinity holds the CPU limit, `shared` where a directory of the host is shown as it is (a read-write workspace)."""

    __slots__ = ("call", "errno", "only", "reason", "tests")
    call: str
    errno: int
    reason: str
    tests: tuple[Test, ...]
    only: str

    def __init__(self, call: str, errno: int, reason: str, tests: tuple[Test, ...] = (), *, only: str = "") -> None:
        self._set(call=call, errno=errno, reason=reason, tests=tests, only=only)


def _each(errno: int, reason: str, *calls: str) -> tuple[Refusal, ...]:
    return tuple(Refusal(call, errno, reason) for call in calls)


REFUSALS: tuple[Refusal, ...] = (
    # --- decided by an argument -----------------------------------------------------------------------------------
    Refusal(
        "ioctl", EPERM, "types into the terminal that the caller shares (TIOCSTI)", (("among", 1, (_TIOCSTI,)),)
    ),
    Refusal("ioctl", EPERM, "pastes into a virtual console (TIOCLINUX)", (("among", 1, (_TIOCLINUX,)),)),
    Refusal("ioctl", EPERM, "loads a line discipline module (TIOCSETD)", (("among", 1, (_TIOCSETD,)),)),
    # on a file of one's own, whatever the mount: also the template's, which every cell opens, and what a grant shows
    Refusal(
        "fcntl",
        EPERM,
        "holds up for 45 s whoever opens a file that cells or the host share (a lease)",
        (("among", 1, (_F_SETLEASE, _F_SETDELEG)),),
    ),
    Refusal(
        "socket",
        EAFNOSUPPORT,
        "a family that the broker cannot see (VSOCK, PACKET, ALG, KEY, Bluetooth, …)",
        (("other", 0, (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)),),
    ),
    Refusal(
        "socket",
        EPROTONOSUPPORT,
        "netlink but for the route family: host events, audit, filters, crypto",
        (("among", 0, (AF_NETLINK,)), ("other", 2, (NETLINK_ROUTE,))),
    ),
    Refusal(
        "socket",
        EPROTONOSUPPORT,
        "transports that nothing in a cell can answer (SCTP, DCCP, MPTCP, SMC): kernel surface only",
        (("among", 0, (AF_INET, AF_INET6)), ("other", 2, _INET_PROTOCOLS)),
    ),
    Refusal("socketpair", EAFNOSUPPORT, "only AF_UNIX has pairs that are needed", (("other", 0, (AF_UNIX,)),)),
    Refusal("socket", EPERM, _HOST_SOCKETS, (("among", 0, (AF_UNIX,)),), only="shared"),
    Refusal(
        "socketpair", EPERM, _HOST_SOCKETS, (("among", 0, (AF_UNIX,)), ("other", 1, _CONNECTED_PAIRS)), only="shared"
    ),
    Refusal("clone", EPERM, "new namespaces bring capabilities over new kernel surface", (("bits", 0, (_NAMESPACE_FLAGS,)),)),
    Refusal(
        "unshare",
        EPERM,
        "new namespaces bring capabilities over new kernel surface",
        (("bits", 0, (_NAMESPACE_FLAGS | _NEWTIME,)),),
    ),
    Refusal("personality", EPERM, "turns off address randomisation and mmap_min_addr", (("other", 0, _PERSONALITIES),)),
    # --- always ---------------------------------------------------------------------------------------------------
    *_each(ENOSYS, "its flags lie in memory, where they change after the check; libraries fall back to clone", "clone3"),
    *_each(EPERM, "enters a namespace of another process", "setns"),
    *_each(
        EPERM,
        "changes what a path means",
        "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr",
        "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
    ),
    *_each(EPERM, "shows mounts of the host by number", "statmount", "listmount"),
    *_each(EPERM, "keyrings outlive namespaces", "keyctl", "add_key", "request_key"),
    *_each(
        ENOSYS,
        "submits calls that no filter sees",
        "io_uring_setup", "io_uring_enter", "io_uring_register",
    ),
    *_each(EPERM, "halts the kernel inside a copy, which exploits need", "userfaultfd"),
    *_each(EPERM, "loads programs into the kernel", "bpf"),
    *_each(EPERM, "reads counters of the whole machine", "perf_event_open"),
    *_each(
        EPERM,
        "reaches into another process",
        "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp",
    ),
    *_each(
        EPERM,
        "loads or replaces kernel code",
        "init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms",
        "kexec_load", "kexec_file_load",
    ),
    *_each(EPERM, "stops the machine or its swap", "reboot", "swapon", "swapoff"),
    *_each(EPERM, "changes quotas or accounting of host file systems", "quotactl", "quotactl_fd", "acct"),
    *_each(EPERM, "opens files by number, past every mount", "name_to_handle_at", "open_by_handle_at"),
    *_each(EPERM, "leaks kernel pointers or logs", "lookup_dcookie", "syslog"),
    *_each(EPERM, "watches whole mounts", "fanotify_init"),
    *_each(EPERM, "sets the clock of every process", "clock_settime", "settimeofday", "adjtimex", "clock_adjtime"),
    *_each(EPERM, "gives port access", "iopl", "ioperm"),
    *_each(
        EPERM,
        "moves pages of other processes or pins nodes",
        "mbind", "set_mempolicy", "get_mempolicy", "set_mempolicy_home_node", "migrate_pages", "move_pages",
    ),
    *_each(EPERM, "names a namespace that is not the caller's to name", "sethostname", "setdomainname"),
    *_each(EPERM, "hangs up the shared terminal", "vhangup"),
    *_each(EPERM, "changes what a security module allows", "lsm_set_self_attr"),
    *_each(
        ENOSYS,
        "left over from old kernels",
        "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl", "getpmsg", "putpmsg", "afs_syscall", "tuxcall",
        "security", "vserver",
    ),
    *_each(ENOSYS, "32-bit x86 only: its number is foreign here", "vm86", "vm86old"),
    # --- where no cgroup counts memory ----------------------------------------------------------------------------
    Refusal("memfd_secret", ENOSYS, "pages that no process maps and no counter shows", only="uncounted"),
    # small ones stay: PostgreSQL wants one of 56 bytes, and the kernel's 4096 segments of this size are 64 MiB
    Refusal(
        "shmget", ENOSYS, "segments that live on with nobody attached", (("above", 1, (16384,)),), only="uncounted"
    ),
    Refusal("msgget", ENOSYS, "queues that hold half a gigabyte with nobody attached", only="uncounted"),
    # --- where no cgroup holds the CPU limit ----------------------------------------------------------------------
    Refusal("sched_setaffinity", EPERM, "leaves the CPUs that the limit gave", only="pinned"),
)  # fmt: skip

# Only what the table names. x86_64: arch/x86/entry/syscalls/syscall_64.tbl; aarch64: include/uapi/asm-generic/unistd.h
_X86_64 = {
    "ioctl": 16, "shmget": 29, "socket": 41, "socketpair": 53, "clone": 56, "msgget": 68, "fcntl": 72, "ptrace": 101, "syslog": 103,
    "uselib": 134, "personality": 135, "ustat": 136, "sysfs": 139, "vhangup": 153, "pivot_root": 155, "_sysctl": 156,
    "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
    "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "create_module": 174, "init_module": 175, "delete_module": 176, "get_kernel_syms": 177, "query_module": 178,
    "quotactl": 179, "nfsservctl": 180, "getpmsg": 181, "sched_setaffinity": 203, "putpmsg": 182, "afs_syscall": 183, "tuxcall": 184,
    "security": 185, "lookup_dcookie": 212, "clock_settime": 227, "vserver": 236, "mbind": 237, "set_mempolicy": 238,
    "get_mempolicy": 239, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256,
    "unshare": 272, "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
    "kcmp": 312, "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "name_to_handle_at": 264, "open_by_handle_at": 265, "lookup_dcookie": 18, "fcntl": 25, "ioctl": 29, "umount2": 39, "mount": 40,
    "pivot_root": 41, "nfsservctl": 42, "chroot": 51, "vhangup": 58, "quotactl": 60, "acct": 89, "personality": 92,
    "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116,
    "ptrace": 117, "sched_setaffinity": 122, "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171,
    "msgget": 186, "shmget": 194, "socket": 198, "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
    "swapon": 224, "swapoff": 225, "mbind": 235, "get_mempolicy": 236, "set_mempolicy": 237, "migrate_pages": 238,
    "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262, "clock_adjtime": 266, "setns": 268,
    "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280,
    "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip
# Since Linux 5.1 a new call has one number everywhere.
_BOTH = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
    "set_mempolicy_home_node": 450, "statmount": 457, "listmount": 458, "lsm_set_self_attr": 460, "open_tree_attr": 467,
}  # fmt: skip
#: The newest call that was looked at (file_setattr, Linux 6.17); what came later does not exist in a cell.
NEWEST = 469

_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_NUMBERS = {"x86_64": {**_X86_64, **_BOTH}, "aarch64": {**_AARCH64, **_BOTH}}
_X32_BIT = 0x4000_0000

_KILL_PROCESS, _ERRNO, _ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000

# opcode = class | size or operation | source, linux/bpf_common.h
_LD, _JEQ, _JGT, _JSET, _RET = 0x20, 0x15, 0x25, 0x45, 0x06
# struct seccomp_data: nr, arch, instruction pointer (u64), args[6] (u64); both architectures are little-endian
_NR, _ARCH, _ARGS = 0, 4, 16
_INSTRUCTION = Struct("<HBBI")

_built: dict[tuple[str, bool, bool, bool], bytes] = {}


class _Program:
    """Instructions with named jump targets, all forward, as classic BPF wants them."""

    __slots__ = ("_code", "_labels")

    def __init__(self) -> None:
        self._code: list[tuple[int, str, str, int]] = []
        self._labels: dict[str, int] = {}

    def emit(self, code: int, k: int, *, then: str = "", other: str = "") -> None:
        self._code.append((code, then, other, k))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def _offset(self, at: int, name: str) -> int:
        offset = self._labels[name] - at - 1 if name else 0
        if not 0 <= offset <= 255:
            raise InvariantBroken(f"seccomp filter: jump to `{name}` spans {offset} instructions")
        return offset

    def bytes(self) -> bytes:
        pack = _INSTRUCTION.pack
        return b"".join(
            pack(code, self._offset(i, then), self._offset(i, other), k)
            for i, (code, then, other, k) in enumerate(self._code)
        )


def number(call: str, arch: str) -> int | None:
    """The call's number on `arch`, or None where the architecture never had it."""
    return _NUMBERS[arch].get(call)


def build_filter(arch: str, *, uncounted: bool = True, pinned: bool = True, shared: bool = False) -> bytes:
    """The filter as an array of `struct sock_filter`, ready for `bwrap --seccomp FD`.

    arch: `x86_64` or `aarch64` (`os.uname().machine`). uncounted: refuse also what a memory watchdog cannot see; false
    only where a cgroup counts memory. pinned: refuse also to leave the CPUs that the cell was given; false only where a
    cgroup holds the CPU limit. shared: refuse also Unix sockets but for connected pairs, for a cell that is shown a directory
    of the host as it is. Takes about 0.2 ms the first time.

    Raises: `Unenforceable` for another architecture.
    """
    key = (arch, uncounted, pinned, shared)
    if key not in _built:
        if arch not in _NUMBERS:
            raise Unenforceable(
                f"no system-call filter for `{arch}`",
                cause="the filter's table has numbers for x86_64 and aarch64 only",
                remedy="run on one of those, or choose the microvm tier",
            )
        left_out = (("uncounted", uncounted), ("pinned", pinned), ("shared", shared))
        unwanted = {only for only, wanted in left_out if not wanted}
        _built[key] = _build(arch, [r for r in REFUSALS if r.only not in unwanted])
    return _built[key]


def _build(arch: str, rows: Iterable[Refusal]) -> bytes:
    by_number: dict[int, list[Refusal]] = {}
    always: dict[int, list[int]] = {}
    numbers = _NUMBERS[arch]
    for row in rows:
        nr = numbers.get(row.call)
        if nr is None:
            continue
        if row.tests:
            by_number.setdefault(nr, []).append(row)
        else:
            always.setdefault(row.errno, []).append(nr)
    program = _Program()
    program.emit(_LD, _ARCH)
    program.emit(_JEQ, _AUDIT_ARCH[arch], then="native")
    program.emit(_RET, _KILL_PROCESS)
    program.label("native")
    program.emit(_LD, _NR)
    # newer calls, and on x86_64 everything with the x32 bit: both are greater than the table's last number
    program.emit(_JGT, NEWEST, then=f"errno{ENOSYS}")
    for nr, tested in by_number.items():
        _emit_tested(program, nr, tested)
    for errno, calls in sorted(always.items()):
        for nr in calls:
            program.emit(_JEQ, nr, then=f"errno{errno}")
    program.emit(_RET, _ALLOW)
    for errno in sorted({*always, ENOSYS}):
        program.label(f"errno{errno}")
        program.emit(_RET, _ERRNO | errno)
    return program.bytes()


def _emit_tested(program: _Program, nr: int, rows: list[Refusal]) -> None:
    """`if nr == call { each row: all tests hold → errno; allow }`: entered only on a match, so others keep `nr` loaded."""
    after = f"after{nr}"
    program.emit(_JEQ, nr, other=after)
    for i, row in enumerate(rows):
        miss = f"call{nr}row{i + 1}"
        for j, (kind, argument, values) in enumerate(row.tests):
            hit = f"call{nr}row{i}test{j}"
            if kind == "above":
                program.emit(_LD, _ARGS + 8 * argument + 4)
                program.emit(_JEQ, 0, other=hit)
                program.emit(_LD, _ARGS + 8 * argument)
                program.emit(_JGT, values[0], then=hit, other=miss)
                program.label(hit)
                continue
            program.emit(_LD, _ARGS + 8 * argument)
            last = len(values) - 1
            for n, value in enumerate(values):
                opcode = _JSET if kind == "bits" else _JEQ
                if kind == "other":
                    program.emit(opcode, value, then=miss)
                else:
                    program.emit(opcode, value, then=hit, other=miss if n == last else "")
            program.label(hit)
        program.emit(_RET, _ERRNO | row.errno)
        program.label(miss)
    program.emit(_RET, _ALLOW)
    program.label(after)
