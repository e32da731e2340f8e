"""Which values may flow into which argument: the rules of L4, by role alone.

I1  The decision looks at roles, effects and labels; never at a tool's or a task's name, nor at the text of a value.
I2  The branch counts: `pc` is joined into every argument.
I3  `deny` is for what no person may wave through; everything that a person could want is `ask`, with its sources.
I4  Every denial and refusal carries the same public text.

Rules: `plan.authority` (who or what is acted upon comes from the user, a directory, or an object the user named);
`plan.amount` (so does what is paid, or from an
object that the user named); `plan.reader` (what goes out, in whatever argument, goes to those who may read it, or to whom the user's own
words name); `plan.link` (a read may follow a link that somebody whom the user named wrote, character for character).
"""

from __future__ import annotations

from collections.abc import Mapping

from saggar.core.decision import ALLOW, ASK, Decision
from saggar.core.label import DIRECTORY, PLANNER, UNTRUSTED, Label, Source
from saggar.core.tool import AUTHORITY_ROLES, ArgumentDeclaration, ToolDeclaration
from saggar.plan.audience import untold
from saggar.plan.naming import named_in
from saggar.plan.node import Node, whole

#: the one text that a model or a tool gets for any refusal
PUBLIC = "this step was not carried out"


def decide(  # noqa: PLR0917  # `Executor.decide` may be any function of these
    declaration: ToolDeclaration,
    args: Mapping[str, Node],
    pc: Label,
    request: str = "",
    tools: Mapping[str, ToolDeclaration] | None = None,
    drift_percent: float = 0.0,
) -> Decision:
    """The verdict on one call whose arguments are all known. request: the user's words; tools: for the declared
    integrity of each source; drift_percent: how far a worker may move an amount from a trusted one, by policy."""
    findings = []
    for argument in declaration.arguments:
        node = args.get(argument.name)
        if node is None:
            continue
        found = _argument(declaration, argument, node.under(pc), request)
        if (
            argument.role == "amount"
            and declaration.effect == "pay"
            and not _amount(node, pc, tools or {}, drift_percent)
        ):
            found = found or ("plan.amount", "untrusted_amount")
        if found is not None:
            findings.append((argument.name, *found, whole(node.under(pc))))
    if declaration.has_side_effect:
        findings.extend(
            (name, "plan.reader", "reader_not_named", label) for name, label in untold(declaration, args, pc)
        )
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


def _argument(
    declaration: ToolDeclaration, argument: ArgumentDeclaration, node: Node, request: str
) -> tuple[str, str] | None:
    label = whole(node)
    if not declaration.has_side_effect:
        if argument.role == "destination":
            return _fetch(node, label, request)
        guarded = argument.role == "credential"
    else:
        guarded = argument.role in AUTHORITY_ROLES
    if guarded and not label.at_least(DIRECTORY):
        return "plan.authority", "untrusted_authority"
    return None


def _amount(node: Node, pc: Label, tools: Mapping[str, ToolDeclaration], drift_percent: float) -> bool:
    """Whether an amount may be paid: trusted, or read from an object that the user named, for that purpose, in the
    request itself (`the bill in bill.txt`); a worker may have read it there where the policy lets amounts drift, and
    then only within that bound of a trusted one. Whom it goes to is judged by `plan.authority` all the same."""
    label = whole(node)
    if label.at_least(DIRECTORY):
        return True
    named = pc.at_least(DIRECTORY) and all(_vouched(s, tools) for s in label.sources)
    return named or within_bound(node, pc, tools, drift_percent)


def within_bound(node: Node, pc: Label, tools: Mapping[str, ToolDeclaration], drift_percent: float) -> bool:
    """Whether a worker's amount stands within the policy's bound of a trusted one, and was read off named objects."""
    fits = node.drift is not None and node.drift <= drift_percent and pc.at_least(DIRECTORY)
    return fits and all(s.kind == "worker" or _vouched(s, tools) for s in whole(node).sources)


def drifts(
    declaration: ToolDeclaration,
    args: Mapping[str, Node],
    pc: Label,
    tools: Mapping[str, ToolDeclaration],
    drift_percent: float,
) -> bool:
    """Whether the policy's bound, and nothing else, lets an amount of this call pass."""
    paid = [args[a.name] for a in declaration.with_role("amount") if a.name in args]
    return declaration.effect == "pay" and any(
        _amount(x, pc, tools, drift_percent) and not _amount(x, pc, tools, 0.0) for x in paid
    )


def _vouched(source: Source, tools: Mapping[str, ToolDeclaration]) -> bool:
    """By what it is, not by what it is not: a worker transforms and never endorses (a turned one would name any sum),
    and sources that were folded away may have been anybody."""
    if source.kind == "user" or source == PLANNER or (source.kind == "tool" and source.span != (-1, -1)):
        return True
    declaration = tools.get(source.name) if source.kind == "tool" else None
    return declaration is not None and declaration.label_of(source.field).integrity != UNTRUSTED


def _fetch(node: Node, label: Label, request: str) -> tuple[str, str] | None:
    """A read from an address: the address itself is what leaves, and whoever chose it learns of the visit."""
    if node.writer and named_in(request, node.writer):
        # the writer knows the link already, nothing that he could not read chose it (`Node.under` sees to that), and
        # the user named him: an object that the user named
        return None
    if not label.at_least(DIRECTORY):
        return "plan.authority", "untrusted_destination"
    return ("plan.reader", "private_destination") if label.readers is not None else None
