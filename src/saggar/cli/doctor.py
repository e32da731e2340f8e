"""`saggar doctor`: what this host can enforce, tried out, and how to mend what it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from time import monotonic

from saggar.core.errors import UsageError
from saggar.isolation.probe_host import MISSING, NOT_NEEDED, NOT_PROBED, OK, WEAKER, Finding, Probe, facts

USAGE = """usage: saggar doctor [--json]

Tries in child processes what a cell needs of this host. For each thing that is missing: the cause, and what to type.
Exit code 0 when a cell can be made here, 4 when not.
"""

_MARKS = {OK: "ok     ", WEAKER: "weaker ", MISSING: "MISSING", NOT_NEEDED: "-      ", NOT_PROBED: "?      "}
_CELL_TIMEOUT_S = 60


def main(argv: list[str]) -> int:
    args = argv[1:]
    if args in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return 0
    if args not in ([], ["--json"]):
        raise UsageError(f"unknown option `{args[0]}`", hint="see `saggar doctor --help`")
    findings = Probe().run()
    if not any(f.needed and f.status == MISSING for f in findings):
        findings.append(_cell())
    works = not any(f.needed and f.status in (MISSING, NOT_PROBED) for f in findings)
    host = facts()
    if args:
        report = {
            "works": works,
            "host": {"kernel": host.kernel, "uid": host.uid, "container": host.container},
            "findings": [f.to_json() for f in findings],
        }
        sys.stdout.write(json.dumps(report, indent=2, ensure_ascii=True) + "\n")
    else:
        _print(findings, works=works, kernel=host.kernel)
    return 0 if works else 4


def _cell() -> Finding:
    """The proof: a whole `saggar run`, with defaults and nothing of this directory."""
    # this very package, and never one that lies in the current directory
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join([package, *(p for p in sys.path if os.path.isabs(p))])
    argv = [sys.executable, "-P", "-m", "saggar", "run", "--quiet", "--workspace", ":none", "--", "true"]
    started = monotonic()
    env = {k: v for k, v in os.environ.items() if k != "SAGGAR_POLICY"} | {"PYTHONPATH": path}
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_CELL_TIMEOUT_S, check=False, cwd="/", env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("a cell", MISSING, str(error), needed=True, cause="`saggar run -- true` did not end")
    took = f"{(monotonic() - started) * 1000:.0f} ms"
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        return Finding("a cell", MISSING, f"exit code {done.returncode}", needed=True, cause=said)
    return Finding("a cell", OK, f"`saggar run -- true` took {took}", needed=True)


def _print(findings: list[Finding], *, works: bool, kernel: str) -> None:
    width = max(len(f.name) for f in findings)
    print(f"Linux {kernel}\n")
    for finding in findings:
        print(f"{_MARKS[finding.status]} {finding.name:<{width}}  {finding.detail}")
    for finding in findings:
        if finding.status in (MISSING, WEAKER) and (finding.cause or finding.remedy):
            print(f"\n{finding.name}")
            if finding.cause:
                print(f"  cause:  {_indented(finding.cause)}")
            if finding.remedy:
                print(f"  remedy: {_indented(finding.remedy)}")
    print(f"\n{'a cell can be made here' if works else 'NO cell can be made here: `saggar run` refuses to start'}")


def _indented(text: str) -> str:
    return text.rstrip("\n").replace("\n", "\n          ")
