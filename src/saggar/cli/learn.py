"""`saggar policy learn -- CMD`: one run under the policy as it is, then what it used and what it was refused, as a diff.

Learning opens nothing: the command runs under the current policy, and what was refused is proposed for review, with
its reason, because a refused host or call may be an attack. Run it again after each change until nothing is refused.

Contained by default, which shows hosts. With `--agent` the command is a program of the host's own that guards its
tools with `saggar.ToolSession`; it is not contained, and what its sessions logged shows capabilities.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from saggar.audit import canonical
from saggar.capability.overprovision import Report, report
from saggar.core.errors import UsageError
from saggar.isolation.state_host import open_state

AUDIT = "audit.jsonl"
#: refusals that a rule could lift; the others are attacks, or damage
LIFTABLE = frozenset({"host_not_listed", "port_not_listed"})


USAGE = """usage: saggar policy learn [--agent] [OPTIONS OF `saggar run`] -- COMMAND [ARGUMENT...]

Run a command under the policy as it is, then propose what it was refused, and the smallest capabilities that it used.
Nothing is opened for the run. --agent: a program on the host that guards its own tools; it is not contained.
"""


def main(argv: list[str]) -> int:
    """argv[0] is `learn`. Gives the command's exit code."""
    if "--" not in argv:
        if "-h" in argv or "--help" in argv:
            sys.stdout.write(USAGE)
            return 0
        raise UsageError("the command comes after `--`", hint="saggar policy learn -- COMMAND")
    at = argv.index("--")
    flags, command = argv[1:at], argv[at + 1 :]
    if not command:
        raise UsageError("there is no command after `--`")
    if "--agent" not in flags:
        return _contained([*flags, "--", *command])
    if len(flags) > 1:
        raise UsageError("`--agent` runs on the host: the options of `saggar run` do not apply")
    return _agent(command)


def _contained(words: list[str]) -> int:
    from saggar.cli.run import main as run

    # no file: the command may be able to write where temporary ones are, and would choose the run that is told about
    fd = os.memfd_create("saggar-learn", os.MFD_CLOEXEC)
    with open(fd, "rb") as result:
        code = run(["run", "--json", f"/proc/self/fd/{fd}", *words])
        text = result.read()
    if not text:
        return code
    ident = json.loads(text)["run_id"]
    records = _records(ident)
    sys.stdout.write("\n".join(egress_proposal(records)) + "\n")
    _tools(records, ident)
    return code


def _agent(command: list[str]) -> int:
    state = open_state(os.environ)
    before = set(state.names())
    sys.stderr.write("saggar: this runs on the host, uncontained; its tools are guarded by its own session\n")
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as e:
        raise UsageError(f"`{command[0]}` cannot be run: {e.strerror}") from None
    made = sorted(set(state.names()) - before)
    for ident in made:
        _tools(_records(ident), ident)
    if not made:
        sys.stderr.write("saggar: no session was opened (hint: `saggar.ToolSession` in the program)\n")
    return code


def _records(ident: str) -> list[dict[str, Any]]:
    path = os.path.join(open_state(os.environ).open_run(ident).path, AUDIT)
    with open(path, "rb") as f:
        return [canonical.decode(line) for line in f]


def _tools(records: list[dict[str, Any]], ident: str) -> None:
    found: Report = report(records, ident)
    if not found.tools and not found.refused:
        return
    print(found.diff())
    for text, reason in found.wanted:
        print(f"# refused ({reason}), add it only if it was meant: {json.dumps(text, ensure_ascii=False)}")


def egress_proposal(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of a diff: a table for each host that was refused for want of a rule, the other refusals as comments."""
    hosts: dict[str, set[int]] = {}
    counts: dict[str, int] = {}
    others: dict[tuple[str, str], int] = {}
    for record in records:
        if record.get("layer") != "L2" or record.get("effect") != "deny":
            continue
        detail, reason = record["detail"], record["reason"]
        host = str(detail.get("host", ""))
        if reason not in LIFTABLE or not host:
            others[host, reason] = others.get((host, reason), 0) + 1
            continue
        ports = hosts.setdefault(host, set())
        counts[host] = counts.get(host, 0) + 1
        if type(detail.get("port")) is int:
            ports.add(detail["port"])
    if not hosts and not others:
        return ["# no host was refused"]
    out = ["--- saggar.toml", "+++ saggar.toml"] if hosts else []
    for host, ports in sorted(hosts.items()):
        shown = ", ".join(map(str, sorted(ports))) or "443"
        out += [
            "+",
            "+[[egress.allow]]",
            f"+host = {json.dumps(host)}  # refused {counts[host]} times; add it only if it was meant",
            f"+ports = [{shown}]" + ("" if ports else "  # only its name was asked for; 443 is a guess"),
        ]
    out += [
        f"# also refused, not for want of a rule: {h or '?'} ({r}), {n} times" for (h, r), n in sorted(others.items())
    ]
    return out
