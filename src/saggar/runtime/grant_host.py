"""The paths of the host that a cell is shown read-only, or under the run's layer: opened once, and put in their order with the workspace.

I1  What was opened and looked at is what is shown: the launcher gets the descriptor, with the inode that it had here. No link is on the
    way to it, so the path that is kept is where it was.
"""

from __future__ import annotations

import os
from errno import ELOOP
from stat import S_ISDIR, S_ISREG

from saggar.core.errors import UsageError
from saggar.isolation.wire_host import MAX_FDS, SCM_MAX_FD
from saggar.policy.model import OWN_DIRECTORIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from saggar.runtime.prepare_host import Prepared

#: what goes with the grants: three streams, workspace and layer with the mounts made of them, the terminal, the status
_OTHER_FDS = 10


class Grant:
    """One path of the host shown read-only; layered: with the run's own layer over it. owned: a root caller's grant, whose owners are mapped; a tool chain's are not. path: where
    it really is; target: its place inside."""

    __slots__ = ("device", "directory", "fd", "inode", "layered", "owned", "path", "target")

    def __init__(self, path: str, *, owned: bool, fd: int = -1, layered: bool = False) -> None:
        """fd: of `path`, where that has been opened; taken over. Raises OSError and UsageError."""
        self.target = path
        self.owned = owned
        self.layered = layered
        self.path, self.fd = (path, fd) if fd >= 0 else _open(path)
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

    def to_json(self, fd: int) -> dict[str, Any]:
        """For the launcher's request. fd: its place among the request's descriptors."""
        return {
            "fd": fd,
            "path": self.path,
            "device": self.device,
            "inode": self.inode,
            "directory": self.directory,
            "owned": self.owned,
            "layered": self.layered,
        }


def _open(path: str) -> tuple[str, int]:
    """(real path, descriptor). A link is followed once, before it is opened: one that is put there later is refused (ELOOP)."""
    from saggar.isolation.syscalls_host import open_plain

    try:
        return path, open_plain(path)
    except OSError as error:
        if error.errno != ELOOP:
            raise
    real = os.path.realpath(path)
    return real, open_plain(real)


def open_grants(prepared: Prepared) -> None:
    """What the policy and the workspace name. Raises UsageError."""
    for path in prepared.policy.isolation.read:
        try:
            grant = Grant(path, owned=True)
        except OSError as error:
            raise UsageError(
                f"the path `{path}` of `isolation.read` cannot be opened: {os.strerror(error.errno or 0)}",
                file=prepared.policy.file,
            ) from None
        prepared.grants.append(grant)
        if grant.path.split("/")[1] in OWN_DIRECTORIES:
            raise UsageError(
                f"the path `{path}` of `isolation.read` leads to `{grant.path}`, which cannot be shown inside",
                file=prepared.policy.file,
            )
    workspace = prepared.workspace
    if workspace.repository:
        fd, workspace.repository_fd = workspace.repository_fd, -1
        layered = workspace.mode == "copy-on-write"
        prepared.grants.append(Grant(workspace.repository, owned=True, fd=fd, layered=layered))


def check_count(prepared: Prepared) -> None:
    """All descriptors of a run travel in one message of the kernel's; for root, each directory's mapped mount beside it. Raises
    UsageError."""
    each = 2 if prepared.session.caller.privileged else 1
    most = (MAX_FDS - _OTHER_FDS) // each
    if len(prepared.grants) > most:
        raise UsageError(
            f"the cell would be shown {len(prepared.grants)} paths of the host, and one run can be given {most}"
            f" (the kernel passes {SCM_MAX_FD} descriptors in one message)",
            hint="name a directory above several of the paths of `isolation.read`",
        )


def binds(prepared: Prepared) -> list[tuple[int, str, bool]]:
    """(number of the grant, or -1 for the workspace; place; writable), in the order in which they are put there."""
    found = [(i, g.target, g.layered) for i, g in enumerate(prepared.grants)]
    if prepared.workspace.mode == "none":
        return found
    # beneath the grants that lie inside it, above those that it lies inside
    inner = [b for b in found if (b[1] + "/").startswith(prepared.workspace_target + "/")]
    outer = [b for b in found if b not in inner]
    return [*outer, (-1, prepared.workspace_target, prepared.workspace.mode != "read-only"), *inner]
