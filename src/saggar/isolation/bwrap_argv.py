"""The bubblewrap options of one cell, as data in, list out.

I1  The same cell gives the same options: nothing here looks at the host.
I2  bubblewrap makes a user and a mount namespace and shows the tree that the child has built (`rootfs_mount_host`), as it is; the
    other namespaces are the child's, and bubblewrap is their first process.
I3  No option holds a value of the environment or a descriptor's number: the environment travels apart, and an `int` in
    the list is an index of the table of descriptors that the child fills in.

The options travel over `--args FD`: /proc/1/cmdline is readable inside, and would show the host's paths.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    Option = str | int

UID = 1000
GID = 1000
USER = "agent"
HOME = "/home/agent"
HOSTNAME = "saggar"

#: The cell's root in the mount namespace that bubblewrap starts in.
CELL = "/cell"
#: Directories of the one sized tmpfs: name, place inside, mode.
SCRATCH = (("tmp", "/tmp", 0o1777), ("shm", "/dev/shm", 0o1777), ("home", HOME, 0o755))  # noqa: S108  # inside the cell

#: Index of the status pipe and of the filter in the table of descriptors.
STATUS_FD = -1
SECCOMP_FD = -2

#: What a container engine hides of /proc beside what is made read-only (sys, sysrq-trigger, irq, bus).
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


def options(user: tuple[int, int], cwd: str) -> list[Option]:
    """bubblewrap's options, without the program and without the command. user: (uid, gid) inside. cwd: absolute, inside."""
    return [
        "--unshare-user",
        "--uid",
        str(user[0]),
        "--gid",
        str(user[1]),
        "--die-with-parent",
        "--json-status-fd",
        STATUS_FD,
        "--seccomp",
        SECCOMP_FD,
        # every mount beneath has its attributes already; `--bind` would take the device nodes' use away
        "--dev-bind",
        CELL,
        "/",
        "--chdir",
        cwd,
    ]
