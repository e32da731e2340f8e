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

    from saggar.egress.shares_host import Share


def start(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], share: Share
) -> asyncio.Task[None] | None:
    """Run `coroutine` to its first wait; the task that carries it on from there, None where it has ended. share: as below.

    Until that wait there is no current task: nothing before it may use `asyncio.timeout` or be cancelled.
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return None
    return loop.create_task(_carried(coroutine, waits_for, share))


async def _carried(coroutine: Coroutine[Any, Any, None], waits_for: Any, share: Share) -> None:
    # a task takes no generator-based coroutine from Python 3.12 on
    await _rest(coroutine, waits_for, share)


async def metered(coroutine: Coroutine[Any, Any, Any], share: Share) -> Any:
    """`coroutine`, each step of it measured and counted: what it does between two waits is as long as its peers like."""
    return await _metered(coroutine, share)


@types.coroutine
def _metered(coroutine: Coroutine[Any, Any, Any], share: Share) -> Generator[Any, Any, Any]:
    began, work = share.clock(), share.work
    try:
        waits_for = coroutine.send(None)
    except StopIteration as e:
        return e.value
    finally:
        share.account(began, work)
    return (yield from _rest(coroutine, waits_for, share))


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, Any], waits_for: Any, share: Share) -> Generator[Any, Any, Any]:
    """What is left of `coroutine`, which has just given `waits_for` to be waited for."""
    while True:
        step: Any
        try:
            value = yield waits_for
        except BaseException as e:  # noqa: BLE001  # passed on to where the wait is
            step, value = coroutine.throw, e
        else:
            step = coroutine.send
        began, work = share.clock(), share.work
        try:
            waits_for = step(value)
        except StopIteration as e:
            return e.value
        finally:
            share.account(began, work)
