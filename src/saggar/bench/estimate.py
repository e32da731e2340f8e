"""What a benchmark with models will come to, told before anything is sent."""

from __future__ import annotations

import math
from typing import Any

from saggar.core.errors import UsageError

#: a token of English or JSON is about four characters; good enough for an estimate, and called one
CHARS_A_TOKEN = 4


def estimated(runs: int, calls: int, sent: int, got: int, money: tuple[float, float] | None) -> dict[str, Any]:
    """What a run with models will come to. sent, got: tokens; money: per million of each, in any currency."""
    out: dict[str, Any] = {"runs": runs, "calls": calls, "tokens_in": sent, "tokens_out": got, "estimate": True}
    if money is not None:
        out["cost"] = round((sent * money[0] + got * money[1]) / 1e6, 2)
    return out


def price(text: str | None) -> tuple[float, float] | None:
    """`IN,OUT` per million tokens. Raises `UsageError`."""
    if text is None:
        return None
    halves = text.split(",")
    try:
        sent, got = map(float, halves)
    except ValueError:
        raise UsageError("`--price` is two numbers with a comma between", hint="--price 0.15,0.60") from None
    if not (math.isfinite(sent) and math.isfinite(got) and sent >= 0 and got >= 0):
        raise UsageError("`--price` is two numbers with a comma between", hint="--price 0.15,0.60")
    return sent, got
