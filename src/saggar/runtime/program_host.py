"""Finding the command's program as the cell will see it, and the tool chain that it needs."""

from __future__ import annotations

import os

from saggar.isolation import rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.runtime.prepare_host import Prepared


class Program:
    """missing: why there is no such program, or "". binds: host directories to show. environment: what the tool chain wants set;
    path: the cell's PATH where it differs."""

    __slots__ = ("binds", "environment", "missing", "path")

    def __init__(self, *, missing: str = "", binds: tuple[str, ...] = (), path: str = "") -> None:
        self.missing = missing
        self.binds = binds
        self.environment: dict[str, str] = {}
        self.path = path


def resolve(prepared: Prepared) -> Program:
    """Look the program up: a path as it is, a name along the cell's PATH."""
    name = prepared.argv[0]
    if "/" in name:
        path = os.path.join(prepared.cwd, name)
        return Program(missing=_fault(prepared, path, name))
    denied = ""
    for directory in prepared.environment["PATH"].split(":"):
        path = os.path.join(prepared.cwd, directory, name)
        fault = _fault(prepared, path, name)
        if not fault:
            return Program()
        if "executable" in fault:
            denied = fault
    return Program(missing=denied or f"`{name}`: no such program in the cell")


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
