"""One cell as its launcher knows it: what is heard of it until its end, and the signals to it.

I1  What ends a cell or signals its command goes to a process that is known to be the cell's: by a pidfd whose parent was read after
    it was opened, or to our own child that nobody has waited for. A bare number may be a stranger's by now.
I2  Nothing that a command inside can write to is believed: the report ends when bubblewrap is executed, the status pipe is bubblewrap's.
"""

from __future__ import annotations

import _signal
import os
from fcntl import F_DUPFD_CLOEXEC, fcntl
from select import POLLIN

from saggar.isolation import wire_host as wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from select import poll
    from typing import Any

    from saggar.isolation.child_host import Birth
    from saggar.isolation.limits_host import Limits

    Send = Callable[[dict[str, Any], list[int]], None]

_DONTWAIT = 0x40  # MSG_DONTWAIT


class LaunchedCell:
    """A child that has got its request, until its last process is gone. polled: the loop's, which waits for its descriptors.

    pid: the launcher's own child; init: the cell's pid 1, 0 until it is named; kept: the child stays as pid 1's keeper (a terminal).
    """

    __slots__ = (
        "_polled",
        "again",
        "birth",
        "cause",
        "code",
        "deadline",
        "detail",
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

    def __init__(  # noqa: PLR0917  # one caller, the launcher
        self, id_: str, pid: int, status_fd: int, limits: Limits, deadline: float, polled: poll
    ) -> None:
        self._polled = polled
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
        self.birth: Birth
        #: what it takes to start it once more, until it is past the last moment at which nothing of the command can have run
        self.again: tuple[dict[str, Any], list[int]] | None = None
        self.spare_next = False
        self.init = 0
        self.init_fd = -1
        self.kept = False
        self.made = False
        self.code: int | None = None
        self.status: int | None = None
        self.cause = ""
        self.detail: dict[str, Any] = {}

    # what is heard of it

    def read_status(self) -> None:
        """bubblewrap writes one JSON object a line: `child-pid` when it has made its child, `exit-code` if the command was executed."""
        while True:
            try:
                data = os.read(self.status_fd, 4096)
            except BlockingIOError:
                break
            if not data:
                self._polled.unregister(self.status_fd)
                os.close(self.status_fd)
                self.status_fd = -1
                break
            self.status_buffer += data
        self.made = self.made or _number(self.status_buffer, b'"child-pid":') is not None
        if self.code is None:
            self.code = _number(self.status_buffer, b'"exit-code":')

    def read_report(self, strays: dict[int, int], lingering: list[int], send: Send) -> None:
        """What the child says until it executes bubblewrap; goes on to the supervisor. End of file: it has."""
        while self.report is not None:
            try:
                message, fds = wire.receive(self.report, _DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                message, fds = None, []
            if message is None:
                self._polled.unregister(self.report.fileno())
                self.report.close()
                self.report = None
                return
            if message["event"] == "born":
                self.sockets = fds
                # 0: a template's, whose number is known
                if message["pid"]:
                    self.adopt(message["pid"], strays)
                continue
            # from here on it may execute bubblewrap, or has said what is wrong
            self.no_more()
            # a child that failed to be born did not know whose it is
            message["id"] = self.id
            if message["event"] == "listening":
                fds += self.sockets
                self.sockets = []
                self.scratch = fcntl(fds[0], F_DUPFD_CLOEXEC, 3)
                self.limits.add_tmpfs(self.scratch)
                if message["shared"]:
                    self.seccomp = self.seccomp_shared
                if self.linger and len(fds) > 1:
                    # closing the last descriptor of a packet socket waits for an RCU grace period (8 to 15 ms measured): the
                    # foreground run leaves that to us, who are not waited for
                    lingering.append(fds.pop())
                    fds.append(fcntl(lingering[-1], F_DUPFD_CLOEXEC, 3))
            send(message, fds)
            for fd in fds:
                os.close(fd)

    def no_more(self) -> None:
        """Let go of `again`."""
        if self.again is not None:
            close_all(self.again[1])
            self.again = None

    def adopt(self, init: int, strays: dict[int, int]) -> None:
        """Take `init` for its pid 1. strays: status of our children that ended before they were named."""
        self.init = init
        if not self.kept:
            self.pid = init
            self.limits.follow(init)
            self.status = strays.pop(init, None)
            if self.status is not None:
                return
        try:
            fd = os.pidfd_open(init)
        except OSError:
            return
        # the number may have passed to a stranger before we opened it: pid 1 of the cell is its keeper's child, or ours
        if parent_of(init) not in (self.pid, os.getpid()):
            os.close(fd)
            return
        self.init_fd = fd
        self._polled.register(fd, POLLIN)
        if self.cause:
            self.kill(self.cause, self.detail)

    def first_process_ended(self) -> None:
        """Its descriptor is readable: pid 1 is dead, and the kernel has ended everything beneath it."""
        self._polled.unregister(self.init_fd)
        os.close(self.init_fd)
        self.init_fd = -1

    # signals

    def kill(self, cause: str, detail: dict[str, Any]) -> None:
        if not self.cause:
            self.cause = cause
            self.detail = detail
        self.deadline = float("inf")
        if self.init_fd >= 0:
            send_to(self.init_fd, _signal.SIGKILL)
        elif self.status is None:
            # our own child, not yet waited for: the number is still its
            os.kill(self.pid, _signal.SIGKILL)

    def signal(self, number: int) -> None:
        """To the command itself: pid 1 takes no signal, and its keeper would end the cell."""
        if self.status_fd >= 0 and not self.made:
            self.read_status()
        if self.init_fd < 0 or not self.made:
            self.kill("signal", {"signal": number})
            return
        for pid in children(self.init):
            try:
                fd = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                if parent_of(pid) == self.init:
                    send_to(fd, number)
            finally:
                os.close(fd)
            return

    def stop_group(self) -> None:
        if self.status is None:
            try:
                os.killpg(self.pid, _signal.SIGSTOP)
            except OSError:
                pass

    def go_on(self, message: dict[str, Any], fds: list[int]) -> None:
        if self.status is not None:
            return
        if message["foreground"] and fds:
            try:
                os.tcsetpgrp(fds[0], self.pid)
            except OSError:
                pass
        if self.frozen is not None:
            from saggar.isolation.freeze_host import thaw

            thaw(self.frozen)
            self.frozen = None
            return
        try:
            os.killpg(self.pid, _signal.SIGCONT)
        except OSError:
            pass

    def freeze(self) -> None:
        """For a question at the terminal: nothing of the cell may write there, or read the answer, while it stands."""
        from saggar.isolation.freeze_host import freeze

        if self.status is None and self.frozen is None:
            self.frozen = []  # before the first signal: our own child's stop is not one to report
            freeze(self.pid, self.frozen)

    # ends

    def stop_watching(self) -> None:
        """Nothing of it runs any more: what the loop waits for is closed, the limits are still to be asked."""
        if self.init_fd >= 0:
            self._polled.unregister(self.init_fd)
            os.close(self.init_fd)
        if self.report is not None:
            # a process of the cell that never came to exec still holds the other end
            self._polled.unregister(self.report.fileno())
            self.report.close()
        if self.status_fd >= 0:
            self._polled.unregister(self.status_fd)
            os.close(self.status_fd)

    def judge(self) -> None:
        """Whether a limit that the kernel holds ended the command, though nobody here did."""
        code = self.code or 0
        # no code and a cell that was made: pid 1 itself was ended, by the kernel's own hand perhaps
        if code == 0 and (self.code is not None or not self.made):
            return
        breach = self.limits.cause_of_death(code - 128 if code > 128 else 0)
        if breach is not None:
            self.cause, self.detail = breach.limit, breach.to_json()
            return
        suspected = self.limits.suspicion()
        if suspected is not None:
            # the end stays the command's own
            self.detail = {"suspected": suspected.to_json()}

    def to_json(self) -> dict[str, Any]:
        """The `ended` message."""
        enforcement = {"limits": self.limits.report(), "seccomp": digest(self.seccomp)}
        return {
            "enforcement": enforcement,
            "event": "ended",
            "id": self.id,
            "code": self.code,
            "status": self.status,
            "cause": self.cause,
            "detail": self.detail,
            "made": self.made,
        }

    def close(self) -> None:
        """Once its end has been told: nobody is in the groups any more, and removing them (0.6 ms) keeps no result waiting."""
        self.limits.close()
        self.no_more()
        close_all(self.sockets)
        if self.scratch >= 0:
            os.close(self.scratch)


_digests: dict[bytes, str] = {}


def digest(program: bytes) -> str:
    """The filter's name in results: the first 16 hexadecimal digits of its SHA-256."""
    if program not in _digests:
        from saggar.audit.record import digest as full

        _digests[program] = full(program)[:16]
    return _digests[program]


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def send_to(pidfd: int, number: int) -> None:
    try:
        _signal.pidfd_send_signal(pidfd, number)
    except OSError:
        pass


def parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the command's name stands in brackets and may hold anything: count from the last bracket
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(p) for p in file.read().split()]
    except (OSError, ValueError):
        return []


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
