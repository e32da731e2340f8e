"""Which of the listed parts of the system this host has, and whether it still has them as they were."""

from __future__ import annotations

import os
from stat import S_ISDIR, S_ISLNK, S_ISREG

from saggar.isolation import rootfs
from saggar.isolation.bwrap_argv import MASKED_DIRECTORIES, MASKED_FILES

#: A regular file up to this size is copied into the cell's root: a mount less, and no inode of the host's.
_COPY_BYTES = 256 * 1024
#: The directory whose names say what there is of versions.
_NAMES = "/etc"
#: Parts of /proc that change the kernel where somebody may write to them; nobody in a cell may, and the mount says so too.
_PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus")


class System:
    """The parts of a cell's root that depend on the host. system: bound read-only at the same place; links: (target, place);
    files: (place, content); seen: (path, `_signature`) of all that was looked at; masked_files, masked_directories: places of /proc that are covered; read_only: names there that stay."""

    __slots__ = ("files", "links", "masked_directories", "masked_files", "read_only", "seen", "system")

    def __init__(self) -> None:
        self.system: list[str] = []
        # the directory's own first: what comes into it while it is read is seen as a change
        self.seen: list[tuple[str, tuple[int, ...]]] = [(_NAMES, _signature(_status(_NAMES), contents=True))]
        self.links: list[tuple[str, str]] = list(rootfs.LINKS)
        self.files: list[tuple[str, bytes]] = list(rootfs.FILES)
        self.masked_files = [p for p in MASKED_FILES if os.path.exists(p)]
        self.read_only = [n for n in _PROC_READ_ONLY if os.path.exists(f"/proc/{n}")]
        self.masked_directories = [p for p in MASKED_DIRECTORIES if os.path.isdir(p)]
        for path in rootfs.SYSTEM:
            self._add(path, copy=False)
        for name in self._etc_names():
            self._add(f"{_NAMES}/{name}", copy=True)

    def watch(self, path: str) -> None:
        """Let `current` ask after one file more."""
        self.seen.append((path, _signature(_status(path))))

    def current(self) -> bool:
        """Whether the host is as it was looked at: some forty `lstat`, no file is read."""
        return all(
            _signature(_status(path), contents=number == 0) == signature
            for number, (path, signature) in enumerate(self.seen)
        )

    @staticmethod
    def _etc_names() -> list[str]:
        names = list(rootfs.ETC)
        try:
            present = os.listdir(_NAMES)
        except OSError:
            present = []
        names += sorted(n for n in present if n.startswith(rootfs.ETC_VERSIONED))
        return names

    def _add(self, path: str, *, copy: bool) -> None:
        status = _status(path)
        self.seen.append((path, _signature(status)))
        if status is None:
            return
        mode = status.st_mode
        if S_ISLNK(mode):
            self.links.append((os.readlink(path), path))
        elif S_ISDIR(mode):
            self.system.append(path)
        elif copy and S_ISREG(mode) and status.st_size <= _COPY_BYTES:
            try:
                with open(path, "rb") as file:
                    self.files.append((path, file.read()))
            except OSError:
                return
        elif S_ISREG(mode):
            self.system.append(path)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _signature(status: os.stat_result | None, *, contents: bool = False) -> tuple[int, ...]:
    """Differs where what a cell has of a path is another: of a directory, which is bound, only which one it is, unless its names count
    (contents). Empty for what is not there."""
    if status is None:
        return ()
    which = (status.st_mode, status.st_dev, status.st_ino)
    if S_ISDIR(status.st_mode) and not contents:
        return which
    return (*which, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
