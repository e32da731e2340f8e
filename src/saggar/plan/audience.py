"""Who is told something by a call, and whether he may be: the rule `plan.reader`.

I1  Every argument that reaches an addressee tells him something, a subject or an option no less than a body.
    Whatever stands in an argument for the audience is an addressee: text or number, and a key of an object.
I2  Whom the user's own words name, or who stands in an object that they name, the user has let in. Every source of the
    address has to be such a one: an address that the planner made up, or one of more sources than are kept, lets nobody in.
    A call that leaves and names no addressee tells everybody.
I3  An addressee who stands in the very element that a choice picked (`first`, `one`) is not told of the choice by that
    element's other fields, as long as he may read what was asked of each element that he stands in.

Why I3 is no loophole. Let a choice pick one of a list's elements, let it address `r`, who stands in it, and send him
another field of it. That he is addressed at all says that the pick is among the elements that he stands in. Which of
those it is follows from the tests and sort keys of those alone; I3 holds only where he may read all of them. So the
field tells him its own content, which its own label covers, and nothing of the elements that he does not stand in. That he is addressed at
all is told by any content; `plan.authority` judges it. Computed addresses, two choices, and choices within a choice are
outside of the argument, and get the label of all that was looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from saggar.core.label import DIRECTORY, NEUTRAL, PLANNED, USER, Label, Source, join
from saggar.core.tool import Role, ToolDeclaration, ToolEffect, TypeSpec
from saggar.plan.node import Node, Pick, leaves, whole

#: who gets to see a call's other arguments
AUDIENCE_ROLES: tuple[Role, ...] = ("recipient", "destination")
#: what leaves even where nobody is named
OUTWARD: frozenset[ToolEffect] = frozenset({"egress", "pay"})

_ANY = TypeSpec("json")


def untold(declaration: ToolDeclaration, args: Mapping[str, Node], pc: Label) -> list[tuple[str, Label]]:
    """The arguments that somebody would be told who may not read them, each with its label."""
    told = addressed(declaration, args)
    everybody = not told and declaration.effect in OUTWARD
    strangers = [x for x in told if not let_in(x.label, pc)]
    if not strangers and not everybody:
        return []
    found = []
    for argument in declaration.arguments:
        node = args.get(argument.name)
        if node is None or argument.role in AUDIENCE_ROLES:
            continue
        label = join(whole(node), pc)
        if (everybody and label.readers is not None) or not all(may_be_told(node, who, pc) for who in strangers):
            found.append((argument.name, label))
    return found


def addressed(declaration: ToolDeclaration, args: Mapping[str, Node]) -> list[Node]:
    """Everybody whom the call names, each as a scalar with its label."""
    given = [(a, args[a.name]) for a in declaration.with_role(*AUDIENCE_ROLES) if a.name in args]
    return [who for argument, node in given for who in _named(node, argument.type)]


def _named(node: Node, spec: TypeSpec) -> Iterator[Node]:
    """Scalars and keys, but for the keys that the tool itself declares; null and what is empty is nobody. A key may
    be the planner's, whatever the object's label says of those that put it there."""
    if isinstance(node.data, tuple):
        for item in node.items():
            yield from _named(item, spec.items or _ANY)
    elif isinstance(node.data, Mapping):
        declared = dict(spec.fields)
        for key in node.data:
            if key not in declared:
                yield Node(key, join(node.label, PLANNED))
            yield from _named(node.get(key), declared.get(key, _ANY))
    elif node.data is not None:
        yield node


def may_be_told(node: Node, who: Node, pc: Label) -> bool:
    """Whether all of `node` may go to the addressee `who`, a scalar with its label."""
    name = str(who.data)
    if join(whole(node), pc).may_read(name):
        return True
    mark = who.picked
    if mark is None or not mark.copied or not _open_choice(mark.by, who):
        return False
    return join(_without(node, mark.by), pc).may_read(name)


def let_in(label: Label, pc: Label) -> bool:
    """I2."""
    if not (pc.at_least(DIRECTORY) and label.at_least(DIRECTORY)):
        return False
    return bool(label.sources) and all(_names(source, label) for source in label.sources)


def _names(source: Source, label: Label) -> bool:
    """Whether this source alone would let in: the user's words, or an object that they name."""
    if source.kind == "tool":
        return source.span != (-1, -1) or label.integrity == USER
    return source.kind == "user"


def _open_choice(pick: Pick, who: Node) -> bool:
    """Whether `who` may read what was asked of every element that he stands in."""
    name = str(who.data)
    return all(
        label.may_read(name)
        for item, label in pick.rows
        if any(x.data == who.data or str(x.data) == name for x in _named(item, _ANY))
    )


def _without(node: Node, pick: Pick) -> Label:
    """The label of all of the node, without what the choice itself added."""
    own = node.picked.label if node.picked is not None and node.picked.by is pick else node.label
    if not isinstance(node.data, tuple | Mapping):
        return own
    # an element of a container has the container's own label already, choice aside where the choice gave both
    inner = (_without(leaf, pick) for leaf in leaves(node)) if node.data else ()
    return join(NEUTRAL, own, *inner)
