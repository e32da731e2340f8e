"""Requests that wait for a person, asked about at the terminal of `saggar run`, one at a time.

The terminal is the cell's too, and what is asked about is the cell's request: so that no word of the sandbox stands beside the question,
and none of its keys counts as the answer,

I1  every process of the cell stands still from before the question is written until after it is answered;
I2  what the sandbox left in the terminal (an unfinished escape sequence, a scroll region, colours) is undone first, and what was
    typed, or answered by the terminal itself, before the question stood for `_FENCE_S` is thrown away;
I3  only a word from the list is an answer. An empty line is none; end of file leaves the request to `saggar egress approve`; an
    interrupt denies what waits, and goes on to the command as it would have without a question.

Imported with the first question (or, for `open_terminal`, where a host is terminated): termios costs what it costs there.
"""

from __future__ import annotations

import os
import termios
from select import POLLHUP, POLLIN
from time import sleep

from saggar.core.errors import SaggarError
from saggar.runtime.held import Ask, Verdict, shown
from saggar.runtime.held_host import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from saggar.runtime.supervisor_host import Cell, Supervisor
    from saggar.runtime.terminal_host import Terminal

#: long enough for a terminal to answer what the sandbox asked of it, and for a hand that was typing to stop
_FENCE_S = 0.4
#: CAN and ST end any sequence that was begun; DECSTR, SGR 0 and SI undo regions, colours and character sets
_RESET = b"\x18\x1b\\\x1b[!p\x1b[0m\x0f\r"
_LONGEST_LINE = 64

_WORDS = {
    "o": Verdict.once(), "once": Verdict.once(), "t": Verdict.task(), "task": Verdict.task(),
    "p": Verdict.task(pattern=True), "pattern": Verdict.task(pattern=True),
    "d": Verdict.policy(), "diff": Verdict.policy(), "n": Verdict.deny(), "no": Verdict.deny(),
}  # fmt: skip


def open_terminal() -> int:
    """The controlling terminal, where this process group is its foreground; else -1."""
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        if os.tcgetpgrp(fd) == os.getpgrp():
            return fd
    except OSError:
        pass
    os.close(fd)
    return -1


class Prompt:
    """The questions of one run. fd: its terminal, which is closed with it."""

    __slots__ = (
        "_asked",
        "_cell",
        "_fd",
        "_foreground",
        "_frozen",
        "_line",
        "_mode",
        "_orders",
        "_queue",
        "_supervisor",
        "_terminal",
    )

    def __init__(self, fd: int, terminal: Terminal, supervisor: Supervisor) -> None:
        self._fd = fd
        self._terminal = terminal
        self._supervisor = supervisor
        self._cell: Cell | None = None
        self._queue: list[str] = []
        self._asked: Ask | None = None
        #: from the order to stand still until the order to go on
        self._frozen = False
        #: orders to stand still that were not yet followed
        self._orders = 0
        #: the group that had the terminal before the question, and its mode
        self._foreground = -1
        self._mode: list[Any] | None = None
        self._line = b""

    def serve(self, cell: Cell) -> None:
        self._cell = cell
        cell.on_held = self._held
        cell.on_unheld = self._unheld
        cell.on_frozen = self._still
        self._terminal.on_interrupt = self._interrupted

    # what waits

    def _held(self, message: dict[str, Any]) -> None:
        self._queue.append(str(message["id"]))
        if self._cell is not None and not self._frozen:
            self._frozen = True
            self._orders += 1
            self._supervisor.freeze(self._cell)

    def _unheld(self, number: str) -> None:
        """Answered elsewhere, timed out, or its client is gone."""
        if number in self._queue:
            self._queue.remove(number)
        if self._asked is not None and self._asked.id == number:
            self._asked = None
            self._say("\nthe request no longer waits\n")
            self._next()

    def _still(self) -> None:
        """The cell stands still: the terminal is ours."""
        self._orders -= 1
        if self._orders or not self._frozen:
            return  # of a question that an interrupt has answered since
        if not self._take():
            self._say("\nsaggar: a request waits for your word: `saggar egress held` shows it\n")
            self._queue.clear()
            self._go_on()
            return
        self._next()

    def _next(self) -> None:
        cell = self._cell
        while cell is not None and self._queue:
            try:
                self._asked = ask(cell, self._queue.pop(0))
            except SaggarError:
                continue
            self._show(self._asked)
            return
        self._go_on()

    # the terminal

    def _take(self) -> bool:
        """The foreground and a plain mode. False where this run is not the terminal's foreground job."""
        try:
            foreground = os.tcgetpgrp(self._fd)
            cell = self._cell
            if cell is None or foreground not in (os.getpgrp(), cell.pid):
                return False
            self._foreground = foreground
            os.tcsetpgrp(self._fd, os.getpgrp())
            self._mode = termios.tcgetattr(self._fd)
            plain = termios.tcgetattr(self._fd)
            plain[0] |= termios.ICRNL
            plain[1] |= termios.OPOST | termios.ONLCR
            plain[3] |= termios.ICANON | termios.ECHO | termios.ECHOE | termios.ISIG
            # the cell stands still already, and the question would be cut in two
            plain[6][termios.VSUSP] = b"\0"
            plain[6][termios.VINTR], plain[6][termios.VEOF] = b"\x03", b"\x04"
            termios.tcsetattr(self._fd, termios.TCSADRAIN, plain)
        except (OSError, termios.error):
            return False
        self._supervisor.loop.add(self._fd, POLLIN | POLLHUP, self._readable)
        return True

    def _go_on(self) -> None:
        """Give the terminal back as it was, and let the cell run."""
        self._asked = None
        self._give_back()
        if self._frozen and self._cell is not None and self._cell.result is None:
            mine = self._foreground in (-1, os.getpgrp())
            self._supervisor.resume(self._cell, -1 if mine else self._fd)
        self._frozen = False
        self._foreground = -1

    def _give_back(self) -> None:
        self._supervisor.loop.remove(self._fd)
        if self._mode is not None:
            try:
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._mode)
            except (OSError, termios.error):
                pass  # the terminal is gone
            self._mode = None

    def _show(self, question: Ask) -> None:
        if os.environ.get("TERM", "dumb") != "dumb":
            os.write(self._fd, _RESET)
        more = f", {len(self._queue)} more after it" if self._queue else ""
        self._say("\n" + card(question, more) + "\n")
        self._line = b""
        sleep(_FENCE_S)
        try:
            termios.tcflush(self._fd, termios.TCIFLUSH)
        except (OSError, termios.error):
            pass
        self._prompt(question)

    def _prompt(self, question: Ask) -> None:
        pattern = f", [p]attern for all of {' '.join(map(shown, question.patterns))}" if question.patterns else ""
        self._say(f"approve? [o]nce, for the [t]ask{pattern}, the task and a policy [d]iff, [n]o, [later]: ")

    def _say(self, text: str) -> None:
        try:
            os.write(self._fd, text.encode("utf-8", "backslashreplace"))
        except OSError:
            pass  # the terminal is gone: nobody reads it

    # the answer

    def _readable(self, _events: int) -> None:
        try:
            data = os.read(self._fd, 256)
        except OSError:
            data = b""
        if not data:
            self._say("\nno answer: `saggar egress held` shows what waits\n")
            self._queue.clear()
            self._go_on()
            return
        self._line += data
        if b"\n" not in self._line:
            return
        word, _, _ = self._line.partition(b"\n")
        self._line = b""
        if self._asked is not None:
            self._heard(self._asked, word[:_LONGEST_LINE].decode("utf-8", "replace").strip().lower())

    def _heard(self, question: Ask, word: str) -> None:
        if word == "later":
            self._say(f"it waits: `saggar egress approve {question.id}` or `deny`\n")
            self._asked = None
            self._next()
            return
        verdict = _WORDS.get(word)
        if verdict is None or not self._settle(question, verdict):
            self._prompt(question)
            return
        self._next()

    def _settle(self, question: Ask, verdict: Verdict) -> bool:
        """Whether the verdict stands; else the question is put again."""
        cell = self._cell
        if cell is None:
            return True
        self._asked = None  # the broker's `unheld` that follows is no news
        try:
            made = self._supervisor.settle(cell, question.id, verdict, by="the terminal", uid=os.getuid())
        except (SaggarError, OSError) as error:
            self._asked = question
            self._say(f"saggar: {error}\n")
            return question.id not in cell.held
        if made["approval"]:
            self._say(
                f"for the rest of the task: {made['approval']} (`saggar revoke {made['approval']}` takes it back)\n"
            )
        if verdict.scope == "policy":
            self._say(f"for the policy file:\n{made['diff']}")
        return True

    def _interrupted(self) -> None:
        """Ctrl-C at a question: a no to all that wait; the signal itself goes on to the command."""
        if not self._frozen or self._cell is None:
            return
        waiting = [*([self._asked.id] if self._asked is not None else []), *self._queue]
        self._asked = None
        self._queue.clear()
        for number in waiting:
            try:
                self._supervisor.settle(self._cell, number, Verdict.deny(), by="an interrupt", uid=os.getuid())
            except (SaggarError, OSError):
                continue  # it waits no more, or for as long as nobody can record an answer
        if waiting:
            self._say("\ndenied\n")
        self._go_on()

    def close(self) -> None:
        """The run is over."""
        self._terminal.on_interrupt = None
        if self._fd >= 0:
            self._give_back()
            os.close(self._fd)
            self._fd = -1


def card(question: Ask, more: str = "") -> str:
    """The question, in whole lines. What the sandbox chose stands escaped, bounded and marked."""
    rows = [("method", question.method), ("host", f"{question.host}:{question.port}"), ("path", question.path)]
    if question.query:
        rows.append(("query", question.query))
    lines = [f"saggar: a request waits for your word{more}. What follows was chosen by the sandbox:"]
    lines += [f"  | {name:<7}{shown(text)}" for name, text in rows]
    lines.append(f"the rule that asks: {shown(question.rule)}")
    return "\n".join(lines)
