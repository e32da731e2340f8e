"""A tool's result as labelled nodes, field by field, as its declaration says.

I1  Every leaf gets the declared label of its path; what is not declared is untrusted and the owner's alone.
I2  The labels of the call's arguments and of the branch it stands in are joined into all of it: what was asked
    decides what comes back.
    A key that reads like a path is declared by nothing: it is as a field that nobody named.
I3  A field that the user wrote (its declared author is one of the user's own names) counts as `directory`, no higher; by
    an author that the tool does not answer for nobody wrote it: anybody may put the user's name there.
I4  A number or text that no capability could be minted for (`operation.bounded`) is `NOT_ENOUGH`, under its label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saggar.core.errors import PeerError
from saggar.core.label import DIRECTORY, UNTRUSTED, Label, Source
from saggar.core.tool import FieldLabel, ToolDeclaration
from saggar.plan import node as nodes
from saggar.plan.node import Node
from saggar.plan.operation import bounded

MAX_PRINCIPALS = 200
#: what a declared path is made of; a key that holds one of these (or nothing) could pass for a path of several fields
_NAME_MARKS = frozenset(".[]#*")
#: in the place of such a key: no declaration can name it
UNDECLARED = "\0"


@dataclass(frozen=True, slots=True)
class Owner:
    """The user, by every name that tools know him under (addresses, account numbers)."""

    names: frozenset[str] = frozenset({"owner"})


@dataclass(slots=True)
class _Walk:
    declaration: ToolDeclaration
    call: str
    root: Any
    owner: Owner
    base: Label
    span: tuple[int, int] = (-1, -1)
    left: int = nodes.MAX_NODES
    #: one label object per declared path and author: thousands of elements share it
    made: dict[tuple[str, str, frozenset[str] | None], Label] | None = None


def label_output(
    declaration: ToolDeclaration,
    value: Any,
    call: str,
    owner: Owner,
    *,
    base: Label,
    span: tuple[int, int] = (-1, -1),
) -> Node:
    """The result under its labels. base: label of the arguments and the branch (I2). span: the words of the request
    that name the object, where nothing else had a say in which object it is. Raises `PeerError` for data that
    is not plain JSON, too deep or too large."""
    walk = _Walk(declaration, call, value, owner, base, span, made={})
    return _node(walk, value, "", (), 0).under(base)


def _node(walk: _Walk, value: Any, path: str, keys: tuple[str | int, ...], depth: int) -> Node:
    walk.left -= 1
    if depth > nodes.MAX_DEPTH or walk.left < 0:
        raise PeerError(f"`{walk.declaration.name}` returned data that is too deep or too large")
    if isinstance(value, list | tuple):
        label = _label(walk, path + "#", keys)
        items = (_node(walk, v, path + "[]", (*keys, i), depth + 1) for i, v in enumerate(value))
        return Node(tuple(items), label)
    if isinstance(value, Mapping):
        label = _label(walk, path + "#", keys)
        fields = {}
        for k, v in value.items():
            if not isinstance(k, str) or bounded(k) is nodes.NOT_ENOUGH:
                raise PeerError(f"`{walk.declaration.name}` returned an object with a key that is no text")
            name = k if _NAME_MARKS.isdisjoint(k) and k else UNDECLARED
            fields[k] = _node(walk, v, f"{path}.{name}" if path else name, (*keys, k), depth + 1)
        return Node(fields, label)
    if value is None or isinstance(value, str | int | float | bool):
        value = bounded(value)
        declared = walk.declaration.label_of(path)
        vouched = isinstance(value, str) and _vouched(walk, declared)
        writer = _author(walk, declared, keys) if vouched else "" if isinstance(value, str) else None
        return Node(value, _label(walk, path, keys), writer, declared.names)
    raise PeerError(f"`{walk.declaration.name}` returned a `{type(value).__name__}`, which is not plain data")


def _label(walk: _Walk, path: str, keys: tuple[str | int, ...]) -> Label:
    declared = walk.declaration.label_of(path)
    author = _author(walk, declared, keys)
    readers = _readers(walk, declared, keys)
    key = (path, author, readers)
    made = walk.made if walk.made is not None else {}
    if key not in made:
        integrity, kind = declared.integrity, "tool"
        if author in walk.owner.names and integrity == UNTRUSTED and _vouched(walk, declared):
            integrity, kind = DIRECTORY, "user"
        source = Source(kind, walk.declaration.name, call=walk.call, field=path, principal=author, span=walk.span)
        made[key] = Label([source], readers=readers, integrity=integrity)  # type: ignore[arg-type]
    return made[key]


def _author(walk: _Walk, declared: FieldLabel, keys: tuple[str | int, ...]) -> str:
    return next(iter(_find(walk.root, declared.author, keys)), "") if declared.author else ""


def _vouched(walk: _Walk, declared: FieldLabel) -> bool:
    """Whether the tool answers for the name of the author (I3)."""
    if not declared.author:
        return False
    return declared.vouched or walk.declaration.label_of(declared.author).integrity != UNTRUSTED


def _readers(walk: _Walk, declared: FieldLabel, keys: tuple[str | int, ...]) -> frozenset[str] | None:
    if declared.readers == "*":
        return None
    if declared.readers == "owner":
        return walk.owner.names
    found: frozenset[str] = walk.owner.names
    for path in declared.readers.split(","):
        found |= frozenset(_find(walk.root, path.strip(), keys))
    return found


def _find(root: Any, path: str, keys: tuple[str | int, ...]) -> list[str]:
    """The texts at a declared path, taking the same list positions as `keys` for as long as the paths agree."""
    at = [root]
    for position, part in enumerate(path.replace("[]", ".[]").strip(".").split(".")):
        if part == "[]":
            index = keys[position] if position < len(keys) else None
            at = [x[index] if isinstance(index, int) and index < len(x) else x for x in at if isinstance(x, list)]
            if not isinstance(index, int):
                at = [y for x in at for y in x]
        else:
            at = [x[part] for x in at if isinstance(x, Mapping) and part in x]
    out: list[str] = []
    for x in at:
        held = list(x) if isinstance(x, list | Mapping) else [x]
        out.extend(h for h in held if isinstance(h, str))
    return out[:MAX_PRINCIPALS]
