"""Labelled values: what the executor's store holds, and the only form in which a plan's data exists.

I1  Data never leaves a node without its label: `raw` is called at the three borders alone (a tool's arguments, the
    worker's input, the reply), each of which has looked at `whole` first.
I2  Labels are per field and per element: a child's effective label is its own joined with every container's above it;
    a container's own label covers its length, order and keys.
I3  `NOT_ENOUGH` is a value with a label like any other; no operation turns it into an exception.
I4  `writer` survives reading and copying only; every operation that computes drops it.
    So do `picked` (but that arithmetic and texts made of one choice's element hand it on) and `drift`.
I5  So does `settled`, which counts in one place alone: the value as a later call's argument. There, who made the value
    come to nothing has only suppressed the call; anywhere else (a test, a branch, a text) he would have steered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from saggar.core.label import DIRECTORY, NEUTRAL, Label, join, join_all

#: deepest JSON that may enter the store; a tool that returns deeper data fails as a peer
MAX_DEPTH = 32
MAX_NODES = 200_000


class NotEnough:
    """`not enough information`: the worker could not say, a tool failed, or a value has the wrong type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "not enough information"


NOT_ENOUGH: Final = NotEnough()

Scalar = str | int | float | bool | None | NotEnough


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """One choice of one element (`first`, `one`). rows: every element that was looked at, with the label of what was
    asked of it. Two picks are the same only where they are the same object."""

    rows: tuple[tuple[Node, Label], ...]


@dataclass(frozen=True, slots=True)
class Picked:
    """A value that came out of a choice. label: its label without the choice's own. copied: it stands in the element
    as it is. `audience` says what this is good for."""

    by: Pick
    label: Label
    copied: bool = True


@dataclass(frozen=True, slots=True)
class Node:
    """data: a scalar, a tuple of nodes, or a dict of nodes. writer: the text stands, unchanged, in one single leaf
    of a tool's output, which this principal wrote ("" where the tool does not say who); None for everything else. names: the tool declares the field
    as one by which people call an object. settled: the label of the value alone, where that it is there at all depends
    on more (what an effect gave is there only if the effect ran, on which its content has a say); None: `label`.
    Reading and copying keep it, every operation that computes drops it (I5). picked: the choice that the value came out of. drift: the value stands within so many per cent of a
    trusted one (`near`)."""

    data: Scalar | tuple[Node, ...] | Mapping[str, Node]
    label: Label = NEUTRAL
    writer: str | None = None
    names: bool = False
    settled: Label | None = None
    picked: Picked | None = None
    drift: float | None = None

    @property
    def known(self) -> bool:
        return self.data is not NOT_ENOUGH

    def under(self, label: Label, container: Node | None = None) -> Node:
        """The same value with `label` joined in. container: the node that the label is of, where it holds this one
        (I2: it hands its own label down, and its `settled` and `picked`)."""
        above = None if container is None else container.settled
        chosen = None if container is None else container.picked
        joined = join(self.label, label)
        same = joined is self.label and chosen is None
        if same and (label is NEUTRAL or self.picked is None) and (self.settled is None or (above or label) is NEUTRAL):
            return self
        # a choice that an attacker had a hand in is no longer the user's, and one made by private data could be read
        # off from which of two links was fetched: both marks fall when the surroundings are worse than the leaf
        return Node(
            self.data,
            joined,
            self.writer if joined.readers == self.label.readers and joined.at_least(self.label.integrity) else None,
            self.names and label.at_least(DIRECTORY),
            None if self.settled is None else join(self.settled, above or label),
            _picked(self, label, chosen),
            self.drift if label.at_least(DIRECTORY) else None,
        )

    def items(self) -> tuple[Node, ...]:
        """The elements of a list, each under the list's own label; empty for anything else."""
        return tuple(n.under(self.label, self) for n in self.data) if isinstance(self.data, tuple) else ()

    def get(self, key: Scalar) -> Node:
        """Field or element, or `NOT_ENOUGH` under this node's label where there is none."""
        data = self.data
        if isinstance(data, Mapping) and isinstance(key, str) and key in data:
            return data[key].under(self.label, self)
        if isinstance(data, tuple) and type(key) is int and -len(data) <= key < len(data):
            return data[key].under(self.label, self)
        return missing(self.label)


def _picked(node: Node, label: Label, above: Picked | None) -> Picked | None:
    """The mark under `label`, which is a container's that a choice gave (`above`) or any other. One choice inside
    another's element has the whole label."""
    mine = node.picked
    if above is None:
        return None if mine is None else Picked(mine.by, join(mine.label, label), mine.copied)
    if mine is None:
        return Picked(above.by, join(node.label, above.label), above.copied)
    return Picked(mine.by, join(mine.label, above.label), mine.copied) if mine.by is above.by else None


def missing(*labels: Label) -> Node:
    return Node(NOT_ENOUGH, join(*labels))


def leaves(node: Node) -> Iterator[Node]:
    """Every scalar with its effective label; an empty container counts as one leaf."""
    stack = [node]
    while stack:
        top = stack.pop()
        if isinstance(top.data, tuple):
            children: list[Node] = list(top.items())
        elif isinstance(top.data, Mapping):
            children = [child.under(top.label, top) for child in top.data.values()]
        else:
            yield top
            continue
        if not children:
            yield top
        stack.extend(reversed(children))


def marked(node: Node, *, picked: Picked | None = None, drift: float | None = None) -> Node:
    """A scalar with a mark that it did not have."""
    return Node(node.data, node.label, node.writer, node.names, node.settled, picked, drift)


def settled(node: Node) -> Node:
    """The node as an argument of a call is judged (I5)."""
    data = node.data
    if isinstance(data, tuple):
        data = tuple(settled(child) for child in data)
    elif isinstance(data, Mapping):
        data = {key: settled(child) for key, child in data.items()}
    return Node(data, node.settled or node.label, node.writer, node.names, None, node.picked, node.drift)


def exists(node: Node, label: Label) -> Node:
    """The node with `label` joined into all of it but `settled`: what it depends on that it is there."""
    data = node.data
    if isinstance(data, tuple):
        data = tuple(exists(child, label) for child in data)
    elif isinstance(data, Mapping):
        data = {key: exists(child, label) for key, child in data.items()}
    return Node(data, join(node.label, label), node.writer, node.names, node.settled or node.label)


def whole(node: Node) -> Label:
    """The label of everything in the node together."""
    if not isinstance(node.data, tuple | Mapping):
        return node.label
    return join_all(dict.fromkeys([node.label, *(leaf.label for leaf in leaves(node))]))


def complete(node: Node) -> bool:
    """Whether no leaf is `NOT_ENOUGH`."""
    return all(leaf.known for leaf in leaves(node))


def raw(node: Node) -> Any:
    """The bare data; see I1 for who may call it. `NOT_ENOUGH` becomes None."""
    data = node.data
    if isinstance(data, tuple):
        return [raw(child) for child in data]
    if isinstance(data, Mapping):
        return {key: raw(child) for key, child in data.items()}
    return None if data is NOT_ENOUGH else data


def of(value: Any, label: Label = NEUTRAL, *, depth: int = 0) -> Node:
    """A node of plain JSON data, one label over all of it. Raises `ValueError` beyond MAX_DEPTH or for foreign types."""
    if depth > MAX_DEPTH:
        raise ValueError(f"data is nested deeper than {MAX_DEPTH}")
    if isinstance(value, list | tuple):
        return Node(tuple(of(v, label, depth=depth + 1) for v in value), label)
    if isinstance(value, Mapping):
        return Node({str(k): of(v, label, depth=depth + 1) for k, v in value.items()}, label)
    if value is None or isinstance(value, str | int | float | bool | NotEnough):
        return Node(value, label)
    raise ValueError(f"`{type(value).__name__}` is not plain data")


def same(a: Node, b: Node) -> bool:
    """Equality of the data alone, labels aside; a boolean is not a number."""
    if isinstance(a.data, tuple) and isinstance(b.data, tuple):
        return len(a.data) == len(b.data) and all(map(same, a.data, b.data))
    if isinstance(a.data, Mapping) and isinstance(b.data, Mapping):
        return a.data.keys() == b.data.keys() and all(same(a.data[k], b.data[k]) for k in a.data)
    return isinstance(a.data, bool) == isinstance(b.data, bool) and a.data == b.data
