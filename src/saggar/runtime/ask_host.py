"""Held requests of a run of the Python API, taken to the caller's `on_ask`.

I1  The callback runs on the caller's event loop (for `run_sync`: on one of its own), never on the supervisor's thread.
I2  Whatever it does but return a `Verdict` is a no: an exception, another value, an end without a word.
I3  A request that no longer waits has its callback cancelled; a verdict that comes too late has no effect.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Literal

from saggar.core.errors import SaggarError, UsageError

if TYPE_CHECKING:
    from saggar.runtime.engine_host import Engine
    from saggar.runtime.held import Ask, OnAsk, Verdict
    from saggar.runtime.supervisor_host import Cell

Unattended = Literal["refuse", "hold"]


class Asker:
    """One run's questions. on_ask: the callback, or what stands in its place. loop: the caller's; None: one is made when needed."""

    __slots__ = ("_cell", "_engine", "_loop", "_on_ask", "_own", "_tasks")

    _engine: Engine

    def __init__(self, on_ask: OnAsk | Unattended, loop: asyncio.AbstractEventLoop | None) -> None:
        """Raises UsageError."""
        if not callable(on_ask) and on_ask not in ("refuse", "hold"):
            raise UsageError('`on_ask` is an async function, "refuse" or "hold"')
        self._on_ask = on_ask
        self._loop = loop
        self._own = loop is None
        self._cell: Cell | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def of(self, engine: Engine) -> Asker:
        self._engine = engine
        return self

    # on the supervisor's thread

    def serve(self, cell: Cell) -> None:
        self._cell = cell
        if not callable(self._on_ask):
            cell.hold = self._on_ask == "hold"
            return
        cell.on_held = self._held
        cell.on_unheld = self._unheld

    def _held(self, message: dict[str, Any]) -> None:
        from saggar.runtime.held_host import ask

        cell = self._cell
        if cell is None:
            return
        question = ask(cell, str(message["id"]))
        try:
            self._caller().call_soon_threadsafe(self._start, question)
        except RuntimeError:
            # the caller's loop is closed: nobody is there to be asked
            self._engine.supervisor.answer(cell, question.id, "unattended")

    def _unheld(self, number: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drop, number)

    def _caller(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="saggar-on-ask", daemon=True).start()
        return self._loop

    def close(self) -> None:
        """The run is over."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return

        def end() -> None:
            for number in list(self._tasks):
                self._drop(number)
            if self._own:
                # once more round, so that what was cancelled ends
                loop.call_soon(loop.stop)

        try:
            loop.call_soon_threadsafe(end)
        except RuntimeError:
            return

    # on the caller's

    def _start(self, question: Ask) -> None:
        task = asyncio.get_running_loop().create_task(self._put(question))
        self._tasks[question.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(question.id, None))

    def _drop(self, number: str) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    async def _put(self, question: Ask) -> None:
        from saggar.runtime.held import Verdict

        verdict: object = None
        try:
            if callable(self._on_ask):
                verdict = await self._on_ask(question)
        except Exception as error:  # noqa: BLE001  # the caller's code raises what it likes: it goes where a task's goes (I2)
            context = {"message": f"`on_ask` failed for {question}: the request is denied", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        # out of the table first: the broker's word that it waits no more is the answer's own echo
        self._tasks.pop(question.id, None)
        said = verdict if isinstance(verdict, Verdict) else Verdict.deny()
        self._engine.call(lambda: self._settle(question.id, said))

    def _settle(self, number: str, verdict: Verdict) -> None:
        from saggar.runtime.held import Verdict

        cell, supervisor = self._cell, self._engine.supervisor
        if cell is None or cell.result is not None or number not in cell.held:
            return
        try:
            supervisor.settle(cell, number, verdict, by="on_ask", uid=os.getuid())
        except (SaggarError, OSError):
            # what cannot be carried out as said (no policy file to propose a change for) is not carried out by half
            if number in cell.held and verdict.approved:
                self._settle(number, Verdict.deny())
