"""`saggar egress show` and `saggar egress log`: what a task may reach, what it reached, what it was refused."""

from __future__ import annotations

import argparse
import json
import os
import sys

from saggar.audit.human import harmless
from saggar.audit.read_host import LogReader
from saggar.audit.verify import Verifier
from saggar.core.errors import UsageError
from saggar.egress.ledger import Ledger, read
from saggar.isolation.state_host import RunDir, open_state
from saggar.runtime.held import described, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FILE = "audit.jsonl"


def main(argv: list[str]) -> int:
    """argv[0] is `egress`. Exit code 0, 1 for a damaged log, 2 for wrong arguments."""
    if argv[1:2] == ["log"]:
        from saggar.cli.log import main as log

        return log(["egress log", *argv[2:]])
    parser = argparse.ArgumentParser(
        prog="saggar egress", description="What a task may reach, reached, and was refused."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print a task's egress record: declared, used, refused")
    show.add_argument("run", nargs="?", metavar="RUN", help="id of the run or its start; the latest if left out")
    show.add_argument("--json", action="store_true", help="print JSON")
    actions.add_parser(
        "log", help="print the wall's records of a run; `--follow` waits for more, see `saggar log --help`"
    )
    held = actions.add_parser("held", help="print the requests that wait for a person's word")
    held.add_argument("--run", metavar="RUN", help="id of the run or its start; the only running one if left out")
    for name in ("approve", "deny"):
        word = actions.add_parser(name, help=f"{name} a request that `saggar egress held` printed")
        word.add_argument("id", metavar="ID")
        if name == "approve":
            scope = word.add_mutually_exclusive_group()
            scope.add_argument("--task", action="store_true", help="and its like for the rest of the task")
            scope.add_argument(
                "--policy", action="store_true", help="the same, and print a diff that puts it into the policy file"
            )
            word.add_argument(
                "--pattern", action="store_true", help="with these: all paths of the asking rule, not this path alone"
            )
        word.add_argument("--run", metavar="RUN", help="id of the run or its start; the only running one if left out")
    args = parser.parse_args(argv[1:])
    if args.action in ("held", "approve", "deny"):
        return _held(args)
    ledger, ok = ledger_of(find_run(args.run))
    if args.json:
        json.dump(_as_json(ledger), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(ledger)
    return 0 if ok else 1


def _held(args: argparse.Namespace) -> int:
    from saggar.cli.allow import ask, running

    run = running(args.run)
    if args.action == "held":
        answer = _told(ask(run, {"op": "held"}))
        for one in answer["held"]:
            print(_line(one))
        if answer.get("cut"):
            sys.stderr.write("saggar: more requests wait than fit here\n")
        for approval in answer["approvals"]:
            print(f"approved for the task: {approval['id']}  {described(approval)}")
        if not answer["held"]:
            sys.stderr.write("no request waits\n")
        return 0
    approving = args.action == "approve"
    scope = "policy" if approving and args.policy else "task" if approving and args.task else "once"
    pattern = approving and args.pattern
    if pattern and scope == "once":
        raise UsageError("`--pattern` goes with `--task` or `--policy`")
    verdict = "approved" if approving else "denied"
    made = _told(ask(run, {"op": "answer", "id": args.id, "verdict": verdict, "scope": scope, "pattern": pattern}))
    out = sys.stderr if scope == "policy" else sys.stdout
    out.write(f"{verdict} {args.id}\n")
    if made.get("approval"):
        out.write(f"for the rest of the task: {made['approval']} (`saggar revoke {made['approval']}` takes it back)\n")
    sys.stdout.write(made.get("diff", ""))
    return 0


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer.get("ok"):
        raise UsageError(str(answer.get("error", "the run did not answer")), hint=str(answer.get("hint", "")))
    return answer


def _line(held: dict[str, Any]) -> str:
    """ID, what the sandbox asks for, and the rule that asks with its patterns."""
    query = f"?{held['query']}" if held.get("query") else ""
    what = f"{shown(held['method'])} {shown(held['host'])}:{held['port']}{shown(held['path'] + query)}"
    patterns = ", ".join(held.get("patterns") or ())
    return f"{held['id']}  {what}  {harmless(held['rule'])}" + (f" ({harmless(patterns)})" if patterns else "")


def find_run(text: str | None) -> RunDir:
    """The run called `text`, or the latest. Raises UsageError."""
    state = open_state(os.environ)
    if text:
        return state.open_run(text)
    names = state.names()
    if not names:
        raise UsageError("no runs are kept", hint="`saggar run -- COMMAND` makes one")
    return state.open_run(names[-1])


def ledger_of(run: RunDir) -> tuple[Ledger, bool]:
    """The egress record of a run, and whether its log is sound."""
    reader = LogReader(_FILE, dir_fd=run.fd, name=f"{run.path}/{_FILE}")
    verifier = Verifier(task=run.id)
    records = [record for line in reader.lines() if (record := verifier.feed(line)) is not None]
    report = verifier.finish()
    for fault in report.faults:
        sys.stderr.write(f"{reader.name}:{fault.line}: {fault.kind}: {harmless(fault.message)}\n")
    return read(records), report.ok


def _print(ledger: Ledger) -> None:
    unused = ledger.unused()
    print("declared:" if ledger.declared else "declared: nothing")
    for rule, (host, ports) in ledger.declared.items():
        note = f"  (unused: {', '.join(map(str, unused[rule]))})" if rule in unused else ""
        print(f"  {harmless(host)}:{','.join(map(str, ports))}  {harmless(rule)}{note}")
    print("used:" if ledger.used else "used: nothing")
    for (rule, host, port), used in sorted(ledger.used.items()):
        print(
            f"  {harmless(host)}:{port}  {used.count} times, {used.bytes_up} bytes up, {used.bytes_down} down  {harmless(rule)}"
        )
    if ledger.total is not None:
        print(f"  in all: {ledger.total.count} times, {ledger.total.bytes_up} bytes up, {ledger.total.bytes_down} down")
    print("refused:" if ledger.refused else "refused: nothing")
    for (host, port, reason), count in sorted(ledger.refused.items()):
        where = f"{harmless(host)}:{port}" if port else harmless(host) or "(no name)"
        print(f"  {where}  {reason}, {count} recorded")
    if ledger.refused_total:
        print(f"  in all: {ledger.refused_total}")


def _as_json(ledger: Ledger) -> dict[str, Any]:
    return {
        "declared": [
            {"rule": rule, "host": host, "ports": list(ports), "unused": list(ledger.unused().get(rule, ()))}
            for rule, (host, ports) in ledger.declared.items()
        ],
        "used": [
            {
                "rule": rule,
                "host": host,
                "port": port,
                "count": u.count,
                "bytes_up": u.bytes_up,
                "bytes_down": u.bytes_down,
            }
            for (rule, host, port), u in sorted(ledger.used.items())
        ],
        "refused": [
            {"host": host, "port": port, "reason": reason, "count": count}
            for (host, port, reason), count in sorted(ledger.refused.items())
        ],
        "total": None
        if ledger.total is None
        else {"count": ledger.total.count, "bytes_up": ledger.total.bytes_up, "bytes_down": ledger.total.bytes_down},
        "refused_total": ledger.refused_total,
    }
