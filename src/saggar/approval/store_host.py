"""The book's events in a file, one JSON object a line, shared by the session and `saggar approvals`.

I1  An event is in the file before it counts; a file that cannot be written gives `OSError`, and the caller takes that
    as a time-out.
I2  Writers exclude each other with `flock` and read what others wrote before they decide: a use is never spent twice.
I3  Mode 0600, no link followed. It holds the arguments of calls, which are the user's own.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_UN, flock
from time import time as wall_time

from saggar.approval.book import Book, Entry, Event, Standing, event_from_json
from saggar.audit import canonical
from saggar.core.approval import Answer, Question
from saggar.core.errors import ParseError, UsageError

FILE = "approvals.jsonl"
MAX_BYTES = 64 * 1024 * 1024


class Store:
    """A book with a file behind it. Safe among threads and processes."""

    def __init__(self, path: str, *, wall: Callable[[], float] = wall_time) -> None:
        """Raises `OSError`."""
        self.path = path
        self._wall = wall
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._mutex = threading.Lock()
        self._at = 0
        self._book = Book()

    def close(self) -> None:
        os.close(self._fd)

    def ask(self, question: Question) -> None:
        with self._locked():
            self._write(Event("asked", self._wall(), question.id, question=question))

    def park(self, ident: str) -> Answer | None:
        """The question waits no longer. The answer where one came in the same moment."""
        with self._locked():
            entry = self._book.entries.get(ident)
            if entry is not None and entry.answer is not None:
                return entry.answer
            self._write(Event("parked", self._wall(), ident))
            return None

    def park_all(self) -> None:
        """For the session that takes a book up again: whoever asked before is gone, so nobody waits."""
        with self._locked():
            for entry in [e for e in self._book.waiting() if e.state == "waiting"]:
                self._write(Event("parked", self._wall(), entry.question.id))

    def answer(self, ident: str, answer: Answer) -> Question:
        """Record an answer. Raises `UsageError` where it does not count."""
        with self._locked():
            question = self._book.check_answer(ident, answer)
            self._write(Event("answered", self._wall(), ident, answer=answer))
            return question

    def spend(self, question: Question) -> Standing | None:
        """Take one use of an approval that covers the question, if there is one."""
        with self._locked():
            standing = self._book.find(question, self._wall())
            if standing is not None:
                self._write(Event("spent", self._wall(), standing.question))
            return standing

    def entry(self, ident: str) -> Entry | None:
        with self._locked():
            return self._book.entries.get(ident)

    def entries(self) -> list[Entry]:
        with self._locked():
            return list(self._book.entries.values())

    def waiting(self) -> list[Entry]:
        with self._locked():
            return list(self._book.waiting())

    def batch(self, ident: str) -> list[Entry]:
        with self._locked():
            return self._book.batch(ident)

    def resolve(self, prefix: str) -> str:
        """The one question whose id starts with `prefix`. Raises `UsageError`."""
        found = [e.question.id for e in self.entries() if e.question.id.startswith(prefix)] if prefix else []
        if prefix in found:
            return prefix
        if len(found) != 1:
            what = "no question has" if not found else f"{len(found)} questions have"
            raise UsageError(f"{what} an id that starts with `{prefix}`", hint="saggar approvals list")
        return found[0]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._mutex:
            flock(self._fd, LOCK_EX)
            try:
                self._catch_up()
                yield
            finally:
                flock(self._fd, LOCK_UN)

    def _catch_up(self) -> None:
        size = os.fstat(self._fd).st_size
        if size > MAX_BYTES:
            raise OSError(27, "the book of approvals is too large", self.path)
        if size <= self._at:
            return
        data = os.pread(self._fd, size - self._at, self._at)
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines():
            try:
                self._book.apply(event_from_json(json.loads(line)))
            except (ValueError, ParseError) as e:
                raise OSError(74, f"the book of approvals is damaged: {e}", self.path) from None
        self._at += whole

    def _write(self, event: Event) -> None:
        line = canonical.encode(event.to_json()) + b"\n"
        size = os.fstat(self._fd).st_size
        if size > self._at:
            # a writer died within a line; its event never counted
            os.ftruncate(self._fd, self._at)
        written = os.write(self._fd, line)
        if written != len(line):
            os.ftruncate(self._fd, self._at)
            raise OSError(28, "the book of approvals cannot be written", self.path)
        self._at += written
        self._book.apply(event)
