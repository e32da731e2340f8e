"""Labels without values: the shape that a value will have, as the static pass knows it.

I1  `under` and `meet` only ever worsen a label; a field that is not known has the label of all of its container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from saggar.core.label import DIRECTORY, NEUTRAL, Label, Source, join
from saggar.core.tool import ToolDeclaration, TypeSpec
from saggar.plan.output import Owner


@dataclass(frozen=True, slots=True)
class Shape:
    """kind: a TypeKind, or `null`. label: of the scalar, or of a container's own length and keys. settled: as of a node."""

    kind: str
    label: Label
    items: Shape | None = None
    fields: Mapping[str, Shape] | None = None
    names: bool = False
    writer: str | None = None
    settled: Label | None = None

    def under(self, label: Label, container: Shape | None = None) -> Shape:
        above = None if container is None else container.settled
        joined = join(self.label, label)
        if joined is self.label and self.settled is None:
            return self
        settled = None if self.settled is None else join(self.settled, above or label)
        return replace(self, label=joined, names=self.names and label.at_least(DIRECTORY), settled=settled)

    def element(self) -> Shape:
        if self.items is not None:
            return self.items.under(self.label, self)
        if self.fields:
            held = list(self.fields.values())
            out = held[0]
            for other in held[1:]:
                out = out.meet(other)
            return out.under(self.label, self)
        return Shape("json", self.label)

    def get(self, key: object) -> Shape:
        """A field by name, an element by number; anything that is not known has the whole label."""
        if self.fields is not None and isinstance(key, str) and key in self.fields:
            return self.fields[key].under(self.label, self)
        if self.items is not None and not isinstance(key, str):
            return self.items.under(self.label, self)
        return Shape("json", flatten(self))

    def meet(self, other: Shape) -> Shape:
        """Either of the two."""
        label = join(self.label, other.label)
        names = self.names and other.names
        if self.kind != other.kind:
            return Shape("json", join(flatten(self), flatten(other)), names=names)
        if self.items is not None and other.items is not None:
            return Shape(self.kind, label, items=self.items.meet(other.items))
        if self.fields is not None and other.fields is not None and self.fields.keys() == other.fields.keys():
            return Shape(self.kind, label, fields={k: v.meet(other.fields[k]) for k, v in self.fields.items()})
        if self.items is None and other.items is None and self.fields is None and other.fields is None:
            return Shape(self.kind, label, names=names)
        return Shape(self.kind, join(flatten(self), flatten(other)), names=names)


def exists(shape: Shape, label: Label) -> Shape:
    """As `node.exists`: what it depends on that the value is there."""
    return replace(
        shape,
        label=join(shape.label, label),
        settled=shape.settled or shape.label,
        items=None if shape.items is None else exists(shape.items, label),
        fields=None if shape.fields is None else {k: exists(v, label) for k, v in shape.fields.items()},
    )


def settled(shape: Shape) -> Label:
    """As `node.settled`, then flat: the label as an argument of a call is judged."""
    inner = [shape.settled or shape.label]
    if shape.items is not None:
        inner.append(settled(shape.items))
    if shape.fields is not None:
        inner.extend(settled(v) for v in shape.fields.values())
    return join(NEUTRAL, *inner)


def scalar(kind: str, label: Label) -> Shape:
    return Shape(kind, label)


def flatten(shape: Shape) -> Label:
    """The label of everything inside."""
    inner = [shape.label]
    if shape.items is not None:
        inner.append(flatten(shape.items))
    if shape.fields is not None:
        inner.extend(flatten(v) for v in shape.fields.values())
    return join(NEUTRAL, *inner)


def of_worker(spec: TypeSpec, label: Label) -> Shape:
    if spec.kind == "array" and spec.items is not None:
        return Shape("array", label, items=of_worker(spec.items, label))
    if spec.kind == "object":
        return Shape("object", label, fields={k: of_worker(s, label) for k, s in spec.fields})
    return Shape(spec.kind, label)


def of_output(declaration: ToolDeclaration, call: str, base: Label, span: tuple[int, int], owner: Owner) -> Shape:
    """The declared output under its declared labels. Readers that only the data will name count as the owner alone."""

    def label(path: str) -> Label:
        declared = declaration.label_of(path)
        readers = None if declared.readers == "*" else owner.names
        source = Source("tool", declaration.name, call=call, field=path, span=span)
        return Label([source], readers=readers, integrity=declared.integrity)  # type: ignore[arg-type]

    def walk(spec: TypeSpec, path: str, depth: int) -> Shape:
        if spec.kind == "array" and spec.items is not None and depth < 12:
            return Shape("array", label(path + "#"), items=walk(spec.items, path + "[]", depth + 1))
        if spec.kind == "object" and spec.fields and depth < 12:
            prefix = path + "." if path else ""
            fields = {k: walk(s, prefix + k, depth + 1) for k, s in spec.fields}
            return Shape("object", label(path + "#"), fields=fields)
        kind = "json" if spec.kind in ("json", "array", "object") else spec.kind
        held = [label(path)] if kind != "json" else [label(path), *_below(declaration, path, label)]
        return Shape(kind, join(NEUTRAL, *held), names=declaration.label_of(path).names)

    return walk(declaration.output, "", 0).under(base)


def _below(declaration: ToolDeclaration, path: str, label: object) -> list[Label]:
    """Declared labels under a place whose type is not declared."""
    found = []
    for declared, _ in declaration.labels:
        if declared != "*" and (not path or declared.startswith((path + ".", path + "["))):
            made = label(declared)  # type: ignore[operator]
            found.append(made)
    return found
