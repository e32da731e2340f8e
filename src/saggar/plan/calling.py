"""What the plan wall tells the gateway about a call, and which of its arguments have a say in what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saggar.core.decision import Decision
from saggar.core.label import USER
from saggar.core.tool import LabelLike, ToolDeclaration
from saggar.plan.node import Node, whole


@dataclass(frozen=True, slots=True)
class CallLabel:
    """A label in the words of `core.tool.LabelLike`, for the gateway's card and rules. decision: the plan wall's own
    verdict on the call, for `Carried`."""

    integrity: str
    sources: frozenset[str]
    readers: frozenset[str] | None
    decision: Decision | None = None


class Carried:
    """Implements `core.tool.LabelRules`: hands the executor's verdict to a gateway that asks for both walls at once, so
    that one human sees one card."""

    __slots__ = ()

    def decide(
        self,
        declaration: ToolDeclaration,  # noqa: ARG002
        args: Mapping[str, Any],  # noqa: ARG002
        labels: Mapping[str, LabelLike],
    ) -> Decision | None:
        for label in labels.values():
            if isinstance(label, CallLabel) and label.decision is not None:
                return label.decision
        return None


def named_by(declaration: ToolDeclaration, args: Mapping[str, Node]) -> tuple[int, int]:
    """Where the user's request names the object that a read is about; (-1, -1) where anything else had a say."""
    if declaration.has_side_effect or not args:
        return (-1, -1)
    spans = [s.span for node in args.values() for s in whole(node).sources]
    fits = all(whole(node).integrity == USER for node in args.values()) and (-1, -1) not in spans
    return spans[0] if fits and spans else (-1, -1)


def asking(declaration: ToolDeclaration | None, args: Mapping[str, Node]) -> list[str]:
    """The arguments that have a say in what comes back. What an effect is given to store or send has none: the id of a
    new file is the drive's own, whoever wrote the file's text (the text, where it is echoed, has its declared label). That there is a result at all is another matter:
    on it every argument has a say (`node.exists`)."""
    if declaration is None or not declaration.has_side_effect:
        return list(args)
    content = {a.name for a in declaration.with_role("content")}
    return [name for name in args if name not in content]


def call_label(node: Node, *, endorsed: bool, let_in: set[str], decision: Decision | None) -> CallLabel:
    label = whole(node)
    readers = None if label.readers is None else label.readers | let_in
    return CallLabel(USER if endorsed else label.integrity, frozenset(map(str, label.sources)), readers, decision)
