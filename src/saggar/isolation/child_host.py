"""The forked child of one run: from a copy of the launcher to bubblewrap, in one straight line, with no way back.

I1  Nothing of the command's runs before every step has succeeded and the launcher has said that the limits hold; a failing step ends
    the child with its name and errno.
I2  A root caller's cell gives up root before it mounts, listens or executes anything; its host ids are of the range that
    `workspace_host.HOST_IDS` begins, so the files it meets, it meets as a stranger.
I3  Sockets of the cell are born in its network namespace and leave it to the supervisor alone.
I4  Of the launcher's descriptors none is left at exec but the three streams and those that bubblewrap reads.
I5  The process group is new (or the session, where no stream is a terminal): `kill(0, …)` inside reaches nothing outside.
"""

from __future__ import annotations

import _signal
import os
import resource
from fcntl import F_DUPFD_CLOEXEC, fcntl

from saggar.isolation import syscalls_host as sys_
from saggar.isolation import wire_host as wire
from saggar.isolation.bwrap_argv import GID, SCRATCH, SECCOMP_FD, STAGE, STATUS_FD, UID
from saggar.isolation.netns_host import open_listeners, own_every_address
from saggar.isolation.rootfs import SYSTEM
from saggar.isolation.workspace_mount_host import clone_layers, clone_tree, mount_workspace, own_inodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from saggar.isolation.limits_host import Limits

#: Descriptors for bubblewrap start here, clear of the streams and of what it opens itself.
_FIRST_FD = 10
_HIGH_FD = 512
#: What bubblewrap binds from, and what it needs itself.
_SYSTEM = (*SYSTEM, "/etc", "/proc", "/dev")
#: Directories that a cell shows nothing of, so that they may be covered while it is built.
_PLACES = ("/sys", "/mnt", "/media", "/srv", "/boot")
#: bubblewrap reads at most 9000 arguments when some come over a descriptor.
_MAX_ARGUMENTS = 8900
#: Python and the launcher ignore some of these, and what is ignored at exec stays ignored.
_RESET = (
    _signal.SIGPIPE,
    _signal.SIGXFSZ,
    _signal.SIGINT,
    _signal.SIGQUIT,
    _signal.SIGTERM,
    _signal.SIGHUP,
    _signal.SIGTSTP,
    _signal.SIGTTOU,
    _signal.SIGTTIN,
    _signal.SIGCHLD,
    _signal.SIGXFSZ,  # ignored by Python; a program that it does not end would take a full disk for a bad one
)


class Step:
    """Names the step that is being taken, and where to say that it failed."""

    __slots__ = ("control", "name")

    def __init__(self, control: wire.Socket) -> None:
        self.name = "start"
        self.control = control


class Birth:
    """What a child must know to be born, and what a spare must share with the request that claims it. ids: of a root caller's cell
    (see `make_ids`), else None; uid, gid: its user inside; listeners: the plan; limits, disk_on_host: what its limits are opened with."""

    __slots__ = ("disk_on_host", "gid", "ids", "limits", "listeners", "uid")

    def __init__(self, request: dict[str, Any]) -> None:
        self.ids: tuple[int, ...] | None = None if request["ids"] is None else tuple(request["ids"])
        self.uid, self.gid = request["user"]
        self.listeners: list[dict[str, Any]] = request["listeners"]
        self.limits: dict[str, Any] = request["limits"]
        self.disk_on_host: bool = request["disk_on_host"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Birth) and all(getattr(self, s) == getattr(other, s) for s in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # compared, never a key


class Ids:
    """How a root caller's cell is mapped. owners: descriptor of a user namespace that shifts every owner into the cells' range, for
    idmapped mounts; own: of the one that the child joins, in which the cell's user has its number inside and every other id of the range has a number."""

    __slots__ = ("own", "owners")

    def __init__(self, owners: int, own: int) -> None:
        self.owners = owners
        self.own = own


def run(channel: wire.Socket, launcher_pid: int, birth: Birth, ids: Ids | None, limits: Limits) -> NoReturn:
    """Be born under the limits, wait for the request (see `saggar.isolation.launcher_host`), become its cell. Never returns.

    Between birth and request the child is a spare: its namespaces are its own, nobody has used them, and it holds nothing of any run.
    """
    step = Step(channel)
    request: dict[str, Any] = {"id": ""}
    try:
        step.name = "limits"
        # by itself: moving another process into a group takes 10 ms and more, moving oneself 0.1 ms (`Limits.attach`)
        limits.attach(os.getpid())
        _close_but(channel.fileno(), -1 if ids is None else ids.own)
        sockets, left_out = _be_born(birth, ids, launcher_pid, step)
        received, fds = wire.receive(channel)
        if received is None:
            # the launcher is gone, or has no use for us
            os._exit(0)
        request = received
        _become(request, fds, sockets, left_out, launcher_pid, step, limits.view())
    except BaseException as error:  # noqa: BLE001  # whatever it was, this process must not run on as a second launcher
        report = {
            "event": "failed",
            "id": request["id"],
            "step": step.name,
            "errno": getattr(error, "errno", 0) or 0,
            "message": getattr(error, "message", "") or str(error),
            "cause": getattr(error, "cause", ""),
            "remedy": getattr(error, "remedy", ""),
            "kind": type(error).__name__,
        }
        try:
            wire.send(step.control, report)
        except OSError:
            pass
    os._exit(125)


def _close_but(*kept: int) -> None:
    """Everything of the launcher's but the streams and these. By the list, since closing a range number by number may take 10 ms."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                # the descriptor that listed them
                continue


def _be_born(birth: Birth, ids: Ids | None, launcher_pid: int, step: Step) -> tuple[list[int], list[int]]:
    """User and network namespace, every address, the listeners. Gives those, and the indexes of the ones left out."""
    sys_.die_with_parent(launcher_pid)
    step.name = "identity"
    flags = sys_.CLONE_NEWNET
    if ids is not None:
        _become_stranger(ids, birth.uid, birth.gid)
    else:
        flags |= sys_.CLONE_NEWUSER
    step.name = "namespaces"
    host = os.getuid(), os.getgid()
    sys_.unshare(flags)
    if ids is None:
        _map(host, birth.uid, birth.gid)
    # a change of credentials, and a new user namespace is one: the kernel has forgotten the wish
    sys_.die_with_parent(launcher_pid)
    step.name = "network"
    ipv6 = own_every_address()
    step.name = "listeners"
    return open_listeners(birth.listeners, ipv6=ipv6)


def _become(  # noqa: PLR0917  # one caller, above
    request: dict[str, Any],
    fds: Sequence[int],
    sockets: list[int],
    left_out: list[int],
    launcher_pid: int,
    step: Step,
    groups: list[tuple[str, str]],
) -> None:
    step.name = "session"
    # a launcher that died since would have taken us along; one that died before the wish was noted has another pid now
    sys_.die_with_parent(launcher_pid)
    _enter_session(request, fds)
    for number in range(3):
        os.dup2(fds[number], number)
    workspace_fds = [fds[i] for i in request["workspace_fds"]]
    step.name = "namespaces"
    # as late as this: a spare's copy of the mount table would not know what the host mounted since
    sys_.unshare(sys_.CLONE_NEWNS)
    step.name = "stage"
    clones = [fds[i] for i in request["clones"]] if request["ids"] is not None else _clone(request)
    shown = _clone_groups(groups)
    place = _first_place(request["workspace"])
    sys_.mount("saggar", place, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "size=1m,mode=0755")
    stage = place + STAGE
    os.mkdir(stage, 0o755)
    scratch, shared = _stage(request, clones, stage)
    _stage_groups(shown, f"{stage}/sys")
    step.name = "workspace"
    mounted = mount_workspace(request["workspace"], workspace_fds, f"{stage}/ws")
    mounted.shared = mounted.shared or shared
    step.name = "root"
    _leave_host(place)
    _report(request, step.control, scratch, mounted, sockets, left_out)
    step.name = "limits"
    # the launcher put us under the limits meanwhile, which may take an RCU grace period
    word, _ = wire.receive(step.control)
    if word is None:
        os._exit(0)
    step.name = "exec"
    seccomp = request["seccomp_shared"] if mounted.shared else request["seccomp"]
    _exec(request, fds[request["status_fd"]], seccomp, step)


def _report(  # noqa: PLR0917  # one caller, above
    request: dict[str, Any], control: wire.Socket, scratch: int, mounted: Any, sockets: list[int], left_out: list[int]
) -> None:
    extra = [mounted.upper_fd] if mounted.upper_fd >= 0 else []
    message = {
        "event": "listening",
        "id": request["id"],
        "left_out": left_out,
        "layer": mounted.layer,
        "started_ns": mounted.started_ns,
        "upper": bool(extra),
        "shared": mounted.shared,
    }
    wire.send(control, message, [scratch, *extra, *sockets])


def _enter_session(request: dict[str, Any], fds: Sequence[int]) -> None:
    if request["terminal"] < 0:
        os.setsid()
        return
    os.setpgid(0, 0)
    if request["foreground"]:
        # from a background group tcsetpgrp stops the caller unless SIGTTOU is blocked or ignored
        _signal.signal(_signal.SIGTTOU, _signal.SIG_IGN)
        os.tcsetpgrp(fds[request["terminal"]], os.getpid())


def _become_stranger(ids: Ids, uid: int, gid: int) -> None:
    sys_.setns(ids.own, sys_.CLONE_NEWUSER)
    os.close(ids.own)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    # root's own id is not mapped there, so this is no step down from uid 0 and the capabilities over the namespace stay
    os.setresuid(uid, uid, uid)
    # the kernel makes a process that changed its ids undumpable, and its /proc files root's
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)


def _map(host: tuple[int, int], uid: int, gid: int) -> None:
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {host[0]} 1"),
        ("gid_map", f"{gid} {host[1]} 1"),
    ):
        _write(f"/proc/self/{name}", content)


def _write(path: str, content: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content.encode())
    finally:
        os.close(fd)


def _clone(request: dict[str, Any]) -> list[int]:
    """Detached clones of the host's directories that the cell will show, in the request's order."""
    fds = []
    for grant in request["grants"]:
        fd = sys_.open_tree(grant["path"], follow=True)
        status = os.stat(fd)
        if (status.st_dev, status.st_ino) != (grant["device"], grant["inode"]):
            raise OSError(116, f"`{grant['path']}` was exchanged while the cell was being made")  # ESTALE
        fds.append(fd)
    return fds


def clone_as_root(request: dict[str, Any], fds: list[int], ids: Ids) -> None:
    """For a root caller's cell, in the launcher: replace what the request shows by detached mounts with the cells' owners."""
    request["clones"] = []
    for grant in request["grants"]:
        fd = clone_tree(fds[grant["fd"]], ids.owners if grant["owned"] else -1, read_only=True)
        request["clones"].append(len(fds))
        fds.append(fd)
    layers = clone_layers(request["workspace"], [fds[i] for i in request["workspace_fds"]], ids.owners)
    request["workspace_fds"] = list(range(len(fds), len(fds) + len(layers)))
    fds += layers


def make_ids(base: int, count: int, uid: int, gid: int, inner_uid: int = UID, inner_gid: int = GID) -> Ids:  # noqa: PLR0917
    """The two user namespaces of a root caller's cells whose user is `uid`:`gid` of the range, and the `inner` ones inside.
    Needs root."""
    shift = f"0 {base} {count}"
    return Ids(
        _userns(shift, shift), _userns(_own_map(base, count, uid, inner_uid), _own_map(base, count, gid, inner_gid))
    )


def _own_map(base: int, count: int, who: int, number: int) -> str:
    """Every id of the range has a number inside, `who` the cell's own: an owner without one gives EOVERFLOW at copy-up."""
    lines = [f"{number} {base + who} 1"]
    if who:
        lines.append(f"100000 {base} {who}")
    if who + 1 < count:
        lines.append(f"{100000 + who + 1} {base + who + 1} {count - who - 1}")
    return "\n".join(lines)


def _userns(uid_map: str, gid_map: str) -> int:
    """A descriptor of a new user namespace with these maps; nobody is in it."""
    ready_r, ready_w = os.pipe()
    hold_r, hold_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hold_w)
            sys_.unshare(sys_.CLONE_NEWUSER)
            os.write(ready_w, b"1")
            os.read(hold_r, 1)
        finally:
            os._exit(0)
    try:
        os.close(ready_w)
        os.close(hold_r)
        if os.read(ready_r, 1) != b"1":
            raise OSError(1, "no user namespace for the owners of the workspace")
        _write(f"/proc/{pid}/uid_map", uid_map)
        _write(f"/proc/{pid}/gid_map", gid_map)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_r)
        os.close(hold_w)
        os.waitpid(pid, 0)


def _first_place(workspace: dict[str, Any]) -> str:
    """Where the stage stands until the workspace is mounted, which may itself lie below STAGE."""
    needed = [workspace.get("path", ""), workspace.get("layer", {}).get("path", "")]
    for place in _PLACES:
        if os.path.isdir(place) and not any((path + "/").startswith(place + "/") for path in needed):
            return place
    raise OSError(2, "no directory to build the cell in: this system has neither /sys nor /mnt")


def _leave_host(place: str) -> None:
    """Make `place` the root of this mount namespace: what bubblewrap needs of the system, the stage, and nothing else of the host.

    bubblewrap reads its whole mount table again for every mount it makes, so a short one is faster by a third besides.
    """
    for path in _SYSTEM:
        try:
            link = os.readlink(path)
        except FileNotFoundError:
            continue
        except OSError:
            os.mkdir(place + path, 0o755)
            tree = sys_.open_tree(path)
            sys_.move_mount(tree, place + path)
            os.close(tree)
        else:
            os.symlink(link, place + path)
    os.chdir(place)
    sys_.pivot_root_here()


def _stage(request: dict[str, Any], clones: Sequence[int], stage: str) -> tuple[int, bool]:
    """Mount the scratch tmpfs and hang the granted trees beneath it. Gives a descriptor of it, to ask how full it is, and whether
    some directory shows the host's own inodes."""
    shared = False
    size, inodes = request["scratch_bytes"], request["scratch_inodes"]
    options = f"size={size},nr_inodes={inodes},mode=0755"
    sys_.mount("saggar", stage, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, options)
    old = os.umask(0)
    for name, _, mode in SCRATCH:
        os.mkdir(f"{stage}/{name}", mode)
    for name in ("ws", "m", "b"):
        os.mkdir(f"{stage}/{name}", 0o755)
    for number, (fd, grant) in enumerate(zip(clones, request["grants"], strict=True)):
        place = f"{stage}/{grant.get('place', f'm/{number}')}"
        if grant["directory"]:
            os.mkdir(place, 0o755)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        sys_.move_mount(fd, place)
        if grant["directory"] and "place" not in grant:
            shared = not own_inodes(place, stage) or shared
    os.umask(old)
    return os.open(stage, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), shared


def _clone_groups(groups: list[tuple[str, str]]) -> list[tuple[int, bool, str]]:
    """Detached clones of what the cell is shown of its groups: word for its runtimes and no wall, so what cannot be cloned is left out."""
    shown = []
    for source, name in groups:
        try:
            shown.append((sys_.open_tree(source), os.path.isdir(source), name))
        except OSError:
            continue
    return shown


def _stage_groups(shown: Sequence[tuple[int, bool, str]], place: str) -> None:
    """Hang what the cell sees of its own control groups beneath `place`, which stands for /sys inside."""
    os.makedirs(f"{place}/fs/cgroup", 0o755)
    for fd, directory, name in shown:
        target = f"{place}/fs/cgroup/{name}"
        os.makedirs(target if directory else os.path.dirname(target), 0o755, exist_ok=True)
        if not directory:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
        sys_.move_mount(fd, target)
        os.close(fd)


def _exec(request: dict[str, Any], status_fd: int, seccomp: bytes, step: Step) -> None:
    blobs = [wire.memfd("saggar", blob) for blob in request["blobs"]]
    sources = [(STATUS_FD, status_fd), (SECCOMP_FD, wire.memfd("saggar", seccomp)), *enumerate(blobs)]
    # first out of the way of the numbers that bubblewrap is given
    high = [(index, fcntl(fd, F_DUPFD_CLOEXEC, _HIGH_FD)) for index, fd in sources]
    reporting = fcntl(step.control.fileno(), F_DUPFD_CLOEXEC, _HIGH_FD)
    numbers: dict[int, int] = {}
    next_fd = _FIRST_FD
    for index, fd in high:
        os.dup2(fd, next_fd)
        numbers[index] = next_fd
        next_fd += 1
    options = [str(numbers[o]) if isinstance(o, int) else o for o in request["options"]]
    for name, value in request["late_env"].items():
        options += ["--setenv", name, value]
    argv = ["bwrap", "--args", str(next_fd), "--", *request["command"]]
    if len(options) + len(argv) <= _MAX_ARGUMENTS:
        os.dup2(wire.memfd("saggar", b"".join(os.fsencode(o) + b"\0" for o in options)), next_fd)
        next_fd += 1
    else:
        argv = ["bwrap", *options, "--", *request["command"]]
    # kept until exec succeeds, to say why it did not
    os.dup2(reporting, next_fd, inheritable=False)
    step.control.detach()
    step.control = wire.adopt(next_fd)
    os.closerange(next_fd + 1, _HIGH_FD + 256)
    os.closerange(3, _FIRST_FD)
    for number in _RESET:
        _signal.signal(number, _signal.SIG_DFL)
    if request["shield"]:
        # Ctrl-C would end bubblewrap's monitor, and the cell with it; the command gets its defaults back from `env`
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        _signal.signal(_signal.SIGQUIT, _signal.SIG_IGN)
    for kind, soft, hard in request["rlimits"]:
        resource.setrlimit(kind, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(request["umask"])
    os.chdir("/")
    os.execve(request["bwrap"], argv, request["env"])  # noqa: S606  # a list, and the program was chosen outside
