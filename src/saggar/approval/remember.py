"""From one approval to a rule, as a diff that a person reviews: nothing here changes a policy.

I1  A remembered rule names every authority argument, by its exact value or by a pattern that the person wrote.
I2  `*` is refused in every spelling, and so is a pattern that says next to nothing: lengths alone, a word or prefix
    without a letter or digit outside the star, the whole of the file tree or of the address space. So is what does not
    parse.
I3  What only people may approve is not remembered: the next one asks again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from saggar.capability.grammar import Factor, parse_term
from saggar.core.approval import CardLine, Question
from saggar.core.errors import ParseError, UsageError
from saggar.core.tool import AUTHORITY_ROLES

#: kinds of test that hold for values of any meaning; alone, or in each other, they bound nobody
_FORMAL = frozenset({"any", "length"})


def remembered(question: Question, patterns: Mapping[str, str] | None = None) -> str:
    """Lines of a unified diff that add an allow rule to the policy file. patterns: argument to grammar term.

    Raises `UsageError` (I2, I3).
    """
    if question.human_only:
        raise UsageError("what only a person may approve is not remembered")
    given = dict(patterns or {})
    names = {line.name for line in question.lines}
    for name, term in given.items():
        if name not in names:
            raise UsageError(f"`{question.tool}` has no argument `{name}`", hint=f"it has {', '.join(sorted(names))}")
        if _says_nothing(name, term):
            raise UsageError(f"`{name} = {term}` would allow anything", hint='name a domain: `to = "*@example.com"`')
    when = {}
    for line in question.lines:
        if line.name in given:
            when[line.name] = given[line.name]
        elif line.role in AUTHORITY_ROLES or line.role == "amount":
            when[line.name] = _exact(line)
    if not when:
        raise UsageError(f"`{question.tool}` has no argument that a rule could name", hint="write the rule by hand")
    accepts = [question.rule] if question.rule.startswith("builtin.") else []
    return _diff(question, when, accepts)


def _says_nothing(name: str, text: str) -> bool:
    """Raises `UsageError` for a term that no rule could hold."""
    if not any(ch.isalnum() for ch in text):
        return True
    try:
        return all(map(_wide, parse_term(text)))
    except ParseError as e:
        raise UsageError(f"`{name} = {text}` is not a term: {e}") from None


def _wide(factor: Factor) -> bool:
    if factor.kind == "each":
        return all(map(_wide, factor.inner))
    if factor.kind in _FORMAL or (factor.kind == "cidr" and any(w.endswith("/0") for w, _ in factor.words)):
        return True
    if factor.kind in ("exact", "string", "range"):
        return False
    return not any(ch.isalnum() for word, _ in factor.words for ch in word)


def _exact(line: CardLine) -> str:
    try:
        value = json.loads(line.raw)
    except ValueError:
        raise UsageError(f"the value of `{line.name}` is too long to remember") from None
    if value is None or value == []:
        return "len<=0"
    items = value if isinstance(value, list) else [value]
    texts = [_literal(item, line) for item in items]
    term = texts[0] if len(set(texts)) == 1 else "{" + ", ".join(sorted(set(texts))) + "}"
    return f"..{value}" if line.role == "amount" else term


def _literal(value: Any, line: CardLine) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"the value of `{line.name}` is not one that a rule can name")
    return str(value)


def _diff(question: Question, when: Mapping[str, str], accepts: list[str]) -> str:
    terms = ", ".join(f"{name} = {json.dumps(term, ensure_ascii=False)}" for name, term in when.items())
    lines = [
        "[[tools.rule]]",
        f'id = "remembered-{question.id[:12]}"',
        'effect = "allow"',
        f"tool = {json.dumps(question.tool)}",
        f"when = {{ {terms} }}",
        f'reason = "approved once, remembered from question {question.id}"',
    ]
    if accepts:
        lines.append(f"accepts = {json.dumps(accepts)}")
    head = ["--- saggar.toml", "+++ saggar.toml", f"@@ -0,0 +1,{len(lines) + 1} @@"]
    return "\n".join([*head, "+", *(f"+{line}" for line in lines)]) + "\n"
