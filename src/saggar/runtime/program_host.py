"""Finding the command's program as the cell will see it, and the tool chain that it needs."""

from __future__ import annotations

import os
from errno import ELOOP

from saggar.isolation import rootfs
from saggar.isolation.toolchain_host import resolve as toolchain
from saggar.runtime.exec_fault_host import beginning, refused, unfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.runtime.prepare_host import Prepared


#: A first line longer than this is cut by the kernel too (BINPRM_BUF_SIZE).
_FIRST_LINE_BYTES = 256

#: The conventions of shells, `env` and POSIX: 127 for what is not there, 126 for what is and cannot be executed.
NOT_FOUND, NOT_EXECUTABLE = "not_found", "not_executable"


class Fault:
    """Why a program cannot be started. cause: NOT_FOUND or NOT_EXECUTABLE; text: one line for the user."""

    __slots__ = ("cause", "text")

    def __init__(self, cause: str, text: str) -> None:
        self.cause = cause
        self.text = text


class Program:
    """argv0: what to execute, as the cell sees it. fault: why there is no such program, or None. binds: host directories to
    show. environment: what the tool chain wants set. path: the cell's PATH where it differs. notes, left_out: see `Toolchain`."""

    __slots__ = ("argv0", "binds", "environment", "fault", "left_out", "notes", "path")

    def __init__(
        self,
        *,
        argv0: str = "",
        fault: Fault | None = None,
        binds: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        path: str = "",
        notes: tuple[str, ...] = (),
        left_out: tuple[str, ...] = (),
    ) -> None:
        self.argv0 = argv0
        self.fault = fault
        self.binds = binds
        self.environment = environment or {}
        self.path = path
        self.notes = notes
        self.left_out = left_out


def resolve(prepared: Prepared) -> Program:
    """Look the program up as the caller would: a path as it is, a name along the caller's PATH (the policy's, where it sets one).

    What the caller's PATH does not have may still be on the cell's own. Raises `UsageError` where the program's tool chain
    is too broad to show.
    """
    name = prepared.argv[0]
    inside = prepared.environment["PATH"]
    chosen = {n for n, _ in prepared.policy.environment.set} | set(prepared.policy.environment.pass_)
    found = toolchain(
        name,
        path=inside if "PATH" in chosen else prepared.session.env.get("PATH", "") + ":" + inside,
        cwd=prepared.cwd,
        workspace=_shown_workspace(prepared),
        env=prepared.session.env,
        shown=[g.target for g in prepared.grants],
    )
    if not found.argv0:
        return Program(fault=_missing(prepared, name))
    fault = None
    if not found.binds:
        fault = _fault(prepared, found.argv0, name) if "/" in found.argv0 else None
    elif why := unfit(_host_path(prepared, found.argv0) or found.argv0):
        fault = Fault(NOT_EXECUTABLE, f"`{name}`: {why}")
    if fault is not None:
        return Program(fault=fault)
    path = ":".join([*found.path_entries, inside]) if found.path_entries else ""
    return Program(
        argv0=found.argv0,
        binds=found.binds,
        environment=found.env,
        path=path,
        notes=found.notes,
        left_out=found.left_out,
    )


def _shown_workspace(prepared: Prepared) -> str:
    """The workspace where it stands at its own path; the host's root does not."""
    path = prepared.workspace.path
    return path if prepared.workspace.mode != "none" and prepared.workspace_target == path else ""


def _missing(prepared: Prepared, name: str) -> Fault:
    if "/" in name:
        # the host's root as a workspace has another place inside, which only this knows
        return _fault(prepared, os.path.join(prepared.cwd, name), name) or _absent(name)
    for directory in f"{prepared.environment['PATH']}:{prepared.session.env.get('PATH', '')}".split(":"):
        path = os.path.join(prepared.cwd, directory, name)
        host = _host_path(prepared, path)
        # a directory of that name is no hit of a search along PATH
        if host and os.path.isfile(host):
            fault = _fault(prepared, path, name)
            if fault is not None:
                return fault
    return _absent(name)


def _absent(name: str) -> Fault:
    return Fault(NOT_FOUND, f"`{name}`: no such program in the cell")


def _fault(prepared: Prepared, path: str, name: str) -> Fault | None:
    if _is_copy(path):
        return Fault(NOT_EXECUTABLE, f"`{name}`: the file is there, but it is not executable")
    host = _host_path(prepared, path)
    if host and _loops(host):
        return Fault(NOT_EXECUTABLE, f"`{name}`: too many levels of symbolic links")
    if not host or not os.path.exists(host + "/" * path.endswith("/")):
        return _absent(name)
    if os.path.isdir(host):
        return Fault(NOT_EXECUTABLE, f"`{name}`: is a directory, not a program")
    if not os.access(host, os.X_OK) or not _executable_for_stranger(prepared, host):
        shown = name if "/" in name else path
        remedy = "" if host.startswith("/usr/") else f" (`chmod +x {shown}`)"
        return Fault(NOT_EXECUTABLE, f"`{name}`: the file is there, but it is not executable{remedy}")
    if path.startswith("/usr/"):
        return None
    why = unfit(host)
    if why:
        return Fault(NOT_EXECUTABLE, f"`{name}`: {why}")
    interpreter = _interpreter(host)
    if interpreter:
        there = _host_path(prepared, os.path.join(prepared.cwd, interpreter))
        if not there or not os.path.exists(there):
            return Fault(NOT_FOUND, f"`{name}`: its interpreter `{interpreter}` (first line) is not in the cell")
    return None


def _loops(host: str) -> bool:
    try:
        os.stat(host)
    except OSError as error:
        return error.errno == ELOOP
    return False


def _is_copy(path: str) -> bool:
    """Whether `path` is a file of /etc that every cell gets a copy of: readable there, and no program."""
    place = os.path.normpath(path)
    if not place.startswith("/etc/"):
        return False
    from saggar.isolation.rootfs_host import System

    return place in (known for known, _ in System().files)


def _executable_for_stranger(prepared: Prepared, host: str) -> bool:
    """Whether the user of a root caller's cell, who is not root, may execute a file of the workspace. With an access list the
    kernel decides when the time comes."""
    if not prepared.session.caller.privileged or not (host + "/").startswith(prepared.workspace.path.rstrip("/") + "/"):
        return True
    status = os.stat(host)
    uid, gid = prepared.workspace.ids
    bit = 0o100 if status.st_uid == uid else 0o010 if status.st_gid == gid else 0o001
    return bool(status.st_mode & bit) or "system.posix_acl_access" in os.listxattr(host)


def _interpreter(path: str) -> str:
    """What the first line of a script names, "" for anything else."""
    line = beginning(path)[:_FIRST_LINE_BYTES].partition(b"\n")[0]
    words = line[2:].split(None, 1) if line.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else ""


def not_executed(prepared: Prepared) -> Fault:
    """Why the kernel refused a program that was there when it was looked up."""
    path = prepared.argv[0]

    def shown(inside: str) -> bool:
        there = _host_path(prepared, inside)
        # outside of what has a place here are a tool chain's directories, each at its own path
        return os.path.exists(there or inside)

    missing, why = refused(_host_path(prepared, path) or path, shown)
    return Fault(NOT_FOUND if missing else NOT_EXECUTABLE, f"`{path}` could not be executed: {why}")


def _host_path(prepared: Prepared, path: str) -> str:
    """Where `path` inside comes from, "" where the cell has nothing there."""
    path = os.path.normpath(path)
    if prepared.workspace.mode != "none":
        target = prepared.workspace_target
        if (path + "/").startswith(target + "/"):
            return os.path.normpath(prepared.workspace.path + "/" + path[len(target) :])
    for grant in prepared.grants:
        if (path + "/").startswith(grant.target + "/"):
            return path
    if path.startswith(tuple(top + "/" for top in rootfs.SYSTEM)):
        return path
    return ""
