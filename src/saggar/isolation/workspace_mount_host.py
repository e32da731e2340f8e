"""The mount side of a workspace, called in the launcher's child: own user and mount namespace, before bubblewrap.

Two callers of two kinds. An unprivileged caller's child has the caller's uid, so paths work; each is opened again
(a descriptor of the old mount namespace is refused by the kernel as a layer: EINVAL) and compared with the inode that
the supervisor opened. A root caller's child is a host uid without rights on anything, so the still privileged launcher
makes detached clones first (`clone_layers`), the workspace's with its owners mapped to the cell's ids; the child attaches
them. Either way the child passes no path that it does not hold.

Everything is nosuid and nodev. Overlay options: `userxattr` (the only one allowed in a user namespace; it turns
redirect_dir and metacopy off, so the upper layer is whole files, whiteouts and opaque directories).
"""

from __future__ import annotations

import errno
import os
from time import clock_gettime_ns

from saggar.core.errors import Unenforceable
from saggar.isolation import syscalls_host as sc
from saggar.isolation.workspace_scan_host import REPOSITORY, mounts_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: CLOCK_REALTIME_COARSE, the clock that file times are taken from; Python 3.11 has no name for it
_COARSE = 5


class Mounted:
    """What the child made. root: path in the child's namespace to bind at the workspace's path inside, "" for none.
    layer: where the changes go, `disk`, `memory` or `none`. upper_fd: of a memory layer, for the supervisor; else -1.
    started_ns: the file systems' clock when the layers were joined; later host changes are newer than it.
    shared: the host's own inodes are shown, and with them its Unix sockets."""

    __slots__ = ("layer", "root", "shared", "started_ns", "upper_fd")

    def __init__(
        self, *, root: str = "", layer: str = "none", upper_fd: int = -1, started_ns: int = 0, shared: bool = False
    ) -> None:
        self.root = root
        self.shared = shared
        self.layer = layer
        self.upper_fd = upper_fd
        self.started_ns = started_ns


def clone_tree(fd: int, userns_fd: int, *, read_only: bool = False) -> int:
    """A detached clone of the directory or file `fd`, owners mapped through `userns_fd` (-1: as they are).

    For the privileged launcher of a root caller; also for each path granted read-only. The owners of the user
    namespace's map (`0 HOST_IDS 65536`) shift: disk uid u is shown as HOST_IDS + u. Raises Unenforceable where the file
    system cannot map (EINVAL: overlayfs, many network file systems, or a mount that is mapped already).
    """
    clone = sc.open_tree("", dir_fd=fd, recursive=False)
    attributes = sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV
    if read_only:
        attributes |= sc.MOUNT_ATTR_RDONLY
    if userns_fd >= 0:
        attributes |= sc.MOUNT_ATTR_IDMAP
    try:
        # private: the clone of a shared mount is its peer, and what the host mounts below it later would show here, writable.
        # recursive: what came that way since it was cloned has the attributes too
        sc.mount_setattr(clone, set_=attributes, userns_fd=userns_fd, private=True)
    except OSError as e:
        os.close(clone)
        raise Unenforceable(
            "the workspace's file system cannot map owners",
            cause=f"mount_setattr(MOUNT_ATTR_IDMAP): {os.strerror(e.errno or 0)}",
            remedy="run saggar as the ordinary user that owns the workspace, or move it to ext4, xfs, btrfs or tmpfs",
        ) from None
    return clone


def clone_layers(plan: dict[str, Any], fds: list[int], userns_fd: int) -> list[int]:
    """For a root caller: the detached mounts that take the place of `Workspace.fds` in `mount_workspace`."""
    if plan["mode"] == "none":
        return []
    clones = [clone_tree(fds[0], userns_fd, read_only=plan["mode"] != "read-write")]
    if len(fds) > 1:
        clones.append(clone_tree(fds[1], -1))
    return clones


def mount_workspace(plan: dict[str, Any], fds: list[int], scratch: str) -> Mounted:
    """Mount the workspace below `scratch`, a directory of the child's own (a tmpfs that it mounted, say).

    fds: `Workspace.fds`, or what `clone_layers` gave for a root caller; taken over. Raises OSError, and Unenforceable
    where the kernel refuses the layers for a known cause. Single-threaded; leaves no descriptor open but `upper_fd`.
    """
    if plan["mode"] == "none":
        return Mounted()
    root = f"{scratch}/workspace"
    os.mkdir(root, 0o755)
    if plan["mode"] != "copy-on-write":
        _bind(plan, fds[0], root)
        # a bind mount has the host's inodes, and by them its Unix sockets
        shared = plan["mode"] == "read-write" or not own_inodes(root, scratch)
        _protect(plan, root)
        _close(fds)
        return Mounted(root=root, shared=shared)
    mounted = _copy_on_write(plan, fds, scratch, root)
    _protect(plan, root)
    _close(fds)
    return mounted


def own_inodes(place: str, scratch: str) -> bool:
    """Cover the directory mounted at `place` by a read-only overlay of it: what it shows are inodes of its own, so that no socket
    that a host program listens on is reached through it. False where the kernel refuses (mounts below it, a file system that
    cannot be a layer): it stays as it is.

    scratch: a directory of the child's own, where an empty lower layer is made (an overlay has two).
    """
    empty = f"{scratch}/empty"
    try:
        os.mkdir(empty, 0o755)
    except FileExistsError:
        pass
    try:
        sc.mount(
            "overlay",
            place,
            "overlay",
            sc.MS_NOSUID | sc.MS_NODEV | sc.MS_RDONLY,
            f"userxattr,lowerdir={_escaped(place)}:{_escaped(empty)}",
        )
    except OSError:
        return False
    return True


def cover_repository(plan: dict[str, Any], mounted: Mounted, place: str, scratch: str) -> None:
    """Put the run's second layer over the linked repository that is mounted at `place`: git writes there, the host's stays as it is.

    After `mount_workspace`, whose layer this one lies in. Raises OSError, and Unenforceable for a known cause."""
    if mounted.layer == "memory":
        layer = f"{scratch}/memory"
    elif plan["privileged"]:
        layer = f"{scratch}/layer"
    else:
        own = _reopen(plan["layer"]["path"], plan["layer"]["device"], plan["layer"]["inode"])
        layer = f"/proc/self/fd/{own}"
    try:
        _overlay(place, layer, place, below=f"/{REPOSITORY}")
    except OSError as e:
        raise Unenforceable(
            "the repository of this linked worktree cannot be copy-on-write",
            cause=f"overlay mount: {os.strerror(e.errno or 0).lower()}",
            remedy="run in the repository's main directory, or with `--workspace :read-only`",
        ) from None


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _source(plan: dict[str, Any], fd: int, target: str) -> str:
    """A path of this mount namespace for the layer `fd`: the clone attached at `target`, or the caller's own path."""
    if plan["privileged"]:
        os.mkdir(target, 0o755)
        sc.move_mount(fd, target)
        return target
    return ""


def _reopen(path: str, device: int, inode: int) -> int:
    """`path` opened in this namespace, if it still is what the supervisor opened."""
    fd = os.open(path, _PATH)
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (device, inode):
        os.close(fd)
        raise OSError(errno.ESTALE, "the directory was replaced while the cell was built", path)
    return fd


def _bind(plan: dict[str, Any], fd: int, root: str) -> None:
    if plan["privileged"]:
        sc.move_mount(fd, root)
        return
    own = _reopen(plan["path"], plan["device"], plan["inode"])
    # recursive: in a copied mount table a mount cannot be cloned without those below it
    clone = sc.open_tree("", dir_fd=own)
    attributes = sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV
    if plan["mode"] == "read-only":
        attributes |= sc.MOUNT_ATTR_RDONLY
    sc.mount_setattr(clone, set_=attributes)
    sc.move_mount(clone, root)
    os.close(clone)
    os.close(own)


def _copy_on_write(plan: dict[str, Any], fds: list[int], scratch: str, root: str) -> Mounted:
    layer = plan["layer"]
    lower_fd = -1
    if plan["privileged"]:
        lower = _source(plan, fds[0], f"{scratch}/lower")
    else:
        lower_fd = _reopen(plan["path"], plan["device"], plan["inode"])
        lower = f"/proc/self/fd/{lower_fd}"
    kind = layer["kind"]
    try:
        if kind == "disk":
            try:
                _overlay(lower, _disk_layer(plan, fds[1], scratch), root)
            except OSError as e:
                # the state directory lies on a file system that cannot be an upper layer (overlayfs in a container, NFS)
                if e.errno not in (errno.EINVAL, errno.EOPNOTSUPP) or not layer["memory_works"] or _blocked(plan):
                    raise
                kind = "memory"
        upper_fd = -1
        if kind == "memory":
            upper_fd = _memory_layer(layer, fds[1], f"{scratch}/memory")
            _overlay(lower, f"{scratch}/memory", root)
    except OSError as e:
        raise _explain(plan, e) from None
    finally:
        if lower_fd >= 0:
            os.close(lower_fd)
    return Mounted(root=root, layer=kind, upper_fd=upper_fd, started_ns=coarse_now_ns())


def coarse_now_ns() -> int:
    """Now, by the clock that the kernel stamps files with: it steps with the tick and is up to 10 ms behind the fine one."""
    return clock_gettime_ns(_COARSE)


def _disk_layer(plan: dict[str, Any], fd: int, scratch: str) -> str:
    if plan["privileged"]:
        return _source(plan, fd, f"{scratch}/layer")
    layer = plan["layer"]
    own = _reopen(layer["path"], layer["device"], layer["inode"])
    # left open: the option string is resolved by the mount call through this descriptor
    return f"/proc/self/fd/{own}"


def _memory_layer(layer: dict[str, Any], disk_fd: int, target: str) -> int:
    """A sized tmpfs in the stead of the disk layer `disk_fd`, whose upper directory's owner it takes over, as numbered here."""
    os.mkdir(target, 0o700)
    options = f"mode=0700,size={layer['size']},nr_inodes={layer['inodes']}"
    sc.mount("saggar", target, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, options)
    owner = os.stat("upper", dir_fd=disk_fd)
    modes = {"upper": layer["mode"], "work": 0o700}
    if layer["repository_mode"] >= 0:
        modes |= {
            REPOSITORY: 0o700,
            f"{REPOSITORY}/upper": layer["repository_mode"],
            f"{REPOSITORY}/work": 0o700,
        }
    for name, bits in modes.items():
        os.mkdir(f"{target}/{name}", 0o700)
        os.chown(f"{target}/{name}", owner.st_uid, owner.st_gid)
        os.chmod(f"{target}/{name}", bits)
    return os.open(f"{target}/upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _overlay(lower: str, layer: str, root: str, *, below: str = "") -> None:
    own = _escaped(layer) + below
    options = f"userxattr,lowerdir={_escaped(lower)},upperdir={own}/upper,workdir={own}/work"
    flags = sc.MS_NOSUID | sc.MS_NODEV
    try:
        # volatile (Linux 5.10): no fsync at each copy-up, which made changing 500 files of the host's 48 times native.
        # What it gives up is a layer that survives a power failure: `apply` asks for the boot that the run began in
        sc.mount("overlay", root, "overlay", flags, f"volatile,{options}")
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
        sc.mount("overlay", root, "overlay", flags, options)
    if layer.startswith("/proc/self/fd/"):
        os.close(int(layer.rpartition("/")[2]))


def _escaped(path: str) -> str:
    # overlayfs splits lowerdir at `:` and options at `,`
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _mounts_below(path: str) -> list[str]:
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            point = line.split(" ", 5)[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
            if point.startswith(path.rstrip("/") + "/"):
                found.append(point)
    return found


def _blocked(plan: dict[str, Any]) -> bool:
    return not plan["privileged"] and bool(_mounts_below(plan["path"]))


def _explain(plan: dict[str, Any], error: OSError) -> OSError | Unenforceable:
    """The cause of a refused overlay where it is known."""
    if error.errno == errno.EINVAL and _blocked(plan):
        below = _mounts_below(plan["path"])
        return mounts_below(tuple(below[:3]), len(below))
    if error.errno in (errno.ENODEV, errno.EPERM):
        return Unenforceable(
            "this kernel gives no copy-on-write workspace",
            cause=f"overlay mount in a user namespace: {os.strerror(error.errno)}",
            remedy='Linux 5.11 with the overlay module is needed (`modprobe overlay`), or `mode = "read-only"`',
        )
    return error


def _protect(plan: dict[str, Any], root: str) -> None:
    """Make the policy file of the workspace read-only inside, and its directories impossible to rename away."""
    if not plan["protect"]:
        return
    above = os.open(root, _PATH)
    parts = plan["protect"].split("/")
    # a mount point cannot be renamed or unlinked, but what is above one can: so each directory down to it becomes one
    for i, name in enumerate(parts):
        _bind_over(name, above, read_only=i == len(parts) - 1)
        below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)


def _bind_over(name: str, dir_fd: int, *, read_only: bool) -> None:
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    clone = sc.open_tree("", dir_fd=fd)
    if read_only:
        sc.mount_setattr(clone, set_=sc.MOUNT_ATTR_RDONLY)
    sc.move_mount(clone, name, dir_fd=dir_fd)
    os.close(clone)
    os.close(fd)
