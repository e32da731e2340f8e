"""Where a workspace that is a linked worktree or a submodule has its repository.

git keeps such a repository outside the directory and names it in a *file* `.git`. Whoever can write the workspace can write that
file, so its word alone opens nothing: the repository must name this very workspace in return, which only who may write the
repository can arrange. See gitrepository-layout(5), "gitdir" and "commondir".
"""

from __future__ import annotations

import os
from stat import S_ISREG

#: of any of the small files read here; git writes a path and a newline
_MOST = 8192
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def repository(path: str, fd: int) -> str:
    """The resolved directory of the repository that the workspace `path`, opened as `fd`, is linked to; "" where `.git` is a
    directory, is missing, leads back into the workspace, or names what does not name the workspace."""
    pointer = _read(".git", fd)
    if not pointer.startswith("gitdir:"):
        return ""
    gitdir = os.path.realpath(os.path.join(path, pointer[7:].strip()))
    if (gitdir + "/").startswith(path + "/"):
        return ""
    try:
        found = _of_worktree(path, gitdir) or _of_submodule(path, gitdir)
        if not found or (found + "/").startswith(path + "/") or (path + "/").startswith(found + "/"):
            return ""
        return found if _is_repository(found) else ""
    except OSError:
        return ""


def _of_worktree(path: str, gitdir: str) -> str:
    """`gitdir` is COMMON/worktrees/NAME; its file `gitdir` names the workspace's `.git`."""
    back, common = _read(f"{gitdir}/gitdir"), _read(f"{gitdir}/commondir")
    if not back or not common:
        return ""
    # relative since git 2.48 where the user asked for it
    if os.path.realpath(os.path.join(gitdir, os.path.dirname(back))) != path or os.path.basename(back) != ".git":
        return ""
    found = os.path.realpath(os.path.join(gitdir, common))
    return found if os.path.dirname(gitdir) == f"{found}/worktrees" else ""


def _of_submodule(path: str, gitdir: str) -> str:
    """`gitdir` is a repository of its own whose `core.worktree` is the workspace."""
    section = ""
    for line in _read(f"{gitdir}/config").splitlines():
        word = line.strip()
        if word.startswith("["):
            section = word.lower()
            continue
        name, equals, value = word.partition("=")
        if section == "[core]" and equals and name.strip().lower() == "worktree":
            return gitdir if os.path.realpath(os.path.join(gitdir, value.strip().strip('"'))) == path else ""
    return ""


def _is_repository(path: str) -> bool:
    return os.path.isdir(f"{path}/objects") and os.path.isdir(f"{path}/refs") and bool(_read(f"{path}/HEAD"))


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
