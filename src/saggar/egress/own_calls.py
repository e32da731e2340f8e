"""The system calls that the broker and the secrets process may still make, and how an attempt at another ends.

I1  What is not named in `ALLOWED`, or whose arguments do not pass its test, fails; what nobody makes by accident kills.
I2  A call newer than the tables fails with ENOSYS, as on a kernel that does not have it, so that the C library falls back.
I3  No test looks through a pointer: what lies in memory can change after it was judged.

Calls without a test are answered from the kernel's bitmap (Linux 5.11), whatever their place in the list.
Numbers: x86_64: arch/x86/entry/syscalls/syscall_64.tbl; aarch64: include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import struct

AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

#: (x86_64, aarch64); -1 where the architecture never had it. The most frequent first.
ALLOWED = {
    "recvfrom": (45, 207), "sendto": (44, 206), "read": (0, 63), "write": (1, 64), "epoll_wait": (232, -1),
    "epoll_pwait": (281, 22), "epoll_ctl": (233, 21), "futex": (202, 98), "splice": (275, 76), "writev": (20, 66),
    "getsockopt": (55, 209), "setsockopt": (54, 208), "sendmsg": (46, 211), "recvmsg": (47, 212), "close": (3, 57),
    "accept4": (288, 242), "accept": (43, 202), "connect": (42, 203), "shutdown": (48, 210), "getsockname": (51, 204),
    "getpeername": (52, 205), "recvmmsg": (299, 243), "sendmmsg": (307, 269), "readv": (19, 65),
    "poll": (7, -1), "ppoll": (271, 73), "select": (23, -1), "pselect6": (270, 72), "epoll_create": (213, -1),
    "epoll_create1": (291, 20), "epoll_pwait2": (441, 441), "eventfd2": (290, 19), "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87), "signalfd4": (289, 74), "pipe": (22, -1), "pipe2": (293, 59),
    "tee": (276, 77), "vmsplice": (278, 75), "dup": (32, 23), "dup2": (33, -1), "dup3": (292, 24), "fcntl": (72, 25),
    "close_range": (436, 436), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27), "inotify_rm_watch": (255, 28),
    # files: reading, and writing what came open
    "stat": (4, -1), "fstat": (5, 80), "lstat": (6, -1), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43),
    "fstatfs": (138, 44), "access": (21, -1), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, -1),
    "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17), "lseek": (8, 62), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "flock": (73, 32), "fsync": (74, 82), "fdatasync": (75, 83), "ftruncate": (77, 46), "fadvise64": (221, 223),
    "memfd_create": (319, 279),
    # memory, threads, signals of its own
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216), "msync": (26, 227),
    "mincore": (27, 232), "madvise": (28, 233), "mlock": (149, 228), "mlock2": (325, 284), "munlock": (150, 229),
    "map_shadow_stack": (453, 453), "membarrier": (324, 283), "rseq": (334, 293), "set_robust_list": (273, 99),
    "get_robust_list": (274, 100), "set_tid_address": (218, 96), "arch_prctl": (158, -1), "futex_waitv": (449, 449),
    "exit": (60, 93), "exit_group": (231, 94), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128), "pause": (34, -1), "wait4": (61, 260), "waitid": (247, 95),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168),
    # time, and who it is
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, -1), "times": (100, 153), "getitimer": (36, 102), "setitimer": (38, 103),
    "alarm": (37, -1), "getrandom": (318, 278), "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148),
    "getresgid": (120, 150), "getgroups": (115, 158), "getpgrp": (111, -1), "getpgid": (121, 155), "getsid": (124, 156),
    "capget": (125, 90), "uname": (63, 160), "sysinfo": (99, 179), "getrusage": (98, 165), "getrlimit": (97, 163),
    "setrlimit": (160, 164), "umask": (95, 166),
    # only ever less
    "seccomp": (317, 277), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
}  # fmt: skip

#: kills: nobody makes them by accident
DEADLY = {
    "ptrace": (101, 117), "mount": (165, 40), "umount2": (166, 39), "swapon": (167, 224), "swapoff": (168, 225),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97),
    "setns": (308, 268), "perf_event_open": (298, 241), "open_by_handle_at": (304, 265), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "bpf": (321, 280), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "pivot_root": (155, 41), "chroot": (161, 51),
    "reboot": (169, 142), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432),
    "mount_setattr": (442, 442),
}  # fmt: skip
#: besides, where nothing is ever run
RUNNING = {"execve": (59, 221), "execveat": (322, 281)}
#: besides, where nothing is ever called over the network
CALLING = {"connect": (42, 203), "bind": (49, 200), "listen": (50, 201)}

#: fails in a process that runs commands, which may need anything else that its user may do: what is the whole machine's
OF_THE_MACHINE = {
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "acct": (163, 89), "syslog": (103, 116), "iopl": (172, -1), "ioperm": (173, -1), "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272), "personality": (135, 92),
}  # fmt: skip

_SOCKET, _SOCKETPAIR, _OPEN, _OPENAT = (41, 198), (53, 199), (2, -1), (257, 56)
_CLONE, _TGKILL, _PRLIMIT, _PRCTL, _IOCTL = (56, 220), (234, 131), (302, 261), (157, 167), (16, 29)

_THREAD = 0x0001_0000
_NAMESPACES = 0x7E02_0080
_WRITING = 0o3 | 0o100 | 0o1000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
_TYPE = 0xF
_STREAM, _DGRAM, _SEQPACKET = 1, 2, 5
_UNIX, _INET, _INET6 = 1, 2, 10
#: FIONBIO, FIONREAD, FIOCLEX, FIONCLEX, TCGETS, TIOCGWINSZ: none that types on a terminal
_IOCTLS = (0x5421, 0x541B, 0x5451, 0x5450, 0x5401, 0x5413)
#: PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_GET_SECCOMP, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS, PR_SET_VMA
_PRCTLS = (3, 15, 16, 21, 22, 38, 39, 0x53564D41)

_EPERM, _EACCES, _ENOSYS = 1, 13, 38
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
#: from here on numbers are the same everywhere, and C libraries know how to do without
_NEW = 424
_X32 = 0x4000_0000
_LD, _JEQ, _JGE, _JSET, _AND, _RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06

_Line = tuple[int, int, int, int]


def _argument(index: int) -> _Line:
    """The low half: all that the kernel itself reads of an int."""
    return _LD, 0, 0, 16 + 8 * index


def _give(action: int) -> _Line:
    return _RET, 0, 0, action


def _one_of(values: tuple[int, ...]) -> list[_Line]:
    """Goes on behind its last line where the value is one of them, else fails with EACCES."""
    last = len(values) - 1
    lines = [(_JEQ, len(values) - i, 0, v) for i, v in enumerate(values[:last])]
    return [*lines, (_JEQ, 1, 0, values[last]), _give(_ERRNO | _EACCES)]


def _sockets(network: bool) -> list[_Line]:
    """TCP and UDP. No Unix socket: what one connects to lies behind a pointer (agents, Docker, D-Bus)."""
    if not network:
        return [_give(_KILL_PROCESS)]
    family = [_argument(0), *_one_of((_INET, _INET6))]
    kind = [_argument(1), (_AND, 0, 0, _TYPE), *_one_of((_STREAM, _DGRAM))]
    return [*family, *kind, _argument(2), *_one_of((0, 6, 17)), _give(_ALLOW)]


def _read_only(argument: int) -> list[_Line]:
    return [_argument(argument), (_JSET, 0, 1, _WRITING), _give(_ERRNO | _EACCES), _give(_ALLOW)]


def _tested(pid: int, network: bool) -> list[tuple[tuple[int, int], list[_Line]]]:
    # a pair of datagram sockets could send to any address
    pairs = [
        _argument(0), *_one_of((_UNIX,)), _argument(1), (_AND, 0, 0, _TYPE), *_one_of((_STREAM, _SEQPACKET)), _give(_ALLOW)
    ]  # fmt: skip
    threads = [
        _argument(0), (_JSET, 0, 1, _NAMESPACES), _give(_ERRNO | _EPERM),
        (_JSET, 1, 0, _THREAD), _give(_ERRNO | _EPERM), _give(_ALLOW),
    ]  # fmt: skip
    return [
        (_SOCKET, _sockets(network)),
        (_SOCKETPAIR, pairs),
        (_OPEN, _read_only(1)),
        (_OPENAT, _read_only(2)),
        (_CLONE, threads),
        (_TGKILL, [_argument(0), *_one_of((pid,)), _give(_ALLOW)]),
        (_PRLIMIT, _of_itself(pid)),
        (_PRCTL, [_argument(0), *_one_of(_PRCTLS), _give(_ALLOW)]),
        (_IOCTL, [_argument(1), *_one_of(_IOCTLS), _give(_ALLOW)]),
    ]


def _of_itself(pid: int) -> list[_Line]:
    return [_argument(0), *_one_of((0, pid)), _give(_ALLOW)]


def _start(arch: str) -> list[_Line]:
    lines = [(_LD, 0, 0, 4), (_JEQ, 1, 0, AUDIT_ARCH[arch]), _give(_KILL_PROCESS), (_LD, 0, 0, 0)]
    return [*lines, (_JGE, 0, 1, _X32), _give(_KILL_PROCESS)]


def _each(table: dict[str, tuple[int, int]], column: int, action: int) -> list[_Line]:
    numbers = [row[column] for row in table.values() if row[column] >= 0]
    return [line for n in numbers for line in ((_JEQ, 0, 1, n), _give(action))]


def _when(number: int, then: list[_Line]) -> list[_Line]:
    return [(_JEQ, 0, len(then), number), *then] if number >= 0 else []


def closed(arch: str, pid: int, *, network: bool) -> bytes:
    """The filter of a process that runs nothing: `struct sock_filter[]`. pid: its own. network: it may call others."""
    column = list(AUDIT_ARCH).index(arch)
    lines = _start(arch)
    if not network:
        lines += _each(CALLING, column, _KILL_PROCESS)
    lines += _each(ALLOWED, column, _ALLOW)
    for numbers, then in _tested(pid, network):
        lines += _when(numbers[column], then)
    lines += _each({**DEADLY, **RUNNING}, column, _KILL_PROCESS)
    lines += [(_JGE, 0, 1, _NEW), _give(_ERRNO | _ENOSYS), _give(_ERRNO | _EPERM)]
    return _packed(lines)


def open_to_commands(arch: str, *, network: bool) -> bytes:
    """The filter of a process that runs its user's commands, which inherit it: all but the worst is allowed."""
    column = list(AUDIT_ARCH).index(arch)
    deadly = DEADLY if network else {**DEADLY, **CALLING}
    lines = _start(arch) + _each(deadly, column, _KILL_PROCESS) + _each(OF_THE_MACHINE, column, _ERRNO | _EPERM)
    # its commands have other numbers, so limits are everybody's own alone by the number that stands for the caller
    return _packed([*lines, *_when(_PRLIMIT[column], _of_itself(0)), _give(_ALLOW)])


def without_rings(arch: str) -> bytes:
    """For the time before the loop is made: libuv makes a ring for its `epoll_ctl` unless the kernel has none, and through a
    ring goes any call, past every filter."""
    column = list(AUDIT_ARCH).index(arch)
    return _packed([*_start(arch), *_when(DEADLY["io_uring_setup"][column], [_give(_ERRNO | _ENOSYS)]), _give(_ALLOW)])


def _packed(lines: list[_Line]) -> bytes:
    return b"".join(struct.pack("HBBI", *line) for line in lines)
