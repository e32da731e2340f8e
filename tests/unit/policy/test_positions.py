"""The position finder against `tomllib`: same paths, right lines, never anything but a mapping or `ValueError`."""

from __future__ import annotations

import time
import tomllib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from saggar.policy.positions import positions

TEXT = '''# comment with [brackets] and = signs
top = 1 # one
"quoted key" = """
multi = "not a key"
[not.a.table]
"""
'lit' = \'\'\'x = 1
\'\'\'
a.b."c.d" = [ # array
  1,
  [2, "]"],
  { x = 1, y = { z = "}" } },
]

[t]
k = 1979-05-27T07:32:00Z
s = "a \\" # no comment"
[t.u]
v = {}
[[aot]]
x = 1
[[aot]]
x = 2
[aot.sub]
y = """a""\\""""
[[aot.inner]]
z = ''
[[aot.inner]]
z = inf
'''


def test_lines():
    found = positions(TEXT)
    assert found["top",] == 2
    assert found["quoted key",] == 3
    assert found["lit",] == 7
    assert found["a", "b", "c.d"] == 9
    assert found["a", "b", "c.d", 0] == 10
    assert found["a", "b", "c.d", 1, 1] == 11
    assert found["a", "b", "c.d", 2, "y", "z"] == 12
    assert found["t",] == 15
    assert found["t", "s"] == 17
    assert found["t", "u", "v"] == 19
    assert found["aot", 0] == 20
    assert found["aot", 1, "x"] == 23
    assert found["aot", 1, "sub", "y"] == 25
    assert found["aot", 1, "inner", 1] == 28
    assert found["aot", 1, "inner", 1, "z"] == 29


def paths_of(value, path=()):
    if path:
        yield path
    if isinstance(value, dict):
        for k, v in value.items():
            yield from paths_of(v, (*path, k))
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from paths_of(v, (*path, i))


def test_i1_paths_of_the_example():
    assert set(positions(TEXT)) == set(paths_of(tomllib.loads(TEXT)))


key = st.sampled_from(["a", "b-1", "c_", '"q.k"', "'l k'", '"\\u0041\\n"', '"="', '"[x]"', "1"])
dotted = st.lists(key, min_size=1, max_size=3).map(" . ".join) | key
scalar = st.sampled_from(
    ["1", "true", "1.5", "inf", "1979-05-27 07:32:00", '"s"', "'#'", '"\\"]"', '"""\nx = 1\n"""', "'''\n[x]'''", '""', '""""q""""',
     '"""\\\\\\""""', "''''q'''", '"""a\\\n  b"""']
)  # fmt: skip
blank = st.sampled_from(["", " ", "\t"])
gap = st.sampled_from(["", " ", "\n", " # c ]\n ", "\r\n"])


@st.composite
def value(draw, depth=2):
    choice = draw(st.integers(0, 5)) if depth else 0
    if choice < 4:
        return draw(scalar)
    if choice == 4:
        items = [draw(gap) + draw(value(depth - 1)) + draw(gap) for _ in range(draw(st.integers(0, 3)))]
        tail = draw(st.sampled_from(["", ","])) if items else ""
        return "[" + ",".join(items) + tail + draw(gap) + "]"
    items = [
        f"{draw(blank)}{draw(dotted)} = {draw(value(depth - 1))}{draw(blank)}" for _ in range(draw(st.integers(0, 3)))
    ]
    return "{" + ",".join(items) + "}"


@st.composite
def document(draw):
    lines = []
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.integers(0, 6))
        if kind == 0:
            lines.append(f"[{draw(blank)}{draw(dotted)}{draw(blank)}]")
        elif kind == 1:
            lines.append(f"[[{draw(dotted)}]]")
        elif kind == 2:
            lines.append(draw(st.sampled_from(["", "# [x]", "  # y = 1"])))
        else:
            lines.append(
                f"{draw(blank)}{draw(dotted)} ={draw(blank)}{draw(value())}{draw(st.sampled_from(['', ' # c', '  ']))}"
            )
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))


@given(document())
@settings(max_examples=500)
@example("a = '''\r\nx'''\r\nb = 1")
@example("[[a]]\n[a.b]\nc=1\n[[a]]\n[a.b]\nc=1\n")
def test_i1_same_paths_as_tomllib(source):
    try:
        tree = tomllib.loads(source)
    except tomllib.TOMLDecodeError:
        try_positions(source)
        return
    found = positions(source)
    assert set(found) == set(paths_of(tree))
    lines = source.replace("\r\n", "\n").split("\n")
    for path, line in found.items():
        last = next(p for p in reversed(path) if isinstance(p, str))
        if (
            isinstance(path[-1], str)
            and last.replace("-", "").replace("_", "").isalnum()
            and last.isascii()
            and last != "A\n"
        ):
            assert last in lines[line - 1]


def try_positions(source):
    try:
        positions(source)
    except ValueError:
        pass


@given(st.text(max_size=60) | st.text(st.sampled_from("[]{}=\"'\\#.,a1 \n"), max_size=40))
def test_i2_anything_else_is_a_mapping_or_value_error(source):
    try_positions(source)


@pytest.mark.parametrize(
    "source",
    [
        "\n" * 300_000 + "a = 1",
        "a = [" + "1,\n" * 100_000 + "]",
        "x = 1 # " + "y" * 300_000,
        '"' * 300_000,
        "[[a]]\n" * 50_000,
    ],
)
def test_i2_linear(source):
    start = time.perf_counter()
    try_positions(source)
    assert time.perf_counter() - start < 3
