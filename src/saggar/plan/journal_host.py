"""A journal in a file: one JSON line an entry, on the disk before `put` returns."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from saggar.core.errors import ParseError

MAX_BYTES = 256 * 1024 * 1024


class FileJournal:
    """Implements `plan.journal.Journal`. The file is the user's alone (0600); a torn last line, which a crash leaves,
    is dropped: its effect had not begun, for the line is on the disk before anything happens."""

    __slots__ = ("_entries", "_fd")

    def __init__(self, path: str) -> None:
        """Raises `OSError`, and `ParseError` for a file that is no journal."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self._entries: dict[str, Mapping[str, Any]] = {}
        try:
            self._load()
        except BaseException:
            os.close(self._fd)
            raise

    def _load(self) -> None:
        size = os.fstat(self._fd).st_size
        if size > MAX_BYTES:
            raise ParseError("the journal is too large", reason="journal_size")
        data = os.pread(self._fd, size, 0)
        whole, _, torn = data.rpartition(b"\n")
        if torn:
            os.ftruncate(self._fd, len(data) - len(torn))
        for line in whole.split(b"\n") if whole else []:
            try:
                entry = json.loads(line)
            except ValueError:
                raise ParseError("a line of the journal is no JSON", reason="journal_line") from None
            if (
                not isinstance(entry, dict)
                or not isinstance(entry.get("key"), str)
                or not isinstance(entry.get("entry"), dict)
            ):
                raise ParseError("a line of the journal is no entry", reason="journal_line")
            self._entries[entry["key"]] = entry["entry"]

    def get(self, key: str) -> Mapping[str, Any] | None:
        return self._entries.get(key)

    def put(self, key: str, entry: Mapping[str, Any]) -> None:
        line = json.dumps({"key": key, "entry": entry}, ensure_ascii=True).encode() + b"\n"
        while line:
            line = line[os.write(self._fd, line) :]
        os.fdatasync(self._fd)
        self._entries[key] = dict(entry)

    def close(self) -> None:
        os.close(self._fd)
