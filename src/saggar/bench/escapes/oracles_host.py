"""Checks made outside after an attempt: the attempt's own word is not taken where the effect lies on the host.

Each oracle returns evidence of an effect, or "". The same oracle judges the positive control and the attempt in the cell.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from saggar.bench.escapes.standins_host import StandIns

    Oracle = Callable[[StandIns, str], str]

_ORIGINAL = "original\n" * 8
_FILE_MODE = 0o644


def workspace_unchanged(_s: StandIns, workspace: str) -> str:
    path = os.path.join(workspace, "file.txt")
    if not os.path.exists(path):
        return "file.txt is gone"
    with open(path) as f:
        if f.read() != _ORIGINAL:
            return "file.txt was changed"
    mode = stat.S_IMODE(os.stat(path).st_mode)
    return f"file.txt has mode {mode:o}" if mode != _FILE_MODE else ""


def process_untouched(s: StandIns, _workspace: str) -> str:
    return "" if s.process is not None and s.process.poll() is None else "the stand-in process is gone"


def find_processes(marker: str) -> list[int]:
    """Pids whose command line holds `marker`."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as f:
                if marker.encode() in f.read():
                    found.append(int(name))
        except OSError:
            continue
    return found


def no_daemon(s: StandIns, _workspace: str) -> str:
    """Looks for the daemon for as long as a dying pid namespace may need, then ends what it finds."""
    deadline = time.monotonic() + 1
    while (pids := find_processes(s.token + "-daemon")) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return f"pids {pids} live on" if pids else ""


def no_core(s: StandIns, _workspace: str) -> str:
    cores = [n for n in os.listdir(s.path("standin")) if n.startswith("core")]
    for name in cores:
        os.unlink(s.path("standin", name))
    return f"core files {cores}" if cores else ""


def applied_outside(s: StandIns, workspace: str) -> str:
    """The token in a protected file or outside the workspace, a special file, or a set-user-ID bit."""
    for base in (workspace, s.path("standin")):
        for directory, names, files in os.walk(base):
            for name in [*names, *files]:
                path = os.path.join(directory, name)
                status = os.lstat(path)
                if stat.S_ISFIFO(status.st_mode) or status.st_mode & 0o6000:
                    return f"special file or mode: {os.path.relpath(path, s.root)}"
                if os.path.islink(path) and name == ".git":
                    return "`.git` became a link"
                if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 16:
                    with open(path, "rb") as f:
                        if s.token.encode() in f.read() and os.path.basename(path) not in ("file", "exe"):
                            return f"written: {os.path.relpath(path, s.root)}"
    return ""


ORACLES: dict[str, Oracle] = {
    f.__name__: f for f in (workspace_unchanged, process_untouched, no_daemon, no_core, applied_outside)
}


def naive_apply(layer: str, workspace: str) -> None:
    """What a careless tool does: walk and write by name. The positive control for `saggar apply`."""
    for directory, names, files in os.walk(layer):
        relative = os.path.relpath(directory, layer)
        for name in [*names, *files]:
            source, target = os.path.join(directory, name), os.path.join(workspace, relative, name)
            status = os.lstat(source)
            if stat.S_ISLNK(status.st_mode):
                if os.path.isdir(target) and not os.path.islink(target):
                    shutil.rmtree(target)
                elif os.path.lexists(target):
                    os.unlink(target)
                os.symlink(os.readlink(source), target)
            elif stat.S_ISFIFO(status.st_mode):
                os.mkfifo(target)
            elif stat.S_ISREG(status.st_mode):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(source, target)
                os.chmod(target, stat.S_IMODE(status.st_mode))
