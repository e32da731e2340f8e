"""A run is refused where what a cell is shown and what only the host may have are not separate.

I1  Nothing that a cell is shown contains, or lies in, the state directory; nothing shown is or contains a credential's file.
I2  Nothing that a cell can write at once is what the host executes for Saggar: its package, its interpreter, a credential's command.
I3  Decided before anything starts, on real paths and inodes, every link on the way included.
"""

from __future__ import annotations

import os

from saggar.core.errors import UsageError
from saggar.isolation import own_host, rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from saggar.runtime.prepare_host import Prepared


class _Shown:
    """One thing of the host that the cell sees. name, path: for messages. at: (device, inode). real: the path that was opened."""

    __slots__ = ("at", "name", "path", "real")

    def __init__(self, name: str, path: str, at: tuple[int, int], real: str = "") -> None:
        self.name = name
        self.path = path
        self.real = real or path
        self.at = at


def check_places(prepared: Prepared) -> None:
    """The state directory and Saggar itself. For when workspace, grants and tool chain are known. Raises UsageError."""
    state = prepared.session.state
    hint = "set `SAGGAR_STATE_DIR` to a directory that no cell is shown"
    holders = own_host.above(os.path.realpath(state.path))
    identity = state.identity()
    for shown in _shown(prepared):
        if shown.at in holders:
            raise UsageError(f"saggar's state directory `{state.path}` lies in {shown.name} `{shown.path}`", hint=hint)
        if own_host.holds(identity, os.path.realpath(shown.real)):
            raise UsageError(f"{shown.name} `{shown.path}` lies in saggar's state directory `{state.path}`", hint=hint)
    workspace = _written(prepared)
    if workspace is None:
        return
    own = [*own_host.places(prepared.session.bwrap.path), *own_host.imported_from()]
    found = own_host.inside(workspace.at, own) or own_host.around(workspace.path)
    if found:
        raise UsageError(
            f"Saggar itself runs from `{found}`, which the read-write workspace `{workspace.path}` would let the command change",
            hint="use `copy-on-write`, or install Saggar outside of the workspace (and start it with `python -P -m saggar`)",
        )


def check_credentials(prepared: Prepared, specs: Iterable[Mapping[str, Any]], env: Mapping[str, str]) -> None:
    """The files and commands that secrets come from. For before the secrets process starts. Raises UsageError."""
    from saggar.egress.secrets_spawn_host import secret_files, trusted_files

    specs = list(specs)
    for path in secret_files(specs, env):
        for shown in _shown(prepared):
            if own_host.inside(shown.at, [path]):
                raise UsageError(
                    f"{shown.name} `{shown.path}` would show the command `{path}`, which a credential is read from",
                    hint="keep the file of a credential where no cell is shown it",
                )
    workspace = _written(prepared)
    if workspace is None:
        return
    found = own_host.inside(workspace.at, trusted_files(specs, env))
    if found:
        raise UsageError(
            f"a credential's source uses `{found}`, which the read-write workspace `{workspace.path}` would let the command change",
            hint="use `copy-on-write`, or keep it outside of the workspace",
        )


def _written(prepared: Prepared) -> _Shown | None:
    return _workspace(prepared) if prepared.workspace.mode == "read-write" else None


def _workspace(prepared: Prepared) -> _Shown:
    plan = prepared.workspace.plan
    return _Shown("the workspace", prepared.workspace.path, (plan["device"], plan["inode"]))


def _shown(prepared: Prepared) -> list[_Shown]:
    found = [_workspace(prepared)] if prepared.workspace.mode != "none" else []
    for grant in prepared.grants:
        name = "the path" if grant.owned else "the command's tool chain"
        found.append(_Shown(name, grant.target, (grant.device, grant.inode), grant.path))
    for top in rootfs.SYSTEM:
        try:
            status = os.stat(top)
        except OSError:
            continue
        found.append(_Shown("the system directory", top, (status.st_dev, status.st_ino)))
    return found
