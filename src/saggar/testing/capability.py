"""Fakes for L3: a log in memory, a reviewer with a script, and a small set of tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from saggar.core.approval import Answer, Question


@dataclass(slots=True)
class MemoryLog:
    """Keeps records in a list. `broken` makes every append fail as a full disk does."""

    records: list[dict[str, Any]] = field(default_factory=list)
    broken: bool = False

    def append(
        self,
        kind: str,
        *,
        layer: str,
        effect: str = "",
        reason: str = "",
        rule: str = "",
        detail: dict[str, Any] | None = None,
    ) -> tuple[int, str]:
        if self.broken:
            raise OSError(28, "no space left on device")
        self.records.append(
            {
                "kind": kind,
                "layer": layer,
                "effect": effect,
                "reason": reason,
                "rule": rule,
                "detail": dict(detail or {}),
            }
        )
        return len(self.records) - 1, ""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [r for r in self.records if r["kind"] == kind]


@dataclass(slots=True)
class ScriptedApprover:
    """Answers each question by a function; keeps the questions."""

    answer: Callable[[Question], Answer]
    questions: list[Question] = field(default_factory=list)

    def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        return self.answer(question)

    def standing(self, question: Question) -> Answer | None:  # noqa: ARG002  # the protocol's name
        return None


def approve(question: Question) -> Answer:
    """A person who says yes to everything."""
    return Answer("approved", question.args_hash, reviewer="test", reviewer_class="human")
