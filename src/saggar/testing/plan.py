"""Fakes for plans: tools that are plain functions, a human who is a script, and the record of what happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from saggar.core.approval import Answer, AnswerKind, Question
from saggar.core.decision import ALLOW, Decision
from saggar.core.label import UNTRUSTED
from saggar.core.tool import (
    ArgumentDeclaration,
    FieldLabel,
    LabelLike,
    Outcome,
    Role,
    ToolDeclaration,
    ToolEffect,
    TypeKind,
    TypeSpec,
)


def tool(
    name: str,
    effect: ToolEffect = "read",
    /,
    *,
    labels: Mapping[str, FieldLabel] | None = None,
    output: TypeSpec | None = None,
    **roles: Role | tuple[Role, TypeKind],
) -> ToolDeclaration:
    """A declaration in one line: `tool("send", "egress", to="recipient", body="content")`."""
    arguments = []
    for word, role in roles.items():
        kind: TypeKind = "string"
        if isinstance(role, tuple):
            role, kind = role  # noqa: PLW2901
        items = TypeSpec("string") if kind == "array" else None
        arguments.append(ArgumentDeclaration(word, TypeSpec(kind, items=items), role))
    table = {"*": FieldLabel(UNTRUSTED), **(labels or {})}
    return ToolDeclaration(
        name=name,
        operation=effect,
        resource=name,
        effect=effect,
        arguments=tuple(arguments),
        output=output or TypeSpec("json"),
        labels=tuple(table.items()),
    )


class DirectGateway:
    """L3 switched off: calls functions. Keeps what was called; a function that raises is a failed outcome."""

    __slots__ = ("called", "functions", "tokens", "tools")

    def __init__(self, tools: Mapping[str, ToolDeclaration], functions: Mapping[str, Callable[..., Any]]) -> None:
        self.tools = tools
        self.functions = functions
        self.called: list[tuple[str, dict[str, Any]]] = []
        self.tokens: list[tuple[str, str]] = []

    def call(
        self,
        token: str,
        tool: str,
        args: Mapping[str, Any],
        *,
        labels: Mapping[str, LabelLike] | None = None,  # noqa: ARG002
        call_id: str = "",
    ) -> Outcome:
        self.called.append((tool, dict(args)))
        self.tokens.append((token, call_id))
        decision = Decision(ALLOW, "direct", layer="L3")
        try:
            return Outcome("done", decision, self.functions[tool](**args), call_id)
        except Exception:  # noqa: BLE001  # whatever a tool raises is its outcome
            return Outcome("failed", decision, call_id=call_id)

    def declaration(self, tool: str) -> ToolDeclaration | None:
        return self.tools.get(tool)

    def declarations(self) -> Mapping[str, ToolDeclaration]:
        return self.tools

    def mint(self, tool: str, args: Mapping[str, Any], ttl_s: float) -> str:  # noqa: ARG002
        return f"{tool}:{ttl_s:g}"


class OneAnswer:
    """A channel for cards: says the same to every one (None: says nothing), and keeps them."""

    __slots__ = ("cards", "kind")

    def __init__(self, kind: AnswerKind | None = "approved") -> None:
        self.kind = kind
        self.cards: list[Question] = []

    def ask(self, question: Question, timeout_s: float) -> Answer | None:  # noqa: ARG002
        self.cards.append(question)
        if self.kind is None:
            return None
        return Answer(self.kind, question.args_hash, reviewer="script", reviewer_class="human")


class ScriptedHuman:
    """Approver and person in one: says the same to every card, answers questions from a table, else `default`."""

    __slots__ = ("answers", "default", "kind", "questions")

    def __init__(
        self, kind: AnswerKind = "denied", answers: Mapping[str, str] | None = None, default: str | None = None
    ) -> None:
        self.kind = kind
        self.answers = dict(answers or {})
        self.default = default
        self.questions: list[Question] = []

    def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        return Answer(self.kind, question.args_hash, reviewer="script", reviewer_class="human")

    def standing(self, question: Question) -> Answer | None:  # noqa: ARG002
        return None

    def answer(self, key: str, question: str, options: tuple[str, ...], suggest: str) -> str | None:  # noqa: ARG002
        return self.answers.get(question, self.default)
