"""From a policy and a command to one request for the launcher, with everything opened and checked that can be, before anything starts.

I1  Whatever is wrong with the input is an error here, with a message; nothing has been started and no run is left behind.
I2  What the cell will show is named by the policy, by the tool chain of the command, or by `isolation.rootfs`; nothing else.
I3  The environment of the caller contributes the names that the policy passes on, TERM where a terminal is passed, and nothing else.
"""

from __future__ import annotations

import os
from stat import S_ISDIR, S_ISREG
from time import monotonic, time

from saggar.audit.sink_host import AuditLog
from saggar.core.errors import Unenforceable, UsageError
from saggar.egress.listeners import plan
from saggar.isolation import bwrap_host, rootfs
from saggar.isolation.bwrap_argv import GID, HOME, UID, options
from saggar.isolation.rootfs_mount_host import PROGRAM
from saggar.isolation.state_host import SWEEP_RUNS, State, open_state, state_path
from saggar.isolation.workspace_host import HOST_IDS, HOST_IDS_COUNT, CallerIds, Workspace, ids_of, prepare
from saggar.runtime.result import CAUSES, Result
from saggar.runtime.separate_host import check_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from saggar.isolation.state_host import RunDir
    from saggar.policy.model import EgressPolicy, Policy
    from saggar.runtime.program_host import Fault
    from saggar.runtime.supervisor_host import Cell
    from saggar.runtime.terminate_host import Terminating

_CAP_SYS_ADMIN = 1 << 21
#: Names that act on a dynamically linked program itself: bubblewrap must not meet them, the command may.
_LOADER = ("LD_", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "MALLOC_", "NLSPATH", "TMPDIR")
#: Inside, where the workspace is the host's root: it cannot stand at its own path.
_ROOT_WORKSPACE = "/workspace"

_ENV_PROGRAM = "/usr/bin/env"
_MANY_ARGUMENTS = 4000
_ARGV_FILE = "/run/argv"


class Grant:
    """One path of the host shown read-only. owned: a root caller's grant, whose owners are mapped; a tool chain's are not."""

    __slots__ = ("device", "directory", "fd", "inode", "owned", "path", "target")

    def __init__(self, path: str, *, owned: bool, target: str = "") -> None:
        self.path = path
        self.target = target or path
        self.owned = owned
        self.fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        status = os.fstat(self.fd)
        self.device = status.st_dev
        self.inode = status.st_ino
        self.directory = S_ISDIR(status.st_mode)
        if not self.directory and not S_ISREG(status.st_mode):
            os.close(self.fd)
            raise UsageError(f"`{path}` is neither a directory nor a regular file, and cannot be shown in a cell")

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Session:
    """What one supervisor prepares runs with: the state directory, who the caller is, which bubblewrap. layer: where the last
    copy-on-write workspace's changes went, for `foresee`."""

    __slots__ = ("bwrap", "caller", "env", "layer", "state")

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.layer = "disk"
        self.state: State = open_state(env)
        self.caller = caller()
        self.bwrap = bwrap_host.find(self.state.fd)

    def sweep(self) -> None:
        """Clear what dead and expired runs left, if nobody did lately. For after a start, while the cell is being built."""
        try:
            if not self.state.sweep_due():
                return
            alive, _ = self.state.sweep(limit=SWEEP_RUNS)
            from saggar.isolation.limits_host import sweep

            sweep(set(alive))
        except OSError:
            return  # the next start tries again; nothing of this run depends on it

    def current(self, env: Mapping[str, str]) -> bool:
        """Whether `env` means the same state directory and the same caller."""
        return state_path(env) == self.state.path and os.geteuid() == self.caller.uid


def caller() -> CallerIds:
    """Who asks. Raises Unenforceable for a root that may not map owners: its cell would run as host root."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        return CallerIds(uid=uid, gid=gid, privileged=False)
    from saggar.isolation.syscalls_host import capabilities

    if not capabilities() & _CAP_SYS_ADMIN:
        raise Unenforceable(
            "a cell never runs as root, and this root cannot give it another user",
            cause="the process is uid 0 without CAP_SYS_ADMIN (a container's root)",
            remedy="run saggar as an ordinary user",
        )
    return CallerIds(uid=0, gid=0, privileged=True)


class Options:
    """How the caller wants one run. cwd: absolute. stdin_terminal etc. travel in the streams; terminal: descriptor of the caller's
    terminal or -1; foreground: whether the cell gets it at once; timeout_s: None for none; keep_bytes: of each captured stream;
    linger: the caller ends with the run, so that the launcher is to close what is slow to close; spare: a child of the launcher may
    wait for the next run (docs/decisions/0012-a-spare-child.md)."""

    __slots__ = ("cwd", "foreground", "keep_bytes", "linger", "spare", "term", "terminal", "timeout_s")

    def __init__(
        self,
        *,
        cwd: str,
        timeout_s: float | None,
        terminal: int = -1,
        foreground: bool = False,
        term: str = "",
        keep_bytes: int = 0,
        linger: bool = False,
        spare: bool = True,
    ) -> None:
        self.cwd = cwd
        self.linger = linger
        self.spare = spare and not linger
        self.timeout_s = timeout_s
        self.terminal = terminal
        self.foreground = foreground
        self.term = term
        self.keep_bytes = keep_bytes


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
            self._open_grants()
            self._resolve_program()
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

    @property
    def inner_user(self) -> tuple[int, int]:
        """(uid, gid) inside: the workspace's owner's, since git takes every file with another owner than in its index for
        changed and reads it (a first `git status` of 7.9 times native in place of 3.2). Never root's: programs that find
        themselves root try what no cell may do (tar then changes owners)."""
        return _inner(self.workspace.ids)

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

    def _open_grants(self) -> None:
        for path in self.policy.isolation.read:
            try:
                self.grants.append(Grant(path, owned=True))
            except OSError as error:
                raise UsageError(
                    f"the path `{path}` of `isolation.read` cannot be opened: {error.strerror}", file=self.policy.file
                ) from None
        if self.workspace.repository:
            self.grants.append(Grant(self.workspace.repository, owned=True))

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

    def _binds(self) -> list[tuple[int, str, bool]]:
        """(number of the grant, or -1 for the workspace; place; writable), in the order in which they are put there."""
        binds = [(i, g.target, False) for i, g in enumerate(self.grants)]
        if self.workspace.mode == "none":
            return binds
        # beneath the grants that lie inside it, above those that it lies inside
        inner = [b for b in binds if (b[1] + "/").startswith(self.workspace_target + "/")]
        outer = [b for b in binds if b not in inner]
        return [*outer, (-1, self.workspace_target, self.workspace.mode != "read-only"), *inner]

    # the request

    def describe(self) -> dict[str, Any]:
        """For the audit log's `run.start`."""
        return {
            "argv": [_text(a) for a in self.argv],
            "workspace": _text(self.workspace.path),
            "mode": self.workspace.mode,
            "policy": _text(self.policy.file),
            "environment": sorted(_text(n) for n in self.environment),
            "egress": self.policy.egress.to_json()["allow"],
            "read": [_text(p) for p in self.policy.isolation.read],
            "toolchain": [_text(p) for p in self.toolchain],
        }

    def request(self, streams: tuple[int, int, int]) -> tuple[dict[str, Any], list[int]]:
        """The launcher's `run` message and its descriptors."""
        fds = list(streams)
        workspace_fds = self.workspace.fds
        at = len(fds)
        fds += workspace_fds
        grants = []
        for grant in self.grants:
            grants.append(
                {
                    "fd": len(fds),
                    "path": grant.path,
                    "device": grant.device,
                    "inode": grant.inode,
                    "directory": grant.directory,
                    "owned": grant.owned,
                }
            )
            fds.append(grant.fd)
        bwrap = self.session.bwrap
        terminal = -1
        if self.options.terminal >= 0:
            terminal = len(fds)
            fds.append(self.options.terminal)
        plain = {n: v for n, v in self.environment.items() if not n.startswith(_LOADER)}
        late = {n: v for n, v in self.environment.items() if n.startswith(_LOADER)}
        shield = terminal >= 0 and os.access(_ENV_PROGRAM, os.X_OK)
        files = [] if self.terminating is None else list(self.terminating.trust.files)
        command = self.argv if len(self.argv) <= _MANY_ARGUMENTS else _from_file(self.argv, files)
        if shield:
            command = [_ENV_PROGRAM, "--default-signal=INT,QUIT", "--", *command]
        on_disk = self.workspace.layer == "disk" or self.workspace.mode == "read-write"
        birth = _birth(self.session, self.policy, self.workspace.ids, terminal, disk_on_host=on_disk)
        wheel = birth["wheel"]
        return {
            **birth,
            "op": "run",
            "id": self.run.id,
            "bwrap": f"{PROGRAM}{bwrap.path[len(wheel) :]}" if wheel else bwrap.path,
            "options": options(self.inner_user, self.cwd),
            "binds": self._binds(),
            "files": files,
            "covers": [] if self.terminating is None else list(self.terminating.trust.covers),
            "home": [] if self.terminating is None else list(self.terminating.trust.home),
            "command": command,
            "env": plain,
            "late_env": late,
            "workspace": dict(self.workspace.plan),
            "workspace_fds": list(range(at, at + len(workspace_fds))),
            "grants": grants,
            "linger": self.options.linger,
            "spare": self.options.spare,
            "foreground": self.options.foreground,
            "shield": shield,
            "timeout_s": self.options.timeout_s,
            "umask": _umask(),
        }, fds

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
            enforcement=self._enforcement(cell),
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

    def _enforcement(self, cell: Cell) -> dict[str, Any]:
        bwrap = self.session.bwrap
        mapping = f"0->{HOST_IDS + self.workspace.ids[0]}" if self.session.caller.privileged else "caller"
        return {
            "tier": "process",
            "bubblewrap": f"{bwrap.version_text} ({'bundled' if bwrap.bundled else 'system'})",
            "user": mapping,
            "seccomp": cell.enforcement.get("seccomp", ""),
            "unix_sockets": "connected pairs" if cell.shared else "the cell's own",
            "workspace": self.workspace.mode,
            **({"broker": cell.broker_lockdown} if cell.broker_lockdown else {}),
            **({"secrets": self.terminating.enforcement} if self.terminating is not None else {}),
            "caveats": [str(c) for c in self.workspace.caveats],
            "toolchain": list(self.notes),
            "left_out": list(self.left_out),
        }


def _inner(ids: tuple[int, int]) -> tuple[int, int]:
    return ids if ids[0] else (UID, GID)


def _birth(
    session: Session, policy: Policy, ids: tuple[int, int], terminal: int, *, disk_on_host: bool
) -> dict[str, Any]:
    """What the launcher's child is born with (`saggar.isolation.child_host.Birth`), but for the workspace's place."""
    limits, bwrap, user = policy.limits, session.bwrap, _inner(ids)
    return {
        "ids": (HOST_IDS, HOST_IDS_COUNT, *ids, *user) if session.caller.privileged else None,
        "user": user,
        "terminal": terminal,
        "listeners": plan(policy.egress.allow),
        "scratch": (limits.disk_bytes, max(limits.disk_bytes // 4096, 64)),
        "limits": {s: getattr(limits, s) for s in limits.__slots__},
        "disk_on_host": disk_on_host,
        # the wheel may lie where a stranger cannot go (/root), or below /tmp; and /proc/1/exe inside would show its place
        "wheel": os.path.dirname(os.path.dirname(os.path.dirname(bwrap.path))) if bwrap.bundled else "",
    }


def foresee(session: Session, policy: Policy, opts: Options) -> dict[str, Any] | None:
    """The launcher's `expect` message: a child can be born while the run is still being prepared. A guess where preparing would
    decide (who owns the workspace, where its changes go); what was guessed wrong is born again. None where nothing can be said."""
    mode = policy.workspace.mode
    path = os.path.realpath(os.path.join(opts.cwd, policy.workspace.path or "")) if mode != "none" else ""
    try:
        status = os.stat(path or "/")
    except OSError:
        return None
    caller = session.caller
    nobody = (0, 0) if caller.privileged else (caller.uid, caller.gid)
    ids = ids_of(status, caller) if mode != "none" else nobody
    on_disk = mode == "read-write" or (mode == "copy-on-write" and session.layer == "disk")
    workspace = {"path": path, "layer": {"path": session.state.path}}
    birth = _birth(session, policy, ids, opts.terminal, disk_on_host=on_disk)
    return {**birth, "op": "expect", "workspace": workspace}


def _why(failure: dict[str, Any]) -> str:
    """Why there is no cell, with the cause and the remedy that `saggar doctor` would print."""
    from saggar.isolation.probe_host import explain_failure

    return str(explain_failure(failure))


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


def _from_file(argv: list[str], files: list[tuple[str, bytes]]) -> list[str]:
    """A command with more words than bubblewrap reads (9000 with its options): a shell reads them from a file and executes them."""
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in argv)
    files.append((_ARGV_FILE, os.fsencode(f"exec {quoted}\n")))
    return ["/bin/sh", _ARGV_FILE]


def _check_tier(policy: Policy) -> None:
    if policy.isolation.tier in ("auto", "process"):
        return
    raise Unenforceable(
        f"the tier `{policy.isolation.tier}` cannot be reached",
        cause="this build runs commands in the process tier",
        remedy="ask for `process` or `auto`",
    )


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode()
