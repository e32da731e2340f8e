"""The restricted Python against CPython: on label-free programs both say the same.

CPython runs the very source text, with the plan's own functions (`matches`, `tally`, …) given as Python functions over
plain values. A program on which CPython raises, or formats or compares what a plan does not, is left out.
"""

from __future__ import annotations

import ast
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from saggar.core.errors import UsageError
from saggar.plan import choose, execute, expression, operation, state
from saggar.plan.compile import compile_source
from saggar.plan.execute import Executor
from saggar.plan.node import NOT_ENOUGH, complete, raw
from saggar.plan.worker import ScriptedWorker
from saggar.testing.plan import DirectGateway, ScriptedHuman


class Unknown(Exception):
    pass


def strict(name):
    def call(*args):
        got = operation.apply(name, list(args))
        if got is NOT_ENOUGH:
            raise Unknown
        return got

    return call


def first(data, where=None, sort=None, descending=False):
    if not isinstance(data, list):
        raise Unknown  # CPython would go through a text's characters; a plan's `first` takes lists alone
    rows = [x for x in data if where is None or where(x) is True]
    if sort is not None:
        rows.sort(key=sort, reverse=descending)
    return rows[0]


ENVIRONMENT = {
    **{n: strict(n) for n in ("matches", "number_in", "hours_minutes")},
    "first": first,
    "select": lambda data, where=None, sort=None, descending=False: sorted(
        [x for x in data if where is None or where(x) is True], key=sort or (lambda _: 0), reverse=descending
    ),
    "flatten": lambda xs: [y for x in xs for y in x],
    "unique": lambda xs: list(dict.fromkeys(xs)),
    "__builtins__": {n: getattr(__import__("builtins"), n) for n in ("len", "sum", "min", "max", "abs", "round", "str", "int", "float")},
}  # fmt: skip

numbers = st.integers(-50, 50).map(str)
texts = st.sampled_from(["'a'", "'bc'", "'Rent May'", "' x '", "''", "'3.5 kg'"])
lists = st.lists(numbers, max_size=4).map(lambda xs: "[" + ", ".join(xs) + "]")
names = st.sampled_from(["n", "m", "t", "u", "xs", "ys"])


def grow(e):
    return st.one_of(
        st.tuples(e, st.sampled_from(["+", "-", "*", "/"]), e).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(e, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in"]), e).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["len", "sum", "min", "max", "abs", "str", "int", "float", "round"]), e).map(
            lambda t: f"{t[0]}({t[1]})"
        ),
        st.tuples(e, st.sampled_from(["lower", "upper", "strip", "split"])).map(lambda t: f"{t[0]}.{t[1]}()"),
        e.map(lambda x: f"[{x}]"),
        e.map(lambda x: f"f'<{{{x}}}>'" if "'" not in x and "{" not in x else x),
        st.tuples(e, e).map(lambda t: f"{t[0]}[{t[1]}]"),
        st.tuples(e, e).map(lambda t: f"matches({t[0]}, {t[1]})"),
        st.tuples(e, e).map(lambda t: f"[q for q in {t[0]} if q != {t[1]}]"),
        st.tuples(e, e, e).map(lambda t: f"({t[0]} if {t[1]} == {t[2]} else {t[2]})"),
        e.map(lambda x: f"first({x}, sort=lambda q: q)"),
    )


expressions = st.recursive(numbers | texts | lists | names, grow, max_leaves=8)
statements = st.one_of(
    st.tuples(names, expressions).map(lambda t: f"{t[0]} = {t[1]}"),
    st.tuples(names, expressions).map(lambda t: f"{t[0]} += {t[1]}"),
    st.tuples(expressions, expressions, names, expressions).map(lambda t: f"if {t[0]} == {t[1]}:\n    {t[2]} = {t[3]}"),
    st.tuples(names, lists, names, expressions).map(lambda t: f"for {t[0]} in {t[1]}:\n    {t[2]} = {t[3]}"),
)
PRELUDE = "n = 3\nm = -1.5\nt = 'Rent May'\nu = 'x'\nxs = [1, 2, 3]\nys = ['a', 'b']\n"


def equal(a, b):
    """For a plan no boolean is a number; CPython says that True is 1."""
    if a == b and isinstance(a, bool) != isinstance(b, bool):
        raise Unknown
    return a == b


class Equality(ast.NodeTransformer):
    """`==` and `!=` by `equal`."""

    def visit_Compare(self, node):
        self.generic_visit(node)
        if not isinstance(node.ops[0], ast.Eq | ast.NotEq) or len(node.ops) > 1:
            return node
        call = ast.Call(ast.Name("equal", ast.Load()), [node.left, node.comparators[0]], [])
        return call if isinstance(node.ops[0], ast.Eq) else ast.UnaryOp(ast.Not(), call)


def in_cpython(program):
    scope = {**ENVIRONMENT, "equal": equal}
    tree = ast.fix_missing_locations(Equality().visit(ast.parse(program)))
    exec(compile(tree, "program", "exec"), scope)
    return scope["answer"]


def in_a_plan(program):
    """The answer, or None where anything on the way was unknown: an unknown test takes neither branch and keeps no
    element, while CPython formats and compares what a plan does not."""
    gateway = DirectGateway({}, {})
    people = ScriptedHuman()
    executor = Executor({}, gateway, gateway, ScriptedWorker({}), people, people)
    plan = compile_source(program, "", ())
    unknown = []
    evaluate = expression.evaluate

    def watching(e, scope, meter):
        got = evaluate(e, scope, meter)
        if got.data is NOT_ENOUGH:
            unknown.append(e)
        return got

    run = execute._Run(executor, plan)
    with pytest.MonkeyPatch.context() as patch:
        for module in (expression, state, choose):
            patch.setattr(module, "evaluate", watching)
        run.block(plan.steps, "")
    return None if unknown else run.scope["answer"]


def agree(ours, theirs):
    if isinstance(theirs, float) and isinstance(ours, float):
        return ours == theirs or (ours != ours and theirs != theirs)
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(agree, ours, theirs))
    return type(ours) is type(theirs) and ours == theirs


@settings(max_examples=400)
@example(["if len(f'<{[[]]}>') == len(f'<{[[]]}>'):\n    n = 0"], "n")
@example(["xs = [q for q in xs if q != (xs < [5])]"], "xs")
@example([], "[(0 if 0 == (0 == 1) else (0 == 1))]")
@given(st.lists(statements, max_size=4), expressions)
def test_plans_and_cpython_agree(body, answer):
    program = PRELUDE + "\n".join(body) + f"\nanswer = {answer}\n"
    try:
        node = in_a_plan(program)
    except UsageError:
        return  # a call in a branch, a lambda or a test: refused, with the remedy to assign it first
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CPython comments on nonsense that it compiles
            theirs = in_cpython(program)
    except Exception:  # whatever CPython raises on is unknown to a plan, or its own business
        return
    if node is not None and complete(node):
        assert agree(raw(node), theirs), program


def test_the_agreement_is_about_something():
    program = (
        PRELUDE
        + "for n in [1, 2]:\n    m = m + n\nif matches(t, 'rent'):\n    u = f'{m}'\nanswer = [u, sum(xs), first(xs, sort=lambda q: -q)]\n"
    )
    assert raw(in_a_plan(program)) == in_cpython(program) == ["1.5", 6, 3]
