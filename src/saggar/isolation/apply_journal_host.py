"""What an apply is about to do, written down in the run's directory before it does it.

I1  Every name that a killed apply can leave in the workspace is in the journal first.
I2  What was found absent stays known, so that a repetition does not take its own work for the host's.
"""

from __future__ import annotations

import errno
import os

from saggar.isolation.discard_host import remove_tree
from saggar.isolation.place_host import Raced, Trail
from saggar.isolation.state_host import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.isolation.changes import Change

JOURNAL = "applying"
REPOSITORY_JOURNAL = "applying-repository"


def temporary_name(token: str, number: int) -> bytes:
    """The name that the `number`th change of an apply has for a moment."""
    return f".saggar-{token}-{number}".encode()


class Journal:
    """What an apply is about to do, in the run's directory: paths found absent, the temporary names it will use, and the
    files with several names that it takes one from."""

    __slots__ = ("_name", "_run_fd", "_temporary", "absent", "relinked")

    def __init__(self, run_fd: int, name: str = JOURNAL) -> None:
        self._run_fd = run_fd
        self._name = name
        self._temporary: list[bytes] = []
        absent = set()
        relinked = set()
        fields = self._read().split(b"\0")
        for kind, path in zip(fields[::2], fields[1::2], strict=False):
            if kind == b"absent":
                absent.add(path)
            elif kind == b"temporary":
                self._temporary.append(path)
            elif kind == b"relinked":
                device, _, inode = path.partition(b":")
                relinked.add((int(device), int(inode)))
        self.absent = frozenset(absent)
        self.relinked = frozenset(relinked)

    def _read(self) -> bytes:
        try:
            fd = os.open(self._name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._run_fd)
        except FileNotFoundError:
            return b""
        with open(fd, "rb") as file:
            return file.read()

    @property
    def pending(self) -> bool:
        """Whether temporary names may be left."""
        return bool(self._temporary)

    def begin(self, changes: list[Change], token: str, linked: set[tuple[int, int]]) -> None:
        """Write down what may be left behind, before anything can be."""
        for number, change in enumerate(changes):
            above, slash, _ = change.path.rpartition(b"/")
            self._temporary.append(above + slash + temporary_name(token, number))
        self.absent |= {c.path for c in changes if c.before is None}
        self.relinked |= linked
        self._save()

    def _save(self) -> None:
        absent = b"".join(b"absent\0" + p + b"\0" for p in sorted(self.absent))
        temporary = b"".join(b"temporary\0" + p + b"\0" for p in self._temporary)
        relinked = b"".join(b"relinked\0%d:%d\0" % pair for pair in sorted(self.relinked))
        write_file(self._name, absent + temporary + relinked, self._run_fd)

    def clean(self, host_fd: int) -> None:
        """Remove what a killed apply left under its temporary names."""
        if not self._temporary:
            return
        trail = Trail(host_fd, lambda _path: None)
        try:
            for path in self._temporary:
                above, slash, name = path.rpartition(b"/")
                try:
                    remove_tree(os.fsdecode(name), trail.directory(above + slash))
                except (FileNotFoundError, NotADirectoryError, Raced):
                    continue
                except OSError as e:
                    if e.errno not in (errno.ELOOP, errno.EXDEV):
                        raise
        finally:
            trail.close()
        self._temporary = []
        self._save()
