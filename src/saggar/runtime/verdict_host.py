"""How a cell ended, and with what it was held: what its result says.

I1  A cause is taken from who ended the cell; the command's own exit counts only where nothing else is known to have done it.
I2  What enforced the run is told as it was, not as the policy wished.
"""

from __future__ import annotations

import os
from errno import E2BIG

from saggar.isolation.workspace_host import HOST_IDS
from saggar.runtime.result import CAUSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from saggar.runtime.prepare_host import Prepared
    from saggar.runtime.supervisor_host import Cell


def verdict(prepared: Prepared, cell: Cell) -> tuple[str, int | None, int, str, dict[str, Any]]:
    """(cause, exit code, signal, message, detail) of an ended cell."""
    if prepared.missing is not None:
        return prepared.missing.cause, None, 0, prepared.missing.text, {}
    ended = cell.ended or {"code": None, "status": None, "cause": "launcher_died", "detail": {}, "made": False}
    detail = dict(ended["detail"])
    if ended["cause"]:
        cause = ended["cause"]
        if cause == "signal":
            return "signal", None, int(detail.get("signal", 9)), "", detail
        return (cause if cause in CAUSES else "infrastructure"), None, 0, "", detail
    if cell.failure is not None:
        if cell.failure["step"] == "exec" and cell.failure["errno"] == E2BIG:
            return "not_executable", None, 0, f"`{prepared.argv[0]}`: the argument list is too long", {}
        return "unenforceable", None, 0, _why(cell.failure), {"step": cell.failure["step"]}
    code = ended["code"]
    if code is None:
        # bubblewrap reports a code only for a command that it executed
        if ended["made"]:
            return _without_code(prepared, ended["status"], detail)
        what = _why({"step": "bubblewrap", "errno": 0, "message": "bubblewrap could not make the cell"})
        return "unenforceable", None, 0, what, {"step": "bubblewrap", "status": ended["status"]}
    if code != 0 and cell.disk_full():
        return "disk", code, 0, "", {"limit": "disk", "note": "the scratch space was full"}
    # a detail without a cause is a suspicion (`Limits.suspicion`): the end is the command's own
    if code > 128:
        # bubblewrap, like a shell, says 128 and the number of a signal; a command may exit with such a number as well
        return "signal", None, code - 128, "", detail
    return "exit", code, 0, "", detail


def _without_code(
    prepared: Prepared, status: int | None, detail: dict[str, Any]
) -> tuple[str, None, int, str, dict[str, Any]]:
    """A cell was made, and bubblewrap reported no exit of the command. That nothing ran is said only where bubblewrap ended with the 1 of
    a failed exec: who believes it runs the command again."""
    detail["status"] = status
    if status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1:
        from saggar.runtime.program_host import not_executed

        fault = not_executed(prepared)
        return fault.cause, None, 0, fault.text, detail
    number = ender(status)
    by = f"by signal {number}, " if number else ""
    what = f"the cell was ended {by}from within or from outside; the command had started, and what it did is done"
    return "infrastructure", None, 0, what, {**detail, "ended_by_signal": number, "started": True, "note": what}


def ender(status: int | None) -> int:
    """The signal that ended a cell's first process, by the wait status of it or of its keeper; 0 where none did."""
    if status is None:
        return 0
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    # bubblewrap adds its child's signal to 128; a keeper (`child_host`) takes its own from 256. There are 64 signals
    code = os.WEXITSTATUS(status)
    return 256 - code if code >= 192 else max(code - 128, 0)


def enforcement(prepared: Prepared, cell: Cell) -> dict[str, Any]:
    """For `Result.enforcement`: what held the cell beside its limits, and what was not held as outside."""
    bwrap = prepared.session.bwrap
    mapping = f"0->{HOST_IDS + prepared.workspace.ids[0]}" if prepared.session.caller.privileged else "caller"
    return {
        "tier": "process",
        "bubblewrap": f"{bwrap.version_text} ({'bundled' if bwrap.bundled else 'system'})",
        "user": mapping,
        "seccomp": cell.enforcement.get("seccomp", ""),
        "unix_sockets": "connected pairs" if cell.shared else "the cell's own",
        "workspace": prepared.workspace.mode,
        **({"broker": cell.broker_lockdown} if cell.broker_lockdown else {}),
        **({"secrets": prepared.terminating.enforcement} if prepared.terminating is not None else {}),
        "caveats": [str(c) for c in prepared.workspace.caveats],
        "toolchain": list(prepared.notes),
        "left_out": list(prepared.left_out),
    }


def _why(failure: dict[str, Any]) -> str:
    """Why there is no cell, with the cause and the remedy that `saggar doctor` would print."""
    from saggar.isolation.probe_host import explain_failure

    return str(explain_failure(failure))
