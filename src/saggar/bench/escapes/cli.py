"""`saggar bench escapes [--json] [NAME...]`: exit 0 only when nothing broke out and everything ran."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

from saggar.bench.escapes.attempts import ATTEMPTS
from saggar.bench.escapes.bench_host import Bench
from saggar.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from saggar.bench.escapes.bench_host import Row

USAGE = """usage: saggar bench escapes [--json] [NAME...]

Each attempt first succeeds outside a cell on a stand-in, is then tried inside a real cell, and its audit log is verified.
  held      the control succeeded outside, the attempt was refused inside
  unproven  refused inside, but this caller on this host could not make the control succeed
  breach    an effect reached past the wall
  error     the attempt did not run: it proves nothing
"""


def summary(rows: list[Row]) -> dict[str, Any]:
    """attempts counts what was proven possible outside and then tried inside; unproven and errors stand apart."""
    count = Counter(row.verdict for row in rows)
    return {
        "attempts": count["held"] + count["breach"],
        "breaches": count["breach"],
        "unproven": count["unproven"],
        "errors": count["error"],
        "tier": "process",
        "root": os.geteuid() == 0,
        "kinds": dict(sorted(Counter(row.kind for row in rows).items())),
        "rows": [row.to_json() for row in rows],
    }


def main(argv: list[str]) -> int:
    words = argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0
    as_json = "--json" in words
    names = [w for w in words if w != "--json"]
    if unknown := [n for n in names if n not in {a.name for a in ATTEMPTS}]:
        raise UsageError(f"no attempt is called `{unknown[0]}`")

    def progress(row: Row) -> None:
        if not as_json or row.verdict in ("breach", "error"):
            stream = sys.stderr if as_json else sys.stdout
            stream.write(f"{row.verdict:<9} {row.kind:<22} {row.name:<32} {row.evidence[:100]}\n")
            stream.flush()

    rows = Bench().run(names, progress)
    result = summary(rows)
    if as_json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        sys.stdout.write(
            f"attempts {result['attempts']}, breaches {result['breaches']}, "
            f"unproven {result['unproven']}, errors {result['errors']}\n"
        )
    return 0 if not result["breaches"] and not result["errors"] else 1
