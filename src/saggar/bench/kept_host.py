"""Results that outlive the run that made them: one JSON line each, so that a run that was killed goes on where it was.

I1  A result is on the disk's side before the next one is begun; a torn last line is dropped, and what follows it stands
    on a line of its own.
I2  One file holds one model's results.
I3  A file that cannot be written is found out before anything is asked of a model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from saggar.core.errors import UsageError


@dataclass(slots=True)
class Kept:
    """The results in the file `path` ("": in memory alone), by their `key`. again: which of them are to be made anew."""

    path: str
    model: str
    key: str
    again: Callable[[dict[str, Any]], bool] = lambda _: False
    done: dict[str, dict[str, Any]] = field(default_factory=dict)

    def load(self) -> None:
        """What earlier runs left. Raises `UsageError` for another model's, or a file that cannot be read."""
        try:
            with open(self.path, encoding="utf-8", errors="replace") as f:
                lines = f.read().split("\n") if self.path else []
        except FileNotFoundError:
            return
        except OSError as err:
            raise UsageError(f"cannot read `{self.path}`: {err.strerror}") from None
        for line in lines:
            try:
                found = json.loads(line) if line else None
            except ValueError:
                continue
            if isinstance(found, dict) and isinstance(found.get(self.key), str):
                if found.get("model") != self.model:
                    raise UsageError(f"`{self.path}` holds results of another model", hint="--out FILE")
                if not self.again(found):
                    self.done[found[self.key]] = found

    def ready(self) -> None:
        """Makes sure that results can be kept (I3). Raises `UsageError`."""
        if not self.path:
            return
        try:
            with open(self.path, "ab"):
                pass
        except (OSError, ValueError) as err:
            raise UsageError(f"cannot write `{self.path}`: {type(err).__name__}", hint="--out FILE") from None

    def add(self, result: dict[str, Any]) -> None:
        """Raises `UsageError` where the disk takes no more."""
        self.done[result[self.key]] = result
        if not self.path:
            return
        try:
            with open(self.path, "a+b") as out:
                if out.tell() and not _ends_a_line(out):
                    out.write(b"\n")
                out.write(json.dumps(result, sort_keys=True).encode() + b"\n")
        except OSError as err:
            raise UsageError(f"cannot write `{self.path}`: {err.strerror}", hint="what is in it is kept") from None


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
