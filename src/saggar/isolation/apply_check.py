"""Which of a run's changes may be copied to the host. Pure: looks at what was seen, opens nothing.

What "the host's version changed since the run began" rests on: the kernel sets an inode's ctime on every change of
content, mode, owner, name or link count, no program can set it, and it is read from the clock that gave `started_ns` when
the layers were joined. So an entry whose ctime is older is what the cell saw. Names that are gone leave no ctime:
there the list of names taken when the run began decides, and where there is none, the directory's own time.
A clock that was set back in between is the one thing that hides a change.

I1  Nothing is allowed that was not compared: no counterpart, no list and a changed directory together are a refusal.
I2  Protection is judged on the path as well as on what the path would become (a link, an entry of a git directory).
"""

from __future__ import annotations

from saggar.core.decision import Frozen
from saggar.isolation.changes import DIRECTORY, FILE, SYMLINK, Change, Node
from saggar.isolation.protected import leaves_workspace, protected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from saggar.isolation.workspace_scan_host import Snapshot

MAX_PATH = 4095


class Refusal(Frozen):
    """A path that may not be applied. reason: `lower_snake`; hint: what the user can do about it, may be ""."""

    __slots__ = ("hint", "path", "reason")
    hint: str
    path: bytes
    reason: str

    def __init__(self, path: bytes, reason: str) -> None:
        self._set(path=path, reason=reason, hint=HINTS.get(reason, _PROTECTED_HINT if reason in PROTECTED else ""))


_PROTECTED_HINT = "protected: name it with `--allow-protected` if you want it"
PROTECTED = frozenset({
    "agent_settings", "ci_settings", "credentials", "directory_environment", "editor_settings", "git_config",
    "git_directory", "git_hooks", "git_internal", "git_link", "git_other_branch", "git_ref_deleted", "git_ref_form", "git_settings", "policy_protect", "saggar_policy",
    "shell_startup", "symlink_leaves_workspace",
})  # fmt: skip
HINTS = {
    "host_changed": "the host's version changed since the run began; `--overwrite-host-changes` takes the run's",
    "host_created": "the host has it since the run began; `--overwrite-host-changes` takes the run's",
    "host_deleted": "the host deleted it since the run began; `--overwrite-host-changes` makes it again",
    "host_directory_changed": "the host's directory changed and was not listed when the run began;"
    " `--overwrite-host-changes` takes the run's",
    "host_directory_replaced": "the host's directory is another one than when the run began;"
    " `--overwrite-host-changes` writes into it",
    "git_object_forged": "its content is not what its name says",
    "git_pack_unchecked": "a pack that is not whole, not what its index says, or too large to check; fetch outside",
    "git_index_path": "git would write it outside the working tree or into a git directory: `git checkout` does not ask again",
    "git_index_unchecked": "an index that cannot be read to its end; `git reset` makes it anew",
    "git_objects_refused": "what it points to was refused",
    "special_file": "fifos, sockets and devices are never applied",
    "foreign_owner": "the entry does not belong to the run",
    "hard_link_from_outside": "the entry has a name outside the run's layer",
    "layer_format": "the layer holds marks that Saggar's cells cannot make",
    "too_deep": "directories nest too deeply",
    "parent_not_selected": "the directory above it must be applied as well",
}
#: the host's own changes, which a user may decide to overwrite
CONFLICTS = frozenset({
    "host_changed", "host_created", "host_deleted", "host_directory_changed", "host_directory_replaced",
})  # fmt: skip


class Since:
    """What is known of the host when the run began.

    started_ns: the file systems' clock then. snapshot: the names per directory. known_absent: paths that an earlier,
    interrupted apply has found absent and safe to create. relinked: (device, inode) of files of which an apply removes
    one of several names: that moves their ctime, so their mtime has to do.
    """

    __slots__ = ("known_absent", "relinked", "snapshot", "started_ns")

    def __init__(
        self,
        started_ns: int,
        snapshot: Snapshot,
        known_absent: frozenset[bytes] = frozenset(),
        relinked: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        self.started_ns = started_ns
        self.snapshot = snapshot
        self.known_absent = known_absent
        self.relinked = relinked

    def conflict(self, change: Change, directory: Node) -> str:
        """Why the host's side of `change` is not what the run saw, or "". directory: the host's directory now."""
        before = change.before
        if before is None:
            return self._absent(change, directory)
        if before.kind == DIRECTORY and change.after is not None and change.after.kind == DIRECTORY:
            # only the mode differs, and entries that came or went moved the ctime as well: the mode of then decides
            then = self.snapshot.directory(change.path + b"/")
            same = self._old(before) if then is None else then[2] == before.mode
            # one that was found absent is the work of an apply that was killed before it had given it its mode
            return "" if same or change.path in self.known_absent else "host_changed"
        if self._old(before):
            return ""
        seen = self.snapshot.directory(_directory(change.path))
        created = seen is not None and change.path.rpartition(b"/")[2] not in seen[3]
        return "host_created" if created else "host_changed"

    def _absent(self, change: Change, directory: Node) -> str:
        after = change.after
        # a directory of the layer below cannot be renamed (EXDEV), so its mark says that it was here; a file's mark
        # only says that it was somewhere
        if after is not None and after.origin and after.kind == DIRECTORY:
            return "host_deleted"
        # what was in a directory that was not there was not there either
        if change.path in self.known_absent or any(top in self.known_absent for top in _above(change.path)):
            return ""
        name = change.path.rpartition(b"/")[2]
        seen = self.snapshot.directory(_directory(change.path))
        if seen is not None and seen[0] == directory.inode:
            return "host_deleted" if name in seen[3] else ""
        return "" if directory.mtime_ns < self.started_ns else "host_directory_changed"

    def _old(self, node: Node) -> bool:
        changed = node.mtime_ns if (node.device, node.inode) in self.relinked else node.ctime_ns
        return changed < self.started_ns

    def subtree_changed(self, node: Node) -> bool:
        """Whether an entry below a directory that the run removed changed since."""
        return not self._old(node)

    def directory_replaced(self, path: bytes, node: Node) -> bool:
        """Whether the host's directory `path` (ends in `/`, "" for the top) is another than at the start."""
        seen = self.snapshot.directory(path)
        return seen is not None and seen[0] != node.inode


def _directory(path: bytes) -> bytes:
    above, slash, _ = path.rpartition(b"/")
    return above + slash


def below(path: bytes, tops: tuple[bytes, ...]) -> bool:
    """Whether `path` is one of `tops` or lies below one. By components; the empty top is the workspace."""
    return any(top in (b"", path) or path.startswith(top + b"/") for top in tops)


def refusal(
    change: Change,
    *,
    patterns: tuple[str, ...],
    allowed: tuple[bytes, ...],
    aliases: Mapping[bytes, str] | None = None,
) -> str:
    """Why `change` is protected or impossible whatever the host's state is, or "". aliases: what protected links lead to."""
    after = change.after
    if len(change.path) > MAX_PATH:
        return "too_deep"
    if below(change.path, allowed):
        return ""
    plain = all(n is None or n.kind in (FILE, DIRECTORY) for n in (change.before, after))
    why = protected(change.path, in_git=change.in_git, plain=plain, extra=patterns)
    if why:
        return why
    for top, reason in (aliases or {}).items():
        # above it as well: who removes or replaces the directory takes the protected one's place
        inert = change.before is None and after is not None and after.kind == DIRECTORY
        if below(change.path, (top,)) or (below(top, (change.path,)) and not inert):
            return reason
    if after is not None and after.kind == SYMLINK and leaves_workspace(change.path, after.target):
        return "symlink_leaves_workspace"
    return ""


def select(changes: list[Change], paths: tuple[bytes, ...]) -> tuple[list[Change], list[bytes]]:
    """The changes at and below `paths` with the new directories above them, and the paths that name no change."""
    if not paths:
        return changes, []
    chosen = [c for c in changes if below(c.path, paths)]
    missing = [p for p in paths if not any(below(c.path, (p,)) for c in chosen)]
    needed = {top for c in chosen for top in _above(c.path)}
    return [c for c in changes if below(c.path, paths) or (c.path in needed and _makes_directory(c))], missing


def _above(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:i]) for i in range(1, len(parts))]


def _makes_directory(change: Change) -> bool:
    after, before = change.after, change.before
    return after is not None and after.kind == DIRECTORY and (before is None or before.kind != DIRECTORY)


def check(
    changes: list[Change],
    *,
    directory_of: Callable[[Change], Node | None],
    since: Since,
    patterns: tuple[str, ...] = (),
    allowed: tuple[bytes, ...] = (),
    aliases: Mapping[bytes, str] | None = None,
    overwrite: bool = False,
) -> list[Refusal]:
    """The refusals among `changes`. directory_of: the host's directory that holds a change's path now, None where there is
    none yet (a directory that the same changes make)."""
    found = []
    for change in changes:
        why = refusal(change, patterns=patterns, allowed=allowed, aliases=aliases)
        if not why:
            directory = directory_of(change)
            why = since.conflict(change, directory) if directory is not None else ""
            if overwrite and why in CONFLICTS:
                why = ""
        if why:
            found.append(Refusal(change.path, why))
    return found
