"""I1..I4 of `saggar.core.label`."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from saggar.core.errors import ParseError
from saggar.core.label import MANY, MAX_SOURCES, NEUTRAL, RANK, SOURCE_KINDS, Label, Source, join

sources = st.builds(
    Source,
    st.sampled_from(SOURCE_KINDS),
    st.sampled_from(["", "read_inbox", "fetch"]),
    call=st.sampled_from(["", "c1", "c2"]),
    field=st.sampled_from(["", "[].body"]),
    principal=st.sampled_from(["", "a@x.test"]),
    span=st.sampled_from([(-1, -1), (0, 4)]),
)
labels = st.builds(
    lambda s, r, i: Label(s, readers=r, integrity=i),
    st.lists(sources | st.just(MANY), max_size=5),
    st.none() | st.frozensets(st.sampled_from("abcd"), max_size=4),
    st.sampled_from(sorted(RANK)),
)


@given(labels, labels, labels)
def test_i1_join_laws(a, b, c):
    assert join(a, b) == join(b, a)
    assert join(a, join(b, c)) == join(join(a, b), c) == join(a, b, c)
    assert join(a, a) == a
    assert join(a, NEUTRAL) == join(NEUTRAL, a) == a
    assert join() == NEUTRAL


@given(labels, labels, labels)
def test_i2_least_upper_bound_and_monotone(a, b, c):
    both = join(a, b)
    assert a.flows_to(both)
    assert b.flows_to(both)
    if a.flows_to(c) and b.flows_to(c):
        assert both.flows_to(c)
    if a.flows_to(b):
        assert join(a, c).flows_to(join(b, c))


@given(labels, labels)
def test_i3_never_lifts(a, b):
    assert RANK[join(a, b).integrity] == min(RANK[a.integrity], RANK[b.integrity])


@given(labels, labels, st.sampled_from("abcde"))
def test_readers_only_shrink(a, b, who):
    assert join(a, b).may_read(who) == (a.may_read(who) and b.may_read(who))


@given(labels)
def test_i4_json_round_trip(a):
    assert Label.from_json(json.loads(json.dumps(a.to_json()))) == a


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda x: (
        st.lists(x, max_size=4)
        | st.dictionaries(st.sampled_from(["sources", "readers", "integrity", "kind", "span"]), x, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values)
def test_i4_a_label_or_parse_error(raw):
    try:
        assert isinstance(Label.from_json(raw), Label)
    except ParseError as err:
        assert err.reason.startswith("label")


def test_sources_are_bounded():
    a = Label(Source("tool", str(i)) for i in range(MAX_SOURCES))
    b = Label([Source("tool", "one more")], integrity="untrusted")
    both = join(a, b)
    assert both.sources == {MANY}
    assert a.flows_to(both)
    assert b.flows_to(both)
    assert both.integrity == "untrusted"
