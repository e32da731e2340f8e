"""What one round of the event loop has to say: first the records, then the bytes that follow from them.

I1  Nothing that was written to an end in this round is sent before every record of the round is in the audit log; where
    they cannot be written nothing of it is sent. A fault in one end ends that end, and the others have their say.
I2  What waits here is bounded: each end is read at most once a round.

Sixteen requests that came at once cost one append and wake each neighbour once: a `send` to a process that sleeps costs
three times one to a process that was just woken (23 us and 8 here, where waking a processor leaves the virtual machine).
"""

from __future__ import annotations

import os
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Protocol

    class Speaker(Protocol):
        """Who has something to send."""

        def send_now(self) -> None: ...
        def cut(self) -> None: ...
        def failed(self, error: Exception) -> None: ...


class Turn:
    """One for a cell. commit: write the records that wait; False where they cannot be, and nothing may pass. yields: several
    processes serve the cell."""

    __slots__ = ("_armed", "_commit", "_ends", "_loop", "yields")

    def __init__(self, loop: asyncio.AbstractEventLoop, commit: Callable[[], bool]) -> None:
        self._loop = loop
        self._commit = commit
        self.yields = False
        self._ends: list[Speaker] = []
        self._armed = False

    def add(self, end: Speaker) -> None:
        """Have `end.send_now` called at the end of this round."""
        self._ends.append(end)
        if not self._armed:
            self._armed = True
            self._loop.call_soon(self._over)

    def commit(self) -> bool:
        """Write the records now: for an effect that does not wait for the round's end. False: cut whoever asked."""
        return self._commit()

    def _over(self) -> None:
        self._armed = False
        ends, self._ends = self._ends, []
        recorded = False
        try:
            recorded = self._commit()
        finally:
            for end in ends:
                _let_speak(end, recorded)
        if self.yields:
            # let those run who were just woken, if nobody else's processor is free: several processes have little to do in
            # each round, and what comes meanwhile is answered in one
            os.sched_yield()


def _let_speak(end: Speaker, recorded: bool) -> None:
    try:
        if recorded:
            end.send_now()
        else:
            end.cut()
    except Exception as e:  # noqa: BLE001  # whatever is wrong with one end, the others must not wait for ever
        with suppress(Exception):
            end.failed(e)
