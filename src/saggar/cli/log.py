"""`saggar log` and `saggar log verify`: read a run's audit log, and check that it is whole."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time

from saggar.audit.human import harmless, line_of
from saggar.audit.read_host import LogReader
from saggar.audit.verify import Report, Verifier
from saggar.core.errors import UsageError
from saggar.isolation.state_host import ENDED, RunDir, open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "audit.jsonl"
_POLL_S = 0.1


def main(argv: list[str]) -> int:
    """argv[0] is `log`, or `egress log` for the second wall's records alone. Exit code 0, 1 for a log that is damaged, 2 for wrong arguments."""
    if argv[1:2] == ["verify"]:
        return _verify(argv[2:])
    parser = argparse.ArgumentParser(
        prog=f"saggar {argv[0]}", description="Print a run's audit log. `saggar log verify` checks one."
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="id of the run or its start; the latest if left out")
    parser.add_argument("--follow", action="store_true", help="wait for further records until the run ends")
    parser.add_argument("--json", action="store_true", help="print the records as they are in the log")
    parser.add_argument("--layer", metavar="LAYER", help="only records of this layer: L1, L2, L3, L4, …")
    parser.add_argument("--effect", choices=("allow", "ask", "deny"), help="only records with this effect")
    args = parser.parse_args(argv[1:])
    if argv[0] == "egress log":
        args.layer = "L2"
    run = _run(args.run)
    reader = LogReader(FILE, dir_fd=run.fd, name=f"{run.path}/{FILE}")
    verifier = Verifier(task=run.id)
    while True:
        # looked at before reading: what an ended run wrote is all there
        over = not args.follow or _over(run)
        for line in reader.lines(last=over):
            _print(verifier.feed(line), line, args)
        if over:
            break
        sys.stdout.flush()
        time.sleep(_POLL_S)
    return _faults(verifier.finish(), reader.name)


def _over(run: RunDir) -> bool:
    """Whether nobody will write to this run's log any more."""
    try:
        if run.state() == ENDED:
            return True
        if run.acquire():
            # its supervisor died; the lock is given back when this process ends
            return True
    except OSError:
        return True
    return False


def _print(record: dict[str, Any] | None, line: bytes, args: argparse.Namespace) -> None:
    if record is None:
        # told at the end, with its cause; as evidence it is shown as well
        sys.stdout.write("" if args.json else f"(damaged) {harmless(line.decode('utf-8', 'backslashreplace')[:200])}\n")
        return
    if args.layer and record["layer"].lower() != args.layer.lower():
        return
    if args.effect and record["effect"] != args.effect:
        return
    sys.stdout.write(line.decode() if args.json else line_of(record) + "\n")


def _verify(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="saggar log verify",
        description="Check that a log is whole, in order and of one task. Without a known head, "
        "records cut off its end leave no trace.",
    )
    parser.add_argument("what", nargs="?", metavar="RUN|FILE", help="a run, or a log file; the latest run if left out")
    parser.add_argument(
        "--head", metavar="HASH", help="a hash that must be in the chain, such as a result's audit_head"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args(argv)
    head = (args.head or "").lower()
    if args.head and not re.fullmatch(r"[0-9a-f]{64}", head):
        raise UsageError(f"`--head`: `{harmless(args.head)[:80]}` is not a hash", hint="64 hexadecimal digits")
    if args.what and ("/" in args.what or os.path.isfile(args.what)):
        reader, task = LogReader(args.what), ""
    else:
        run = _run(args.what)
        reader, task = LogReader(FILE, dir_fd=run.fd, name=f"{run.path}/{FILE}"), run.id
        head = head or str(run.meta().get("audit_head", ""))
    verifier = Verifier(task=task, head=head)
    for line in reader.lines():
        verifier.feed(line)
    report = verifier.finish()
    if args.json:
        json.dump(report.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0 if report.ok else 1
    return _faults(report, reader.name, verbose=True)


def _faults(report: Report, name: str, *, verbose: bool = False) -> int:
    for fault in report.faults:
        sys.stderr.write(f"{name}:{fault.line}: {fault.kind}: {harmless(fault.message)}\n")
    if verbose:
        for note in report.notes:
            sys.stdout.write(f"note: line {note.line}: {note.kind}: {note.message}\n")
        if report.ok:
            end = "head found" if report.head_compared else "no head to compare: a cut end would not show"
            sys.stdout.write(f"sound: {report.records} records, head {report.head} ({end})\n")
    return 0 if report.ok else 1


def _run(text: str | None) -> RunDir:
    state = open_state(os.environ)
    if text:
        return state.open_run(text)
    names = state.names()
    if not names:
        raise UsageError("no runs are kept", hint="`saggar run -- COMMAND` makes one")
    return state.open_run(names[-1])
