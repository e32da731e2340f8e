"""`saggar policy tighten`: the smaller allowlist that some runs would have done with, as a diff."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys

from saggar.audit.human import harmless
from saggar.cli.egress import find_run, ledger_of
from saggar.egress.ledger import Ledger
from saggar.policy.file_host import read
from saggar.policy.load import refuse_inside
from saggar.policy.tighten import tighten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="runs to go by; the latest if left out")
    parser.add_argument("--policy", metavar="FILE", help="the policy file to propose a change to")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 whether or not there is something to take away; 1 for a damaged log."""
    ledgers, sound = _ledgers(args.runs)
    unused = unused_in_all(ledgers)
    diff = _diff(args.policy, unused) if args.policy else ""
    if args.json:
        json.dump({"unused": {k: list(v) for k, v in unused.items()}, "diff": diff}, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0 if sound else 1
    declared = {rule: host for ledger in ledgers for rule, (host, _) in ledger.declared.items()}
    for rule, ports in unused.items():
        where = ", ".join(f"{declared[rule]}:{port}" for port in ports)
        sys.stderr.write(f"unused in {len(ledgers)} run(s): {harmless(where)} ({harmless(rule)})\n")
    for ledger in ledgers:
        for rule, (host, _) in ledger.declared.items():
            if host.startswith("*.") and 0 < len(names := ledger.hosts_of(rule)) <= 3:
                sys.stderr.write(f"`{harmless(host)}` stood for {harmless(', '.join(names))} alone\n")
    if unused and not args.policy:
        sys.stderr.write("`--policy FILE` proposes what to take out of it, as a diff\n")
    elif unused and not diff:
        sys.stderr.write(
            f"no change to `{harmless(args.policy)}` takes these away: they are not its rules, or not in a form that can be edited safely\n"
        )
    if not unused:
        sys.stderr.write("nothing to take away: all that is allowed was used\n")
    sys.stdout.write(diff)
    return 0 if sound else 1


def _ledgers(names: Sequence[str]) -> tuple[list[Ledger], bool]:
    found = [ledger_of(find_run(name)) for name in names or [""]]
    return [ledger for ledger, _ in found], all(ok for _, ok in found)


def unused_in_all(ledgers: Sequence[Ledger]) -> dict[str, tuple[int, ...]]:
    """Rule id to ports that no run used. A rule that one of the runs did not have is judged by the others."""
    unused: dict[str, tuple[int, ...]] = {}
    for rule in dict.fromkeys(rule for ledger in ledgers for rule in ledger.declared):
        having = [ledger for ledger in ledgers if rule in ledger.declared]
        ports = [set(ledger.unused().get(rule, ())) for ledger in having]
        if left := sorted(set.intersection(*ports)):
            unused[rule] = tuple(left)
    return unused


def _diff(path: str, unused: dict[str, tuple[int, ...]]) -> str:
    refuse_inside(path, os.getcwd(), named=True)
    text = read(path)
    proposed = tighten(text, path, unused)
    if proposed is None:
        return ""
    name = os.path.basename(path)
    return "".join(
        difflib.unified_diff(
            text.splitlines(keepends=True), proposed.text.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
    )
