"""The grant of one call: as narrow as a token can carry, and never wider than the grant that it comes from.

I1  `narrower_grant(exactly(g, args), g)` holds for every grant and every arguments.
I2  Total: a value that no token can carry (too long, or no JSON) leaves its argument under the grant's own constraint.
    The argument hash names the value all the same, in the log, on the card and in a proof of possession.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from saggar.capability.constraint import Constraint, Exact
from saggar.capability.grant import Grant
from saggar.capability.narrower import narrower
from saggar.core.errors import ParseError

#: bytes of canonical JSON, of all values together: with the session's own grant it fits into a token of 64 KiB
MAX_EXACT = 8192


def exactly(grant: Grant, args: Mapping[str, Any]) -> Grant:
    """`grant` for these arguments alone. Names the same arguments, since a child may neither add nor drop one."""
    left = MAX_EXACT
    constraints: list[tuple[str, Constraint]] = []
    for name, limit in grant.constraints:
        exact, size = _exact(limit, args.get(name))
        fits = size <= left
        left -= size if fits else 0
        constraints.append((name, exact if fits else limit))
    return replace(grant, constraints=tuple(constraints))


def _exact(limit: Constraint, value: Any) -> tuple[Constraint, int]:
    try:
        exact = Exact(value)
        size = len(exact.text.encode())  # a lone surrogate has no UTF-8
    except (ParseError, ValueError, RecursionError):
        return limit, 0
    return (exact, size) if narrower(exact, limit) else (limit, 0)
