"""Start a coroutine at once, and make a task of it only where it has to wait.

A tunnelled connection whose ClientHello is already there, to an upstream near by, is decided, recorded, dialled and
spliced without one wait; a task for it would cost more than the decision.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Generator


def start(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run `coroutine` to its first wait; the task that carries it on from there, None where it has ended.

    Until that wait there is no current task: nothing before it may use `asyncio.timeout` or be cancelled.
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return None
    return loop.create_task(_rest(coroutine, waits_for))


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """What is left of `coroutine`, which has just given `waits_for` to be waited for."""
    while True:
        try:
            value = yield waits_for
        except BaseException as e:  # noqa: BLE001  # passed on to where the wait is
            step, argument = coroutine.throw, e
            try:
                waits_for = step(argument)
            except StopIteration:
                return
        else:
            try:
                waits_for = coroutine.send(value)
            except StopIteration:
                return
