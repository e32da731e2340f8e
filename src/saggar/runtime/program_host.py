"""Finding the command's program as the cell will see it, and the tool chain that it needs."""

from __future__ import annotations

import os

from saggar.isolation import rootfs
from saggar.isolation.toolchain_host import resolve as toolchain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.runtime.prepare_host import Prepared


class Program:
    """argv0: what to execute, as the cell sees it. missing: why there is no such program, or "". binds: host directories to
    show. environment: what the tool chain wants set. path: the cell's PATH where it differs."""

    __slots__ = ("argv0", "binds", "environment", "missing", "path")

    def __init__(
        self,
        *,
        argv0: str = "",
        missing: str = "",
        binds: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        path: str = "",
    ) -> None:
        self.argv0 = argv0
        self.missing = missing
        self.binds = binds
        self.environment = environment or {}
        self.path = path


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
        return Program(missing=_missing(prepared, name))
    if not found.binds:
        fault = _fault(prepared, found.argv0, name) if "/" in found.argv0 else ""
        if fault:
            return Program(missing=fault)
    path = ":".join([*found.path_entries, inside]) if found.path_entries else ""
    return Program(argv0=found.argv0, binds=found.binds, environment=found.env, path=path)


def _shown_workspace(prepared: Prepared) -> str:
    """The workspace where it stands at its own path; the host's root does not."""
    path = prepared.workspace.path
    return path if prepared.workspace.mode != "none" and prepared.workspace_target == path else ""


def _missing(prepared: Prepared, name: str) -> str:
    if "/" in name:
        # the host's root as a workspace has another place inside, which only this knows
        return _fault(prepared, os.path.join(prepared.cwd, name), name)
    for directory in prepared.environment["PATH"].split(":"):
        fault = _fault(prepared, os.path.join(prepared.cwd, directory, name), name)
        if "executable" in fault:
            return fault
    return f"`{name}`: no such program in the cell"


def _fault(prepared: Prepared, path: str, name: str) -> str:
    host = _host_path(prepared, path)
    if not host or not os.path.exists(host):
        return f"`{name}`: no such program in the cell"
    if os.path.isdir(host) or not os.access(host, os.X_OK):
        return f"`{name}`: not executable"
    return ""


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
