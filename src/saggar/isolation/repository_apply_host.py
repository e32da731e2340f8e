"""Copy what a run changed in the repository that its workspace is linked to, by descriptor.

I1  The rules are `repository_rules`' and the hashes `git_objects`'; how a path is written is `apply_host`'s.
I2  The host's side is compared as everywhere; a value in `packed-refs` counts as well, by that file's last change.
"""

from __future__ import annotations

import mmap
import os

from saggar.isolation.apply_check import CONFLICTS, Refusal, below
from saggar.isolation.apply_host import Apply
from saggar.isolation.apply_journal_host import REPOSITORY_JOURNAL
from saggar.isolation.changes import ADDED, DELETED, DIRECTORY, FILE, MODE, Change
from saggar.isolation.git_index_host import fault_of
from saggar.isolation.git_objects import FORGED, MAX_PACK, UNCHECKED, Work, loose_fault, pack_fault
from saggar.isolation.layer_host import node_of, open_node, open_repository_layer, read_content
from saggar.isolation.place_host import Trail
from saggar.isolation.repository_rules import (
    OBJECTS_REFUSED,
    Began,
    head_branch,
    is_reference,
    loose_name,
    new_branch,
    pack_part,
    refusal,
    says_where,
    stays,
)
from saggar.isolation.workspace_scan_host import Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from saggar.audit.sink_host import AuditLog
    from saggar.isolation.layer_host import Layer
    from saggar.isolation.state_host import RunDir

_CHUNK = 1 << 18
_REFERENCE = 1 << 12
_PACKED = 64 << 20
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RepositoryApply(Apply):
    """The second half of an apply, over the run's repository layer."""

    JOURNAL = REPOSITORY_JOURNAL
    __slots__ = ("_began", "_packed", "_texts", "_work")

    def __init__(
        self,
        run: RunDir,
        layer: Layer,
        audit: AuditLog,
        *,
        allowed: tuple[bytes, ...] = (),
        overwrite: bool = False,
    ) -> None:
        super().__init__(run, layer, audit, allowed=allowed, overwrite=overwrite)
        meta = run.meta()
        self.label = os.fsencode(str(meta["repository"])) + b"/"
        self._began = Began(meta.get("repository_began", {}))
        self._texts: dict[bytes, bytes] = {}
        self._work = Work()
        self._packed: tuple[int, frozenset[bytes]] | None = None

    def _snapshot(self) -> Snapshot:
        return Snapshot()

    # what is looked at

    def _changes(self) -> list[Change]:
        return [c for c in self.layer.changes(self._visit) if not stays(c)]

    def _visit(self, change: Change, upper: int, host: int) -> None:  # noqa: ARG002  # what the walk gives
        if change.before is not None:
            self._note_links(change.before)
        after = change.after
        if after is None or after.kind != FILE or stays(change):
            return
        why = fault_of(change, upper, self.layer.host_fd, inside=True)
        if why:
            self._faults[change.path] = why
        name = loose_name(change.path)
        if name and change.path not in self._faults:
            fd = open_node(upper, after)
            try:
                self._faults[change.path] = loose_fault(name, _chunks(fd), self._work)
            finally:
                os.close(fd)
        elif says_where(change.path, self._began):
            self._texts[change.path] = read_content(upper, after, _REFERENCE)

    def _check_packs(self, changes: list[Change]) -> None:
        """Each new pack with its index, together or not at all."""
        parts: dict[bytes, dict[str, Change]] = {}
        digits = {}
        for change in changes:
            stem, ending, length = pack_part(change.path)
            if stem and change.kind == ADDED and change.after is not None and change.after.kind == FILE:
                parts.setdefault(stem, {})[ending] = change
                digits[stem] = length
        for stem, found in parts.items():
            *_, last = found.values()
            if all(c.path in self._faults for c in found.values()):
                why = self._faults[last.path]
            elif len(found) == 2:
                why = self._pack(stem, digits[stem])
            else:
                why = UNCHECKED
            for ending in ("pack", "idx"):
                self._faults[stem + b"." + ending.encode()] = why

    def _pack(self, stem: bytes, digits: int) -> str:
        above, slash, name = stem.rpartition(b"/")
        trail = Trail(self.layer.upper_fd, lambda _path: None)
        try:
            directory = trail.directory(above + slash)
            with (
                open(os.open(name + b".pack", _FILE, dir_fd=directory), "rb") as pack,
                open(os.open(name + b".idx", _FILE, dir_fd=directory), "rb") as index,
            ):
                size = os.fstat(pack.fileno()).st_size
                if not 0 < size <= MAX_PACK:
                    return UNCHECKED
                with mmap.mmap(pack.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    return pack_fault(data, index.read(size * 2 + (1 << 16)), digits, self._work)
        except OSError:
            return UNCHECKED
        finally:
            trail.close()

    # what is decided

    def plan(self, paths: tuple[bytes, ...] = ()) -> tuple[list[Change], list[Refusal]]:
        """As `Apply.plan`, without new directories that nothing is written into."""
        chosen, refused = super().plan(paths)
        out = {r.path for r in refused}
        used = set()
        for change in chosen:
            if change.path not in out and not _is_new_directory(change):
                parts = change.path.split(b"/")
                used |= {b"/".join(parts[:i]) for i in range(1, len(parts))}
        return [c for c in chosen if not _is_new_directory(c) or c.path in used], refused

    def _judge(self, chosen: list[Change]) -> list[Refusal]:
        self._check_packs(chosen)
        branches = self._branches()
        found = []
        for change in chosen:
            why = ""
            # what a killed apply made, and had not given its mode yet
            own = change.path in self.since.known_absent and _is_directory_mode(change)
            if not own and not below(change.path, self.allowed):
                why = refusal(change, self._began, branches, self._texts.get(change.path))
            why = why or self._faults.get(change.path, "") or self._conflict(change)
            if why and not (self.overwrite and why in CONFLICTS):
                found.append(Refusal(change.path, why))
        if any(r.reason in (FORGED, UNCHECKED) for r in found):
            refused = {r.path for r in found}
            found += [
                Refusal(c.path, OBJECTS_REFUSED)
                for c in chosen
                if c.path not in refused and is_reference(c.path, self._began) and not _is_new_directory(c)
            ]
        return found

    def _branches(self) -> frozenset[str]:
        """The branch of the start, and a new one that HEAD names now where no reference of the host's is hidden by it."""
        found = {self._began.branch} - {""}
        head = head_branch(self._texts.get(self._began.admin + b"HEAD", b""))
        if head and head not in found and new_branch(head):
            name = os.fsencode(head)
            first = name.split(b"/")[0]
            branch = b"refs/heads/" + name
            taken = (
                # a killed apply has found it absent and may have made it before HEAD
                *(() if branch in self.since.known_absent and self._host_says(branch) else (branch,)),
                b"refs/tags/" + name,
                b"refs/remotes/" + name,
                b"refs/remotes/" + first,
                b"refs/" + name,
            )
            # below a branch, none of that name could be written any more, whichever worktree has it
            above = [b"refs/heads/" + b"/".join(name.split(b"/")[:i]) for i in range(1, name.count(b"/") + 1)]
            if not any(map(self._host_has, taken)) and not any(map(self._host_says, above)):
                found.add(head)
        return frozenset(found)

    def _host_has(self, ref: bytes) -> bool:
        """Whether the host's repository has a reference of this name, or references below it."""
        if os.path.lexists(b"/proc/self/fd/%d/" % self.layer.host_fd + ref):
            return True
        packed = self._packed_refs()[1]
        return ref in packed or any(p.startswith(ref + b"/") for p in packed)

    def _host_says(self, ref: bytes) -> bool:
        """Whether the host's repository has a reference of exactly this name."""
        path = b"/proc/self/fd/%d/" % self.layer.host_fd + ref
        return ref in self._packed_refs()[1] or (os.path.lexists(path) and not os.path.isdir(path))

    def _packed_refs(self) -> tuple[int, frozenset[bytes]]:
        """When the host's `packed-refs` last changed (0: there is none), and which references it holds."""
        if self._packed is None:
            try:
                fd = os.open(b"packed-refs", _FILE, dir_fd=self.layer.host_fd)
            except FileNotFoundError:
                self._packed = (0, frozenset())
                return self._packed
            with open(fd, "rb") as file:
                lines = file.read(_PACKED).split(b"\n")
                names = frozenset(line.partition(b" ")[2] for line in lines if line[:1] not in (b"#", b"^", b""))
                self._packed = (node_of(file.fileno()).ctime_ns, names)
        return self._packed

    def _conflict(self, change: Change) -> str:
        """Why the host's side is not what the run saw, or ""."""
        path, began = change.path, self._began
        if change.before is not None:
            directory = self._directory_of(change)
            return self.since.conflict(change, directory) if directory is not None else ""
        if path in self.since.known_absent or path.startswith(b"objects/"):
            return ""
        if began.branch and path == began.ref(began.branch)[0]:
            if self._packed_refs()[0] >= self.since.started_ns:
                return "host_changed"
            return "host_deleted" if began.loose else ""
        own = path.removeprefix(began.admin) if path.startswith(began.admin) else b""
        if own and b"/" not in own:
            return "host_deleted" if os.fsdecode(own) in began.names else ""
        if not below(path, self.allowed):
            # a new branch's value, a log, a directory: absent here, and nothing that the run could have seen is replaced
            return ""
        directory = self._directory_of(change)
        return self.since.conflict(change, directory) if directory is not None else ""

    @staticmethod
    def _turn(change: Change) -> int:
        """Objects, then their indexes, then what refers to them, the worktree's own last; what goes, goes at the end."""
        if change.kind == DELETED:
            return 5
        if change.path.startswith(b"objects/") or _is_new_directory(change):
            return 1 if change.path.endswith(b".idx") else 0
        return 2 if change.path.startswith(b"logs/") else 3 if change.path.startswith(b"refs/") else 4


def _is_new_directory(change: Change) -> bool:
    return change.kind == ADDED and change.after is not None and change.after.kind == DIRECTORY


def _is_directory_mode(change: Change) -> bool:
    return change.kind == MODE and all(n is not None and n.kind == DIRECTORY for n in (change.before, change.after))


def _chunks(fd: int) -> Iterator[bytes]:
    while chunk := os.read(fd, _CHUNK):
        yield chunk


def open_repository_apply(first: Apply, *, allowed: tuple[bytes, ...] = ()) -> RepositoryApply | None:
    """The part of the apply `first` that goes to the linked repository, None where its run had none. Raises UsageError."""
    layer = open_repository_layer(first.run)
    if layer is None:
        return None
    return RepositoryApply(first.run, layer, first.audit, allowed=allowed, overwrite=first.overwrite)
