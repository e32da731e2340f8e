"""The caller's terminal: who is in its foreground, and which signals go where.

The cell is a process group of its own: in the caller's, `kill(0, SIGKILL)` inside would end the caller's script. So the supervisor
does what a shell does for a job: it gives the cell the foreground, stops itself when the cell was stopped, continues the cell when
it is continued, and takes the terminal back at the end. A cell without any terminal among its streams has no terminal at all
(a session of its own), and signals of the terminal are passed on by the supervisor.
"""

from __future__ import annotations

import _signal
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from saggar.runtime.supervisor_host import Cell, Supervisor

_FORWARDED = (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)


class Terminal:
    """fd: the first of the three streams that is a terminal, or -1. interactive: both stdin and stdout are, and this process group
    is in the foreground."""

    __slots__ = ("_cell", "_pending", "_supervisor", "_wake_r", "_wake_w", "fd", "interactive", "on_interrupt")

    def __init__(self) -> None:
        self.fd = next((fd for fd in range(3) if _is_terminal(fd)), -1)
        self.interactive = _is_terminal(0) and _is_terminal(1) and self._in_foreground()
        self._supervisor: Supervisor | None = None
        self._cell: Cell | None = None
        self._pending: list[int] = []
        #: called before a signal of the terminal is passed on
        self.on_interrupt: Callable[[], None] | None = None
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return False

    def take_over(self, supervisor: Supervisor, cell: Cell) -> None:
        """From here on signals are the cell's."""
        from select import POLLIN

        self._supervisor = supervisor
        self._cell = cell
        cell.on_stopped = self._stopped
        _signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        supervisor.loop.add(self._wake_r, POLLIN, self._woken)
        for number in _FORWARDED:
            _signal.signal(number, self._note)
        # writing to the terminal, or taking it back, from the background would stop us
        _signal.signal(_signal.SIGTTOU, _signal.SIG_IGN)
        if self.fd >= 0:
            _signal.signal(_signal.SIGTSTP, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self._pending.append(number)

    def _woken(self, _events: int) -> None:
        try:
            os.read(self._wake_r, 512)
        except BlockingIOError:
            pass
        supervisor, cell = self._supervisor, self._cell
        if supervisor is None or cell is None:
            return
        while self._pending:
            number = self._pending.pop(0)
            if number == _signal.SIGTSTP:
                supervisor.stop(cell)
                self._stop_here(_signal.SIGTSTP)
            else:
                if number in (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGHUP, _signal.SIGTERM) and self.on_interrupt:
                    self.on_interrupt()
                supervisor.signal(cell, number)

    def _stopped(self, number: int) -> None:
        """The cell's group was stopped: by Ctrl-Z, or because it touched the terminal from the background."""
        supervisor, cell = self._supervisor, self._cell
        if supervisor is None or cell is None:
            return
        if number in (_signal.SIGTTIN, _signal.SIGTTOU) and self._in_foreground():
            supervisor.resume(cell, self.fd)
            return
        self._take_terminal()
        self._stop_here(number)

    def _stop_here(self, number: int) -> None:
        supervisor, cell = self._supervisor, self._cell
        if supervisor is None or cell is None:
            return
        stop = _signal.SIGTSTP if number == _signal.SIGTSTP else _signal.SIGSTOP
        old = _signal.signal(_signal.SIGTSTP, _signal.SIG_DFL)
        # the whole job, as the terminal would have done: a shell watches the group
        os.killpg(0, stop)
        # ... and here we are again
        _signal.signal(_signal.SIGTSTP, old)
        supervisor.resume(cell, self.fd if self.fd >= 0 and self._in_foreground() else -1)

    def _take_terminal(self) -> None:
        if self.fd < 0:
            return
        try:
            if os.tcgetpgrp(self.fd) != os.getpgrp():
                os.tcsetpgrp(self.fd, os.getpgrp())
        except OSError:
            return

    def give_back(self) -> None:
        """The cell is gone: its group may have been the foreground."""
        if self._cell is None:
            return
        try:
            foreground = os.tcgetpgrp(self.fd) if self.fd >= 0 else -1
        except OSError:
            foreground = -1
        if foreground >= 0 and not _alive(foreground):
            self._take_terminal()
        _signal.set_wakeup_fd(-1)


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
