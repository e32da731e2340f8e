"""Who is told something by a call, and whether he may be: the rule `plan.reader`.

I1  Every argument that reaches an addressee tells him something, a subject or an option no less than a body.
I2  Whom the user's own words name, or who stands in an object that they name, the user has let in.
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

from collections.abc import Mapping

from saggar.core.label import DIRECTORY, NEUTRAL, USER, Label, join
from saggar.core.tool import Role, ToolDeclaration
from saggar.plan.node import Node, Pick, leaves, whole

#: who gets to see a call's other arguments
AUDIENCE_ROLES: tuple[Role, ...] = ("recipient", "destination")


def untold(declaration: ToolDeclaration, args: Mapping[str, Node], pc: Label) -> list[tuple[str, Label]]:
    """The arguments that somebody would be told who may not read them, each with its label."""
    strangers = [x for x in addressed(declaration, args) if not let_in(x.label, pc)]
    if not strangers:
        return []
    found = []
    for argument in declaration.arguments:
        node = args.get(argument.name)
        if node is None or argument.role in AUDIENCE_ROLES:
            continue
        if not all(may_be_told(node, who, pc) for who in strangers):
            found.append((argument.name, join(whole(node), pc)))
    return found


def addressed(declaration: ToolDeclaration, args: Mapping[str, Node]) -> list[Node]:
    return [
        leaf
        for a in declaration.with_role(*AUDIENCE_ROLES)
        if a.name in args
        for leaf in leaves(args[a.name])
        if isinstance(leaf.data, str)
    ]


def may_be_told(node: Node, who: Node, pc: Label) -> bool:
    """Whether all of `node` may go to the addressee `who`, a text with its label."""
    name = str(who.data)
    if join(whole(node), pc).may_read(name):
        return True
    mark = who.picked
    if mark is None or not mark.copied or not _open_choice(mark.by, name):
        return False
    return join(_without(node, mark.by), pc).may_read(name)


def let_in(label: Label, pc: Label) -> bool:
    """I2."""
    if not (pc.at_least(DIRECTORY) and label.at_least(DIRECTORY)):
        return False
    return label.integrity == USER or all(s.kind != "tool" or s.span != (-1, -1) for s in label.sources)


def _open_choice(pick: Pick, name: str) -> bool:
    """Whether `name` may read what was asked of every element that he stands in."""
    return all(label.may_read(name) for item, label in pick.rows if any(x.data == name for x in leaves(item)))


def _without(node: Node, pick: Pick) -> Label:
    """The label of all of the node, without what the choice itself added."""
    own = node.picked.label if node.picked is not None and node.picked.by is pick else node.label
    if not isinstance(node.data, tuple | Mapping):
        return own
    # an element of a container has the container's own label already, choice aside where the choice gave both
    inner = (_without(leaf, pick) for leaf in leaves(node)) if node.data else ()
    return join(NEUTRAL, own, *inner)
