"""The terminal as a channel: the card, a question, one line of answer.

I1  The answer is read from the controlling terminal, never from standard input: what is piped into the program is not
    its user.
I2  An empty line, end of file or time-out is no answer; only a word from the list is.
"""

from __future__ import annotations

import os
import select
import termios
from collections.abc import Callable
from time import monotonic

from saggar.approval.show import card
from saggar.core.approval import Answer, Question, Scope

PROMPT = "approve? [y]es once, [n]o, 2-99 times{template}, [task], [later]: "


class Terminal:
    """Asks at `path` (the controlling terminal)."""

    def __init__(self, path: str = "/dev/tty", *, reviewer: str = "") -> None:
        self._path = path
        self._reviewer = reviewer or f"uid {os.getuid()} at the terminal"

    def ask(self, question: Question, timeout_s: float) -> Answer | None:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if not os.isatty(fd):
                return None
            return self._talk(fd, question, timeout_s)
        except OSError:
            return None
        finally:
            os.close(fd)

    def _talk(self, fd: int, question: Question, timeout_s: float) -> Answer | None:
        # what was typed before the card was shown is no answer to it
        termios.tcflush(fd, termios.TCIFLUSH)
        template = ", [t]emplate" if question.template_axis else ""
        prompt = PROMPT.format(template=template)
        os.write(fd, f"\n{card(question)}\n".encode())
        deadline = monotonic() + timeout_s
        while True:
            os.write(fd, prompt.encode())
            line = read_line(fd, deadline, monotonic)
            if line is None:
                os.write(fd, b"\nno answer; the call is parked\n")
                return None
            answer = parse_reply(line, question, self._reviewer)
            if answer is not None or line.strip() == "later":
                return answer


def read_line(fd: int, deadline: float, clock: Callable[[], float]) -> str | None:
    """One line, or None at the deadline or end of file."""
    data = b""
    readable = select.poll()  # `select` itself takes no descriptor above 1023
    readable.register(fd, select.POLLIN)
    while b"\n" not in data and b"\r" not in data:
        left = deadline - clock()
        if left <= 0 or not readable.poll(left * 1000):
            return None
        piece = os.read(fd, 256)
        if not piece or len(data) > 4096:
            return None
        data += piece
    return data.decode("utf-8", "replace").strip()


def parse_reply(line: str, question: Question, reviewer: str) -> Answer | None:
    """The answer that a line gives, or None where it gives none."""
    word = line.strip().lower()
    scope: Scope = "once"
    uses = 1
    if word in ("n", "no"):
        return Answer("denied", question.args_hash, reviewer=reviewer, reviewer_class="human")
    if word.isascii() and word.isdigit() and 2 <= int(word[:3]) <= 99 and len(word) <= 2:
        scope, uses = "times", int(word)
    elif word in ("t", "template") and question.template_axis:
        scope = "template"
    elif word == "task":
        scope = "task"
    elif word not in ("y", "yes"):
        return None
    life = 3600.0 if scope != "once" else 60.0
    return Answer("approved", question.args_hash, scope, uses, reviewer, "human", life)
