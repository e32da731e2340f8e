"""The approver of a session: a book, the channels that may answer at once, and a wait for those that answer later.

I1  A question is in the book before any channel hears of it.
I2  The first answer that counts wins; one that does not count (another call, a machine where a person is asked) is as
    none.
I3  When time is up the question is parked, not denied; so it is when the wait ends in any other way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Protocol

from saggar.approval.store_host import Store
from saggar.core.approval import Answer, Question
from saggar.core.errors import UsageError

#: questions of one task that may be open at once; further ones are parked unasked
MAX_WAITING = 100


class Channel(Protocol):
    """A way to a reviewer. Gives an answer, or None to leave the question to others."""

    def ask(self, question: Question, timeout_s: float) -> Answer | None: ...


class Review:
    """Implements `core.approval.Approver`.

    channels: asked one after the other, each with the time that is left. timeout_s: the wait for one question; 0 parks
    at once unless a channel answers. `answered()` wakes the wait, from any thread.
    """

    def __init__(self, store: Store, channels: Sequence[Channel] = (), *, timeout_s: float = 300.0) -> None:
        self.store = store
        self._channels = tuple(channels)
        self._timeout_s = timeout_s
        self._news = threading.Condition()

    def ask(self, question: Question) -> Answer:
        self.store.ask(question)
        try:
            return self._asked(question)
        except BaseException:
            # nobody waits any more: an answer that comes now is for the run that comes back
            with suppress(OSError):
                self.store.park(question.id)
            raise

    def _asked(self, question: Question) -> Answer:
        if sum(1 for _ in self.store.waiting()) > MAX_WAITING:
            # whoever is asked a hundred things at once reads none of them
            return self._parked(question)
        deadline = monotonic() + min(self._timeout_s, question.expires_s)
        for channel in self._channels:
            answer = channel.ask(question, max(0.0, deadline - monotonic()))
            if answer is None or answer.kind == "timeout":
                continue
            try:
                self.store.answer(question.id, answer)
            except UsageError:
                continue  # I2
            return _keyed(question, answer)
        return self._wait(question, deadline)

    def standing(self, question: Question) -> Answer | None:
        found = self.store.spend(question)
        if found is None:
            return None
        return Answer("approved", found.key, found.scope, 1, found.reviewer, found.reviewer_class)

    def answered(self) -> None:
        """Somebody wrote into the book."""
        with self._news:
            self._news.notify_all()

    def _wait(self, question: Question, deadline: float) -> Answer:
        while True:
            entry = self.store.entry(question.id)
            if entry is not None and entry.answer is not None:
                return _keyed(question, entry.answer)
            left = deadline - monotonic()
            if left <= 0:
                return self._parked(question)
            with self._news:
                # other processes write the file without waking us, so look every half second
                self._news.wait(min(left, 0.5))

    def _parked(self, question: Question) -> Answer:
        late = self.store.park(question.id)
        return _keyed(question, late) if late is not None else Answer("timeout", question.args_hash)


def _keyed(question: Question, answer: Answer) -> Answer:
    """The answer with the key that its scope speaks of, as the gateway checks it."""
    key = {"template": question.template_hash, "task": f"task:{question.tool}"}.get(answer.scope, answer.args_hash)
    return Answer(answer.kind, key, answer.scope, answer.uses, answer.reviewer, answer.reviewer_class, answer.expires_s)


class Callback:
    """A Python function as a channel. human: the function shows the question to a person."""

    def __init__(self, function: Callable[[Question], Answer | bool | None], *, human: bool = False) -> None:
        self._function = function
        self._human = human

    def ask(self, question: Question, timeout_s: float) -> Answer | None:  # noqa: ARG002  # the function keeps its own time
        said = self._function(question)
        if said is None or isinstance(said, Answer):
            return said
        kind = "approved" if said is True else "denied"
        return Answer(
            "approved" if kind == "approved" else "denied",
            question.args_hash,
            reviewer="callback",
            reviewer_class="human" if self._human else "automatic",
        )
