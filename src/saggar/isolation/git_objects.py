"""Whether git's objects are what their names say: loose ones and packs. Pure.

An object's name is the hash of its content, and git believes a name that it finds: it reads a loose file or follows a pack's index without
hashing again, and a fetch leaves out what is there. So a file that a run made under the name of an object that the repository will see one
day (the next release of a dependency, say) would stand for it. What comes out of a run is therefore hashed first.

I1  "" is answered only where every object's name was computed from its content, and a pack's index is the one that follows from the pack.
I2  Work is bounded: MAX_OBJECT, MAX_PACK, MAX_PACKED, MAX_HELD, and for all that one run left together `Work`; what is larger is
    refused and not trusted. A megabyte of zlib is a gigabyte of content, and nine bytes are an object.
I3  Whatever the bytes are, the answer is a reason or "", never an exception.
"""

from __future__ import annotations

import struct
from hashlib import sha1, sha256
from zlib import crc32, decompressobj
from zlib import error as zlib_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

FORGED = "git_object_forged"
UNCHECKED = "git_pack_unchecked"

MAX_OBJECT = 1 << 30
MAX_PACK = 1 << 29
#: of one object of a pack, which is held as a whole; and what a chain of deltas may hold at once
MAX_PACKED = 1 << 28
MAX_HELD = 1 << 29
MAX_OBJECTS = 1 << 20
#: in bytes of content; some 40 s
MAX_WORK = 1 << 33
#: what an object, and a byte of a delta, take beside its bytes
_PER_OBJECT = 1 << 11
_PER_DELTA_BYTE = 16
_CHUNK = 1 << 16
_TYPES = {1: b"commit", 2: b"tree", 3: b"blob", 4: b"tag"}
_OFS_DELTA, _REF_DELTA = 6, 7
_LARGE = 0x7FFF_FFFF


class _Bad(Exception):  # internal: the bytes are no pack; becomes a reason
    pass


class Work:
    """What may still be done for one run's objects. left: bytes."""

    __slots__ = ("left",)

    def __init__(self, left: int = MAX_WORK) -> None:
        self.left = left

    def spend(self, size: int) -> None:
        """Raises _Bad where there is no more."""
        self.left -= size
        if self.left < 0:
            raise _Bad


def _hash(digits: int) -> Callable[[bytes], Any] | None:
    return {40: sha1, 64: sha256}.get(digits)


def loose_fault(name: str, chunks: Iterable[bytes], work: Work | None = None) -> str:
    """Why the loose object `name` (hexadecimal) is not what its file's bytes say, or ""."""
    work = work or Work()
    make = _hash(len(name))
    if make is None:
        return FORGED
    found, inflate = make(b""), decompressobj()
    head, size, done = b"", -1, 0
    try:
        work.spend(_PER_OBJECT)
        for chunk in chunks:
            rest = chunk
            while rest:
                data = inflate.decompress(rest, _CHUNK)
                rest = inflate.unconsumed_tail
                if inflate.unused_data or (not data and not rest and inflate.eof):
                    rest = b""
                found.update(data)
                done += len(data)
                work.spend(len(data))
                if size < 0:
                    head += data[:64]
                    size = _size_of(head)
                if size >= 0 and done > size:
                    return FORGED
                if inflate.unused_data:
                    return FORGED
    except (zlib_error, _Bad):
        return FORGED if work.left >= 0 else UNCHECKED
    whole = inflate.eof and done == size
    return "" if whole and found.hexdigest() == name else FORGED


def _size_of(head: bytes) -> int:
    """The length of header and content that a loose object's header tells, -1 where more of it is needed."""
    end = head.find(b"\0")
    if end < 0:
        if len(head) > 32:
            raise _Bad
        return -1
    kind, _, length = head[:end].partition(b" ")
    if kind not in _TYPES.values() or not length.isdigit() or len(length) > 12 or int(length) > MAX_OBJECT:
        raise _Bad
    return end + 1 + int(length)


def pack_fault(data: Any, index: bytes, digits: int, work: Work | None = None) -> str:
    """Why a pack may not be taken with this index, or "". data: the whole pack (bytes or a map of it). digits: of an object's name."""
    make = _hash(digits)
    if make is None or len(data) > MAX_PACK:
        return UNCHECKED
    try:
        return "" if _Pack(data, make, work or Work()).index() == index else UNCHECKED
    except (_Bad, zlib_error, struct.error, IndexError, MemoryError):
        return UNCHECKED


class _Entry:
    """One object of a pack as it is stored. base: offset or name of what a delta builds on, None for a whole object."""

    __slots__ = ("at", "base", "content_at", "crc", "kind", "size")

    def __init__(self, *, at: int, content_at: int, kind: int, size: int, base: int | bytes | None) -> None:
        self.at = at
        self.content_at = content_at
        self.kind = kind
        self.size = size
        self.base = base
        self.crc = 0


class _Pack:
    """A pack being read: where its objects stand, then their names."""

    __slots__ = ("_children", "_data", "_end", "_entries", "_length", "_make", "_names", "_work")

    def __init__(self, data: Any, make: Callable[[bytes], Any], work: Work) -> None:
        self._data = data
        self._make = make
        self._length = make(b"").digest_size
        self._end = len(data) - self._length
        self._work = work
        magic, version, count = struct.unpack_from(">4sII", data, 0)
        if magic != b"PACK" or version not in (2, 3) or self._end < 12 or count > MAX_OBJECTS:
            raise _Bad
        self._entries: list[_Entry] = []
        at = 12
        for _ in range(count):
            at = self._entry(at)
        trailer = make(b"")
        for start in range(0, self._end, 1 << 20):
            trailer.update(data[start : min(start + (1 << 20), self._end)])
        if at != self._end or trailer.digest() != data[self._end :]:
            raise _Bad
        self._names: dict[int, bytes] = {}
        self._children: dict[int | bytes, list[_Entry]] = {}
        self._resolve()

    def _entry(self, at: int) -> int:
        start = at
        byte = self._byte(at)
        kind, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 0x80:
            at += 1
            byte = self._byte(at)
            size |= (byte & 0x7F) << shift
            shift += 7
            if shift > 46:
                raise _Bad
        at += 1
        base: int | bytes | None = None
        if kind == _OFS_DELTA:
            distance, at = self._distance(at)
            base = start - distance
            if distance <= 0 or base < 12:
                raise _Bad
        elif kind == _REF_DELTA:
            base = bytes(self._data[at : at + self._length])
            at += self._length
        elif kind not in _TYPES:
            raise _Bad
        entry = _Entry(at=start, content_at=at, kind=kind, size=size, base=base)
        _, at = self._inflate(entry, keep=False)
        entry.crc = crc32(self._data[start:at])
        self._entries.append(entry)
        return at

    def _byte(self, at: int) -> int:
        if at >= self._end:
            raise _Bad
        return int(self._data[at])

    def _distance(self, at: int) -> tuple[int, int]:
        byte = self._byte(at)
        distance = byte & 0x7F
        while byte & 0x80:
            at += 1
            byte = self._byte(at)
            distance = (distance + 1) << 7 | byte & 0x7F
            if distance > self._end:
                raise _Bad
        return distance, at + 1

    def _inflate(self, entry: _Entry, *, keep: bool = True) -> tuple[bytes, int]:
        """The content of an entry (b"" where it is not to be kept), and where it ends."""
        self._count(entry.size)
        # at first what an incompressible entry takes: most are small, and a slice is a copy
        step = min(_CHUNK, entry.size + (entry.size >> 8) + 64)
        inflate, parts, at = decompressobj(), [], entry.content_at
        got = 0
        while not inflate.eof:
            chunk = self._data[at : min(at + step, self._end)]
            if not chunk:
                raise _Bad
            data = inflate.decompress(chunk, entry.size - got + 1)
            got += len(data)
            if got > entry.size:
                raise _Bad
            if keep:
                parts.append(data)
            at += len(chunk) - len(inflate.unconsumed_tail) - len(inflate.unused_data)
            if not data and inflate.unconsumed_tail and not inflate.eof and got == entry.size:
                raise _Bad
        if got != entry.size:
            raise _Bad
        return b"".join(parts), at

    def _count(self, size: int) -> None:
        self._work.spend(size + _PER_OBJECT)
        if size > MAX_PACKED:
            raise _Bad

    # names

    def _resolve(self) -> None:
        for entry in self._entries:
            if entry.base is not None:
                self._children.setdefault(entry.base, []).append(entry)
        for entry in self._entries:
            if entry.base is None:
                content, _ = self._inflate(entry)
                self._name(entry, _TYPES[entry.kind], content)
                if self._below(entry):
                    self._deltas(entry, _TYPES[entry.kind], content)
        # a delta whose base is not in the pack, or that builds on itself
        if len(self._names) != len(self._entries) or len(set(self._names.values())) != len(self._entries):
            raise _Bad

    def _below(self, entry: _Entry) -> list[_Entry]:
        return self._children.get(entry.at, []) + self._children.get(self._names[entry.at], [])

    def _deltas(self, top: _Entry, kind: bytes, content: bytes) -> None:
        """Everything that builds on `top`, depth first."""
        stack = [(content, self._below(top))]
        held = len(content)
        while stack:
            base, waiting = stack[-1]
            if not waiting:
                held -= len(base)
                stack.pop()
                continue
            entry = waiting.pop()
            delta, _ = self._inflate(entry)
            made = self._apply(base, delta)
            self._name(entry, kind, made)
            below = self._below(entry)
            if below:
                held += len(made)
                if held > MAX_HELD:
                    raise _Bad
                stack.append((made, below))

    def _name(self, entry: _Entry, kind: bytes, content: bytes) -> None:
        if entry.at in self._names:
            raise _Bad
        found = self._make(b"%s %d\0" % (kind, len(content)))
        found.update(content)
        self._names[entry.at] = found.digest()

    def _apply(self, base: bytes, delta: bytes) -> bytes:
        size, at = _number(delta, 0)
        if size != len(base):
            raise _Bad
        size, at = _number(delta, at)
        self._count(size)
        self._work.spend(len(delta) * _PER_DELTA_BYTE)
        made, got = bytearray(), 0
        while at < len(delta):
            op = delta[at]
            at += 1
            if op & 0x80:
                numbers = []
                for group, width in ((op & 15, 4), (op >> 4 & 7, 3)):
                    value = 0
                    for i in range(width):
                        if group >> i & 1:
                            value |= delta[at] << 8 * i
                            at += 1
                    numbers.append(value)
                start, length = numbers[0], numbers[1] or 0x10000
                part = base[start : start + length]
            elif op:
                length = op
                part = delta[at : at + length]
                at += length
            else:
                raise _Bad
            got += length
            if len(part) != length or got > size:
                raise _Bad
            made += part
        if got != size:
            raise _Bad
        return bytes(made)

    def index(self) -> bytes:
        """The index (version 2) that git makes for the pack: gitformat-pack(5)."""
        rows = sorted((self._names[e.at], e.crc, e.at) for e in self._entries)
        fan, counts = [0] * 256, 0
        for name, _, _ in rows:
            fan[name[0]] += 1
        for i, number in enumerate(fan):
            counts += number
            fan[i] = counts
        large = [at for _, _, at in rows if at > _LARGE]
        if large:
            raise _Bad
        out = b"".join([
            b"\377tOc", struct.pack(">I", 2), struct.pack(">256I", *fan),
            b"".join(name for name, _, _ in rows),
            struct.pack(f">{len(rows)}I", *(crc for _, crc, _ in rows)),
            struct.pack(f">{len(rows)}I", *(at for _, _, at in rows)),
            bytes(self._data[self._end :]),
        ])  # fmt: skip
        return out + self._make(out).digest()  # type: ignore[no-any-return]


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at
        if shift > 42:
            raise _Bad
