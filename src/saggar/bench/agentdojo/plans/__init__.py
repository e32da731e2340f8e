"""The 97 plans, one text file a suite, and how they are read.

The first edition was written from the prompts and the tools' documentation only, and committed before any attack was
run. The second (`second.plan`) replaces those that did not do their job in a benign run, each with its reason; it, too,
was committed before any attack was run, but after the injection goals had been read, and rules and labels changed with
it. Rules changed again after attacks had been run, and the third (`third.plan`) replaces five plans of banking after
them. All editions run under today's rules.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

EDITIONS = (1, 2, 3)
LATEST = EDITIONS[-1]


@cache
def sources(suite: str, edition: int = LATEST) -> dict[str, str]:
    """Task id to source text of its plan."""
    found = _read(suite)
    mark = suite + "/"
    for changes in ("second", "third")[: edition - 1]:
        found |= {name.removeprefix(mark): text for name, text in _read(changes).items() if name.startswith(mark)}
    return found


def _read(name: str) -> dict[str, str]:
    text = files(__name__).joinpath(f"{name}.plan").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for chunk in text.split("### ")[1:]:
        head, _, body = chunk.partition("\n")
        found[head.strip()] = body
    return found
