"""`saggar plan`: what a plan may do before it runs, and what a run did."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from saggar.core.errors import ParseError, UsageError
from saggar.core.tool import ToolDeclaration
from saggar.core.why import why
from saggar.plan import parse
from saggar.plan.check import Report, check
from saggar.plan.compile import compile_source
from saggar.plan.provenance import Event, as_svg, as_text
from saggar.plan.step import Plan
from saggar.policy.file_host import open_for_writing

MAX_FILE = 1 << 20


def main(argv: list[str]) -> int:
    """argv[0] is `plan`. Exit code 0; 1 for a plan with faults; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="saggar plan", description="Check plans, and draw what a run did.")
    commands = parser.add_subparsers(dest="command", required=True)
    checked = commands.add_parser("check", help="what a plan needs, may do and will ask, before anything runs")
    checked.add_argument("file", metavar="FILE", help="JSON, or restricted Python where it does not end in .json")
    checked.add_argument("--request", metavar="TEXT", default="", help="the user's words, for a plan in Python")
    checked.add_argument("--tools", metavar="MODULE", action="append", default=[], help="a module with the tools")
    checked.add_argument("--json", action="store_true", help="print JSON")
    compiled = commands.add_parser("compile", help="print the JSON of a plan in restricted Python")
    compiled.add_argument("file", metavar="FILE")
    compiled.add_argument("--request", metavar="TEXT", default="")
    compiled.add_argument("--tools", metavar="MODULE", action="append", default=[])
    traced = commands.add_parser("trace", help="the provenance graph of a run")
    traced.add_argument("run", metavar="RUN", help="id of a run or its start, or the path of an audit log")
    traced.add_argument("--svg", metavar="FILE", help="draw it into a file")
    traced.add_argument("--json", action="store_true", help="print the events as JSON")
    commands.add_parser("schema", help="print the JSON schema of a plan")
    args = parser.parse_args(argv[1:])
    return _COMMANDS[args.command](args)


def _check(args: argparse.Namespace) -> int:
    tools = _tools(args.tools)
    plan = _load(args.file, args.request, tools)
    report = check(plan, tools)
    sys.stdout.write(json.dumps(as_json(report), indent=1) + "\n" if args.json else page(report, tools))
    return 0 if report.sound else 1


def _compile(args: argparse.Namespace) -> int:
    plan = _load(args.file, args.request, _tools(args.tools))
    sys.stdout.write(json.dumps(parse.dump(plan), indent=1) + "\n")
    return 0


def _trace(args: argparse.Namespace) -> int:
    events = list(_events(args.run))
    if args.svg:
        _write_svg(args.svg, as_svg(events))
    if args.json:
        sys.stdout.write(json.dumps([e.to_json() for e in events], indent=1) + "\n")
    elif not args.svg:
        sys.stdout.write(as_text(events))
    return 0


def _write_svg(path: str, text: str) -> None:
    try:
        # a cell may have left a link of this name in the current directory, its workspace
        with open(open_for_writing(path, os.getcwd()), "w", encoding="utf-8") as out:
            if out.seekable():
                out.truncate(0)
            out.write(text)
    except OSError as err:
        raise UsageError(f"cannot write `{path}`: {err.strerror}") from None


def _schema(_: argparse.Namespace) -> int:
    from saggar.plan.schema import plan_schema

    sys.stdout.write(json.dumps(plan_schema(), indent=2) + "\n")
    return 0


_COMMANDS = {"check": _check, "compile": _compile, "trace": _trace, "schema": _schema}


def _tools(modules: list[str]) -> dict[str, ToolDeclaration]:
    from saggar.cli.explain import load_tools

    return {name: tool.declaration for name, tool in load_tools(modules).items()}


def _load(file: str, request: str, tools: dict[str, ToolDeclaration]) -> Plan:
    text = _read(file)
    if not file.endswith(".json"):
        return compile_source(text, request, tools.keys(), file=file)
    try:
        return parse.parse(text)
    except ParseError as err:
        raise UsageError(str(err), file=file, hint="`saggar plan schema` prints the format") from None


def _read(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as held:
            text = held.read(MAX_FILE + 1)
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"cannot read `{file}`: {err}") from None
    if len(text) > MAX_FILE:
        raise UsageError(f"`{file}` is larger than {MAX_FILE} characters")
    return text


def _events(run: str) -> Iterator[Event]:
    """The `plan.step` records of a run's audit log; damaged lines are for `saggar log verify` to tell."""
    path = _log_path(run)
    try:
        with open(path, "rb") as log:
            for line in log:
                record = _record(line)
                if record.get("kind") == "plan.step" and isinstance(record.get("detail"), dict):
                    yield Event.from_json(record["detail"])
    except OSError as err:
        raise UsageError(f"cannot read `{path}`: {err.strerror}") from None


def _record(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _log_path(run: str) -> str:
    """A run's log, else a file's: a cell may have left one in the current directory under the name of a run."""
    from saggar.isolation.state_host import open_state

    try:
        return f"{open_state(os.environ).open_run(run).path}/audit.jsonl"
    except UsageError:
        if os.path.isfile(run):
            return run
        raise


def as_json(report: Report) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "tools": report.tools,
        "worker_calls": report.worker_calls,
        "faults": [{"step": f.step, "line": f.line, "message": f.message, "hint": f.hint} for f in report.faults],
        "questions": [
            {
                "step": q.step,
                "line": q.line,
                "tool": q.tool,
                "reason": q.reason,
                "sources": q.sources,
                "times": q.times,
                "certain": q.certain,
            }
            for q in report.questions
        ],
        "flows": [
            {
                "step": f.step,
                "line": f.line,
                "tool": f.tool,
                "private": f.private,
                "untrusted": f.untrusted,
                "outward": f.outward,
                "asks": f.asks,
                "trifecta": f.trifecta,
            }
            for f in report.flows
        ],
    }


def page(report: Report, tools: dict[str, ToolDeclaration]) -> str:
    """The report for a person."""
    lines = ["tools that the plan needs:"]
    for name, calls in sorted(report.tools.items()):
        effect = tools[name].effect
        lines.append(f"  {name:<32} {effect:<12} at most {calls} call{'s' if calls != 1 else ''}")
    lines.append(f"worker: at most {report.worker_calls} answers")
    lines += ["", "questions:" if report.questions else "it will ask you nothing"]
    for q in report.questions:
        word = "will ask" if q.certain else "may ask"
        what = f"{word} about `{q.tool}`: {why(q.reason)}" if q.tool else f"{word} what the plan wants to know"
        again = f", up to {q.times} times" if q.times > 1 else ""
        lines.append(f"  line {q.line}: {what}{again}")
        lines += [f"      from {s}" for s in q.sources[:3]]
    lines += _flows(report)
    if report.faults:
        lines += ["", "faults:"]
        for f in report.faults:
            lines.append(f"  line {f.line}: {f.message}" + (f" (hint: {f.hint})" if f.hint else ""))
    return "\n".join(lines) + "\n"


def _flows(report: Report) -> list[str]:
    found = [f for f in report.flows if f.trifecta]
    if not found:
        return ["", "no call joins private data, strangers' text and a way out without asking"]
    return [
        "",
        "private data, strangers' text and a way out meet, to somebody whom you named, without asking:",
        *(f"  line {f.line}: `{f.tool}`" for f in found),
    ]
