"""Where a workspace that is a linked worktree or a submodule has its repository.

git keeps such a repository outside the directory and names it in a *file* `.git`. Whoever can write the workspace can write that
file, so its word alone opens nothing: the repository must name this very workspace in return, which only who may write the
repository can arrange. See gitrepository-layout(5), "gitdir" and "commondir".
"""

from __future__ import annotations

import os
from stat import S_ISDIR, S_ISREG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: of any of the small files read here; git writes a path and a newline
_MOST = 8192
_NAMES = 1000
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def repository(path: str, fd: int, *, owner: int = -1) -> tuple[str, int, str]:
    """The repository that the workspace `path`, opened as `fd`, is linked to: its real path, a descriptor of the very directory that
    was looked at, the caller's to close, and where in it this worktree's own files are (`worktrees/NAME`, "" for a submodule: the
    top). ("", -1, "") where `.git` is a directory, is missing, leads back into the workspace, or names what
    does not name the workspace; and where `owner` is given, what belongs to another."""
    pointer = _read(".git", fd)
    if not pointer.startswith("gitdir:"):
        return "", -1, ""
    try:
        return _find(path, pointer[7:].strip(), owner)
    except OSError:
        # exchanged while it was asked
        return "", -1, ""


def _find(path: str, pointer: str, owner: int) -> tuple[str, int, str]:
    from saggar.isolation.syscalls_host import open_plain

    gitdir = os.path.realpath(os.path.join(path, pointer))
    if (gitdir + "/").startswith(path + "/"):
        return "", -1, ""
    common = _common_of(gitdir)
    for found, name in ((common, os.path.basename(gitdir)), (gitdir, "")):
        if not found or (found + "/").startswith(path + "/") or (path + "/").startswith(found + "/"):
            continue
        opened = open_plain(found)
        try:
            if _is_repository(opened, owner) and _names(opened, path, found, name):
                given, opened = opened, -1
                return found, given, f"worktrees/{name}" if name else ""
        finally:
            if opened >= 0:
                os.close(opened)
    return "", -1, ""


def begin(fd: int, admin: str) -> dict[str, Any]:
    """What `apply` must know of the repository `fd` when a run begins. admin: where the worktree's own files are.

    branch: the one that is checked out, "" where HEAD is detached; loose: whether it has a file of its own; names: what there is in
    the worktree's own directory, a bounded list."""
    from saggar.isolation.syscalls_host import open_plain

    known: dict[str, Any] = {"admin": admin, "branch": "", "loose": False, "names": []}
    try:
        own = open_plain(admin, fd) if admin else os.open(".", os.O_PATH | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return known
    try:
        head = _read("HEAD", own)
        listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=own)
        try:
            known["names"] = sorted(os.listdir(listed))[:_NAMES]
        finally:
            os.close(listed)
    finally:
        os.close(own)
    if head.startswith("ref: refs/heads/"):
        known["branch"] = branch = head[16:]
        try:
            os.close(open_plain(f"refs/heads/{branch}", fd))
            known["loose"] = True
        except (OSError, ValueError):
            pass  # it is in `packed-refs`, or unborn
    return known


def _common_of(gitdir: str) -> str:
    """Where `gitdir`, if it is COMMON/worktrees/NAME, says that COMMON is; a guess, for what is opened is asked again."""
    common = _read(f"{gitdir}/commondir")
    found = os.path.realpath(os.path.join(gitdir, common)) if common else ""
    return found if os.path.dirname(gitdir) == f"{found}/worktrees" else ""


def _names(opened: int, path: str, found: str, name: str) -> bool:
    """Whether the repository names the workspace in return: as its worktree `name`, or as its own, a submodule's."""
    if not name:
        return _of_submodule(opened, path, found)
    from saggar.isolation.syscalls_host import open_plain

    entry = open_plain(f"worktrees/{name}", opened)
    try:
        return _of_worktree(entry, path, found, f"{found}/worktrees/{name}")
    finally:
        os.close(entry)


def _of_worktree(entry: int, path: str, found: str, gitdir: str) -> bool:
    """The file `gitdir` of the entry names the workspace's `.git`."""
    back, common = _read("gitdir", entry), _read("commondir", entry)
    if os.path.basename(back) != ".git" or not common or os.path.realpath(os.path.join(gitdir, common)) != found:
        return False
    # relative since git 2.48 where the user asked for it
    return os.path.realpath(os.path.join(gitdir, os.path.dirname(back))) == path


def _of_submodule(opened: int, path: str, gitdir: str) -> bool:
    """The repository is one of its own, whose `core.worktree` is the workspace."""
    section = ""
    for line in _read("config", opened).splitlines():
        word = line.strip()
        if word.startswith("["):
            section = word.lower()
            continue
        name, equals, value = word.partition("=")
        if section == "[core]" and equals and name.strip().lower() == "worktree":
            return os.path.realpath(os.path.join(gitdir, value.strip().strip('"'))) == path
    return False


def _is_repository(opened: int, owner: int) -> bool:
    whose = os.fstat(opened).st_uid
    parts = [os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode for name in ("objects", "refs")]
    return owner in (-1, whose) and all(S_ISDIR(mode) for mode in parts) and bool(_read("HEAD", opened))


def _read(name: str, dir_fd: int | None = None) -> str:
    """The start of a regular file, "" for anything else."""
    try:
        fd = os.open(name, _FLAGS, dir_fd=dir_fd)
    except OSError:
        return ""
    try:
        if not S_ISREG(os.fstat(fd).st_mode):
            return ""
        text = os.read(fd, _MOST).decode("utf-8", "surrogateescape").rstrip("\r\n")
        return "" if "\0" in text else text
    finally:
        os.close(fd)
