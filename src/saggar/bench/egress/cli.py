"""`saggar bench egress [--json] [--processes N] [NAME...]`: exit 0 only when nothing got out and everything ran."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

from saggar.bench.egress.attempts import ATTEMPTS, RESOLUTIONS
from saggar.bench.egress.bench_host import Bench
from saggar.bench.egress.row import Row
from saggar.bench.egress.terminated import ATTACKS
from saggar.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = """usage: saggar bench egress [--json] [--processes N] [NAME...]

Each attempt is made from inside a real cell against the real broker; on the same channel a listed name must first reach its upstream.
With --processes N the policies say `egress.processes = N`.
  held      refused in the right way, nothing dialled, the reason in the audit log
  breach    an upstream was dialled, or its answer came through
  error     the attempt did not run or was refused otherwise than it should: it proves nothing
"""


def summary(rows: list[Row]) -> dict[str, Any]:
    count = Counter(row.verdict for row in rows)
    return {
        "attempts": count["held"] + count["breach"],
        "breaches": count["breach"],
        "errors": count["error"],
        "root": os.geteuid() == 0,
        "rows": [row.to_json() for row in rows],
    }


def main(argv: list[str]) -> int:
    words = argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0
    as_json = "--json" in words
    names = [w for w in words if w != "--json"]
    processes = 1
    if "--processes" in names:
        at = names.index("--processes")
        value = "".join(names[at + 1 : at + 2])
        if value not in ("1", "2", "3", "4"):
            raise UsageError(f"`--processes {value}`: 1 to 4 are possible")
        processes = int(value)
        del names[at : at + 2]
    known = {a.name for a in ATTEMPTS} | {r.name for r in RESOLUTIONS} | {a.name for a in ATTACKS}
    if unknown := [n for n in names if n not in known]:
        raise UsageError(f"no attempt is called `{unknown[0]}`")

    def progress(row: Row) -> None:
        if not as_json or row.verdict != "held":
            stream = sys.stderr if as_json else sys.stdout
            stream.write(f"{row.verdict:<7} {row.row:<6} {row.name:<52} {row.reason or row.evidence[:100]}\n")
            stream.flush()

    result = summary(Bench(progress, processes).run(names))
    if as_json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        sys.stdout.write(f"attempts {result['attempts']}, breaches {result['breaches']}, errors {result['errors']}\n")
    return 0 if not result["breaches"] and not result["errors"] else 1
