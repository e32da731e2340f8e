"""Whether git's index names only paths inside the working tree. Pure.

git checks a path when it enters the index, and never again: `git checkout -- .` and `git restore .` write an entry `../../.profile` or
`.git/hooks/post-checkout` where it says. What wrote the index of a run is not git but whatever ran there. Format: gitformat-index(5).

I1  "" is answered only where every entry was read, by each way that git has to find one, and its path is one that git would take in.
I2  Whatever the bytes are, the answer is a reason or "", never an exception.
"""

from __future__ import annotations

import re
import struct

from saggar.isolation.protected import fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATH = "git_index_path"
UNCHECKED = "git_index_unchecked"
#: a million files are some 100 MiB
MAX_INDEX = 1 << 28

_SHA256 = re.compile(rb"objectformat\s*=\s*\"?sha256", re.IGNORECASE)
#: of an entry before its name of an object
_STATUS = 40
_MODE_AT = 24
_EXTENDED, _NAME_MASK = 0x4000, 0x0FFF
_SPARSE_DIRECTORY = 0o040000


class _Bad(Exception):  # internal: becomes the reason
    pass


def digest_size(config: bytes) -> int:
    """The bytes of an object's name in the repository with these settings."""
    return 32 if _SHA256.search(config) else 20


def is_index(name: bytes) -> bool:
    """Whether git, in a git directory, takes the file of this name for its index or a half of it, on whatever file system."""
    folded = fold(name.decode("utf-8", "surrogateescape"))
    return folded == "index" or folded.startswith("sharedindex.")


def index_fault(data: bytes, digest: int) -> str:
    """Why an index may not be brought back, or "". digest: see `digest_size`."""
    if len(data) > MAX_INDEX:
        return UNCHECKED
    try:
        _Index(data, digest)
    except _Bad as bad:
        return str(bad)
    except (struct.error, IndexError):
        return UNCHECKED
    return ""


class _Index:
    """An index being read. starts: where each entry begins, and whether it can be read without the one before."""

    __slots__ = ("_data", "_digest", "_end", "_good", "_starts", "_version")

    def __init__(self, data: bytes, digest: int) -> None:
        self._data = data
        self._digest = digest
        self._end = len(data) - digest
        self._good: set[bytes] = set()
        self._starts: list[tuple[int, bool]] = []
        magic, self._version, count = struct.unpack_from(">4sII", data, 0)
        if magic != b"DIRC" or self._version not in (2, 3, 4):
            raise _Bad(UNCHECKED)
        at, name = 12, b""
        for _ in range(count):
            at, name = self._entry(at, name)
        self._extensions(at)

    def _entry(self, start: int, before: bytes) -> tuple[int, bytes]:
        """Where the next one begins, and this one's path."""
        data = self._data
        (mode,) = struct.unpack_from(">I", data, start + _MODE_AT)
        at = start + _STATUS + self._digest
        (flags,) = struct.unpack_from(">H", data, at)
        at += 4 if flags & _EXTENDED else 2
        copied = 0
        if self._version == 4:
            stripped, at = self._varint(at)
            copied = len(before) - stripped
        end = data.find(b"\0", at, self._end)
        if end < 0 or copied < 0:
            raise _Bad(UNCHECKED)
        name = before[:copied] + data[at:end]
        if min(len(name), _NAME_MASK) != flags & _NAME_MASK:
            # git takes so many bytes, whatever is in them
            raise _Bad(UNCHECKED)
        self._check(name[:-1] if mode == _SPARSE_DIRECTORY and name.endswith(b"/") else name)
        self._starts.append((start, copied == 0))
        return (end + 1 if self._version == 4 else start + (end - start + 8 & ~7)), name

    def _varint(self, at: int) -> tuple[int, int]:
        byte = self._data[at]
        value = byte & 0x7F
        while byte & 0x80:
            at += 1
            byte = self._data[at]
            value = (value + 1) << 7 | byte & 0x7F
            if value > self._end:
                raise _Bad(UNCHECKED)
        return value, at + 1

    def _check(self, name: bytes) -> None:
        for part in name.split(b"/"):
            if part in self._good:
                continue
            if part in (b"", b".", b"..") or fold(part.decode("utf-8", "surrogateescape")) == ".git":
                raise _Bad(PATH)
            self._good.add(part)

    # what else says where entries are

    def _extensions(self, begin: int) -> None:
        at = begin
        while at < self._end:
            name, size = struct.unpack_from(">4sI", self._data, at)
            at += 8 + size
            if at > self._end or name == b"link":
                # `link`: the other half is in a file that is not brought back
                raise _Bad(UNCHECKED)
            if name == b"IEOT":
                self._blocks(self._data[at - size : at])
        if at != self._end:
            raise _Bad(UNCHECKED)
        # git looks for it at this place, whatever it is a part of
        last = self._end - 12 - self._digest
        if self._data[last : last + 4] == b"EOIE" and struct.unpack_from(">I", self._data, last + 8)[0] != begin:
            raise _Bad(UNCHECKED)

    def _blocks(self, table: bytes) -> None:
        """Entries that git's threads read at once, each from where the table says."""
        number = 0
        blocks: Any = struct.iter_unpack(">II", table[4:]) if len(table) % 8 == 4 else [(0, 0)]
        for offset, count in blocks:
            if number >= len(self._starts) or self._starts[number] != (offset, True):
                raise _Bad(UNCHECKED)
            number += count
        if number != len(self._starts):
            raise _Bad(UNCHECKED)
