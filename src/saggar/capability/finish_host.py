"""Waiting for an async body from code that cannot await: the one place of the gateway that starts a loop or a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """An async body's result for a caller who does not await. Within a running loop it runs in a thread of its own, and
    the loop waits: `acall` is for those who would rather not."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
