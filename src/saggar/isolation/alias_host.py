"""Paths of the host's workspace that are protected because a protected name leads to them.

`.git/hooks` may be a link to `tools/hooks`, `CLAUDE.md` one to `docs/agents.md`, and `core.hooksPath` may name any directory:
inside a cell the kernel follows the link, so the run's layer holds the path behind it, which looks like any other.

I1  What is found here only adds protection; a race can cost a refusal, never gain a write.
I2  The whole workspace is looked through for links, without following one and without opening a file but git's configuration.
"""

from __future__ import annotations

import os

from saggar.isolation.protected import protected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_ENTRIES = 2_000_000
_MAX_CONFIG = 1 << 20
_MAX_DEPTH = 200
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def aliases(host_fd: int, workspace: str, env: Mapping[str, str]) -> dict[bytes, str]:
    """Path relative to the workspace -> why it is protected. env: HOME and XDG_CONFIG_HOME, for the user's git settings."""
    top = os.path.realpath(workspace)
    found: dict[bytes, str] = {}
    for path in _links(host_fd):
        why = protected(path, plain=True)
        if why:
            _add(found, top, os.path.realpath(os.fsencode(top) + b"/" + path), why)
    for directory in _hook_directories(host_fd, env):
        _add(found, top, os.path.realpath(os.path.join(os.fsencode(top), os.path.expanduser(directory))), "git_hooks")
    return found


def _add(found: dict[bytes, str], top: str, real: bytes, why: str) -> None:
    prefix = os.fsencode(top).rstrip(b"/") + b"/"
    # a link to the workspace itself protects nothing in particular
    if real.startswith(prefix):
        found.setdefault(real[len(prefix) :], why)


def _links(host_fd: int) -> Iterator[bytes]:
    """The paths of all symbolic links below the directory."""
    left = MAX_ENTRIES
    stack: list[tuple[int, bytes, list[bytes]]] = []
    try:
        fd = os.open(b".", _DIRECTORY, dir_fd=host_fd)
        path = b""
        while True:
            links, below = _look(fd)
            stack.append((fd, path, below))
            left -= len(links) + len(below)
            yield from (path + name for name in links)
            opened = None
            while stack and opened is None and left > 0:
                opened = _next(stack)
            if opened is None:
                return
            fd, path = opened
    finally:
        for entry in stack:
            os.close(entry[0])


def _look(fd: int) -> tuple[list[bytes], list[bytes]]:
    links, below = [], []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if entry.is_symlink():
                    links.append(os.fsencode(entry.name))
                elif entry.is_dir(follow_symlinks=False):
                    below.append(os.fsencode(entry.name))
    except OSError:
        pass  # a directory that cannot be listed cannot be written into by name either
    return links, below


def _next(stack: list[tuple[int, bytes, list[bytes]]]) -> tuple[int, bytes] | None:
    """The next directory to look into; None when one of the stack was used up or could not be opened."""
    fd, path, below = stack[-1]
    if not below or len(stack) > _MAX_DEPTH:
        os.close(stack.pop()[0])
        return None
    name = below.pop()
    try:
        return os.open(name, _DIRECTORY, dir_fd=fd), path + name + b"/"
    except OSError:
        return None


def _hook_directories(host_fd: int, env: Mapping[str, str]) -> Iterator[bytes]:
    """What `core.hooksPath` says in the repository's and the user's settings. Included files are not read."""
    home = env.get("HOME", "")
    files = [(".git/config", host_fd), (".git/config.worktree", host_fd)]
    if home.startswith("/"):
        files.append((f"{home}/.gitconfig", -1))
        files.append((f"{env.get('XDG_CONFIG_HOME') or home + '/.config'}/git/config", -1))
    files.append(("/etc/gitconfig", -1))
    for name, dir_fd in files:
        yield from hooks_paths(_read(name, dir_fd))


def _read(name: str, dir_fd: int) -> bytes:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd if dir_fd >= 0 else None)
    except OSError:
        return b""
    try:
        return os.read(fd, _MAX_CONFIG)
    except OSError:
        return b""
    finally:
        os.close(fd)


def hooks_paths(config: bytes) -> list[bytes]:
    """The values of `core.hooksPath` in a git configuration, roughly: quotes and comments as git takes them."""
    found = []
    section = b""
    for line in config.split(b"\n"):
        text = line.strip()
        if text.startswith(b"["):
            section, _, text = text[1:].partition(b"]")
            section, text = section.strip().lower(), text.strip()
        key, equals, value = text.partition(b"=")
        if section == b"core" and equals and key.strip().lower() == b"hookspath":
            bare = _bare(value)
            if bare:
                found.append(bare)
    return found


def _bare(value: bytes) -> bytes:
    out = bytearray()
    quoted = False
    at = 0
    value = value.strip()
    while at < len(value):
        c = value[at : at + 1]
        if c == b"\\":
            out += value[at + 1 : at + 2]
            at += 1
        elif c == b'"':
            quoted = not quoted
        elif c in (b"#", b";") and not quoted:
            break
        else:
            out += c
        at += 1
    return bytes(out).strip()
