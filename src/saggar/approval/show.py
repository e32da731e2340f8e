"""A question as a human sees it. Words from declarations; values exact; nothing that a terminal would obey."""

from __future__ import annotations

from saggar.core.approval import Question
from saggar.core.why import why


def card(question: Question, width: int = 100) -> str:
    """The card as text."""
    lines = [
        f"{question.tool} ({question.operation}) wants to run",
        f"  effect: {question.effect}, {'can be undone' if question.reversible else 'cannot be undone'}",
        *(f"  why asked: {why(reason)}" for reason in question.reasons),
    ]
    if question.rule:
        lines.append(f"  rule: {question.rule}")
    size = max((len(x.name) for x in question.lines), default=0)
    for x in question.lines:
        if x.raw == "null":
            continue
        name = f"{x.shown}  = " if x.shown else ""
        lines.append(f"  {x.name:<{size}} [{x.role}] {name}{x.raw}")
        lines.append(f"  {'':<{size}} from {x.origin}")
    lines += [f"  {text}" for text in allows(question)]
    return "\n".join(_wrapped(line, width) for line in lines)


def allows(question: Question) -> list[str]:
    """What each kind of approval would allow."""
    out = ["approving once allows this very call"]
    if question.template_axis:
        out.append(f"a template allows it with any `{question.template_axis}`, the rest as shown")
    out.append(f"for the task allows every `{question.tool}` call that the capabilities permit")
    if question.human_only:
        out.append("only a person may approve it")
    return out


def _wrapped(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    out = []
    while len(line) > width:
        cut = line.rfind(" ", len(indent) + 8, width)
        cut = cut if cut > 0 else width
        out.append(line[:cut])
        line = indent + line[cut:].lstrip(" ")
    return "\n".join([*out, line])
