"""The forked child of one run: from a copy of the launcher to bubblewrap, in one straight line, with no way back.

For a process that runs cell after cell it is one (`born`): a template (`template_host`) has entered the user namespace and made what is
the same for all of them, and forks the first process into namespaces of its own. Else it is two (`run`): one enters the cell's namespaces and forks their first process, which builds the root and becomes bubblewrap, which
as pid 1 reaps what the command leaves. The one is then gone, but for a cell at a terminal: there it stays as keeper, since stop signals
from the terminal do not reach a pid 1, and the launcher must see its job stop. Its death is the cell's.

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
from select import POLLIN, poll

from saggar.isolation import syscalls_host as sys_
from saggar.isolation import wire_host as wire
from saggar.isolation.bwrap_argv import HOME, SECCOMP_FD, STATUS_FD
from saggar.isolation.child_ids_host import become_stranger, map_user
from saggar.isolation.limits_host import pin
from saggar.isolation.netns_host import open_listeners, own_every_address
from saggar.isolation.rootfs_mount_host import Furnishing, Root, first_place, furnish
from saggar.isolation.workspace_mount_host import (
    clone_layers,
    clone_tree,
    cover_repository,
    mount_workspace,
    own_inodes,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from saggar.isolation.child_ids_host import Ids
    from saggar.isolation.limits_host import Limits

#: Descriptors for bubblewrap start here, clear of the streams and of what it opens itself.
_FIRST_FD = 10
_HIGH_FD = 512
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
    (see `make_ids`), else None; uid, gid: its user inside; listeners: the plan; limits, disk_on_host: what its limits are opened with;
    terminal: whether it stays in the caller's session; place: where its root is built; scratch: bytes and inodes; wheel: where
    bubblewrap is copied from, "" for the system's."""

    __slots__ = ("disk_on_host", "gid", "ids", "limits", "listeners", "place", "scratch", "terminal", "uid", "wheel")

    def __init__(self, request: dict[str, Any]) -> None:
        """Raises OSError where there is no place to build."""
        self.ids: tuple[int, ...] | None = None if request["ids"] is None else tuple(request["ids"])
        self.uid, self.gid = request["user"]
        self.listeners: list[dict[str, Any]] = request["listeners"]
        self.limits: dict[str, Any] = request["limits"]
        self.disk_on_host: bool = request["disk_on_host"]
        self.terminal: bool = request["terminal"] >= 0
        self.place = first_place(request["workspace"])
        self.scratch: tuple[int, int] = tuple(request["scratch"])
        self.wheel: str = request["wheel"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Birth) and all(getattr(self, s) == getattr(other, s) for s in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # compared, never a key


def run(  # noqa: PLR0917  # one caller, the launcher
    channel: wire.Socket, launcher_pid: int, birth: Birth, ids: Ids | None, limits: Limits, furnishing: Furnishing
) -> NoReturn:
    """Be born under the limits, wait for the request (see `saggar.isolation.launcher_host`), become its cell. Never returns.

    Between birth and request the child is a spare: its namespaces are its own, nobody has used them, and it holds nothing of any run.
    """
    step = Step(channel)
    request: dict[str, Any] = {"id": ""}
    try:
        step.name = "limits"
        # by itself: moving another process into a group takes 10 ms and more, moving oneself 0.1 ms (`Limits.attach`)
        limits.attach(os.getpid())
        close_but(channel.fileno(), -1 if ids is None else ids.own)
        _be_born(birth, ids, launcher_pid, step)
        network = _fork_first_process(channel, birth, launcher_pid, step)
        step.name = "namespaces"
        own_mounts()
        step.name = "stage"
        shown = limits.view()
        furnish(birth.place, furnishing, (birth.uid, birth.gid), shown, console=birth.terminal)
        root = Root(birth.place, furnishing, birth.scratch)
        root.show_groups(shown)
        request, fds = _await(channel)
        _become(request, fds, _Built(root, birth, furnishing, lambda: _left_out(network)), step)
    except BaseException as error:  # noqa: BLE001  # whatever it was, this process must not run on as a second launcher
        tell_failure(step, request["id"], error)
    os._exit(125)


def born(channel: wire.Socket, launcher: int, birth: Birth, furnishing: Furnishing, network: wire.Socket) -> NoReturn:
    """The same in a first process that a template has forked into its namespaces. launcher: pidfd. network: brings the one that is missing,
    made meanwhile. Its limits come by message, when the launcher has made them. Never returns."""
    step = Step(channel)
    request: dict[str, Any] = {"id": ""}
    try:
        step.name = "namespaces"
        _die_with(launcher)
        os.setsid()
        step.name = "stage"
        root = Root(birth.place, furnishing, birth.scratch)
        step.name = "limits"
        message, joined = _await(channel)
        for fd in joined:
            # by itself, see `run`; the right to write is the opener's
            os.write(fd, b"0")
            os.close(fd)
        # its root is the group that the process is in
        if os.path.exists("/proc/self/ns/cgroup"):
            sys_.unshare(sys_.CLONE_NEWCGROUP)
        root.show_groups(message["groups"])
        request, fds = _await(channel)
        _become(request, fds, _Built(root, birth, furnishing, lambda: _enter(network, launcher, birth)), step)
    except BaseException as error:  # noqa: BLE001  # as above
        tell_failure(step, request["id"], error)
    os._exit(125)


class _Built:
    """What a spare has. left_out: gives the indexes of the listeners that this kernel has no address for."""

    __slots__ = ("birth", "furnishing", "left_out", "root")

    def __init__(self, root: Root, birth: Birth, furnishing: Furnishing, left_out: Callable[[], list[int]]) -> None:
        self.root = root
        self.birth = birth
        self.furnishing = furnishing
        self.left_out = left_out


def _await(channel: wire.Socket) -> tuple[dict[str, Any], list[int]]:
    message, fds = wire.receive(channel)
    if message is None:
        # the launcher is gone, or has no use for us
        os._exit(0)
    return message, fds


def _enter(network: wire.Socket, launcher: int, birth: Birth) -> list[int]:
    """The last two namespaces of a template's child, when everything else is done in the template's user namespace."""
    message, fds = wire.receive(network)
    if message is None:
        # the template has said what was wrong
        os._exit(125)
    network.close()
    sys_.setns(fds[0], sys_.CLONE_NEWNET)
    os.close(fds[0])
    if birth.ids is None:
        # the kernel counts tasks by it: no two cells share one
        sys_.unshare(sys_.CLONE_NEWUSER)
        map_user((birth.uid, birth.gid), birth.uid, birth.gid)
    # a change of credentials, as in `_be_born`
    _die_with(launcher)
    os.close(launcher)
    left_out: list[int] = message["left_out"]
    return left_out


def _left_out(network: int) -> list[int]:
    said = os.read(network, 256)
    if not said:
        # the other process has said what was wrong
        os._exit(125)
    os.close(network)
    return list(said[:-1])


def tell_failure(step: Step, id_: str, error: BaseException) -> None:
    report = {
        "event": "failed",
        "id": id_,
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


def _fork_first_process(channel: wire.Socket, birth: Birth, launcher_pid: int, step: Step) -> int:
    """Returns in the first process of the PID namespace, the launcher's own child where the keeper does not stay; with a pipe that
    says which listeners are there. The other makes the network meanwhile, and never returns: it raises what went wrong."""
    stays = birth.terminal
    parent = os.pidfd_open(os.getpid() if stays else launcher_pid)
    ready_r, ready_w = os.pipe()
    pid = os.fork() if stays else sys_.fork_sibling()
    if pid:
        os.write(ready_w, bytes(open_network(pid, channel, birth, step)) + b"\xff")
        if not stays:
            os._exit(0)
        _keep(pid)
    os.close(ready_w)
    _die_with(parent)
    os.close(parent)
    if not stays:
        os.setsid()
    return ready_r


def _die_with(parent: int) -> None:
    """It has no number here to ask for: whether it died before this is asked of its descriptor."""
    sys_.die_with_parent(0)
    dead = poll()
    dead.register(parent, POLLIN)
    if dead.poll(0):
        os._exit(0)


def open_network(pid: int, channel: wire.Socket, birth: Birth, step: Step) -> list[int]:
    """Every address, the listeners; they go to the launcher with the name of the first process (0 where that is known), which then may
    go on. Gives the indexes of those that this kernel has no address for."""
    step.name = "network"
    ipv6 = own_every_address()
    step.name = "listeners"
    sockets, left_out = open_listeners(birth.listeners, ipv6=ipv6)
    try:
        wire.send(channel, {"event": "born", "pid": pid}, sockets)
    finally:
        for fd in sockets:
            os.close(fd)
    return left_out


def _keep(pid: int) -> NoReturn:
    """Wait for the first process, holding nothing, stopped and continued with the cell's group."""
    try:
        for number in _RESET:
            _signal.signal(number, _signal.SIG_DFL)
        for number in (_signal.SIGINT, _signal.SIGQUIT):
            # Ctrl-C is the command's to answer
            _signal.signal(number, _signal.SIG_IGN)
        close_but()
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    finally:
        os._exit(125)


def close_but(*kept: int) -> None:
    """Everything of the launcher's but the streams and these. By the list, since closing a range number by number may take 10 ms."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                # the descriptor that listed them
                continue


def _be_born(birth: Birth, ids: Ids | None, launcher_pid: int, step: Step) -> None:
    """The cell's namespaces but for the mounts."""
    sys_.die_with_parent(launcher_pid)
    step.name = "session"
    if birth.terminal:
        os.setpgid(0, 0)
    step.name = "identity"
    flags = sys_.CLONE_NEWNET | sys_.CLONE_NEWPID | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS
    if os.path.exists("/proc/self/ns/cgroup"):
        flags |= sys_.CLONE_NEWCGROUP
    if ids is not None:
        become_stranger(ids, birth.uid, birth.gid)
    else:
        flags |= sys_.CLONE_NEWUSER
    step.name = "namespaces"
    host = os.getuid(), os.getgid()
    sys_.unshare(flags)
    if ids is None:
        map_user(host, birth.uid, birth.gid)
    # a change of credentials, and a new user namespace is one: the kernel has forgotten the wish
    sys_.die_with_parent(launcher_pid)


def own_mounts() -> None:
    """A copy of the host's mounts. The launcher drops spare and template when the host's mount table changes."""
    sys_.unshare(sys_.CLONE_NEWNS)
    # before anything is cloned: where the host's mounts are shared (systemd's default), a copy goes on receiving what is mounted there
    # later, without the attributes that the copy was given
    sys_.mount("none", "/", "none", sys_.MS_REC | sys_.MS_PRIVATE)
    # the one of the run is set before bubblewrap is executed
    os.umask(0o022)


def _become(request: dict[str, Any], fds: Sequence[int], built: _Built, step: Step) -> None:
    root = built.root
    step.name = "session"
    for number in range(3):
        os.dup2(fds[number], number)
    step.name = "stage"
    if any(place.startswith("/etc/") and not root.has(place) for _, place, _ in request["binds"]):
        root.own_etc(built.furnishing, (built.birth.uid, built.birth.gid))
    root.write_hosts(request["hosts"])
    for place, content in request["files"]:
        root.write(place, content)
    for place, content in request["home"]:
        # on the cell's own scratch: what is bound over HOME, a workspace say, comes after it and stays as it is
        root.write(f"{HOME}/{place}", content, 0o600)
    clones = [fds[i] for i in request["clones"]] if request["ids"] is not None else _clone(request)
    grants, shared = _grants(request, clones, root)
    step.name = "workspace"
    mounted = mount_workspace(request["workspace"], [fds[i] for i in request["workspace_fds"]], root.shop)
    mounted.shared = mounted.shared or shared
    for grant, (path, _) in zip(request["grants"], grants, strict=True):
        if grant["layered"]:
            cover_repository(request["workspace"], mounted, path, root.shop)
    step.name = "root"
    for number, place, writable in request["binds"]:
        source, directory = (mounted.root, True) if number < 0 else grants[number]
        root.put(source, place, writable=writable, directory=directory)
    for number, (place, content) in enumerate(request["covers"]):
        root.cover(place, content, number)
    if os.isatty(1):
        _name_terminal(root)
    root.leave_host()
    step.name = "listeners"
    _report(request, step.control, root.scratch_fd, mounted, built.left_out())
    step.name = "limits"
    # the launcher put us under the limits meanwhile, which may take an RCU grace period
    word, _ = wire.receive(step.control)
    if word is None:
        os._exit(0)
    step.name = "exec"
    seccomp = request["seccomp_shared"] if mounted.shared else request["seccomp"]
    _exec(request, fds[request["status_fd"]], seccomp, step)


def _name_terminal(root: Root) -> None:
    """As bubblewrap does it: a terminal has a name inside, where it has one here. A name and no more: without it the streams work."""
    try:
        root.console(os.ttyname(1))
    except OSError:
        return


def _grants(request: dict[str, Any], clones: Sequence[int], root: Root) -> tuple[list[tuple[str, bool]], bool]:
    """(path in the workshop, whether it is a directory) of each grant, and whether some directory shows the host's own inodes."""
    shared = False
    made = []
    for number, (fd, grant) in enumerate(zip(clones, request["grants"], strict=True)):
        path = root.grant(fd, number, directory=grant["directory"])
        if grant["directory"] and not grant["layered"]:
            shared = not own_inodes(path, root.shop) or shared
        made.append((path, grant["directory"]))
    return made, shared


def _report(request: dict[str, Any], control: wire.Socket, scratch: int, mounted: Any, left_out: list[int]) -> None:
    """The launcher adds the sockets."""
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
    wire.send(control, message, [scratch, *extra])


def _clone(request: dict[str, Any]) -> list[int]:
    """Detached clones of the host's directories that the cell will show, in the request's order."""
    fds = []
    for grant in request["grants"]:
        fd = sys_.open_tree(grant["path"])
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


def _exec(request: dict[str, Any], status_fd: int, seccomp: bytes, step: Step) -> None:
    sources = [(STATUS_FD, status_fd), (SECCOMP_FD, wire.memfd("saggar", seccomp))]
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
        words = wire.memfd("saggar", b"".join(os.fsencode(o) + b"\0" for o in options))
        # out of the way as well: where it has the very number, dup2 leaves it close-on-exec
        os.dup2(fcntl(words, F_DUPFD_CLOEXEC, _HIGH_FD), next_fd)
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
        # Ctrl-C would end bubblewrap while it builds; the command gets its defaults back from `env`
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        _signal.signal(_signal.SIGQUIT, _signal.SIG_IGN)
    for kind, soft, hard in request["rlimits"]:
        resource.setrlimit(kind, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if request["cpus"] is not None:
        pin(request["cpus"])
    os.umask(request["umask"])
    os.chdir("/")
    os.execve(request["bwrap"], argv, request["env"])  # noqa: S606  # a list, and the program was chosen outside
