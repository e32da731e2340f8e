"""The attempts themselves: one standard-library program, sent into the cell as source and run there for real.

Called as `python3 -I -S -c SOURCE NAME PARAMS_JSON`. Prints one JSON line: `{"breach": bool, "evidence": str}`. A breach is an
effect that reached past the wall (a token of the host read, a file of the host changed, a mount made, a kernel facility opened),
never merely a call that returned. The same program is run outside a cell on stand-ins first: an attempt that cannot succeed there
proves nothing inside.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
MACHINE = os.uname().machine
# syscall numbers: x86_64, aarch64 (asm-generic)
NR = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "unshare": (272, 97), "setns": (308, 268),
    "clone3": (435, 435), "ptrace": (101, 117), "process_vm_readv": (310, 270), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "io_uring_setup": (425, 425), "userfaultfd": (323, 282), "bpf": (321, 280),
    "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fsopen": (430, 430), "fsmount": (432, 432),
    "open_tree": (428, 428), "move_mount": (429, 429), "mount_setattr": (442, 442), "swapon": (167, 224),
    "quotactl": (179, 60), "syslog": (103, 116), "reboot": (169, 142), "settimeofday": (170, 170),
    "clock_settime": (227, 112), "sethostname": (170, 161), "acct": (163, 89), "capset": (126, 91),
    "personality": (135, 92), "kcmp": (312, 272), "mknodat": (259, 33), "chroot": (161, 51), "iopl": (172, -1),
    "shmget": (29, 194), "shmat": (30, 196), "mq_open": (240, 180), "memfd_create": (319, 279), "lookup_dcookie": (212, 18),
    "setuid": (105, 146), "process_madvise": (440, 440), "fanotify_init": (300, 262), "mq_unlink": (241, 181),
}  # fmt: skip
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWPID = 0x10000000, 0x00020000, 0x40000000, 0x20000000


def call(name: str, *args: Any) -> int:
    """One raw system call; raises OSError on failure."""
    number = NR[name][0 if MACHINE == "x86_64" else 1]
    if number < 0:
        raise OSError(errno.ENOSYS, name)
    ctypes.set_errno(0)
    result = int(LIBC.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args]))
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


ATTEMPTS: dict[str, Callable[[dict[str, Any]], str]] = {}


def attempt(function: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
    """Registers `name(params) -> evidence`; evidence "" or an exception means refused."""
    ATTEMPTS[function.__name__] = function
    return function


def read_token(path: str, token: str) -> str:
    with open(path, "rb") as f:
        return path if token.encode() in f.read(1 << 20) else ""


def write_token(path: str, token: str, *, append: bool = False) -> str:
    """Writes and looks again. Inside, `path` is the real kernel file; outside, a stand-in."""
    fd = os.open(path, os.O_WRONLY | (os.O_APPEND if append else 0))
    try:
        os.write(fd, token.encode())
    finally:
        os.close(fd)
    return path


def main() -> int:
    name, params = sys.argv[1], json.loads(sys.argv[2])
    try:
        evidence = ATTEMPTS[name](params)
        print(json.dumps({"breach": bool(evidence), "evidence": evidence}))
    except (OSError, ValueError) as error:
        code = errno.errorcode.get(getattr(error, "errno", 0) or 0, type(error).__name__)
        print(json.dumps({"breach": False, "evidence": f"refused: {code}"}))
    return 0
