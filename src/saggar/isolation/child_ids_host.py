"""Under which ids of the host a cell runs: the user namespaces of a root caller's cells, and the map of anybody else's."""

from __future__ import annotations

import os

from saggar.isolation import syscalls_host as sys_
from saggar.isolation.bwrap_argv import GID, UID


class Ids:
    """How a root caller's cell is mapped. owners: descriptor of a user namespace that shifts every owner into the cells' range, for
    idmapped mounts; own: of the one that the child joins, in which the cell's user has its number inside and every other id of the range has a number."""

    __slots__ = ("own", "owners")

    def __init__(self, owners: int, own: int) -> None:
        self.owners = owners
        self.own = own


def become_stranger(ids: Ids, uid: int, gid: int) -> None:
    sys_.setns(ids.own, sys_.CLONE_NEWUSER)
    os.close(ids.own)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    # root's own id is not mapped there, so this is no step down from uid 0 and the capabilities over the namespace stay
    os.setresuid(uid, uid, uid)
    # the kernel makes a process that changed its ids undumpable, and its /proc files root's
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)


def map_user(host: tuple[int, int], uid: int, gid: int) -> None:
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {host[0]} 1"),
        ("gid_map", f"{gid} {host[1]} 1"),
    ):
        _write(f"/proc/self/{name}", content)


def _write(path: str, content: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content.encode())
    finally:
        os.close(fd)


def make_ids(base: int, count: int, uid: int, gid: int, inner_uid: int = UID, inner_gid: int = GID) -> Ids:  # noqa: PLR0917
    """The two user namespaces of a root caller's cells whose user is `uid`:`gid` of the range, and the `inner` ones inside.
    Needs root."""
    shift = f"0 {base} {count}"
    return Ids(
        _userns(shift, shift), _userns(_own_map(base, count, uid, inner_uid), _own_map(base, count, gid, inner_gid))
    )


def _own_map(base: int, count: int, who: int, number: int) -> str:
    """Every id of the range has a number inside, `who` the cell's own: an owner without one gives EOVERFLOW at copy-up."""
    lines = [f"{number} {base + who} 1"]
    if who:
        lines.append(f"100000 {base} {who}")
    if who + 1 < count:
        lines.append(f"{100000 + who + 1} {base + who + 1} {count - who - 1}")
    return "\n".join(lines)


def _userns(uid_map: str, gid_map: str) -> int:
    """A descriptor of a new user namespace with these maps; nobody is in it."""
    ready_r, ready_w = os.pipe()
    hold_r, hold_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hold_w)
            sys_.unshare(sys_.CLONE_NEWUSER)
            os.write(ready_w, b"1")
            os.read(hold_r, 1)
        finally:
            os._exit(0)
    try:
        os.close(ready_w)
        os.close(hold_r)
        if os.read(ready_r, 1) != b"1":
            raise OSError(1, "no user namespace for the owners of the workspace")
        _write(f"/proc/{pid}/uid_map", uid_map)
        _write(f"/proc/{pid}/gid_map", gid_map)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_r)
        os.close(hold_w)
        os.waitpid(pid, 0)
