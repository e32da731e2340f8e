"""Attenuation never widens: I1 of capability.narrower, I3 of capability.grant, on random constraints and values."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import example, given, settings
from hypothesis import strategies as st

from saggar.capability.constraint import (
    All,
    AnyValue,
    Cidr,
    EachItem,
    Exact,
    Glob,
    MaxLength,
    OneOf,
    PathUnder,
    Prefix,
    Range,
    UrlMatch,
    from_json,
)
from saggar.capability.grant import Grant, grant_from_json, narrower_grant
from saggar.capability.narrower import narrower
from saggar.core.tool import ArgumentDeclaration, Budget, ToolDeclaration, TypeSpec

# few letters, so that random constraints meet random values often
LETTERS = st.text(alphabet="ab@./*,-é", max_size=6)
WORDS = st.text(alphabet="ab.", max_size=4)
SOME_WORDS = st.text(alphabet="ab.", min_size=1, max_size=4)
SEGMENTS = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=3)
PATHS = SEGMENTS.map(lambda s: "/" + "/".join(s))
HOSTS = st.sampled_from(["a.b", "x.a.b", "y.x.a.b", "b"])
URLS = st.builds(
    lambda s, h, p, q: f"{s}://{h}{p}{q}",
    st.sampled_from(["http", "https"]),
    HOSTS,
    PATHS,
    st.sampled_from(["", "?q=1"]),
)
IPS = st.sampled_from(["10.0.0.1", "10.1.2.3", "11.0.0.1", "::1", "2001:db8::1"])
NUMBERS = st.integers(-3, 3) | st.sampled_from([0.5, -1.5, 2.0]) | st.sampled_from(["1", "-2", "2.5"])
SCALARS = LETTERS | PATHS | URLS | IPS | NUMBERS | st.booleans() | st.none()
VALUES = SCALARS | st.lists(SCALARS, max_size=3)

DECIMALS = st.integers(-3, 3).map(Decimal)
RANGES = (
    st.tuples(st.none() | DECIMALS, st.none() | DECIMALS)
    .filter(lambda t: t != (None, None) and (None in t or t[0] <= t[1]))
    .map(lambda t: Range(*t))
)
URL_MATCHES = st.builds(
    lambda s, h, p, star: UrlMatch(s, h, {"http": 80, "https": 443}[s], (p.rstrip("/") + star) or "/"),
    st.sampled_from(["http", "https"]),
    HOSTS | HOSTS.map(lambda h: f"*.{h}"),
    PATHS,
    st.sampled_from(["", "/*", "/**"]),
)
CIDRS = st.sampled_from(["10.0.0.0/8", "10.0.0.0/16", "0.0.0.0/0", "::/0", "2001:db8::/32"]).map(Cidr)
LEAVES = (
    st.just(AnyValue())
    | VALUES.map(Exact)
    | st.lists(SCALARS, min_size=1, max_size=4).map(lambda v: OneOf(tuple(v)))
    | RANGES
    | SOME_WORDS.map(Prefix)
    | st.tuples(WORDS, WORDS).filter(any).map(lambda t: Glob(*t))
    | CIDRS
    | URL_MATCHES
    | PATHS.map(PathUnder)
    | st.integers(0, 4).map(MaxLength)
)
CONSTRAINTS = st.recursive(
    LEAVES,
    lambda inner: inner.map(EachItem) | st.lists(inner, min_size=2, max_size=3).map(lambda p: All(tuple(p))),
    max_leaves=4,
)


@settings(max_examples=1500, deadline=None)
@given(CONSTRAINTS, CONSTRAINTS, st.lists(VALUES, min_size=1, max_size=8))
@example(Glob("", "@a"), Glob("", "a"), ["b@a"])
@example(Prefix("a"), Glob("a", ""), ["a,b"])
def test_narrower_never_widens(child, parent, values):
    if not narrower(child, parent):
        return
    for value in [*values, *derived(child)]:
        assert not child.allows(value) or parent.allows(value), value


def derived(limit):
    """Values near the edge of a constraint, so that the property is not vacuous."""
    if isinstance(limit, Exact):
        return [limit.value]
    if isinstance(limit, OneOf):
        return list(limit.values)
    if isinstance(limit, Range):
        return [int(e) for e in (limit.low, limit.high) if e is not None] + [10**6, -(10**6), "99"]
    if isinstance(limit, Prefix):
        return [limit.text, limit.text + "a", limit.text + ",@/é" * 3]
    if isinstance(limit, Glob):
        return [limit.before + m + limit.after for m in ("", "a", "ab", "é")]
    if isinstance(limit, PathUnder):
        return [limit.root, limit.root.rstrip("/") + "/zz/y"]
    if isinstance(limit, UrlMatch):
        base, _ = limit.split()
        host = limit.host.replace("*", "q")
        return [f"{limit.scheme}://{host}{base.rstrip('/')}{t}" for t in ("", "/", "/z", "/z/y", "?q=1", "/z?q")]
    if isinstance(limit, MaxLength):
        return ["é" * limit.size, "a" * limit.size, ["a"] * limit.size]
    if isinstance(limit, EachItem):
        return [[v] for v in derived(limit.inner)] + [[]]
    if isinstance(limit, All):
        return [v for p in limit.parts for v in derived(p)]
    return []


@settings(max_examples=300, deadline=None)
@given(CONSTRAINTS)
def test_reflexive_and_round_trip(limit):
    assert narrower(limit, limit)
    assert from_json(limit.to_json()) == limit


JSON = TypeSpec("json", nullable=True)
TOOL = ToolDeclaration(
    name="t",
    operation="do",
    resource="it",
    effect="write",
    output=JSON,
    labels=(),
    digest="d",
    arguments=(
        ArgumentDeclaration("x", JSON, "target"),
        ArgumentDeclaration("y", JSON, "content", required=False, default="a"),
        ArgumentDeclaration("z", JSON, "option", required=False),
    ),
)
BUDGETS = st.builds(
    Budget, st.none() | st.integers(0, 3), st.none() | st.integers(0, 3), st.none() | st.sampled_from(["0", "1.5", "3"])
)
GRANTS = st.builds(
    lambda names, limits, budget: Grant("t", "d", "do", "it", tuple(sorted(zip(names, limits, strict=False))), budget),
    st.lists(st.sampled_from("xyz"), unique=True, min_size=1),
    st.lists(CONSTRAINTS, min_size=3, max_size=3),
    BUDGETS,
)


def shrink(grant: Grant, choice: int) -> Grant:
    """A child in the parent's terms with one constraint replaced by a value near it."""
    name, limit = grant.constraints[choice % len(grant.constraints)]
    values = derived(limit) or ["a"]
    exact = Exact(values[choice % len(values)])
    return Grant(
        "t", "d", "do", "it", tuple((n, exact if n == name else c) for n, c in grant.constraints), grant.budget
    )


@settings(max_examples=800, deadline=None)
@given(GRANTS, GRANTS, st.integers(0, 50), st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=6))
def test_grants_never_widen(parent, other, choice, calls):
    for child in (other, shrink(parent, choice), parent):
        if not narrower_grant(child, parent):
            continue
        edge = [(v, "a", None) for _, limit in child.constraints for v in derived(limit)]
        for x, y, z in [*calls, *edge]:
            args = {"x": x, "y": y, "z": z}
            if child.refuses(TOOL, args) == ("", ""):
                assert parent.refuses(TOOL, args) == ("", ""), args
        for mine, theirs in ((child.budget.calls, parent.budget.calls), (child.budget.bytes, parent.budget.bytes)):
            assert theirs is None or (mine is not None and mine <= theirs)


@settings(max_examples=200, deadline=None)
@given(GRANTS)
def test_grant_round_trip(grant):
    assert grant_from_json(grant.to_json()) == grant
    assert narrower_grant(grant, grant)


def test_the_property_is_not_vacuous():
    """Enough random pairs are narrower that the two tests above mean something."""
    hits = []

    @settings(max_examples=400, deadline=None, database=None)
    @given(GRANTS, st.integers(0, 50))
    def count(parent, choice):
        hits.append(narrower_grant(shrink(parent, choice), parent))

    count()
    assert sum(hits) > len(hits) // 3
