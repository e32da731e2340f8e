"""A verdict on a held request, carried out: on record first, then with the broker.

I1  Every answer is in the task's log (`approval.answer`; for the task also `policy.allow`) before it has an effect; an answer that cannot
    be recorded is not given.
I2  The policy file is never written: a change to it is text for its owner, and none is made for a file that a cell can reach.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from saggar.core.errors import UsageError
from saggar.runtime.held import Ask, Verdict, approval, ask_of, conditions

if TYPE_CHECKING:
    from saggar.runtime.supervisor_host import Cell, Supervisor

#: in the run's directory: the changes to the policy file that verdicts proposed
DIFF = "policy.diff"


def ask(cell: Cell, number: str) -> Ask:
    """The request that waits under this number. Raises UsageError."""
    message = cell.held.get(number)
    if message is None:
        raise UsageError(f"no request `{number}` waits in this run", hint="`saggar egress held` lists them")
    return ask_of(message, cell.id, _terms(cell))


def _terms(cell: Cell) -> dict[str, str]:
    terminating = cell.prepared.terminating
    return terminating.terms() if terminating is not None else {}


def settle(supervisor: Supervisor, cell: Cell, number: str, verdict: Verdict, *, by: str, uid: int) -> dict[str, Any]:
    """Carry a verdict out. by: the way it came, for the log. Gives `approval` (the id of one for the task, or "") and `diff`.

    Raises UsageError for what the person can mend, the request still waiting then; OSError where nothing could be recorded.
    """
    question = ask(cell, number)
    made: dict[str, Any] = {}
    diff = ""
    if verdict.approved and verdict.scope != "once":
        made = approval(question, verdict, cell.approved)
        if verdict.scope == "policy":
            diff = _diff(cell, question, verdict)
    where = {"host": question.host, "port": question.port, "method": question.method, "path": question.path}
    where |= {"query": question.query, "sha256": question.sha256, "grant": question.grant}
    who = {"uid": uid, "by": by}
    log = cell.prepared.audit
    log.append(
        "approval.answer",
        layer="approval",
        effect="allow" if verdict.approved else "deny",
        reason="approved" if verdict.approved else "denied",
        rule=question.rule,
        detail={**where, "scope": verdict.scope if verdict.approved else "once", **who},
    )
    if made:
        detail = {"host": question.host, "ports": [question.port], "method": question.method, **who}
        detail["paths"] = made.get("paths") or [made["path"]]
        detail |= {"query": made.get("query", "*"), "asked_by": question.rule, "grant": question.grant}
        log.append(
            "policy.allow", layer="policy", effect="allow", reason="approved_for_task", rule=made["id"], detail=detail
        )
        cell.approved += 1
        cell.approvals.append(made)
        supervisor.approve_for_task(cell)
    if not supervisor.answer(cell, number, "approved" if verdict.approved else "denied"):
        raise UsageError("the request waits no more: the broker is gone")
    if diff:
        _keep(cell, diff)
    return {"approval": made.get("id", ""), "diff": diff}


def _keep(cell: Cell, diff: str) -> None:
    """Beside the audit log as well: whoever answered in a program has no terminal to read it on."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(DIFF, flags, 0o600, dir_fd=cell.prepared.run.fd)
    except OSError:
        return  # it was given to whoever answered, too
    with open(fd, "a", encoding="utf-8") as file:
        file.write(diff)


def _diff(cell: Cell, question: Ask, verdict: Verdict) -> str:
    from saggar.policy.approve import proposal
    from saggar.policy.file_host import is_below, read

    policy = cell.prepared.policy
    if not policy.file:
        raise UsageError(
            "this run has no policy file that a change could be proposed for", hint="approve it for the task"
        )
    workspace = cell.prepared.workspace
    if workspace.mode != "none" and is_below(policy.file, workspace.path):
        raise UsageError(
            "the policy file lies in the workspace, which the sandbox may write: no change to it is proposed",
            hint="keep the policy elsewhere, or approve the request for the task",
        )
    paths = question.patterns if verdict.pattern else (question.path,)
    entry = next((r for r in policy.egress.allow if r.id == question.grant), None)
    return proposal(
        read(policy.file), os.path.abspath(policy.file), entry.host if entry is not None else question.host,
        question.port, grant=question.grant, method=question.method, paths=paths, exact=not verdict.pattern,
        conditions=conditions(question, _terms(cell), pattern=verdict.pattern),
    )  # fmt: skip
