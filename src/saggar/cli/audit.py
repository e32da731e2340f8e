"""`saggar audit overprovision LOG...`: what tasks were granted against what they used."""

from __future__ import annotations

import argparse
import json
import os

from saggar.audit import canonical
from saggar.audit.verify import verify
from saggar.capability.overprovision import Report, report
from saggar.core.errors import ParseError, UsageError
from saggar.isolation.state_host import open_state

FILE = "audit.jsonl"


def main(argv: list[str]) -> int:
    """argv[0] is `audit`."""
    parser = argparse.ArgumentParser(prog="saggar audit", description="Read what audit logs say about privilege.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    over = actions.add_parser("overprovision", help="tools and scopes granted against used, and the smallest policy")
    over.add_argument("log", metavar="LOG", nargs="+", help="an audit log's file, or the id of a run")
    over.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv[1:])
    reports = [_report(log) for log in args.log]
    if args.json:
        print(json.dumps([r.to_json() for r in reports], indent=2))
        return 0
    for r in reports:
        _print(r)
    used = sum(len(r.used) for r in reports)
    if len(reports) > 1 and used:
        print(f"all {len(reports)} tasks: {sum(len(r.tools) for r in reports) / used:.1f} tools offered per tool used")
    return 0


def _report(log: str) -> Report:
    path = _path(log)
    try:
        with open(path, "rb") as f:
            lines = f.read().splitlines()
    except OSError as e:
        raise UsageError(f"`{log}` cannot be read: {e.strerror}") from None
    _verify(path, lines)
    try:
        return report(canonical.decode(line) for line in lines)
    except (ParseError, KeyError, TypeError) as e:
        raise UsageError(f"`{log}` is not an audit log of ours: {e}") from None


def _path(log: str) -> str:
    """A run's log, else a file's: a cell may have left one in the current directory under the name of a run."""
    try:
        return os.path.join(open_state(os.environ).open_run(log).path, FILE)
    except UsageError:
        if os.path.isfile(log):
            return log
        raise


def _verify(path: str, lines: list[bytes]) -> None:
    """A report from a log that somebody edited would be worse than none."""
    found = verify(line + b"\n" for line in lines)
    if not found.ok:
        raise UsageError(f"`{path}` is damaged", hint="saggar log verify")


def _print(r: Report) -> None:
    ratio = "-" if r.ratio is None else f"{r.ratio:.1f}"
    granted = "-" if r.granted_ratio is None else f"{r.granted_ratio:.1f}"
    print(f"task {r.task}")
    print(f"  offered {len(r.tools)} tools, granted {len(r.granted_tools)}, used {len(r.used)}")
    print(f"  overprovision: {ratio} offered per used, {granted} granted per used; calls refused: {r.refused}")
    unused = sorted(set(r.granted_tools) - set(r.used))
    if unused:
        print(f"  granted and not used: {', '.join(unused)}")
    if r.open_calls:
        print(f"  calls whose end nobody saw: {', '.join(r.open_calls)}")
    for text, reason in r.wanted:
        print(f"  refused ({reason}): {text}")
    if r.granted:
        print(r.diff())
