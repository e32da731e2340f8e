"""Why the kernel does not execute a file that is there: before the run for what can be seen in the file, afterwards for the rest.

I1  Nothing is executed to find out, and nothing is read but a file's beginning.
I2  What a handler of the host's (binfmt_misc) may take is left to the kernel.
"""

from __future__ import annotations

import os
from fcntl import F_RDLCK, F_SETLEASE, F_UNLCK, fcntl
from struct import unpack_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_HANDLERS = "/proc/sys/fs/binfmt_misc"
_ELF = b"\x7fELF"
#: e_machine by what `uname -m` says, the one of 32-bit programs with it.
_MACHINES = {"x86_64": (62, 3), "aarch64": (183, 40)}
_NAMES = {
    3: "x86",
    8: "MIPS",
    20: "PowerPC",
    21: "PowerPC64",
    22: "s390x",
    40: "ARM",
    62: "x86-64",
    183: "ARM64",
    243: "RISC-V",
}
#: As much as a shell looks at; the program headers of what a linker makes come right after the file header.
_BEGINNING_BYTES = 4096
_SHELL_LOOKS_AT = 80
_PT_INTERP = 3


def unfit(path: str) -> str:
    """Why `path` (of the host) cannot be a program, "" where it may be one. Without this the C library would give it to /bin/sh, which
    runs garbage; text without a first line is given to that, as by every shell."""
    head = beginning(path)
    if head.startswith(b"#!") or _handled():
        return ""
    if head.startswith(_ELF):
        return _foreign(head)
    line, newline, _ = head[:_SHELL_LOOKS_AT].partition(b"\n")
    return "cannot execute binary file" if b"\0" in line or (not newline and b"\0" in head[:_SHELL_LOOKS_AT]) else ""


def _foreign(head: bytes) -> str:
    whole = 64 if head[4:5] == b"\2" else 52
    if len(head) < whole or head[4] not in (1, 2) or head[5] not in (1, 2):
        return "cannot execute binary file: it is not whole"
    (machine,) = unpack_from("<H" if head[5] == 1 else ">H", head, 18)
    ours = _MACHINES.get(os.uname().machine)
    if ours is None or machine in ours:
        return ""
    return f"cannot execute binary file: it is for another machine ({_NAMES.get(machine, f'ELF machine {machine}')})"


def _handled() -> bool:
    """Whether the host has a handler of formats that are not its own."""
    try:
        return any(name not in ("register", "status") for name in os.listdir(_HANDLERS))
    except OSError:
        return False


def refused(path: str, shown: Callable[[str], bool]) -> tuple[bool, str]:
    """For a program that the kernel did not execute, and that looked well: (whether something of it is missing, what). path: of the host.
    shown: whether the cell has a file at that path inside."""
    loader = _loader(beginning(path))
    if loader and not shown(loader):
        return True, f"its loader `{loader}` is not in the cell"
    if _written(path):
        return False, "it is open for writing (text file busy)"
    return False, "the kernel does not execute it (bubblewrap's line on stderr has its word for it)"


def _loader(head: bytes) -> str:
    """The ELF interpreter of a 64-bit program of this byte order; "" for anything else."""
    if len(head) < 64 or head[:6] != _ELF + b"\2\1":
        return ""
    (at,) = unpack_from("<Q", head, 32)
    size, count = unpack_from("<HH", head, 54)
    for number in range(count):
        start = at + number * size
        if size < 56 or start + 56 > len(head):
            break
        kind, _, offset = unpack_from("<IIQ", head, start)
        if kind == _PT_INTERP:
            (length,) = unpack_from("<Q", head, start + 32)
            return os.fsdecode(head[offset : offset + length].rstrip(b"\0"))
    return ""


def _written(path: str) -> bool:
    """Whether somebody has it open for writing: the kernel gives no read lease on such a file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl(fd, F_SETLEASE, F_RDLCK)
        fcntl(fd, F_SETLEASE, F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def beginning(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _BEGINNING_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)
