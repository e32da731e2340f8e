"""Which session's tool is running just now: the parent of every session that its body opens.

I1  What is inherited is a bound, never a right: the child is charged to its parent's budgets and held to its
    capabilities. Code that is in nobody's body has no parent.
I2  A context, not a global: two bodies at a time know each its own. A body's new thread has it only where the context
    is handed on (`asyncio.to_thread` and `asyncio.create_task` do; `threading.Thread`, `loop.run_in_executor` and the
    pools of `concurrent.futures` do not); there `parent=` says it.
I3  A task that outlives the body keeps its context: what it opens after the parent has ended is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from saggar.capability.declare import Tool

if TYPE_CHECKING:
    from saggar.runtime.tools_host import ToolSession

_STARTER: ContextVar[ToolSession | None] = ContextVar("saggar_starter", default=None)


def starter() -> ToolSession | None:
    """The session in whose tool's body this runs; None outside of any."""
    return _STARTER.get()


def owned(tools: Sequence[Tool], session: ToolSession) -> list[Tool]:
    """The same tools, with bodies that know whose they are. One that runs in a sandbox opens no session of this process."""
    return [t if t.declaration.runs == "sandbox" else replace(t, unguarded=_body(t, session)) for t in tools]


def _body(tool: Tool, session: ToolSession) -> Callable[..., Any]:
    if tool.is_async:

        @functools.wraps(tool.unguarded)
        async def waits(*args: Any, **kwargs: Any) -> Any:
            before = _STARTER.set(session)
            try:
                return await tool.unguarded(*args, **kwargs)
            finally:
                _STARTER.reset(before)

        return waits

    @functools.wraps(tool.unguarded)
    def runs(*args: Any, **kwargs: Any) -> Any:
        before = _STARTER.set(session)
        try:
            return tool.unguarded(*args, **kwargs)
        finally:
            _STARTER.reset(before)

    return runs
