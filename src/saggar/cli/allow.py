"""`saggar allow` and `saggar revoke`: change what a running task may reach."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from typing import Any

from saggar.core.errors import SaggarError, UsageError
from saggar.isolation.state_host import RunDir, open_state
from saggar.runtime.live_host import NAME

_TIMEOUT_S = 10.0
_SHOWN = 5


def main(argv: list[str]) -> int:
    """argv[0] is `allow` or `revoke`. Exit code 0, 2 for wrong arguments or no such run."""
    name = argv[0]
    about = {
        "allow": "Let a running task reach further hosts, from its next connection on.",
        "revoke": "Take hosts away from a running task; its open connections to them are cut.",
    }[name]
    parser = argparse.ArgumentParser(prog=f"saggar {name}", description=about)
    parser.add_argument("hosts", nargs="+", metavar="HOST[:PORT]", help="port 443 where none is given to `allow`")
    parser.add_argument("--run", metavar="RUN", help="id of the run or its start; the only running one if left out")
    args = parser.parse_args(argv[1:])
    run = running(args.run)
    answer = ask(run, {"op": name, "entries": args.hosts})
    if not answer.get("ok"):
        raise UsageError(str(answer.get("error", "the run did not answer")), hint=str(answer.get("hint", "")))
    word = "allowed" if name == "allow" else "revoked"
    for place in answer["changed"]:
        sys.stdout.write(f"{word} {place} in {run.id}\n")
    if not answer["changed"]:
        sys.stdout.write(f"nothing to change in {run.id}\n")
    for note in answer["notes"]:
        sys.stderr.write(f"saggar: note: {note}\n")
    return 0


def running(text: str | None) -> RunDir:
    """The run called `text`, or the only one that is running. Raises UsageError."""
    state = open_state(os.environ)
    if text:
        return state.open_run(text)
    alive = [run.id for run in state.runs() if _alive(run)]
    if not alive:
        raise UsageError("no task is running", hint="`saggar run -- COMMAND` starts one")
    if len(alive) > 1:
        ids = ", ".join(alive[-_SHOWN:])
        raise UsageError(f"{len(alive)} tasks are running", hint=f"name one with `--run`: {ids}")
    return state.open_run(alive[0])


def _alive(run: RunDir) -> bool:
    """Whether somebody listens: a killed supervisor leaves its socket's name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(_TIMEOUT_S)
        try:
            sock.connect(f"/proc/self/fd/{run.fd}/{NAME}")
        except OSError:
            return False
    return True


def ask(run: RunDir, request: dict[str, Any]) -> dict[str, Any]:
    """One request to a running task's own socket, and its answer. Raises UsageError, SaggarError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(_TIMEOUT_S)
        try:
            sock.connect(f"/proc/self/fd/{run.fd}/{NAME}")
            sock.send(json.dumps(request).encode())
            data = sock.recv(1 << 16)
        except TimeoutError:
            raise SaggarError(f"the run `{run.id}` did not answer within {_TIMEOUT_S:g} s") from None
        except OSError:
            raise UsageError(f"the run `{run.id}` has ended", hint="`saggar runs` lists them") from None
    answer = json.loads(data) if data else {}
    return answer if isinstance(answer, dict) else {}
