"""`saggar bench escapes`: every attempt first outside on a stand-in, then in a real cell, then the audit record.

A row is `held` (control succeeded, attempt refused, audit chain good), `breach`, `unproven` (this caller on this host cannot make
the control succeed, so the refusal proves less; counted apart) or `error` (the attempt did not run: never counted as held).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from saggar.bench.escapes.attempts import ATTEMPTS
from saggar.bench.escapes.oracles_host import ORACLES, naive_apply
from saggar.bench.escapes.standins_host import StandIns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from saggar.bench.escapes.attempts import Attempt

_PARTS = ("inside_base", "inside_files", "inside_sockets", "inside_kernel")
_DEADLINE_S = 30
_KEY = "saggar-escape"
# mounts that some controls need, made in the throw-away mount namespace
_PREPARE = (
    'mkdir -p "$1/mounted" "$1/pivot"; mount -t tmpfs none "$1/mounted"; mount --bind "$1/pivot" "$1/pivot"; '
    'mount --bind -o ro "$1/standin" "$1/standin" && mount -o remount,bind,ro "$1/standin"; shift; exec "$@"'
)


def inside_source() -> str:
    """The inside program as one text: the parts joined, imports of each other dropped."""
    lines: list[str] = []
    for part in _PARTS:
        with open(os.path.join(os.path.dirname(__file__), part + ".py")) as f:
            text = f.read()
        lines += [
            line
            for line in text.splitlines()
            if not line.startswith(("from saggar", "from __future__"))  # the first part carries the future import
        ]
    return "\n".join(["from __future__ import annotations", *lines, "", "sys.exit(main())", ""])


class Row:
    """One attempt's outcome, JSON-ready."""

    __slots__ = ("audit_seq", "control", "evidence", "kind", "name", "run_id", "verdict")

    def __init__(self, attempt: Attempt) -> None:
        self.name = attempt.name
        self.kind = attempt.kind
        self.verdict = "error"
        self.control = ""
        self.evidence = ""
        self.run_id = ""
        self.audit_seq = -1

    def to_json(self) -> dict[str, Any]:
        return {s: getattr(self, s) for s in self.__slots__}


class Bench:
    """Runs the table. `python` is an interpreter that the cell can see (resolved like any command)."""

    def __init__(self, python: str = "") -> None:
        self.python = python or ("/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable)
        self.source = inside_source()

    def run(self, names: Iterable[str] = (), progress: Callable[[Row], None] | None = None) -> list[Row]:
        wanted = set(names)
        rows = []
        with StandIns() as standins:
            os.environ["SAGGAR_STATE_DIR"] = standins.path("state")
            os.environ["SAGGAR_ESCAPE_SECRET"] = standins.token  # what a careless runtime would pass in
            _session_key(standins.token)
            for attempt in ATTEMPTS:
                if wanted and attempt.name not in wanted:
                    continue
                row = self.one(attempt, standins)
                rows.append(row)
                if progress is not None:
                    progress(row)
        return rows

    def one(self, attempt: Attempt, standins: StandIns) -> Row:
        row = Row(attempt)
        try:
            row.control = self._control(attempt, standins)
            proven = row.control.startswith("succeeded")
            evidence = self._inside(attempt, standins, row)
        except (OSError, subprocess.SubprocessError, ValueError, RuntimeError) as error:
            row.evidence = f"{type(error).__name__}: {error}"
            return row
        if evidence:
            row.verdict, row.evidence = "breach", evidence
        else:
            row.verdict = "held" if proven else "unproven"
        return row

    def _argv(self, action: str, params: dict[str, Any]) -> list[str]:
        return [self.python, "-I", "-S", "-c", self.source, action, json.dumps(params)]

    def _control(self, attempt: Attempt, standins: StandIns) -> str:
        """Shows that the act succeeds where no cell is. Returns `succeeded: …` or why it could not be shown."""
        workspace = standins.workspace(f"control-{attempt.name}")
        argv = self._argv(attempt.action, attempt.control_params(standins, workspace))
        if attempt.control == "root" and os.geteuid() != 0:
            return "not shown: needs root"
        if attempt.name == "setuid_program":
            _setuid_copy(workspace)
            argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *argv]
        if attempt.control == "signal":
            return _signal_control(self.python)
        if attempt.control == "userns":
            argv = ["unshare", "-UrmnpfC", "sh", "-c", _PREPARE, "sh", standins.root, *argv]
        if attempt.apply is not None:
            return self._apply_control(attempt, standins, workspace)
        answer = _answer(
            subprocess.run(
                argv,
                capture_output=True,
                timeout=_DEADLINE_S,
                check=False,
                cwd=standins.path("standin"),
                pass_fds=(standins.inherited_fd,),
                stdin=subprocess.DEVNULL,
            ).stdout
        )
        evidence = ORACLES[attempt.oracle](standins, workspace) if attempt.oracle else answer["evidence"]
        shown = bool(evidence) if attempt.oracle else answer["breach"]
        return f"succeeded: {evidence}" if shown else f"not shown: {answer['evidence']}"

    def _apply_control(self, attempt: Attempt, standins: StandIns, workspace: str) -> str:
        layer = standins.path("layers", attempt.name)
        os.makedirs(layer)
        params = {**attempt.control_params(standins, workspace), "dir": layer}
        subprocess.run(self._argv(attempt.action, params), timeout=_DEADLINE_S, check=True, capture_output=True)
        _swap(attempt, standins, workspace)
        naive_apply(layer, workspace)
        evidence = ORACLES[attempt.oracle](standins, workspace)
        _clear_standin(standins)
        return f"succeeded: {evidence}" if evidence else "not shown: the naive hand left nothing"

    def _inside(self, attempt: Attempt, standins: StandIns, row: Row) -> str:
        from saggar.bench.escapes.cell_host import judge_audit, run_in_cell

        workspace = standins.workspace(f"cell-{attempt.name}")
        if attempt.name == "setuid_program" and os.geteuid() == 0:
            _setuid_copy(workspace)
        params = attempt.inside(standins, workspace)
        if attempt.mode == "none":
            workspace = standins.path("empty")
            os.makedirs(workspace, exist_ok=True)
        result = run_in_cell(self._argv(attempt.action, params), workspace, attempt.mode, keep=(standins.inherited_fd,))
        row.run_id = result.run_id
        answer = _answer(result.stdout)
        row.evidence = answer["evidence"]
        evidence = answer["evidence"] if answer["breach"] else ""
        if attempt.apply is not None:
            from saggar.bench.escapes.cell_host import apply_run

            _swap(attempt, standins, workspace)
            row.evidence = apply_run(result.run_id, workspace, attempt.apply)
        if attempt.oracle:
            evidence = evidence or ORACLES[attempt.oracle](standins, workspace)
        row.audit_seq = judge_audit(result.run_id, attempt.name, breach=bool(evidence))
        return evidence


def _answer(stdout: bytes) -> dict[str, Any]:
    lines = stdout.strip().splitlines()
    if not lines:
        raise RuntimeError("the attempt printed nothing: it did not run")
    answer = json.loads(lines[-1])
    if not isinstance(answer, dict) or not {"breach", "evidence"} <= answer.keys():
        raise RuntimeError("the attempt's answer has no verdict")
    return answer


def _swap(attempt: Attempt, standins: StandIns, workspace: str) -> None:
    """A second hand on the host swaps a directory for a link between the run and the apply."""
    if attempt.name == "apply_after_host_swap":
        directory = os.path.join(workspace, "dir")
        os.rename(directory, directory + ".away")
        os.symlink(standins.path("standin"), directory)


def _clear_standin(standins: StandIns) -> None:
    for name in os.listdir(standins.path("standin")):
        path = standins.path("standin", name)
        if os.path.isfile(path):
            os.unlink(path)
    standins.write("standin/file", standins.token)
    standins.write("standin/exe", standins.token)


def _setuid_copy(workspace: str) -> None:
    import shutil

    path = os.path.join(workspace, "id-setuid")
    shutil.copyfile("/usr/bin/id", path)
    os.chmod(path, 0o4755)  # the very thing that is under test


def _session_key(token: str) -> None:
    """A key in this process's session keyring, which children inherit."""
    import ctypes

    libc = ctypes.CDLL(None)
    numbers = (248, 250) if os.uname().machine == "x86_64" else (217, 219)
    libc.syscall(numbers[1], 1, None)  # KEYCTL_JOIN_SESSION_KEYRING
    libc.syscall(numbers[0], b"user", _KEY.encode(), token.encode(), len(token), -3)


def _signal_control(python: str) -> str:
    """In a pid namespace of its own, `kill(-1)` ends a bystander: shown there, never on the host."""
    code = (
        "import os,signal,time\n"
        "pid=os.fork()\n"
        "if pid==0:\n time.sleep(20); os._exit(0)\n"
        "if os.fork()==0:\n signal.signal(signal.SIGUSR1,signal.SIG_IGN); os.kill(-1,signal.SIGUSR1); os._exit(0)\n"
        "print('gone' if os.waitstatus_to_exitcode(os.waitpid(pid,0)[1])<0 else 'alive')\n"
    )
    argv = ["unshare", "-Urpf", python, "-I", "-S", "-c", code]
    out = subprocess.run(argv, capture_output=True, timeout=_DEADLINE_S, check=False).stdout
    return "succeeded: a bystander was killed" if b"gone" in out else "not shown: no bystander died"
