"""The pieces of a call on its way through the gateway, and what is asked of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from saggar.audit import canonical
from saggar.capability.budget import Account
from saggar.capability.call import Call, copied
from saggar.capability.declare import Tool
from saggar.capability.grant import Grant
from saggar.capability.rules import Verdict
from saggar.capability.verify import HeldGrant, Proof, VerifiedToken, refusal
from saggar.core.approval import Answer, Approver, Question
from saggar.core.decision import Decision
from saggar.core.errors import ParseError
from saggar.core.tool import Budget, LabelLike, ToolDeclaration


class Sink(Protocol):
    """`saggar.audit.sink_host.AuditLog`, or what stands in for it in a test."""

    def append(
        self,
        kind: str,
        *,
        layer: str,
        effect: str = "",
        reason: str = "",
        rule: str = "",
        detail: dict[str, Any] | None = None,
    ) -> tuple[int, str]: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as it came in: nothing of it is believed yet."""

    token: str
    tool: str
    args: Any
    labels: Mapping[str, LabelLike]
    call_id: str = ""
    proof: Proof | None = None
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """A call that got as far as its verdict. fresh: the call id is our own."""

    tool: Tool
    call: Call
    token: VerifiedToken
    held: HeldGrant
    accounts: tuple[tuple[Account, Budget], ...]
    labels: Mapping[str, LabelLike]
    verdict: Verdict
    call_id: str
    fresh: bool = False
    approval: str = ""


def granting(token: VerifiedToken, call: Call) -> HeldGrant | Decision:
    """The first grant that allows the call; else the refusal of the one that came closest."""
    best: tuple[int, str, str] = (0, "tool_not_granted", "")
    order = ("tool_not_granted", "declaration_changed", "argument_not_granted", "constraint")
    for held in token.grants:
        reason, argument = held.grant.refuses(call.declaration, call.args)
        if not reason:
            return held
        best = max(best, (order.index(reason), reason, argument))
    return refusal(best[1], argument=best[2])


def put_to(approver: Approver | None, question: Question) -> tuple[Answer, bool]:
    """The answer, and whether it was a standing one. A channel that breaks is no approval, and no denial by a human."""
    silence = Answer("timeout", question.args_hash)
    if approver is None:
        return silence, False
    try:
        standing = approver.standing(question)
        if standing is not None:
            return standing, True
        return approver.ask(question), False
    except Exception:  # noqa: BLE001  # somebody's channel
        return silence, False


def answer_record(question: Question, answer: Answer, *, standing: bool) -> dict[str, Any]:
    return {
        "question": question.id,
        "tool": question.tool,
        "args_hash": question.args_hash,
        "reasons": list(question.reasons),
        "scope": answer.scope,
        "uses": answer.uses,
        "reviewer": answer.reviewer,
        "reviewer_class": answer.reviewer_class,
        "standing": standing,
    }


def misfit(question: Question, answer: Answer) -> str:
    """Why an approval does not count for this question, or ""."""
    if question.human_only and answer.reviewer_class != "human":
        return "approval_human_only"
    if answer.scope in ("once", "times") and answer.args_hash != question.args_hash:
        return "approval_other_call"
    if answer.scope == "template" and answer.args_hash != question.template_hash:
        return "approval_other_call"
    if answer.scope == "task" and answer.args_hash not in (question.args_hash, f"task:{question.tool}"):
        return "approval_other_call"
    return ""


def declared(declaration: ToolDeclaration) -> dict[str, Any]:
    return {
        "capability": f"{declaration.operation}:{declaration.resource}",
        "tool_hash": declaration.digest,
        "roles": {a.name: a.role for a in declaration.arguments},
        "required": [a.name for a in declaration.arguments if a.required],
    }


def granted(grant: Grant) -> dict[str, str]:
    return {"tool": grant.tool, "text": grant.to_text()}


def revived(tool: Tool, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the function's annotations have them (text to Decimal, date, Enum). A copy: what a body does to
    its lists must not reach the call that was judged and is recorded."""
    out = {name: copied(value) for name, value in args.items()}
    for name, revive in tool.revive.items():
        if out.get(name) is not None:
            out[name] = revive(out[name])
    return out


def measured(value: Any, error: Exception | None) -> tuple[int, Exception | None]:
    """Bytes of a result for the budgets, and what went wrong so far. Of a result that JSON has no form for, the length of
    its text; one that has no text either (an integer of 5000 digits, somebody's `__str__`) is as if the body had raised."""
    if error is not None:
        return 0, error
    try:
        return len(canonical.encode(value)), None
    except ParseError:
        pass
    try:
        return len(str(value).encode("utf-8", "surrogatepass")), None
    except Exception as e:  # noqa: BLE001  # the value's own code
        return 0, e
