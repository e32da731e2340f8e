"""The real cell behind `saggar bench escapes`: the same command line that a user types, in a state directory of the bench's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_DEADLINE_S = 90


class CellRun:
    """What one contained attempt gave back."""

    __slots__ = ("cause", "run_id", "stdout")

    def __init__(self, run_id: str, cause: str, stdout: bytes) -> None:
        self.run_id = run_id
        self.cause = cause
        self.stdout = stdout


def _saggar(arguments: Sequence[str], *, cwd: str, keep: Sequence[int] = ()) -> subprocess.CompletedProcess[bytes]:
    # not `-m` from the workspace: the current directory must never be on the host side's import path
    return subprocess.run(
        [sys.executable, "-P", "-m", "saggar", *arguments],
        cwd=cwd,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=_DEADLINE_S,
        check=False,
        pass_fds=tuple(keep),
    )


def run_in_cell(argv: Sequence[str], workspace: str, mode: str, *, keep: Sequence[int] = ()) -> CellRun:
    """Runs `argv` under `saggar run`. keep: descriptors that the caller leaks on purpose."""
    with tempfile.TemporaryDirectory(prefix="saggar-escapes-result-") as directory:
        result_file = os.path.join(directory, "result.json")
        done = _saggar(
            ["run", "--workspace", f"{workspace}:{mode}", "--timeout", "30s", "--json", result_file, "--", *argv],
            cwd=workspace,
            keep=keep,
        )
        try:
            with open(result_file) as f:
                result: dict[str, Any] = json.load(f)
        except FileNotFoundError:
            raise RuntimeError(f"no result: {done.stderr.decode(errors='replace').strip()[-300:]}") from None
    return CellRun(result["run_id"], result["cause"], done.stdout)


def apply_run(run_id: str, workspace: str, paths: Sequence[str]) -> str:
    """`saggar apply` of everything the run left. Returns its words: refusals are the expected outcome."""
    done = _saggar(["apply", run_id, *paths], cwd=os.path.dirname(workspace))
    if b"Traceback" in done.stderr or b"unknown command" in done.stderr:
        raise RuntimeError(done.stderr.decode(errors="replace")[-400:])
    return (done.stdout + done.stderr).decode(errors="replace").strip()[-300:]


def judge_audit(run_id: str, attempt: str, *, breach: bool) -> int:
    """The run's log must verify and hold its start and end; the verdict is chained behind them. Returns its number."""
    from saggar.audit.sink_host import AuditLog
    from saggar.audit.verify import verify
    from saggar.isolation.state_host import open_state

    state = open_state(os.environ)
    path = os.path.join(state.path, "runs", run_id, "audit.jsonl")
    with open(path, "rb") as f:
        lines = f.readlines()
    report = verify(lines, task=run_id)
    if not report.ok:
        raise RuntimeError(f"the audit log of `{run_id}` does not verify: {report.faults[0]}")
    kinds = [json.loads(line)["kind"] for line in lines]
    if kinds[0] != "run.start" or "run.end" not in kinds:
        raise RuntimeError(f"the audit log of `{run_id}` lacks its start or end: {kinds}")
    log = AuditLog(path, run_id)
    seq, _ = log.append(
        "bench.verdict",
        layer="L1",
        effect="allow" if breach else "deny",
        reason="breach" if breach else "held",
        detail={"attempt": attempt},
    )
    return seq
