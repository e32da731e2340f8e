"""From a policy and a command to one request for the launcher, with everything opened and checked that can be, before anything starts.

I1  Whatever is wrong with the input is an error here, with a message; nothing has been started and no run is left behind.
I2  What the cell will show is named by the policy, by the tool chain of the command, or by `isolation.rootfs`; nothing else.
I3  The environment of the caller contributes the names that the policy passes on, TERM where a terminal is passed, and nothing else.
"""

from __future__ import annotations

import os
from time import monotonic, time

from saggar.audit.sink_host import AuditLog
from saggar.core.errors import Unenforceable, UsageError
from saggar.isolation import rootfs
from saggar.isolation.bwrap_argv import HOME
from saggar.isolation.workspace_host import HOST_IDS, Workspace, prepare
from saggar.runtime.grant_host import Grant, check_count, open_grants
from saggar.runtime.request_host import describe, request
from saggar.runtime.result import Result
from saggar.runtime.separate_host import check_places
from saggar.runtime.verdict_host import enforcement, verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from saggar.isolation.state_host import RunDir
    from saggar.policy.model import EgressPolicy, Policy
    from saggar.runtime.caller_host import Options, Session
    from saggar.runtime.program_host import Fault
    from saggar.runtime.supervisor_host import Cell
    from saggar.runtime.terminate_host import Terminating

#: Inside, where the workspace is the host's root: it cannot stand at its own path.
_ROOT_WORKSPACE = "/workspace"


class Prepared:
    """One run, ready to start. Owns descriptors: `finish` or `abandon` gives them back."""

    __slots__ = (
        "argv",
        "audit",
        "cwd",
        "environment",
        "grants",
        "layer",
        "left_out",
        "missing",
        "notes",
        "options",
        "policy",
        "run",
        "session",
        "started_s",
        "terminating",
        "toolchain",
        "workspace",
    )

    def __init__(self, session: Session, policy: Policy, argv: Sequence[str], opts: Options) -> None:
        if not argv or not argv[0]:
            raise UsageError("no command was given", hint="saggar run [OPTIONS] -- COMMAND [ARGUMENT...]")
        for word in argv:
            if "\0" in word:
                raise UsageError("an argument holds a NUL character")
        _check_tier(policy)
        self.session = session
        self.policy = policy
        self.argv = list(argv)
        self.options = opts
        self.grants: list[Grant] = []
        self.toolchain: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.left_out: tuple[str, ...] = ()
        self.missing: Fault | None = None
        self.layer = ""
        self.terminating: Terminating | None = None
        self.started_s = monotonic()
        try:
            self.run: RunDir = session.state.new_run()
        except OSError as error:
            raise UsageError(
                f"no run can be kept in the state directory: {error.strerror}",
                hint="set `SAGGAR_STATE_DIR` to another place",
            ) from error
        try:
            self.audit = AuditLog(f"{self.run.path}/audit.jsonl", self.run.id)
            self.workspace: Workspace = prepare(
                policy,
                self.run,
                session.state,
                caller=session.caller,
                env=session.env,
                cwd=opts.cwd,
                about={"argv": self.argv, "started": round(time(), 3)},
            )
            session.layer = self.workspace.layer if self.workspace.mode == "copy-on-write" else session.layer
            self.cwd = self._inner_cwd()
            self.environment = self._environment()
            open_grants(self)
            self._resolve_program()
            check_count(self)
            check_places(self)
            if any(rule.http for rule in policy.egress.allow):
                self._terminate()
        except OSError as error:
            self.abandon()
            raise UsageError(
                f"the run cannot be prepared: {(error.strerror or str(error)).lower()}",
                hint="the state directory may be full: make room there, or set `SAGGAR_STATE_DIR` to another place",
            ) from error
        except BaseException:
            self.abandon()
            raise

    # what the cell sees

    @property
    def workspace_target(self) -> str:
        return _ROOT_WORKSPACE if self.workspace.path == "/" else self.workspace.path

    @property
    def cell_uid(self) -> int:
        """The host's uid of the cell's processes where it is not the caller's, else -1."""
        return HOST_IDS + self.workspace.ids[0] if self.session.caller.privileged else -1

    def _inner_cwd(self) -> str:
        """The caller's directory where the workspace has it, else the workspace, else HOME."""
        if self.workspace.mode == "none":
            return HOME
        path, cwd = self.workspace.path, os.path.realpath(self.options.cwd)
        if path == "/":
            return _ROOT_WORKSPACE + cwd.rstrip("/")
        return cwd if (cwd + "/").startswith(path + "/") else path

    def _environment(self) -> dict[str, str]:
        env = rootfs.environment(term=self.options.term)
        for name in self.policy.environment.pass_:
            if name in self.session.env:
                env[name] = self.session.env[name]
        env.update(self.policy.environment.set)
        return env

    def _terminate(self) -> None:
        """Start what terminated hosts need; the cell gets placeholders and the task's CA."""
        from saggar.runtime.separate_host import check_credentials
        from saggar.runtime.terminate_host import Terminating

        workspace = os.path.join(self.options.cwd, self.policy.workspace.path or "")
        env = self.session.env
        self.terminating = made = Terminating(
            self.policy.egress, self.run.id, env, workspace, check=lambda specs: check_credentials(self, specs, env)
        )
        for name, value in made.trust.environment.items():
            self.environment.setdefault(name, value)
        # over what the policy passes on: a variable of this name holds a placeholder, or nothing
        self.environment.update(made.compiled.environment)

    def rules_json(self, egress: EgressPolicy, approved: Sequence[dict[str, Any]] = ()) -> bytes:
        """What the broker is told of `egress`, and of the asks that were `approved` for the task."""
        if self.terminating is not None:
            return self.terminating.rules_json(egress, approved)
        # asked for when the first connection waits, which most runs never see
        from json import dumps, loads

        own = {"budget": loads(egress.budget or "{}"), "processes": egress.processes}
        return dumps({"egress": {**egress.to_json(), **own}}).encode()

    def _resolve_program(self) -> None:
        from saggar.runtime.program_host import resolve

        found = resolve(self)
        self.missing = found.fault
        if found.argv0:
            self.argv[0] = found.argv0
        self.toolchain = found.binds
        self.notes, self.left_out = found.notes, found.left_out
        for path in found.binds:
            self.grants.append(Grant(path, owned=False))
        for name, value in found.environment.items():
            self.environment.setdefault(name, value)
        if found.path:
            self.environment["PATH"] = found.path

    # the request

    def describe(self) -> dict[str, Any]:
        """For the audit log's `run.start`."""
        return describe(self)

    def request(self, streams: tuple[int, int, int]) -> tuple[dict[str, Any], list[int]]:
        """The launcher's `run` message and its descriptors."""
        return request(self, streams)

    # events

    def mounted(self, layer: str, started_ns: int) -> None:
        """The cell's workspace stands: what `apply` will need to know."""
        self.layer = layer
        if self.workspace.mode == "copy-on-write":
            self.run.update(layer=layer, started_ns=str(started_ns))

    # ends

    def abandon(self) -> None:
        """Nothing was started: leave no run behind."""
        self._end_secrets()
        for grant in self.grants:
            grant.close()
        workspace = getattr(self, "workspace", None)
        if workspace is not None:
            workspace.close()
        audit = getattr(self, "audit", None)
        if audit is not None:
            audit.close()
        self.session.state.discard(self.run)
        self.run.close()

    def finish(self, cell: Cell) -> Result:
        """Make the result, record the end, and let the run go."""
        cause, code, signal, message, detail = verdict(self, cell)
        if cell.upper >= 0:
            message = self._save_layer(os.dup(cell.upper)) or message
        end: dict[str, Any] = {"cause": cause, "exit_code": code, "signal": signal, "refused": cell.refused, **detail}
        try:
            _, head = self.audit.append("run.end", layer="L1", reason=cause, detail=end)
        except OSError as error:
            # the run is over; that its end is not on record is an end of its own kind
            cause, head, message = "infrastructure", "", f"the audit log could not be written: {error.strerror}"
        result = Result(
            run_id=self.run.id,
            cause=cause,
            exit_code=code,
            signal=signal,
            stdout=cell.stdout.bytes() if cell.stdout else b"",
            stderr=cell.stderr.bytes() if cell.stderr else b"",
            stdout_bytes=cell.stdout.total if cell.stdout else 0,
            stderr_bytes=cell.stderr.total if cell.stderr else 0,
            duration_s=monotonic() - self.started_s,
            limits=cell.enforcement.get("limits", {}),
            enforcement=enforcement(self, cell),
            workspace={"path": self.workspace.path, "mode": self.workspace.mode, "layer": self.layer},
            toolchain=self.toolchain,
            refusals=tuple(cell.refusals),
            refused=cell.refused,
            bytes_up=cell.bytes_up,
            bytes_down=cell.bytes_down,
            audit_path=self.audit.path,
            audit_head=head,
            message=message,
            detail=detail,
        )
        self._release(cause, head)
        return result

    def _save_layer(self, upper_fd: int) -> str:
        """Take a memory layer out of the ended cell; what to say where that failed."""
        from saggar.isolation.layer_save_host import save_memory_layer

        try:
            save_memory_layer(self.run, upper_fd)
        except OSError as error:
            return f"the run's changes are lost: they could not be kept in the state directory: {error.strerror}"
        return ""

    def _end_secrets(self) -> None:
        if self.terminating is not None:
            self.terminating.stop()

    def _release(self, cause: str, head: str = "") -> None:
        self._end_secrets()
        try:
            self.run.end(cause, head=head)
        except OSError:
            # a full disk: the free lock still says that nobody is alive
            pass
        for grant in self.grants:
            grant.close()
        self.workspace.finish()
        self.audit.close()
        self.run.close()


def _check_tier(policy: Policy) -> None:
    if policy.isolation.tier in ("auto", "process"):
        return
    raise Unenforceable(
        f"the tier `{policy.isolation.tier}` cannot be reached",
        cause="this build runs commands in the process tier",
        remedy="ask for `process` or `auto`",
    )
