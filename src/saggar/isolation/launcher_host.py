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
from resource import RLIMIT_NOFILE, getrlimit
from select import POLLHUP, POLLIN, POLLPRI, poll
from time import monotonic

from saggar.core.errors import SaggarError
from saggar.core.room_host import cell_limit
from saggar.isolation import child_host, syscalls_host
from saggar.isolation import wire_host as wire
from saggar.isolation.launched_cell_host import LaunchedCell, children, close_all, send_to
from saggar.isolation.seccomp import build_filter
from saggar.isolation.spare_host import Births

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from saggar.isolation.limits_host import Limits
    from saggar.isolation.spare_host import Spare

#: How often limits that the kernel does not hold are looked at.
_WATCH_S = 0.05
#: How long the end of all cells may take before the launcher gives up on waiting for it.
_END_S = 10.0


def _under(limits: Limits, request: dict[str, Any]) -> None:
    """What in the request depends on how the limits are held."""
    arch, uncounted, pinned = os.uname().machine, limits.uncounted, limits.pinned
    request["seccomp"] = build_filter(arch, uncounted=uncounted, pinned=pinned)
    # which of the two it is, is known when the directories are mounted
    request["seccomp_shared"] = build_filter(arch, uncounted=uncounted, pinned=pinned, shared=True)
    request["cpus"] = limits.cpus
    # a root caller's cells share a user namespace, where the kernel would count their tasks together
    alone = request["ids"] is None
    request["rlimits"] = [(kind, value, value) for kind, value in limits.rlimits(own_namespace=alone)]
    request["rlimits"].append((RLIMIT_NOFILE, *cell_limit(*getrlimit(RLIMIT_NOFILE))))
    if not alone:
        request["command"] = limits.wrap(request["command"])


class Launcher:
    """One loop over the control socket, the status pipes and the children."""

    __slots__ = (
        "_births",
        "_cells",
        "_control",
        "_lingering",
        "_orphans",
        "_parent",
        "_poll",
        "_stop",
        "_strays",
        "_wake_r",
        "_wake_w",
    )

    def __init__(self, control: wire.Socket, parent: int, *, keeps: bool) -> None:
        """keeps: whether cell after cell is expected."""
        self._control = control
        self._parent = parent
        self._cells: dict[str, LaunchedCell] = {}
        self._lingering: list[int] = []
        self._poll = poll()
        self._births = Births(keeps=keeps)
        # children that ended before they were named (`born`): pid, status; and whether a killed keeper may have left one behind
        self._strays: dict[int, int] = {}
        self._orphans = False
        self._stop = False
        self._poll.register(self._births.mounts, POLLPRI)
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
        wait = self._births.wait_s(now)
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
            elif fd == self._births.mounts:
                self._births.forget()
            else:
                self._ready(fd)
        if os.getppid() != self._parent:
            self._stop = True
        self._reap()
        self._watch()
        self._finish()
        if not self._stop:
            self._births.prepare()

    def _ready(self, fd: int) -> None:
        for cell in list(self._cells.values()):
            if fd == cell.status_fd:
                cell.read_status()
            elif cell.report is not None and fd == cell.report.fileno():
                self._hear(cell)
            elif fd == cell.init_fd:
                cell.first_process_ended()

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
            # the spare's own death may be waiting to be heard of
            self._reap()
            self._births.expect(message)
            return
        cell = self._cells.get(message["id"])
        if cell is None:
            # it has ended, and the sender has not heard of it
            close_all(fds)
            return
        if op == "kill":
            cell.kill(message["cause"], message.get("detail", {}))
        elif op == "signal":
            # the command may have spoken before this loop came to what was written of it
            self._hear(cell)
            cell.signal(message["signal"])
        elif op == "stop":
            cell.stop_group()
        elif op == "freeze":
            cell.freeze()
            self._send({"event": "frozen", "id": cell.id})
        elif op == "continue":
            cell.go_on(message, fds)
        for fd in fds:
            os.close(fd)

    # starting

    def _run(self, request: dict[str, Any], fds: list[int], *, once_more: bool = True) -> None:
        """once_more: whether it may be started again when its child is lost before anything of the command ran."""
        step = "identity"
        asked, given = dict(request), list(fds)
        spare = None
        try:
            self._births.ids_of(child_host.Birth(request).ids)
            step = "limits"
            # the spare's own death may be waiting to be heard of
            self._reap()
            spare = self._births.take(request, self._strays)
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
                self._births.spare = spare
            close_all(fds)
            return
        cell = self._adopt_spare(spare, request, fds, len(given))
        if once_more and not cell.kept:
            cell.again = asked, given
        else:
            close_all(given)
        if disk >= 0:
            limits = spare.limits
            (limits.watch_disk if request["workspace"]["mode"] == "copy-on-write" else limits.watch_growth)(disk)
        self._send({"event": "started", "id": cell.id, "pid": cell.pid})
        try:
            wire.send(spare.channel, {"op": "go"})
        except OSError:
            # it died before it was asked; why, it has said on the same socket
            return

    def _adopt_spare(self, spare: Spare, request: dict[str, Any], fds: list[int], given: int) -> LaunchedCell:
        """The request goes to the child, which is a cell from here on."""
        status_r, status_w = os.pipe()
        request["status_fd"] = len(fds)
        fds.append(status_w)
        os.set_blocking(status_r, False)
        timeout = request["timeout_s"]
        deadline = monotonic() + timeout if timeout is not None else float("inf")
        cell = LaunchedCell(request["id"], spare.pid, status_r, spare.limits, deadline, self._poll)
        cell.seccomp = request["seccomp"]
        cell.seccomp_shared = request["seccomp_shared"]
        cell.report = spare.channel
        cell.linger = request["linger"]
        cell.kept = spare.birth.terminal
        cell.birth = spare.birth
        cell.spare_next = request["spare"]
        self._cells[cell.id] = cell
        self._poll.register(status_r, POLLIN | POLLHUP)
        self._poll.register(spare.channel.fileno(), POLLIN | POLLHUP)
        if spare.init:
            cell.sockets = spare.sockets
            cell.adopt(spare.init, self._strays)
        try:
            wire.send(spare.channel, request, fds)
        except OSError:
            # see above
            pass
        # the first of them are kept or closed by who asked
        close_all(fds[given:])
        return cell

    @staticmethod
    def _disk_fd(request: dict[str, Any], fds: list[int]) -> int:
        """What is to be watched of the host's disk: the layer, or the workspace that is written to itself."""
        if not request["disk_on_host"]:
            return -1
        which = 1 if request["workspace"]["mode"] == "copy-on-write" else 0
        return fcntl(fds[request["workspace_fds"][which]], F_DUPFD_CLOEXEC, 3)

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
                self._hear(waiting)
            cell = next((c for c in self._cells.values() if c.pid == pid), None)
            if cell is None:
                # the one that made a cell's namespaces, and is not needed any more, or nobody's yet
                if not made and not self._births.reap(pid, status) and self._unborn():
                    self._strays[pid] = status
                continue
            if os.WIFSTOPPED(status):
                if cell.frozen is None:
                    self._send({"event": "stopped", "id": cell.id, "signal": os.WSTOPSIG(status)})
            else:
                cell.status = status

    def _unborn(self) -> bool:
        """Whether some first process has not been named yet."""
        return self._births.unnamed() or any(not c.init and c.status is None for c in self._cells.values())

    def _watch(self) -> None:
        now = monotonic()
        for cell in list(self._cells.values()):
            if now >= cell.deadline:
                cell.kill("timeout", {})
            if not cell.cause and now >= cell.watched_next:
                # not at every turn: a short run has eight, and each look reads the groups' files
                cell.watched_next = now + _WATCH_S
                breach = cell.limits.poll(now)
                if breach is not None:
                    cell.kill(breach.limit, breach.to_json())

    def _kill_orphans(self) -> None:
        """A keeper that was killed before it named its first process may have left it to us, not yet under its parent's death signal."""
        spare = self._births.spare
        if spare is not None and not spare.init:
            spare.hear()
        if self._unborn():
            # one that is about to be named must not be taken for an orphan, which ends by itself meanwhile: it waits for its maker's word
            return
        self._orphans = self._births.orphans = False
        known = {c.pid for c in self._cells.values()} | {c.init for c in self._cells.values()} | self._births.known()
        for pid in children(os.getpid()):
            # in our PID namespace it is a maker that has named its child and ends by itself: the child waits for its next word
            if pid not in known and not _in_our_pids(pid):
                # ours, so the number is its own until we wait for it; there is nothing in it yet that could delay its end
                os.kill(pid, _signal.SIGKILL)
                os.waitpid(pid, 0)

    def _finish(self) -> None:
        ended = [c for c in self._cells.values() if c.status is not None]
        for cell in ended:
            self._hear(cell)
        if any(not c.init for c in ended):
            self._orphans = True
        if self._orphans or self._births.orphans:
            self._kill_orphans()
        if self._strays and not self._unborn():
            # a number may be another's one day
            self._strays.clear()
        for cell in ended:
            if cell.status_fd >= 0:
                cell.read_status()
            if cell.init_fd >= 0 and cell.kept:
                # the keeper is gone, pid 1 may be on its way: wait for the pidfd
                send_to(cell.init_fd, _signal.SIGKILL)
                continue
            del self._cells[cell.id]
            cell.stop_watching()
            if cell.again is not None and not cell.cause:
                # it was lost without a word, a spare that was ended at the moment it was claimed: not the command's end, nor the host's
                asked, given = cell.again
                cell.again = None
                cell.close()
                # nothing that was made ahead may lose it the second time
                self._births.forget()
                self._run(asked, given, once_more=False)
                continue
            if not cell.cause:
                cell.judge()
            self._send(cell.to_json())
            cell.close()
            self._births.follow(cell.birth, spare=cell.spare_next)

    def _end_all(self) -> None:
        until = monotonic() + _END_S
        for cell in list(self._cells.values()):
            cell.kill("supervisor_died", {})
        try:
            self._poll.unregister(self._control.fileno())
        except (KeyError, OSError):
            pass
        self._control.close()
        self._births.forget()
        while self._cells and monotonic() < until:
            for fd, _ in self._poll.poll(50):
                if fd == self._wake_r:
                    self._drain()
                else:
                    self._ready(fd)
            self._reap()
            self._finish()

    def _hear(self, cell: LaunchedCell) -> None:
        cell.read_report(self._strays, self._lingering, self._send)

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        try:
            wire.send(self._control, message, fds or [])
        except OSError:
            self._stop = True


def _in_our_pids(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False  # it has ended


def _nothing(_number: int, _frame: object) -> None:
    """A handler, so that the signal wakes `poll` through the wake-up pipe."""


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
        Launcher(theirs, parent, keeps=False).serve()
        code = 0
    finally:
        os._exit(code)


def main(argv: list[str]) -> NoReturn:
    fd, _, parent = argv[1:4]
    os.setpgid(0, 0)
    Launcher(wire.adopt(int(fd)), int(parent), keeps=True).serve()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
