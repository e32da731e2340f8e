"""The 97 plans, one text file a suite, and how they are read.

Written from the prompts and the tools' documentation only, and committed before any attack was run.
"""

from __future__ import annotations

from importlib.resources import files


def sources(suite: str) -> dict[str, str]:
    """Task id to source text of its plan."""
    text = files(__name__).joinpath(f"{suite}.plan").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for chunk in text.split("### ")[1:]:
        name, _, body = chunk.partition("\n")
        found[name.strip()] = body
    return found
