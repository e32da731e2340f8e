"""The host side of a cell's workspace: which directory, in which mode, over which layer, and what will not work there.

I1  The workspace is one open directory; its path is resolved once, and whoever uses the path again compares inodes.
I2  `/`, the caller's home and what is above it are refused unless the policy says `unsafe_broad`; the state directory
    may be neither inside nor above the workspace, whatever the policy says.
    What the cell has of its own (`/proc`, `/sys`, `/dev` but for directories of `/dev/shm`) is refused whatever it says.
I3  Preparing costs no copy and no look at every file: one bounded scan, continued beside the run.
I4  A root caller's cell gets layer directories of host ids from HOST_IDS on, never of host uid 0.

On the `saggar run` path. The cell's launcher takes `Workspace.plan` (JSON) and `Workspace.fds`, see `workspace_mount_host`.
"""

from __future__ import annotations

import errno
import os

from saggar.core.decision import Frozen
from saggar.core.errors import Unenforceable, UsageError
from saggar.isolation.linked_git_host import begin, repository
from saggar.isolation.shown import shown
from saggar.isolation.workspace_scan_host import REPOSITORY, Caveat, Scan, mounts_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from saggar.isolation.state_host import RunDir, State
    from saggar.policy.model import Policy

#: first of the 65536 host ids that a root caller's cells run under: the first range that systemd's UIDS-GIDS.md leaves
#: unused (0x70000000), so neither a user, a container nor a subordinate range of a common tool lives there
HOST_IDS = 0x7000_0000
HOST_IDS_COUNT = 65536

SCAN_BUDGET_S = 0.05
#: where every owner is mapped, a scan can find nothing that must be said first: only trees read within this wait
SCAN_BUDGET_MAPPED_S = 0.005

_RENAME = Caveat(
    "rename_directory",
    "renaming a directory that was there before gives EXDEV in the copy-on-write workspace (mv, npm and cargo then copy)",
)
_READ_WRITE = Caveat(
    "read_write",
    "the workspace is the host's own: what the command changes or deletes there is changed, protected paths included",
)
_LINKED = "git's directory lies elsewhere and is shown read-only, so that git reads and a commit fails"
_LINKED_LAYER = (
    "git's directory lies elsewhere; what the command changes there is kept apart as well, see `saggar diff`"
)
#: for the owners in a linked repository, which has directories of objects by the hundred
_REPOSITORY_SCAN_S = 0.02


class CallerIds(Frozen):
    """Who asks. uid, gid: effective. privileged: root with CAP_SYS_ADMIN over the host's mounts, so that owners can be
    mapped; a caller without gets one mapped owner and group."""

    __slots__ = ("gid", "privileged", "uid")
    uid: int
    gid: int
    privileged: bool

    def __init__(self, *, uid: int, gid: int, privileged: bool) -> None:
        self._set(uid=uid, gid=gid, privileged=privileged)


class Workspace:
    """A prepared workspace. `plan` is JSON-ready; `fds` are [workspace, layer] (as many as the mode has).

    ids: (uid, gid) that the command runs as *inside the mapping*: for a root caller the owner of the workspace, seen
    through HOST_IDS; else the caller. caveats: what to say before the run. repository: of a linked worktree or a
    submodule, the directory elsewhere that git needs, read-only or under a layer of its own; else "". repository_fd: what was opened
    of it; repository_admin: where in it the worktree's own files are.
    """

    __slots__ = (
        "_scan",
        "caveats",
        "fd",
        "ids",
        "layer",
        "layer_fd",
        "mode",
        "path",
        "plan",
        "repository",
        "repository_admin",
        "repository_fd",
        "resolved_from",
    )

    def __init__(self, *, mode: str, path: str, fd: int, ids: tuple[int, int]) -> None:
        self.mode = mode
        self.path = path
        self.fd = fd
        self.ids = ids
        self.layer = "none"
        self.layer_fd = -1
        self.caveats: tuple[Caveat, ...] = ()
        self.repository = self.repository_admin = ""
        self.repository_fd = -1
        self.resolved_from = ""
        self.plan: dict[str, Any] = {"mode": mode}
        self._scan: Scan | None = None

    @property
    def fds(self) -> list[int]:
        return [fd for fd in (self.fd, self.layer_fd) if fd >= 0]

    def notices(self) -> list[str]:
        """What to tell the user before the start: where a symbolic link led, and what was found in this workspace. What
        holds of every copy-on-write workspace is in `caveats` alone."""
        led = [f"the workspace `{shown(self.resolved_from)}` is `{shown(self.path)}`"] if self.resolved_from else []
        return led + [f"in the workspace, {c}" for c in self.caveats if c.count]

    def finish(self) -> None:
        """The command ended: let the scan end where its names will be asked for, and close what is ours."""
        if self._scan is not None:
            # a command that changed nothing needs no list of names: its end does not wait for a large tree's
            self._scan.finish(wait=self._changed())
            self._scan = None
        self.close()

    def _changed(self) -> bool:
        try:
            fd = os.open("upper", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.layer_fd)
        except OSError:
            return False
        try:
            return bool(os.listdir(fd))
        finally:
            os.close(fd)

    def close(self) -> None:
        """Give the descriptors back, whatever the scan still does."""
        if self._scan is not None:
            self._scan.finish(wait=False)
            self._scan = None
        for fd in self.fds:
            os.close(fd)
        self.fd = self.layer_fd = -1
        if self.repository_fd >= 0:
            os.close(self.repository_fd)
            self.repository_fd = -1


def prepare(
    policy: Policy,
    run: RunDir,
    state: State,
    *,
    caller: CallerIds,
    env: Mapping[str, str],
    cwd: str,
    about: dict[str, Any] | None = None,
) -> Workspace:
    """Open and check the workspace, and make the run's layer directories.

    env: only HOME is read. cwd: absolute, used where the policy names no directory. about: what else the run's record
    shall say (argv and the like), written in the same step. Raises UsageError (missing,
    unreadable, too broad, entangled with the state directory) and Unenforceable (a root caller that may not map owners).
    """
    mode = policy.workspace.mode
    if mode == "none":
        ids = (0, 0) if caller.privileged else (caller.uid, caller.gid)
        run.update(**(about or {}), mode=mode)
        return Workspace(mode=mode, path="", fd=-1, ids=ids)
    asked = os.path.normpath(os.path.join(cwd, policy.workspace.path))
    path = os.path.realpath(asked)
    _refuse_own(path)
    fd = _open_workspace(path)
    status = os.fstat(fd)
    workspace = Workspace(mode=mode, path=path, fd=fd, ids=ids_of(status, caller))
    try:
        _refuse_closed(status, path, workspace.ids, caller)
        _refuse_broad(status, path, env, broad=policy.workspace.unsafe_broad)
        _refuse_entangled(status, path, state)
        workspace.resolved_from = asked if asked != path else ""
        workspace.plan.update(
            path=path,
            device=status.st_dev,
            inode=status.st_ino,
            privileged=caller.privileged,
            protect=_policy_inside(policy, path),
        )
        workspace.repository, workspace.repository_fd, workspace.repository_admin = _linked(workspace, status, caller)
        if mode == "copy-on-write":
            _prepare_layer(workspace, policy, run, caller)
            _start_scan(workspace, run, caller)
        elif mode == "read-write":
            workspace.caveats = (_READ_WRITE,)
        if workspace.repository:
            workspace.caveats += _repository_caveats(workspace, caller)
        _record(workspace, run, policy, about or {})
    except OSError as e:
        workspace.close()
        raise UsageError(
            f"the run cannot be prepared in the state directory: {os.strerror(e.errno or 0).lower()}",
            hint="make room there, or set `SAGGAR_STATE_DIR` to another place",
        ) from e
    except BaseException:
        workspace.close()
        raise
    return workspace


def _repository_caveats(workspace: Workspace, caller: CallerIds) -> tuple[Caveat, ...]:
    where = (workspace.repository,)
    if workspace.mode != "copy-on-write":
        return (Caveat("linked_repository", _LINKED, count=1, paths=where),)
    said = [Caveat("linked_repository", _LINKED_LAYER, count=1, paths=where)]
    if not caller.privileged:
        scan = Scan(workspace.repository_fd, ids=(caller.uid, caller.gid))
        scan.run(_REPOSITORY_SCAN_S)
        scan.finish(wait=False)
        for found in scan.caveats():
            if found.code in ("setgid_directory", "unmapped_owner"):
                paths = tuple(f"{workspace.repository}/{p}" for p in found.paths)
                said.append(Caveat(found.code, found.text, count=found.count, paths=paths))
    return tuple(said)


def _linked(workspace: Workspace, status: os.stat_result, caller: CallerIds) -> tuple[str, int, str]:
    """The linked repository. A root caller's must belong to the workspace's owner: what that one may not read, the root would show."""
    owner = status.st_uid if caller.privileged else -1
    if caller.privileged and owner != workspace.ids[0]:
        return "", -1, ""
    return repository(workspace.path, workspace.fd, owner=owner)


def _open_workspace(path: str) -> int:
    try:
        # O_RDONLY, not O_PATH: a workspace that the caller cannot list is an error here and not a riddle inside
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(f"the workspace `{path}` does not exist", hint="give a directory with `--workspace`") from None
    except NotADirectoryError:
        raise UsageError(
            f"the workspace `{path}` is not a directory", hint="give a directory with `--workspace`"
        ) from None
    except PermissionError:
        raise UsageError(
            f"the workspace `{path}` cannot be read by user {os.geteuid()}",
            hint="it needs read and search permission, or `--workspace :none`",
        ) from None
    except OSError as e:
        raise UsageError(f"the workspace `{path}` cannot be opened: {os.strerror(e.errno or 0)}") from e


def _refuse_closed(status: os.stat_result, path: str, ids: tuple[int, int], caller: CallerIds) -> None:
    """Root could open it; the cell's user, a stranger with the owner's number, has to be able to as well."""
    if not caller.privileged:
        return
    shift = 6 if status.st_uid == ids[0] else 3 if status.st_gid == ids[1] else 0
    if status.st_mode >> shift & 5 == 5 or "system.posix_acl_access" in os.listxattr(path):
        return
    raise UsageError(
        f"the workspace `{path}` cannot be read by the user {ids[0]} that its cell runs as",
        hint="it needs read and search permission for its owner (`chmod u+rx`), or `--workspace :none`",
    )


def ids_of(status: os.stat_result, caller: CallerIds) -> tuple[int, int]:
    """The (uid, gid) that a command runs as in a workspace of this status."""
    if not caller.privileged:
        return caller.uid, caller.gid
    return (
        status.st_uid if status.st_uid < HOST_IDS_COUNT else 0,
        status.st_gid if status.st_gid < HOST_IDS_COUNT else 0,
    )


def _ancestors(path: str) -> list[str]:
    """`path` and every directory above it, up to and with `/`."""
    found = [path]
    while path != "/":
        path = os.path.dirname(path)
        found.append(path)
    return found


def _same(status: os.stat_result, path: str) -> bool:
    try:
        other = os.stat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (other.st_dev, other.st_ino)


def _refuse_own(path: str) -> None:
    from saggar.policy.model import OWN_DIRECTORIES

    # /dev/shm holds the user's files, as /tmp does
    if path.split("/")[1] in OWN_DIRECTORIES and not path.startswith("/dev/shm/"):  # noqa: S108  # a refusal, and nothing is made there
        raise UsageError(
            f"the workspace `{path}` cannot be shown inside: a cell has a `/{path.split('/')[1]}` of its own",
            hint="give a project directory with `--workspace`",
        )


def _refuse_broad(status: os.stat_result, path: str, env: Mapping[str, str], *, broad: bool) -> None:
    if broad:
        return
    hint = "give a project directory, or set `unsafe_broad = true` in `[workspace]`"
    if _same(status, "/"):
        raise UsageError("the workspace is `/`", hint=hint)
    home = env.get("HOME", "")
    if not home.startswith("/"):
        return
    for above in _ancestors(os.path.realpath(home)):
        if _same(status, above):
            what = (
                "the caller's home directory"
                if above == os.path.realpath(home)
                else f"above the home directory `{home}`"
            )
            raise UsageError(f"the workspace `{path}` is {what}", hint=hint)


def _refuse_entangled(status: os.stat_result, path: str, state: State) -> None:
    hint = "set `SAGGAR_STATE_DIR` to a directory outside the workspace"
    for above in _ancestors(os.path.realpath(state.path)):
        if _same(status, above):
            raise UsageError(f"saggar's state directory `{state.path}` is inside the workspace `{path}`", hint=hint)
    identity = state.identity()
    for above in _ancestors(path):
        s = os.stat(above)
        if (s.st_dev, s.st_ino) == identity:
            raise UsageError(f"the workspace `{path}` is inside saggar's state directory", hint=hint)


def _policy_inside(policy: Policy, path: str) -> str:
    """The policy file's path relative to the workspace, "" when it is elsewhere: it is read-only inside, in every mode."""
    if not policy.file:
        return ""
    real = os.path.realpath(policy.file)
    prefix = path if path == "/" else path + "/"
    return real[len(prefix) :] if real.startswith(prefix) else ""


def boot_id() -> str:
    """This boot's id, "" where /proc does not say. A layer that was written in another boot may be torn."""
    try:
        fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 64).decode("ascii", "replace").strip()
    finally:
        os.close(fd)


def tmpfs_has_user_xattrs() -> bool:
    """Whether tmpfs takes user.* attributes (Linux 6.6), asked of a memory file."""
    try:
        fd = os.memfd_create("saggar-probe", os.MFD_CLOEXEC)
    except OSError:
        return False
    try:
        return _takes_user_xattrs(fd)
    finally:
        os.close(fd)


def _takes_user_xattrs(fd: int) -> bool:
    """Whether this file system can be an upper layer: the overlay mounts without user.* attributes, but cannot mark a
    directory opaque, and `rm -rf` of a lower directory gives EIO (seen with tmpfs on 6.1)."""
    try:
        os.setxattr(fd, b"user.saggar", b"")
        os.removexattr(fd, b"user.saggar")
    except OSError as e:
        if e.errno in (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES):
            return False
        raise
    return True


def _place_of_layer(layer_fd: int, require: str, *, memory_works: bool) -> str:
    """`disk` or `memory`. Raises Unenforceable where neither can do what is asked."""
    if require == "enforced":
        if memory_works:
            return "memory"
        raise Unenforceable(
            "the disk limit of a copy-on-write workspace cannot be enforced on this kernel",
            cause="tmpfs has no user extended attributes before Linux 6.6, so the sized layer cannot be in memory",
            remedy='set `limits.require = "any"` (the disk limit is then a watchdog\'s), or `mode = "read-only"`',
        )
    if _takes_user_xattrs(layer_fd):
        return "disk"
    if memory_works:
        return "memory"
    raise Unenforceable(
        "the state directory cannot hold the layer of a copy-on-write workspace",
        cause="its file system takes no user extended attributes (tmpfs before Linux 6.6, some network file systems)",
        remedy="set `SAGGAR_STATE_DIR` to a directory on ext4, xfs or btrfs",
    )


def _prepare_layer(workspace: Workspace, policy: Policy, run: RunDir, caller: CallerIds) -> None:
    limits = policy.limits
    owner = (HOST_IDS + workspace.ids[0], HOST_IDS + workspace.ids[1]) if caller.privileged else None
    os.mkdir("layer", 0o700, dir_fd=run.fd)
    workspace.layer_fd = os.open("layer", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=run.fd)
    memory_works = tmpfs_has_user_xattrs()
    workspace.layer = _place_of_layer(workspace.layer_fd, limits.require, memory_works=memory_works)
    # the merged root shows the upper directory's mode, so it must be the one of what it covers
    mode = os.fstat(workspace.fd).st_mode & 0o3777
    modes = {"upper": mode, "work": 0o700}
    repository_mode = -1
    if workspace.repository:
        # below the same directory, so that one limit counts both
        repository_mode = os.fstat(workspace.repository_fd).st_mode & 0o3777
        modes |= {REPOSITORY: 0o700, f"{REPOSITORY}/upper": repository_mode, f"{REPOSITORY}/work": 0o700}
    for name, bits in modes.items():
        os.mkdir(name, 0o700, dir_fd=workspace.layer_fd)
        if owner:
            os.chown(name, *owner, dir_fd=workspace.layer_fd)
        os.chmod(name, bits, dir_fd=workspace.layer_fd)
    if owner:
        os.fchown(workspace.layer_fd, *owner)
    status = os.fstat(workspace.layer_fd)
    workspace.plan["layer"] = {
        "kind": workspace.layer,
        "path": f"{run.path}/layer",
        "device": status.st_dev,
        "inode": status.st_ino,
        "mode": mode,
        "repository_mode": repository_mode,
        "size": limits.disk_bytes,
        # an inode of tmpfs costs about 1 KiB of kernel memory; 1 for each 4 KiB, and never fewer than npm needs
        "inodes": max(65536, limits.disk_bytes // 4096),
        "memory_works": memory_works,
    }


def _start_scan(workspace: Workspace, run: RunDir, caller: CallerIds) -> None:
    scan = Scan(workspace.fd, ids=None if caller.privileged else (caller.uid, caller.gid))
    done = scan.run(SCAN_BUDGET_MAPPED_S if caller.privileged else SCAN_BUDGET_S)
    workspace.caveats = (*scan.caveats(), _RENAME)
    for caveat in workspace.caveats:
        if caveat.code == "mount_below" and not caller.privileged:
            scan.finish()
            raise mounts_below(caveat.paths, caveat.count)
    if done:
        scan.write(run.fd)
        scan.finish()
        return
    scan.run_beside(run.fd)
    workspace._scan = scan


def _record(workspace: Workspace, run: RunDir, policy: Policy, about: dict[str, Any]) -> None:
    run.update(
        **about,
        workspace=workspace.path,
        mode=workspace.mode,
        layer=workspace.layer,
        workspace_id=[workspace.plan["device"], workspace.plan["inode"]],
        base=HOST_IDS if workspace.plan["privileged"] else 0,
        protected=list(policy.workspace.protect),
        boot=boot_id(),
        **_record_repository(workspace),
    )


def _record_repository(workspace: Workspace) -> dict[str, Any]:
    if not workspace.repository or workspace.mode != "copy-on-write":
        return {}
    status = os.fstat(workspace.repository_fd)
    return {
        "repository": workspace.repository,
        "repository_id": [status.st_dev, status.st_ino],
        "repository_began": begin(workspace.repository_fd, workspace.repository_admin),
    }
