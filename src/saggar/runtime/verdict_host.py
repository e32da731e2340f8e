"""How a cell ended, and with what it was held: what its result says.

I1  A cause is taken from who ended the cell; the command's own exit counts only where nothing else is known to have done it.
I2  What enforced the run is told as it was, not as the policy wished.
"""

from __future__ import annotations

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
        return "unenforceable", None, 0, _why(cell.failure), {"step": cell.failure["step"]}
    code = ended["code"]
    if code is None:
        # bubblewrap reports a code only for a command that it executed
        if ended["made"]:
            what = (
                f"`{prepared.argv[0]}` could not be executed (bubblewrap's line on stderr has the kernel's word for it)"
            )
            return "infrastructure", None, 0, what, {"status": ended["status"]}
        what = _why({"step": "bubblewrap", "errno": 0, "message": "bubblewrap could not make the cell"})
        return "unenforceable", None, 0, what, {"step": "bubblewrap", "status": ended["status"]}
    if code != 0 and cell.disk_full():
        return "disk", code, 0, "", {"limit": "disk", "note": "the scratch space was full"}
    if code > 128:
        # bubblewrap, like a shell, says 128 and the number of a signal; a command may exit with such a number as well
        return "signal", None, code - 128, "", {}
    return "exit", code, 0, "", {}


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
