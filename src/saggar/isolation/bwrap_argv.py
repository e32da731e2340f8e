"""The bubblewrap options of one cell, as data in, list out.

I1  The same cell gives the same options: nothing here looks at the host.
I2  Later options win over earlier ones at the same place, so what the policy must win comes last: the workspace over HOME,
    a protected file over the workspace.
I3  No option holds a value of the environment or a descriptor's number: the environment travels apart, and an `int` in
    the list is an index of the table of descriptors that the child fills in.
I4  The root file system is read-only at the end; what can be written is the scratch tmpfs and the workspace alone.

The options travel over `--args FD`: /proc/1/cmdline is readable inside, and would show the host's paths.
"""

from __future__ import annotations

from saggar.core.decision import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Option = str | int

UID = 1000
GID = 1000
USER = "agent"
HOME = "/home/agent"
HOSTNAME = "saggar"

#: Where the child stages what bubblewrap binds. bubblewrap itself starts on /tmp, so every host that can run it has it.
STAGE = "/tmp"  # noqa: S108  # a tmpfs of the cell's own, in the cell's own mount namespace
#: Directories of the one sized tmpfs: name, place inside, mode.
SCRATCH = (("tmp", "/tmp", 0o1777), ("shm", "/dev/shm", 0o1777), ("home", HOME, 0o755))  # noqa: S108  # inside the cell

#: Index of the status pipe in the table of descriptors; blobs follow from 0.
STATUS_FD = -1
SECCOMP_FD = -2

#: What a container engine hides of /proc beside what bubblewrap covers itself (sys, sysrq-trigger, irq, bus).
MASKED_FILES = (
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/timer_list",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/kmsg",
    "/proc/kallsyms",
    "/proc/modules",
    "/proc/cmdline",
)
MASKED_DIRECTORIES = ("/proc/acpi", "/proc/asound", "/proc/scsi")


class Bind(Frozen):
    """One thing of the host, or of the stage, at a place inside. source: an absolute path in the child's mount namespace."""

    __slots__ = ("source", "target", "writable")
    source: str
    target: str
    writable: bool

    def __init__(self, source: str, target: str, *, writable: bool = False) -> None:
        self._set(source=source, target=target, writable=writable)


class Cell(Frozen):
    """What one cell shows. links: (target of the link, place). files: (index of the blob, place). masks: places under /proc
    to cover, files and directories. binds: in order. covers: (index of the blob, place) laid over files that are there.
    home: (index of the blob, place below HOME), the cell's to change. cwd: absolute, inside. user: (uid, gid) inside."""

    __slots__ = (
        "binds",
        "covers",
        "cwd",
        "files",
        "home",
        "links",
        "masked_directories",
        "masked_files",
        "system",
        "user",
    )
    system: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    files: tuple[tuple[int, str], ...]
    masked_files: tuple[str, ...]
    masked_directories: tuple[str, ...]
    binds: tuple[Bind, ...]
    covers: tuple[tuple[int, str], ...]
    home: tuple[tuple[int, str], ...]
    cwd: str
    user: tuple[int, int]

    def __init__(
        self,
        *,
        system: Iterable[str] = (),
        links: Iterable[tuple[str, str]] = (),
        files: Iterable[tuple[int, str]] = (),
        masked_files: Iterable[str] = (),
        masked_directories: Iterable[str] = (),
        binds: Iterable[Bind] = (),
        covers: Iterable[tuple[int, str]] = (),
        home: Iterable[tuple[int, str]] = (),
        cwd: str = HOME,
        user: tuple[int, int] = (UID, GID),
    ) -> None:
        self._set(
            system=tuple(system),
            links=tuple(links),
            files=tuple(files),
            masked_files=tuple(masked_files),
            masked_directories=tuple(masked_directories),
            binds=tuple(binds),
            covers=tuple(covers),
            home=tuple(home),
            cwd=cwd,
            user=user,
        )


def options(cell: Cell) -> list[Option]:
    """bubblewrap's options, without the program and without the command."""
    out: list[Option] = [
        "--unshare-user",
        "--uid",
        str(cell.user[0]),
        "--gid",
        str(cell.user[1]),
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--hostname",
        HOSTNAME,
        "--die-with-parent",
        "--json-status-fd",
        STATUS_FD,
        "--seccomp",
        SECCOMP_FD,
    ]
    for path in cell.system:
        out += ["--ro-bind", path, path]
    for target, place in cell.links:
        out += ["--symlink", target, place]
    for blob, place in cell.files:
        out += ["--perms", "0444", "--file", blob, place]
    out += ["--dir", "/run", "--proc", "/proc"]
    for place in cell.masked_files:
        out += ["--ro-bind", "/dev/null", place]
    for place in cell.masked_directories:
        out += ["--tmpfs", place, "--remount-ro", place]
    out += ["--dev", "/dev", "--ro-bind", f"{STAGE}/sys", "/sys"]
    for name, place, _ in SCRATCH:
        out += ["--bind", f"{STAGE}/{name}", place]
    for blob, place in cell.home:
        # on the cell's own scratch: what is bound over HOME, a workspace say, comes after it and stays as it is
        out += ["--perms", "0600", "--file", blob, f"{HOME}/{place}"]
    for bind in cell.binds:
        out += ["--bind" if bind.writable else "--ro-bind", bind.source, bind.target]
    for blob, place in cell.covers:
        out += ["--perms", "0444", "--ro-bind-data", blob, place]
    # bwrap mounts /dev as a writable tmpfs of no size: half of the host memory for a disk filler
    out += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", cell.cwd]
    return out
