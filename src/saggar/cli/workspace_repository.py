"""What a run changed in the repository that its workspace is linked to, as a section of `saggar diff`."""

from __future__ import annotations

import os
import sys

from saggar.cli.show_change import show
from saggar.isolation.apply_check import below
from saggar.isolation.changes import DIRECTORY, stat_line
from saggar.isolation.repository_rules import stays
from saggar.isolation.shown import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from saggar.isolation.changes import Change
    from saggar.isolation.layer_host import Layer
    from saggar.isolation.state_host import RunDir


def diff(run: RunDir, layer: Layer, tops: tuple[bytes, ...] | None, flags: set[str]) -> dict[str, Any]:
    """The section: `lines` of a list, or the value for `--json`; without a flag it is printed. tops: None for all of it."""
    path = str(run.meta().get("repository", ""))
    section = _Section(tops, print_them=not flags & {"--stat", "--name-only", "--json"}, path=path)
    layer.changes(section.visit)
    section.end()
    if "--json" in flags:
        refused = [{"path": shown(p), "reason": why} for p, why in layer.refused]
        return {"path": shown(path), "changes": [c.to_json() for c in section.changes], "refused": refused}
    for name, reason in layer.refused:
        sys.stderr.write(f"saggar: `{shown(os.fsencode(path) + b'/' + name)}` cannot be applied: {reason}\n")
    if "--name-only" in flags:
        return {"lines": [shown(os.fsencode(path) + b"/" + c.path) for c in section.changes]}
    lines = [f"in the repository {shown(path)}:", *(stat_line(c) for c in section.changes)] if section.changes else []
    return {"lines": [*lines, f"{len(section.changes)} paths changed there"] if lines else []}


class _Section:
    """Collects the section, or prints it: references and settings as text; objects, indexes and logs are counted."""

    __slots__ = ("_counted", "_path", "_print", "_tops", "changes")

    def __init__(self, tops: tuple[bytes, ...] | None, *, print_them: bool, path: str) -> None:
        self._tops = tops
        self._print = print_them
        self._path = path
        self._counted = 0
        self.changes: list[Change] = []

    def visit(self, change: Change, upper: int, host: int) -> None:
        if stays(change) or (self._tops is not None and not below(change.path, self._tops)):
            return
        self.changes.append(change)
        if not self._print:
            return
        if len(self.changes) == 1:
            sys.stdout.write(f"in the repository {shown(self._path)}:\n")
        name = change.path.rpartition(b"/")[2]
        node = change.after or change.before
        plain = node is not None and node.kind == DIRECTORY
        if plain or name == b"index" or change.path.startswith((b"objects/", b"logs/")) or b"/logs/" in change.path:
            self._counted += 1
            return
        show(change, upper, host)

    def end(self) -> None:
        if self._counted:
            sys.stdout.write(f"and {self._counted} paths of git's own data there, see `--name-only`\n")
