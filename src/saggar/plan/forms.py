"""The forms of restricted Python that make a step of their own: extract, summarise, select, one, first, ask_user, choose."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from saggar.plan import step as steps
from saggar.plan.step import AskUser, Extract, Select, Step, Summarise

if TYPE_CHECKING:
    from saggar.plan.compile import Compiler


def _extract(c: Compiler, node: ast.Call, out: str) -> Step:
    given = c.arguments(node, ("data", "schema", "instruction"), ())
    c.need(node, given, "data", "schema", "instruction")
    data, schema = c.expr(given["data"]), c.schema(given["schema"])
    return Extract(c.next_id(), data, schema, c.constant(given["instruction"], str), out, node.lineno)


def _summarise(c: Compiler, node: ast.Call, out: str) -> Step:
    given = c.arguments(node, ("data", "instruction"), ("max_chars",))
    c.need(node, given, "data", "instruction")
    cap = c.constant(given["max_chars"], int) if "max_chars" in given else steps.DEFAULT_TEXT_CAP
    data = c.expr(given["data"])
    return Summarise(c.next_id(), data, c.constant(given["instruction"], str), out, cap, node.lineno)


def _select(c: Compiler, node: ast.Call, out: str) -> Step:
    word = node.func.id if isinstance(node.func, ast.Name) else ""
    given = c.arguments(node, ("data", "where"), ("sort", "descending", "take"))
    c.need(node, given, "data")
    source = c.expr(given["data"])
    lambdas = {k: c.lambda_of(given[k]) for k in ("where", "sort") if k in given}
    names = {var for var, _ in lambdas.values()}
    if len(names) > 1:
        c.refuse(node, "`where` and `sort` name their element alike", "use one name in both lambdas")
    take = c.constant(given["take"], str) if "take" in given else "all"
    take = word if word in ("one", "first") else take
    if take not in steps.TAKES:
        c.refuse(node, f"`take` is one of {', '.join(steps.TAKES)}", "see docs/PLANS.md")
    where, sort = (lambdas[k][1] if k in lambdas else None for k in ("where", "sort"))
    descending = c.constant(given["descending"], bool) if "descending" in given else False
    var = next(iter(names), "item")
    return Select(c.next_id(), source, out, var, where, sort, descending, take, line=node.lineno)


def _ask_user(c: Compiler, node: ast.Call, out: str) -> Step:
    given = c.arguments(node, ("question",), ("options", "suggest"))
    c.need(node, given, "question")
    options = _words(c, given["options"]) if "options" in given else ()
    suggest = c.expr(given["suggest"]) if "suggest" in given else None
    return AskUser(c.next_id(), c.constant(given["question"], str), out, options, (), suggest, node.lineno)


def _choose(c: Compiler, node: ast.Call, out: str) -> Step:
    if c.inside:
        c.refuse(node, "a fragment may not re-plan", "the one re-plan belongs to the plan itself")
    given = c.arguments(node, ("question", "fragments"), ("suggest",))
    c.need(node, given, "question", "fragments")
    suggest = c.expr(given["suggest"]) if "suggest" in given else None
    fragments = _words(c, given["fragments"])
    return AskUser(c.next_id(), c.constant(given["question"], str), out, (), fragments, suggest, node.lineno)


def _words(c: Compiler, node: ast.expr) -> tuple[str, ...]:
    if not isinstance(node, ast.List):
        c.refuse(node, "a literal list stands here", "write `['a', 'b']`")
    return tuple(c.constant(x, str) for x in node.elts)


FORM_BUILDERS: dict[str, Callable[[Compiler, ast.Call, str], Step]] = {
    "extract": _extract,
    "summarise": _summarise,
    "select": _select,
    "one": _select,
    "first": _select,
    "ask_user": _ask_user,
    "choose": _choose,
}
