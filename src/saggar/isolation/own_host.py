"""What Saggar itself runs from: the host executes it, so nothing that a cell wrote may get there unseen.

The broker, the secrets process and every late import are read from these places while a cell runs.

I1  A place is meant with every link on the way to it: who replaces the link replaces what is executed.
I2  "Inside" is decided on real paths, and by inode where one directory has two paths.
I3  Nothing is opened and nothing written here.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_MAX_LINKS = 40
_SITES = ("site-packages", "dist-packages")


def trail(path: str) -> list[str]:
    """Where each symbolic link on the way to `path` stands, and the real path last. Directories before a name are real."""
    rest = os.path.abspath(path).split("/")[::-1]
    found: list[str] = []
    at = ""
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at).rstrip("/")
            continue
        here = f"{at}/{name}"
        try:
            target = os.readlink(here)
        except OSError:
            at = here
            continue
        found.append(here)
        if len(found) > _MAX_LINKS:
            break
        if target.startswith("/"):
            at = ""
        rest.extend(target.split("/")[::-1])
    found.append(at or "/")
    return found


def above(path: str) -> set[tuple[int, int]]:
    """(device, inode) of `path` itself and of every directory above it. path: as `trail` gives it."""
    found = set()
    while True:
        try:
            # the name itself: a link that stands inside counts, wherever it leads
            status = os.lstat(path)
            found.add((status.st_dev, status.st_ino))
        except OSError:
            pass  # what is not there yet can still be made
        if path == "/":
            return found
        path = os.path.dirname(path)


def holds(top: tuple[int, int], path: str) -> bool:
    """Whether the directory or file `top` (device, inode) is `path` or above it."""
    return top in above(path)


def places(bwrap: str = "") -> list[str]:
    """The package's root, the interpreter with its trees, and the bubblewrap in use."""
    base = getattr(sys, "_base_executable", "")
    found = [_ROOT, sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, sys.executable, base, bwrap]
    return list(dict.fromkeys(p for p in found if p))


def imported_from() -> list[str]:
    """Where late imports look. Raises nothing; a working directory that is gone holds nothing."""
    found = []
    for entry in sys.path:
        try:
            found.append(os.path.abspath(entry))
        except OSError:
            continue
    return found


def inside(top: tuple[int, int], paths: Iterable[str]) -> str:
    """The first of `paths` that lies in the directory `top`, or is reached through it; "" for none."""
    return next((path for path in paths if any(holds(top, step) for step in trail(path))), "")


def around(path: str) -> str:
    """The tree of packages that the directory `path` (real) lies in, "" for none: to change a package is to change who imports it."""
    trees = [_ROOT, os.path.dirname(os.__file__)]
    trees += [p for p in imported_from() if os.path.basename(p) in _SITES]
    for tree in trees:
        try:
            status = os.stat(tree)
        except OSError:
            continue
        if holds((status.st_dev, status.st_ino), path):
            return tree
    return ""


def own_below(workspace: str, bwrap: str = "") -> dict[bytes, str]:
    """Path relative to the workspace -> `saggar_itself`: what `apply` writes only where it was named. The empty path is all."""
    why = "saggar_itself"
    real = os.path.realpath(workspace)
    if around(real):
        return {b"": why}
    prefix = real.rstrip("/") + "/"
    steps = [step for place in places(bwrap) for step in trail(place)]
    return {os.fsencode(step[len(prefix) :]): why for step in steps if (step + "/").startswith(prefix)}
