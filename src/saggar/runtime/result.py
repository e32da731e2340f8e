"""How one contained command ended.

I1  Success is never made up: `exit_code` is 0 only when the command itself exited with 0 and nothing ended the cell before.
I2  `cause` is one of CAUSES and says who ended the run: the command (`exit`, `signal`), a limit, or what failed around it.
I3  `limits` says for each limit how it was held, `enforcement` what enforced the rest; neither repeats the policy's wishes.

On the `saggar run` path: see `core.decision.Frozen`.
"""

from __future__ import annotations

from saggar.core.decision import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: cause -> what `saggar run` exits with when the command did not run to its end (STYLE, errors); None: the command's own
CAUSES: dict[str, int | None] = {
    "exit": None,
    "signal": None,
    "not_found": 127,
    "not_executable": 126,
    "timeout": 6,
    "memory": 6,
    "tasks": 6,
    "cpu": 6,
    "disk": 6,
    "output": 6,
    "cancelled": 130,
    "policy": 3,
    "unenforceable": 4,
    "broker_died": 70,
    "launcher_died": 70,
    "supervisor_died": 70,
    "infrastructure": 70,
}


class Result(Frozen):
    """The typed end of a run.

    run_id: also the task of its audit log. exit_code: the command's own, None where it did not exit by itself. signal: the number that
    ended it, 0 for none. stdout, stderr: captured bytes, the head and the tail where more came than was kept; stdout_bytes and
    stderr_bytes: what came in truth. refusals: at most 100 of the egress refusals, as (reason, host, port); refused: their true count.
    duration_s: from request to the last process's end.
    """

    __slots__ = (
        "audit_head",
        "audit_path",
        "bytes_down",
        "bytes_up",
        "cause",
        "detail",
        "duration_s",
        "enforcement",
        "exit_code",
        "limits",
        "message",
        "refusals",
        "refused",
        "run_id",
        "signal",
        "stderr",
        "stderr_bytes",
        "stdout",
        "stdout_bytes",
        "toolchain",
        "workspace",
    )
    run_id: str
    cause: str
    exit_code: int | None
    signal: int
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    duration_s: float
    limits: dict[str, Any]
    enforcement: dict[str, Any]
    workspace: dict[str, Any]
    toolchain: tuple[str, ...]
    refusals: tuple[tuple[str, str, int], ...]
    refused: int
    bytes_up: int
    bytes_down: int
    audit_path: str
    audit_head: str
    message: str
    detail: dict[str, Any]

    def __init__(
        self,
        *,
        run_id: str,
        cause: str,
        exit_code: int | None = None,
        signal: int = 0,
        stdout: bytes = b"",
        stderr: bytes = b"",
        stdout_bytes: int = 0,
        stderr_bytes: int = 0,
        duration_s: float = 0.0,
        limits: dict[str, Any] | None = None,
        enforcement: dict[str, Any] | None = None,
        workspace: dict[str, Any] | None = None,
        toolchain: tuple[str, ...] = (),
        refusals: tuple[tuple[str, str, int], ...] = (),
        refused: int = 0,
        bytes_up: int = 0,
        bytes_down: int = 0,
        audit_path: str = "",
        audit_head: str = "",
        message: str = "",
        detail: dict[str, Any] | None = None,
    ) -> None:
        self._set(
            run_id=run_id,
            cause=cause,
            exit_code=exit_code,
            signal=signal,
            stdout=stdout,
            stderr=stderr,
            stdout_bytes=stdout_bytes,
            stderr_bytes=stderr_bytes,
            duration_s=duration_s,
            limits=limits or {},
            enforcement=enforcement or {},
            workspace=workspace or {},
            toolchain=toolchain,
            refusals=refusals,
            refused=refused,
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            audit_path=audit_path,
            audit_head=audit_head,
            message=message,
            detail=detail or {},
        )

    def __hash__(self) -> int:
        return hash((self.run_id, self.cause, self.exit_code))

    @property
    def ok(self) -> bool:
        """The command ran to its end and said that all went well."""
        return self.cause == "exit" and self.exit_code == 0

    @property
    def status(self) -> int:
        """What a shell would show: the command's own code, 128 and the signal, or Saggar's code for the cause."""
        fixed = CAUSES[self.cause]
        if fixed is not None:
            return fixed
        if self.exit_code is not None:
            return self.exit_code
        return 128 + self.signal

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, without the captured streams (they are bytes, and may be anything)."""
        out = {s: getattr(self, s) for s in self.__slots__ if s not in ("stdout", "stderr")}
        out["toolchain"] = list(self.toolchain)
        out["refusals"] = [{"reason": r, "host": h, "port": p} for r, h, p in self.refusals]
        out["duration_s"] = round(self.duration_s, 6)
        return dict(sorted(out.items()))
