"""What of a linked worktree's repository `apply` brings back. Pure.

The repository belongs to the main directory and to every other worktree as well, so less of it is a run's own than in a repository that
lies in the workspace: its objects, the branch that is checked out in the worktree with its log, and the worktree's own HEAD, index and log.

I1  Objects and packs are taken by what they are (`git_objects`), and only where the host has none of that name. Nothing in `objects` is ever
    changed or removed.
I2  A reference is a hexadecimal name, and so is what a merge or cherry-pick notes beside HEAD; one that leads to another reference is
    not taken. With a refused object no reference is.
I3  HEAD may name the branch of the start, or a new branch whose name hides nothing; another branch's value never changes unless it is named.
I4  Everything else is refused, or stays in the run where git makes it again by itself (locks, caches that hold no data).
"""

from __future__ import annotations

import re

from saggar.core.decision import Frozen
from saggar.isolation.changes import ADDED, DELETED, DIRECTORY, FILE, Change
from saggar.isolation.protected import inside_git

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: what git makes again by itself, and would believe: where commits stand, which objects a pack has
_CACHES = re.compile(
    rb"objects/(?:info/(?:commit-graph|commit-graphs/.*|packs)|pack/(?:multi-pack-index.*|.*\.(?:rev|bitmap|mtimes|keep|promisor)))\Z",
    re.DOTALL,
)
_UNFINISHED = re.compile(rb"(?:.*/)?(?:[^/]*\.lock|gc\.pid|tmp_[^/]*|\.tmp-[^/]*|incoming-[^/]*)\Z", re.DOTALL)
_LOOSE = re.compile(rb"objects/([0-9a-f]{2})/([0-9a-f]{38}|[0-9a-f]{62})\Z")
_PACK = re.compile(rb"objects/pack/pack-([0-9a-f]{40}|[0-9a-f]{64})\.(pack|idx)\Z")
_VALUE = re.compile(rb"(?:[0-9a-f]{40}|[0-9a-f]{64})\n\Z")
#: git writes through a reference to another one, and removes that one: a CHERRY_PICK_HEAD of `ref: refs/heads/main` is the end of
#: `main` at the next commit. Only the start is looked at where a line says more.
_NOTED = {
    **dict.fromkeys((b"ORIG_HEAD", b"CHERRY_PICK_HEAD", b"REVERT_HEAD", b"AUTO_MERGE"), _VALUE),
    b"MERGE_HEAD": re.compile(rb"(?:(?:[0-9a-f]{40}|[0-9a-f]{64})\n)+\Z"),
    b"FETCH_HEAD": re.compile(rb"(?:[0-9a-f]{40}|[0-9a-f]{64})\t|\Z"),
}
_HEAD = b"ref: refs/heads/"
#: of a branch that a run makes: nothing that git or a shell takes for something else
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@#=-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+@#=-]*)*\Z")
_HEX = re.compile(r"[0-9a-f]{4,64}\Z")
#: a worktree's own files that a commit, merge or switch writes
_OWN = frozenset({
    b"HEAD", b"ORIG_HEAD", b"FETCH_HEAD", b"MERGE_HEAD", b"CHERRY_PICK_HEAD", b"REVERT_HEAD", b"AUTO_MERGE", b"MERGE_MSG",
    b"MERGE_MODE", b"SQUASH_MSG", b"COMMIT_EDITMSG", b"TAG_EDITMSG", b"index", b"logs", b"logs/HEAD",
})  # fmt: skip

OTHER_BRANCH = "git_other_branch"
REF_DELETED = "git_ref_deleted"
REF_FORM = "git_ref_form"
OBJECTS_REFUSED = "git_objects_refused"


class Began(Frozen):
    """The worktree at the run's start. admin: its own directory, ends in `/`, b"" where the repository is the submodule's own; branch:
    checked out then; loose: whether that had a file of its own; names: what its own directory held."""

    __slots__ = ("admin", "branch", "loose", "names")
    admin: bytes
    branch: str
    loose: bool
    names: frozenset[str]

    def __init__(self, known: Mapping[str, Any]) -> None:
        import os

        admin = os.fsencode(str(known.get("admin", "")))
        self._set(
            admin=admin + b"/" if admin else b"",
            branch=str(known.get("branch", "")),
            loose=bool(known.get("loose")),
            names=frozenset(known.get("names", ())),
        )

    def ref(self, branch: str) -> tuple[bytes, bytes]:
        """The paths of a branch's value and of its log."""
        name = branch.encode("utf-8", "surrogateescape")
        return b"refs/heads/" + name, b"logs/refs/heads/" + name


def stays(change: Change) -> bool:
    """Whether a change is nothing to bring back (I1, I4): the host's own is as good, or better."""
    path = change.path
    if _UNFINISHED.match(path):
        return True
    if path.split(b"/", 1)[0] == b"objects":
        if change.before is not None:
            # git gives a file that it has anyway another time; and what a clean-up removed there, the host may still need
            return change.before.kind == FILE or change.kind == DELETED
        return bool(_CACHES.match(path))
    return False


def loose_name(path: bytes) -> str:
    """The name of the loose object that the file at `path` stands for, or ""."""
    found = _LOOSE.match(path)
    return (found[1] + found[2]).decode() if found else ""


def pack_part(path: bytes) -> tuple[bytes, str, int]:
    """(path without its ending, `pack` or `idx`, digits of an object's name), or (b"", "", 0) for anything else."""
    found = _PACK.match(path)
    return (path.rpartition(b".")[0], found[2].decode(), len(found[1])) if found else (b"", "", 0)


def is_reference(path: bytes, began: Began) -> bool:
    """Whether a path says where something points: of no worth without the objects (I2)."""
    own = path.removeprefix(began.admin) if path.startswith(began.admin) else b""
    return path.startswith((b"refs/", b"logs/")) or path == b"packed-refs" or own in _OWN


def says_where(path: bytes, began: Began) -> bool:
    """Whether `refusal` wants to know what the file at `path` says."""
    own = path.removeprefix(began.admin) if path.startswith(began.admin) else b""
    return path.startswith(b"refs/") or own == b"HEAD" or own in _NOTED


def new_branch(name: str) -> bool:
    """Whether a branch of this name can be made without being named: it hides no other reference by its form."""
    parts = name.split("/")
    return (
        bool(_BRANCH.match(name))
        and len(name) < 200
        and not _HEX.match(name)
        and not any(p.endswith((".lock", ".")) or ".." in p for p in parts)
        and "@{" not in name
        and parts[0] not in ("refs", "heads", "tags", "remotes", "stash", "worktree", "worktrees", "bisect")
        and not name.replace("_", "").isupper()
    )


def head_branch(text: bytes) -> str | None:
    """The branch that a HEAD names, "" for a detached one, None for anything else."""
    if _VALUE.match(text):
        return ""
    if text.startswith(_HEAD) and text.endswith(b"\n") and text.count(b"\n") == 1:
        return text[len(_HEAD) : -1].decode("utf-8", "surrogateescape")
    return None


def refusal(change: Change, began: Began, branches: frozenset[str], text: bytes | None) -> str:
    """Why a change of the repository is not brought back, or "". branches: those that the run may set; text: what a reference says.

    Objects are for `git_objects` to judge; here they pass by their names alone. A new directory passes: it says nothing.
    """
    path, after = change.path, change.after
    if after is not None and after.kind == DIRECTORY and change.kind == ADDED:
        return ""
    if any(n is not None and n.kind != FILE for n in (change.before, after)):
        return "git_link" if after is not None and after.kind != DIRECTORY else "git_internal"
    if loose_name(path) or pack_part(path)[0]:
        return ""
    for branch in branches:
        ref, log = began.ref(branch)
        if path not in (ref, log):
            continue
        if after is None:
            return REF_DELETED
        return "" if path == log or (text is not None and _VALUE.match(text)) else REF_FORM
    if path.startswith((b"refs/", b"logs/refs/")) or path == b"packed-refs":
        return OTHER_BRANCH
    own = path.removeprefix(began.admin)
    if path.startswith(began.admin) and own in _OWN:
        if own in _NOTED:
            return "" if after is None or (text is not None and _NOTED[own].match(text)) else REF_FORM
        if own != b"HEAD":
            return ""
        named = None if after is None or text is None else head_branch(text)
        if named is None:
            return REF_FORM
        return "" if not named or named in branches else OTHER_BRANCH
    # what the general rule names more exactly: hooks, settings
    return inside_git(path) or "git_internal"
