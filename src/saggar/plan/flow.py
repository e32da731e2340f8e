"""Which values may flow into which argument: the rules of L4, by role alone.

I1  The decision looks at roles, effects and labels; never at a tool's or a task's name, nor at the text of a value.
I2  The branch counts: `pc` is joined into every argument.
I3  `deny` is for what no person may wave through; everything that a person could want is `ask`, with its sources.
I4  Every denial and refusal carries the same public text.

Rules: `plan.authority` (who or what is acted upon comes from the user, a directory, or an object the user named);
`plan.amount` (so does what is paid); `plan.reader` (content goes to those who may read it, or to whom the user's own
words name); `plan.link` (a read may follow a link that stands verbatim in one piece of data: its writer knows it).
"""

from __future__ import annotations

from collections.abc import Mapping

from saggar.core.decision import ALLOW, ASK, Decision
from saggar.core.label import DIRECTORY, USER, Label, join
from saggar.core.tool import AUTHORITY_ROLES, ArgumentDeclaration, ToolDeclaration
from saggar.plan.node import Node, leaves, whole

#: the one text that a model or a tool gets for any refusal
PUBLIC = "this step was not carried out"


def decide(declaration: ToolDeclaration, args: Mapping[str, Node], pc: Label) -> Decision:
    """The verdict on one call whose arguments are all known."""
    findings = []
    for argument in declaration.arguments:
        node = args.get(argument.name)
        if node is None:
            continue
        found = _argument(declaration, argument, node.under(pc))
        if found is not None:
            findings.append((argument.name, *found, whole(node.under(pc))))
    if declaration.has_side_effect:
        findings.extend(_readers(declaration, args, pc))
    if not findings:
        return Decision(ALLOW, "labels_fit", layer="L4", rule="plan.labels")
    _, rule, reason, _ = findings[0]
    detail = {
        "arguments": [
            {"name": n, "rule": r, "reason": why, "sources": sorted(map(str, label.sources))}
            for n, r, why, label in findings
        ]
    }
    return Decision(ASK, reason, layer="L4", rule=rule, public=PUBLIC, detail=detail)


def _argument(declaration: ToolDeclaration, argument: ArgumentDeclaration, node: Node) -> tuple[str, str] | None:
    label = whole(node)
    if not declaration.has_side_effect:
        if argument.role == "destination":
            return _fetch(node, label)
        guarded = argument.role == "credential"
    else:
        guarded = argument.role in AUTHORITY_ROLES
    if guarded and not label.at_least(DIRECTORY):
        return "plan.authority", "untrusted_authority"
    if argument.role == "amount" and declaration.effect == "pay" and not label.at_least(DIRECTORY):
        return "plan.amount", "untrusted_amount"
    return None


def _fetch(node: Node, label: Label) -> tuple[str, str] | None:
    """A read from an address: the address itself is what leaves."""
    if node.verbatim:
        return None  # the writer knows it, and nothing that he could not read chose it (`Node.under` sees to that)
    if not label.at_least(DIRECTORY):
        return "plan.authority", "untrusted_destination"
    return ("plan.reader", "private_destination") if label.readers is not None else None


def _readers(declaration: ToolDeclaration, args: Mapping[str, Node], pc: Label) -> list[tuple[str, str, str, Label]]:
    audience = [
        leaf
        for a in declaration.with_role("recipient", "destination")
        if a.name in args
        for leaf in leaves(args[a.name])
        if isinstance(leaf.data, str)
    ]
    # whom the user's own words name, the user has let in
    strangers = [str(x.data) for x in audience if join(x.label, pc).integrity != USER]
    if not strangers:
        return []
    found = []
    for argument in declaration.arguments:
        node = args.get(argument.name)
        if node is None or argument.role in AUTHORITY_ROLES:
            continue
        label = whole(node)
        if not all(label.may_read(who) for who in strangers):
            found.append((argument.name, "plan.reader", "reader_not_named", label))
    return found
