"""A question to a human, and the answer: shared by the gateway, which asks, and the channels, which carry it.

I1  A question's words come from declarations and from the call's own values, never from a model.
I2  An answer counts for the call whose argument hash it names, and for no other.
I3  Time-out, denial and approval are three different answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

AnswerKind = Literal["approved", "denied", "timeout"]
Scope = Literal["once", "times", "template", "task"]
SCOPES: tuple[Scope, ...] = ("once", "times", "template", "task")
#: seconds that an approval lives where the reviewer names no span
DEFAULT_LIFE_S = 60.0
#: `human` questions are for people only: no automatic reviewer, callback or webhook may answer them.
ReviewerClass = Literal["human", "automatic"]


@dataclass(frozen=True, slots=True)
class CardLine:
    """One argument on the card. shown: the human name. raw: the exact value, as JSON. origin: where it came from."""

    name: str
    role: str
    shown: str
    raw: str
    origin: str


@dataclass(frozen=True, slots=True)
class Question:
    """One unusual order, ready to be shown.

    args_hash binds the answer (SHA-256 hex over task, tool, declaration digest and canonical arguments).
    template_axis: the one argument that a template approval would leave open, or "". reasons: why it is asked.
    human_only: only a person may answer. expires_s: seconds until the question lapses.
    """

    id: str
    task: str
    tool: str
    operation: str
    effect: str
    reversible: bool
    lines: tuple[CardLine, ...]
    reasons: tuple[str, ...]
    rule: str
    args_hash: str
    template_hash: str = ""
    template_axis: str = ""
    human_only: bool = False
    expires_s: float = 300.0

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "task": self.task,
            "tool": self.tool,
            "operation": self.operation,
            "effect": self.effect,
            "reversible": self.reversible,
            "lines": [
                {"name": x.name, "role": x.role, "shown": x.shown, "raw": x.raw, "origin": x.origin} for x in self.lines
            ],
            "reasons": list(self.reasons),
            "rule": self.rule,
            "args_hash": self.args_hash,
            "template_hash": self.template_hash,
            "template_axis": self.template_axis,
            "human_only": self.human_only,
            "expires_s": self.expires_s,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """kind; scope and uses of an approval; args_hash copied from the question (I2); reviewer: who answered."""

    kind: AnswerKind
    args_hash: str = ""
    scope: Scope = "once"
    uses: int = 1
    reviewer: str = ""
    reviewer_class: ReviewerClass = "automatic"
    expires_s: float = DEFAULT_LIFE_S


class Approver(Protocol):
    """Where a gateway takes its questions. Never raises for "no": every end is an `Answer`."""

    def ask(self, question: Question) -> Answer: ...

    def standing(self, question: Question) -> Answer | None:
        """An approval given before that covers this question, one use of it spent; else `None`."""
        ...
