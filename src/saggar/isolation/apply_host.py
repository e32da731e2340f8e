"""Copy a run's changes to the host's workspace, by descriptor.

I1  Both trees are walked name by name from an open directory with O_NOFOLLOW (what openat2's RESOLVE_BENEATH and
    NO_SYMLINKS give for a whole path), and each directory must be the inode that the check saw.
I2  All is checked before the first write; each path then changes in one rename or link, and what a rename displaced is
    looked at before it is thrown away: if it is not what the check saw, it is put back.
I3  The audit record is written before the effect. Without a record there is no effect.
I4  A killed apply can be repeated: what is in place counts as no change, temporary names are in the run's journal.
I5  No set-user-ID or set-group-ID bit, no extended attribute, no special file and no foreign inode comes out.
"""

from __future__ import annotations

import errno
import os
from hashlib import sha256

from saggar.core.errors import UsageError
from saggar.isolation.alias_host import aliases
from saggar.isolation.apply_check import CONFLICTS, Refusal, Since, below, check, select
from saggar.isolation.apply_journal_host import JOURNAL, Journal, temporary_name
from saggar.isolation.changes import DIRECTORY, FILE, MODE, SYMLINK, Change, Node, allowed_mode
from saggar.isolation.discard_host import remove_tree
from saggar.isolation.git_index_host import fault_of
from saggar.isolation.layer_host import (
    MAX_DEPTH,
    Layer,
    copy_data,
    node_of,
    open_node,
)
from saggar.isolation.own_host import own_below
from saggar.isolation.place_host import Raced, Trail, exchange, make_directory, make_link, move_new, place_file
from saggar.isolation.protected import protected
from saggar.isolation.shown import shown
from saggar.isolation.workspace_scan_host import read_snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.audit.sink_host import AuditLog
    from saggar.isolation.state_host import RunDir
    from saggar.isolation.workspace_scan_host import Snapshot

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: names in one audit record; the digest covers all
_NAMED = 100


class Applied:
    """How an apply ended. written: what is on the host now. refused: what is not, and why. failed: the path at which the
    host's file system gave up, and its word for it; a repetition goes on from there. complete: the run has no more changes."""

    __slots__ = ("complete", "failed", "refused", "written")

    def __init__(self) -> None:
        self.failed: tuple[bytes, str] | None = None
        self.written: list[Change] = []
        self.refused: list[Refusal] = []
        self.complete = False


class Apply:
    """One apply of one dead run, whose lock the caller holds.

    patterns: the policy's protected paths. allowed: protected paths that the user named. overwrite: take the run's
    version where the host's changed. audit: the run's log. label: what stands before a path in words and records.
    """

    JOURNAL = JOURNAL
    __slots__ = (
        "_faults",
        "_journal",
        "_linked",
        "_made",
        "_modes",
        "_subtrees",
        "_token",
        "allowed",
        "audit",
        "label",
        "layer",
        "overwrite",
        "patterns",
        "run",
        "since",
    )

    def __init__(
        self,
        run: RunDir,
        layer: Layer,
        audit: AuditLog,
        *,
        allowed: tuple[bytes, ...] = (),
        overwrite: bool = False,
    ) -> None:
        meta = run.meta()
        self.run = run
        self.layer = layer
        self.audit = audit
        self.allowed = allowed
        self.overwrite = overwrite
        self.patterns = tuple(meta.get("protected", ()))
        self._token = os.urandom(4).hex()
        self.label = b""
        self._journal = Journal(run.fd, self.JOURNAL)
        self.since = Since(
            int(meta.get("started_ns", "0")), self._snapshot(), self._journal.absent, self._journal.relinked
        )
        #: what is wrong with the content of a file that git believes, "" for nothing
        self._faults: dict[bytes, str] = {}
        self._linked: set[tuple[int, int]] = set()
        self._subtrees: dict[bytes, str] = {}
        self._made: dict[bytes, tuple[int, int]] = {}
        self._modes: list[tuple[bytes, int, tuple[int, int]]] = []

    def _snapshot(self) -> Snapshot:
        return read_snapshot(self.run.fd)

    # -- check ---------------------------------------------------------------------------------------------------------

    def plan(self, paths: tuple[bytes, ...] = ()) -> tuple[list[Change], list[Refusal]]:
        """The selected changes, and the refusals among them. Raises UsageError for a path that names no change."""
        self._journal.clean(self.layer.host_fd)
        changes = self._changes()
        chosen, missing = select(changes, paths)
        broken = [Refusal(p, why) for p, why in self.layer.refused if not paths or below(p, paths)]
        missing = [m for m in missing if not any(below(r.path, (m,)) for r in broken)]
        if missing:
            raise UsageError(
                f"the run changed nothing at `{shown(self.label + missing[0])}`", hint="`saggar diff --name-only` lists"
            )
        refused = self._judge(chosen)
        known = {r.path for r in refused}
        for change in chosen:
            why = self._replaced(change.path) or self._subtrees.get(change.path, "")
            if why and change.path not in known and not (self.overwrite and why in CONFLICTS):
                refused.append(Refusal(change.path, why))
        return chosen, [*broken, *refused]

    def _changes(self) -> list[Change]:
        return self.layer.changes(self._visit)

    def _judge(self, chosen: list[Change]) -> list[Refusal]:
        found = check(
            chosen,
            directory_of=self._directory_of,
            since=self.since,
            patterns=self.patterns,
            allowed=self.allowed,
            aliases=self._aliases(),
            overwrite=self.overwrite,
        )
        known = {r.path for r in found}
        return found + [
            Refusal(c.path, why) for c in chosen if c.path not in known and (why := self._faults.get(c.path))
        ]

    def _aliases(self) -> dict[bytes, str]:
        workspace = str(self.run.meta().get("workspace", ""))
        # what this very process, and the next run, execute on the host
        return {**aliases(self.layer.host_fd, workspace, os.environ), **own_below(workspace)}

    def _visit(self, change: Change, upper: int, host: int) -> None:
        before = change.before
        self._faults[change.path] = fault_of(change, upper, self.layer.host_fd)
        if before is not None:
            self._note_links(before)
        gone = change.after is None or change.after.kind != DIRECTORY
        if before is not None and before.kind == DIRECTORY and gone:
            why = self._look_below(host, change.path, top=True)
            if why:
                self._subtrees[change.path] = why

    def _note_links(self, node: Node) -> None:
        if node.kind == FILE and node.nlink > 1:
            self._linked.add((node.device, node.inode))

    def _look_below(self, fd: int, path: bytes, *, top: bool, depth: int = 0) -> str:
        """Why the host's directory `fd` (O_PATH) may not be removed whole, or ""."""
        if depth > MAX_DEPTH:
            return "too_deep"
        if not top and self.since.subtree_changed(node_of(fd)):
            return "host_changed"
        opened = os.open(b".", _DIRECTORY, dir_fd=fd)
        try:
            for name in sorted(map(os.fsencode, os.listdir(opened))):
                where = path + b"/" + name
                if not below(where, self.allowed):
                    why = protected(where, extra=self.patterns)
                    if why:
                        return why
                entry = os.open(name, _PATH, dir_fd=opened)
                try:
                    node = node_of(entry)
                    if node.kind != DIRECTORY:
                        self._note_links(node)
                        if self.since.subtree_changed(node):
                            return "host_changed"
                        continue
                    why = self._look_below(entry, where, top=False, depth=depth + 1)
                    if why:
                        return why
                finally:
                    os.close(entry)
        finally:
            os.close(opened)
        return ""

    def _directory_of(self, change: Change) -> Node | None:
        above, slash, _ = change.path.rpartition(b"/")
        return self.layer.directories.get(above + slash)

    def _replaced(self, path: bytes) -> str:
        parts = path.split(b"/")
        for i in range(len(parts)):
            above = b"".join(p + b"/" for p in parts[:i])
            node = self.layer.directories.get(above)
            if node is not None and self.since.directory_replaced(above, node):
                return "host_directory_replaced"
        return ""

    # -- write ---------------------------------------------------------------------------------------------------------

    def write(self, paths: tuple[bytes, ...] = (), *, skip_refused: bool = False, hold: bool = False) -> Applied:
        """Check, record, and write the selected changes. With a refusal nothing is written, unless `skip_refused`. hold: something that
        belongs to it was refused elsewhere, so the refusals are recorded and nothing is written either.

        Raises UsageError (nothing at a path) and OSError (a tree that cannot be read, a record that cannot be written).
        """
        done = Applied()
        chosen, done.refused = self.plan(paths)
        self._record_refusals(done.refused)
        if (done.refused and not skip_refused) or hold:
            return done
        chosen = _without(chosen, done.refused)
        if chosen:
            names = [c.path for c in chosen]
            self.audit.append("workspace.apply", layer="L1", effect="allow", detail=_digest(names, self))
            self._journal.begin(chosen, self._token, self._linked)
            self.since.relinked = self._journal.relinked
            self._write_all(chosen, done)
        done.complete = not done.refused and not paths and done.failed is None
        self.audit.append(
            "workspace.applied",
            layer="L1",
            effect="deny" if done.refused else "allow",
            reason=done.refused[0].reason if done.refused else "write_failed" if done.failed else "",
            detail={
                "written": len(done.written),
                "refused": len(done.refused),
                "complete": done.complete,
                "failed": f"{shown(self.label + done.failed[0])}: {done.failed[1]}" if done.failed else "",
            },
        )
        return done

    def _record_refusals(self, refused: list[Refusal]) -> None:
        for item in refused[:_NAMED]:
            path = {"path": shown(self.label + item.path)}
            self.audit.append("workspace.refused", layer="L1", effect="deny", reason=item.reason, detail=path)
        if len(refused) > _NAMED:
            detail = _digest([r.path for r in refused[_NAMED:]], self)
            self.audit.append("workspace.refused", layer="L1", effect="deny", reason="more", detail=detail)

    def _write_all(self, chosen: list[Change], done: Applied) -> None:
        host = Trail(self.layer.host_fd, self._host_identity)
        upper = Trail(self.layer.upper_fd, lambda _path: None)
        at = b""
        try:
            for number, change in sorted(enumerate(chosen), key=lambda item: self._turn(item[1])):
                at = change.path
                above, slash, name = at.rpartition(b"/")
                self._one(change, host.directory(above + slash), upper, name, self._temporary(number))
                done.written.append(change)
            self._settle_modes(host)
        except OSError as e:
            done.failed = (at, os.strerror(e.errno or errno.EIO))
        except Raced as e:
            done.refused.append(Refusal(e.path, e.reason))
            self._record_refusals(done.refused[-1:])
        finally:
            host.close()
            upper.close()
            done.written.sort(key=lambda c: c.path)
        self._journal.clean(self.layer.host_fd)

    @staticmethod
    def _turn(change: Change) -> int:
        return _turn(change)

    def _temporary(self, number: int) -> bytes:
        return temporary_name(self._token, number)

    def _host_identity(self, path: bytes) -> tuple[int, int] | None:
        made = self._made.get(path)
        if made is not None:
            return made
        node = self.layer.directories.get(path)
        return (node.device, node.inode) if node is not None else (0, 0)

    def _one(self, change: Change, host_dir: int, upper: Trail, name: bytes, temporary: bytes) -> None:
        self._still_there(change, host_dir, name)
        after = change.after
        if after is None:
            move_new(host_dir, name, temporary)
            self._throw_away(change, host_dir, name, temporary, moved=True)
            return
        if change.kind == MODE and (after.kind == DIRECTORY or (change.before and change.before.nlink == 1)):
            self._change_mode(change, host_dir, name)
            return
        source = self._source(change, upper, name)
        try:
            self._make(change, source, host_dir, name if change.before is None else temporary)
        except FileExistsError:
            raise Raced(change.path, "host_created") from None
        finally:
            os.close(source)
        if change.before is not None:
            exchange(host_dir, temporary, name)
            self._throw_away(change, host_dir, name, temporary, moved=False)

    def _still_there(self, change: Change, host_dir: int, name: bytes) -> None:
        """Raise Raced unless the host's entry is what the check saw."""
        try:
            fd = os.open(name, _PATH, dir_fd=host_dir)
        except FileNotFoundError:
            if change.before is None:
                return
            raise Raced(change.path, "host_deleted") from None
        try:
            node = node_of(fd)
        finally:
            os.close(fd)
        if change.before is None:
            raise Raced(change.path, "host_created")
        relinked = (node.device, node.inode) in self.since.relinked
        if not node.same_object(change.before) or (node.ctime_ns != change.before.ctime_ns and not relinked):
            raise Raced(change.path, "host_changed")

    def _source(self, change: Change, upper: Trail, name: bytes) -> int:
        """The layer's entry again, if it is what the check saw."""
        above, slash, _ = change.path.rpartition(b"/")
        try:
            fd = os.open(name, _PATH, dir_fd=upper.directory(above + slash))
        except OSError:
            raise Raced(change.path, "layer_changed") from None
        after = change.after
        node = node_of(fd, layer=True)
        if after is None or (node.device, node.inode, node.kind, node.size) != (
            after.device,
            after.inode,
            after.kind,
            after.size,
        ):
            os.close(fd)
            raise Raced(change.path, "layer_changed")
        return fd

    def _make(self, change: Change, source: int, host_dir: int, name: bytes) -> None:
        """Make the run's entry as `name`, which must not exist (FileExistsError)."""
        after = change.after
        if after is None:
            return
        owner = (after.uid - self.layer.base, after.gid - self.layer.base) if self.layer.base else None
        if after.kind == DIRECTORY:
            made = make_directory(host_dir, name, owner, allowed_mode(after))
            self._made[change.path + b"/"] = made
            self._modes.append((change.path, allowed_mode(after), made))
        elif after.kind == SYMLINK:
            make_link(host_dir, name, after.target, owner)
        else:
            self._make_file(after, source, host_dir, name, owner)

    def _make_file(self, after: Node, source: int, host_dir: int, name: bytes, owner: tuple[int, int] | None) -> None:
        opened = open_node(source, after)
        try:
            with place_file(host_dir, name) as target:
                copy_data(opened, target, after.size)
                if owner:
                    os.fchown(target, *owner)
                os.fchmod(target, allowed_mode(after))
                os.utime(target, ns=(after.mtime_ns, after.mtime_ns))
        finally:
            os.close(opened)

    def _throw_away(self, change: Change, host_dir: int, name: bytes, temporary: bytes, *, moved: bool) -> None:
        """Remove what the rename displaced, if it is what the check saw; else put it back."""
        fd = os.open(temporary, _PATH, dir_fd=host_dir)
        try:
            node = node_of(fd)
            before = change.before
            same = before is not None and node.same_object(before)
            if same and node.kind == DIRECTORY and not self.overwrite:
                same = not self._look_below(fd, change.path, top=True)
        finally:
            os.close(fd)
        if same:
            remove_tree(os.fsdecode(temporary), host_dir)
            return
        if moved:
            move_new(host_dir, temporary, name)
        else:
            exchange(host_dir, temporary, name)
            remove_tree(os.fsdecode(temporary), host_dir)
        raise Raced(change.path, "host_changed")

    def _change_mode(self, change: Change, host_dir: int, name: bytes) -> None:
        after, before = change.after, change.before
        if after is None or before is None:
            return
        mode = allowed_mode(after)
        identity = (before.device, before.inode)
        if after.kind == DIRECTORY:
            self._modes.append((change.path, mode, identity))
            mode |= 0o700
        self._chmod(change.path, host_dir, name, mode, identity)

    def _chmod(self, path: bytes, host_dir: int, name: bytes, mode: int, expected: tuple[int, int]) -> None:
        fd = os.open(name, _PATH, dir_fd=host_dir)
        try:
            node = node_of(fd)
            # root must not change the mode of whatever somebody put there meanwhile
            if node.kind not in (FILE, DIRECTORY) or (node.device, node.inode) != expected:
                raise Raced(path, "host_changed")
            # a directory of the host's keeps its set-group-ID bit: it was there before the run
            os.chmod(f"/proc/self/fd/{fd}", mode | (node.mode & 0o2000 if node.kind == DIRECTORY else 0))
        finally:
            os.close(fd)

    def _settle_modes(self, host: Trail) -> None:
        for path, mode, made in reversed(self._modes):
            above, slash, name = path.rpartition(b"/")
            self._chmod(path, host.directory(above + slash), name, mode, made)


def _turn(change: Change) -> int:
    """When a change's turn is, so that a killed apply leaves a repository that git can read: what is new first, then what
    refers to it, and what was replaced goes last. Directories come before what is in them."""
    if change.after is None:
        return 4
    parts = change.path.split(b"/")
    if change.after.kind == DIRECTORY or b".git" not in parts:
        return 0
    if b"objects" in parts:
        # a pack is found by its index, and the commit graph in `info` names objects that must be found
        return 2 if b"info" in parts else 1 if parts[-1].endswith((b".idx", b".rev", b".bitmap")) else 0
    return 2 if b"refs" in parts or parts[-1] == b"packed-refs" else 3


def _digest(paths: list[bytes], apply: Apply) -> dict[str, object]:
    return {
        "count": len(paths),
        "paths": [shown(apply.label + p) for p in paths[:_NAMED]],
        "sha256": sha256(b"\0".join(paths)).hexdigest(),
        "allowed_protected": [shown(apply.label + p) for p in apply.allowed],
        "overwrite_host_changes": apply.overwrite,
    }


def _without(changes: list[Change], refused: list[Refusal]) -> list[Change]:
    """The changes that stand without the refused ones: what lies below a refused directory goes with it."""
    tops = {r.path for r in refused}
    kept = []
    for change in changes:
        parts = change.path.split(b"/")
        if not any(b"/".join(parts[: i + 1]) in tops for i in range(len(parts))):
            kept.append(change)
    return kept
