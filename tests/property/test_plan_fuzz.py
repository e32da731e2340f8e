"""I1 of `plan.parse`, `plan.compile`, `plan.operation`, `plan.expression`, `plan.journal`, `plan.defang`."""

from __future__ import annotations

import json
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from saggar.core.errors import LimitExceeded, ParseError, UsageError
from saggar.core.label import RANK, Label, Source
from saggar.plan import expression, journal, node, operation, parse
from saggar.plan.compile import compile_source
from saggar.plan.defang import defang, links
from saggar.plan.step import Plan

SLOW_S = 2.0

words = st.sampled_from(
    "step id tool args out data schema instruction from where sort take value var in body bound collect keep test then "
    "else question options fragments suggest text lit ref get op list object each span call extract summarise select "
    "for_each if ask_user reply s1 s2 x y read type string properties array items request steps name when".split()
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(allow_nan=False) | words | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=6),
    max_leaves=24,
)


@given(values)
def test_parser_gives_a_plan_or_parse_error(raw):
    start = time.perf_counter()
    try:
        assert isinstance(parse.from_json(raw), Plan)
    except ParseError as err:
        assert err.reason.startswith("plan")
    assert time.perf_counter() - start < SLOW_S


@given(st.text(max_size=300) | st.binary(max_size=300))
def test_parser_on_text(text):
    try:
        assert isinstance(parse.parse(text), Plan)
    except ParseError as err:
        assert err.reason.startswith("plan")


pieces = st.sampled_from(
    [
        *(
            "x = ",
            "y",
            "read(path=",
            "'a'",
            ")",
            "(",
            "[",
            "]",
            "{",
            "}",
            ":",
            "\n",
            "\n    ",
            "if ",
            "for z in ",
            "else:",
        ),
        *(
            "lambda q: ",
            "first(",
            "one(",
            "select(",
            "extract(",
            "summarise(",
            "reply(",
            "def f():",
            "'doc'",
            ", ",
            ".a",
        ),
        *(" + ", " == ", " and ", "not ", "f'{x}'", "1", "-", "known(", "len(", "bounded(", "choose(", "ask_user("),
        *("while True", "import os", "**", "*", "...", "\x00", "é", "\\", "await ", "yield "),
    ]
)


@given(st.lists(pieces, max_size=30).map("".join) | st.text(max_size=200))
def test_compiler_gives_a_plan_or_usage_error(source):
    start = time.perf_counter()
    try:
        assert isinstance(compile_source(source, "a request", {"read", "send"}), Plan)
    except UsageError:
        pass
    assert time.perf_counter() - start < SLOW_S


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(node.NOT_ENOUGH)
    | st.sampled_from(["2024-05-15 10:00", "2024-05-15", "9e999", "1_0", "٣", "-", "1.2.3"])
)  # fmt: skip
data = st.recursive(
    scalars, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=3), x, max_size=3), max_leaves=10
)


@given(st.sampled_from(sorted(operation.TABLE)), st.lists(data, max_size=3))
def test_operations_are_total(name, args):
    low, high, _ = operation.TABLE[name]
    if not low <= len(args) <= high:
        return
    got = operation.apply(name, args)
    assert got is node.NOT_ENOUGH or got is None or isinstance(got, str | int | float | bool | list | dict)


exprs = st.recursive(
    st.builds(expression.Lit, st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4))
    | st.builds(expression.Ref, st.sampled_from(["a", "b", "gone"])),
    lambda x: st.one_of(
        st.builds(expression.Get, x, x),
        st.builds(lambda xs: expression.ListOf(tuple(xs)), st.lists(x, max_size=3)),
        st.builds(lambda xs: expression.Text(tuple(xs)), st.lists(x, max_size=3)),
        st.builds(lambda k, v: expression.ObjectOf(((k, v),)), st.sampled_from(["k", "l"]), x),
        st.builds(expression.Each, st.just("e"), x, x, st.none() | x),
        st.sampled_from(sorted(operation.ARITY)).flatmap(
            lambda n: st.lists(x, min_size=operation.ARITY[n][0], max_size=min(3, operation.ARITY[n][1])).map(
                lambda xs: expression.Op(n, tuple(xs))
            )
        ),
    ),
    max_leaves=12,
)
labels = st.builds(
    lambda i, r, s: Label([Source("tool", s)], readers=r, integrity=i),
    st.sampled_from(sorted(RANK)),
    st.none() | st.frozensets(st.sampled_from("abc"), max_size=3),
    st.sampled_from("xyz"),
)


@st.composite
def nodes(draw):
    """A node with its own label in every place."""

    def build(value):
        if isinstance(value, list):
            return node.Node(tuple(build(v) for v in value), draw(labels))
        if isinstance(value, dict):
            return node.Node({k: build(v) for k, v in value.items()}, draw(labels))
        return node.Node(value, draw(labels), draw(st.none() | st.just("w")), draw(st.booleans()))

    return build(draw(data))


@given(exprs, nodes(), nodes())
def test_evaluation_is_total_and_expressions_survive_json(e, a, b):
    try:
        got = expression.evaluate(e, {"a": a, "b": b}, expression.Meter("a request", 5_000))
        assert isinstance(got, node.Node)
    except LimitExceeded:
        pass
    try:
        again = expression.from_json(json.loads(json.dumps(expression.to_json(e))))
    except ParseError:
        return  # deeper than a plan may be
    assert again == e


def depends(e, name):
    if isinstance(e, expression.Ref):
        return e.name == name
    return any(depends(c, name) for c in parse.children(e))


@settings(max_examples=300)
@given(exprs, nodes(), st.text(max_size=4), st.text(max_size=4))
def test_no_value_of_a_stranger_changes_a_result_that_is_not_labelled_with_him(e, b, one, two):
    """Non-interference, one expression at a time: two runs that differ in an untrusted leaf differ only in what carries
    its source."""
    mark = Source("tool", "stranger")

    def result(text):
        a = node.Node(text, Label([mark], integrity="untrusted"))
        return expression.evaluate(e, {"a": a, "b": b}, expression.Meter("", 5_000))

    try:
        first, second = result(one), result(two)
    except LimitExceeded:
        return
    if mark not in node.whole(first).sources and mark not in node.whole(second).sources:
        assert node.same(first, second)


@given(nodes())
def test_journal_round_trip(n):
    raw = json.loads(json.dumps(journal.dump_node(n)))
    again = journal.load_node(raw)
    assert node.whole(again) == node.whole(n)
    assert repr(node.raw(again)) == repr(node.raw(n))


@given(values)
def test_journal_gives_a_node_or_parse_error(raw):
    try:
        assert isinstance(journal.load_node(raw), node.Node)
    except ParseError:
        pass


link_text = st.lists(
    st.sampled_from(["http://", "https://", "www.", "evil.test", "a.com", "/p", "?q=1", " ", "(", ")", "[x](", "]", "!", ".", "@", "ü", "．", "\n", "x", "//", "=", "https:", "](", "<", "1.2.3.4", "#", "／", "․", "…", "：", "*", "~"]),
    max_size=14,
).map("".join)  # fmt: skip


@given(link_text)
def test_defang_leaves_no_link(text):
    assert links(defang(text)) == []


@given(link_text)
def test_defang_leaves_what_is_permitted(text):
    assert defang(text, text) == text
