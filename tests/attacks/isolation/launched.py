"""One command in a cell of this process's engine, and a look at the engine's processes."""

import json
import os
import time
from pathlib import Path

import saggar
from saggar.policy.model import IsolationPolicy, Policy, WorkspacePolicy


def inside(script, workspace, **isolation):
    policy = Policy(workspace=WorkspacePolicy(path=str(workspace)), isolation=IsolationPolicy(**isolation))
    result = saggar.run_sync(["/bin/sh", "-c", script], policy)
    assert result.cause == "exit", result
    with open(result.audit_path) as log:
        records = [json.loads(line) for line in log]
    assert [records[0]["kind"], records[-1]["kind"]] == ["run.start", "run.end"]
    return result


def gone(pid):
    until = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


def children(pid) -> list[str]:
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += (task / "children").read_text().split()
        except OSError:
            continue  # a thread that ended
    return found
