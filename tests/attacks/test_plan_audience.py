"""Whoever is picked out of a list hears of himself alone: what `plan.audience` lets pass, and what it must not.

The property plays the reader: two worlds that differ only in what he may not read, and a plan that writes to him in
both with no question, tell him the same.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from saggar.core.label import DIRECTORY, UNTRUSTED, Label
from saggar.core.tool import FieldLabel, TypeSpec
from saggar.plan.compile import compile_source
from saggar.plan.execute import Executor
from saggar.plan.node import Node, Pick, Picked, marked
from saggar.plan.output import Owner
from saggar.plan.worker import ScriptedWorker
from saggar.testing.plan import DirectGateway, ScriptedHuman, tool

OPEN = FieldLabel(DIRECTORY, readers="*", private=False)
MINE = FieldLabel(DIRECTORY, readers="[].who,[].other")
RECORD = TypeSpec(
    "array",
    items=TypeSpec(
        "object",
        fields=tuple((k, TypeSpec("string" if k != "n" else "number")) for k in ("who", "other", "n", "tag")),
    ),
)
TOOLS = {
    t.name: t
    for t in [
        tool(
            "records",
            output=RECORD,
            labels={"#": OPEN, "[]#": OPEN, **{f"[].{f}": MINE for f in ("who", "other", "n", "tag")}},
        ),
        tool("secret", labels={"*": FieldLabel(DIRECTORY, readers="owner")}),
        tool("mail", "egress", to="recipient", body=("content", "json")),
        tool("post", "egress", to=("recipient", "array"), body=("content", "json")),
    ]
}
A, B, C = "ann@x.test", "bob@x.test", "cat@x.test"


def row(who, n, tag="t", other="me"):
    return {"who": who, "other": other, "n": n, "tag": tag}


def run(source, records, secret=0):
    gateway = DirectGateway(
        TOOLS,
        {
            "records": lambda: records,
            "secret": lambda: secret,
            "mail": lambda to, body: "sent",
            "post": lambda to, body: "sent",
        },
    )
    people = ScriptedHuman("denied")
    executor = Executor(TOOLS, gateway, gateway, ScriptedWorker({}), people, people, owner=Owner(frozenset({"me"})))
    result = executor.run(compile_source(source, "", TOOLS))
    sent = [args for name, args in gateway.called if name in ("mail", "post")]
    return sent, [e.rule for e in result.events if e.effect == "ask"]


ROWS = [row(A, 1), row(B, 2), row(A, 3)]


def test_a_field_of_the_record_goes_to_who_stands_in_it():
    for body in ("x.n", "x.n * 2 + 1", 'f"{x.tag}: {x.n}"', "[x.n, x.tag]"):
        sent, asked = run(
            f"x = first(records(), lambda t: t.n > 1, sort=lambda t: t.n)\nmail(to=x.who, body={body})", ROWS
        )
        assert (len(sent), asked) == (1, []), body
        assert sent[0]["to"] == B


def test_what_the_gateway_is_told_names_him_as_a_reader_of_that_argument_alone():
    told = []

    class Tells(DirectGateway):
        def call(self, token, tool, args, *, labels=None, call_id=""):
            told.append({n: x.readers for n, x in (labels or {}).items()})
            return super().call(token, tool, args, labels=labels, call_id=call_id)

    gateway = Tells(TOOLS, {"records": lambda: ROWS, "mail": lambda to, body: "sent"})
    people = ScriptedHuman("denied")
    executor = Executor(TOOLS, gateway, gateway, ScriptedWorker({}), people, people, owner=Owner(frozenset({"me"})))
    executor.run(compile_source("x = first(records(), sort=lambda t: t.n)\nmail(to=x.who, body=x.n)", "", TOOLS))
    assert told[-1]["body"] == {"me", A}


def asks(source, records=ROWS, secret=3):
    sent, asked = run(source, records, secret)
    assert (sent, asked) == ([], ["plan.reader"]), source


def test_a_choice_by_a_secret_asks_where_it_could_be_read_off():
    # ann stands in two records: which of them was picked tells her the secret
    asks("s = secret()\nx = first(records(), lambda t: t.n == s)\nmail(to=x.who, body=x.n)")
    asks("s = secret()\nx = first(records(), sort=lambda t: t.n * s)\nmail(to=x.who, body=x.n)")


def test_another_record_s_field_asks():
    asks("x = first(records(), sort=lambda t: t.n)\ny = first(records(), lambda t: t.n == 2)\nmail(to=x.who, body=y.n)")
    # two choices of the same words are two choices: the data may have changed between them
    asks("x = first(records(), sort=lambda t: t.n)\ny = first(records(), sort=lambda t: t.n)\nmail(to=x.who, body=y.n)")
    asks("l = records()\nx = first(l, sort=lambda t: t.n)\nmail(to=x.who, body=l[1].n)")


def test_what_is_mixed_in_asks():
    asks("s = secret()\nx = first(records(), sort=lambda t: t.n)\nmail(to=x.who, body=x.n + s)")
    asks("l = records()\nx = first(l, sort=lambda t: t.n)\nmail(to=x.who, body=sum([t.n for t in l]))")
    asks("l = records()\nx = first(l, sort=lambda t: t.n)\nmail(to=x.who, body=[x.n, l[1].n])")


def test_an_address_that_is_computed_or_of_another_record_asks():
    asks('x = first(records(), sort=lambda t: t.n)\nmail(to=x.who.replace("ann", "bob"), body=x.n)')
    asks("l = records()\nx = first(l, sort=lambda t: t.n)\nmail(to=l[1].who, body=x.n)")
    asks("l = records()\nx = first(l, sort=lambda t: t.n)\npost(to=[x.who, l[1].who], body=x.n)")


def test_a_choice_from_what_a_secret_filtered_or_in_a_branch_on_it_asks():
    asks(
        "s = secret()\nl = [t for t in records() if t.n >= s]\nx = first(l, sort=lambda t: t.n)\nmail(to=x.who, body=x.n)"
    )
    asks(
        "s = secret()\nx = first(records(), sort=lambda t: t.n)\nif s == 3:\n    mail(to=x.who, body=x.n)",
    )
    asks(
        "s = secret()\nif s == 3:\n    x = first(records(), sort=lambda t: t.n)\nelse:\n"
        "    x = first(records(), sort=lambda t: -t.n)\nmail(to=x.who, body=x.n)",
    )


def test_a_record_whose_reader_he_is_not_asks_though_his_name_stands_in_it():
    # a hostile element names ann in a field that gives her no right to read: its test is none of hers
    rows = [row(A, 1), row(B, 5, tag=A)]
    asks("x = first(records(), lambda t: t.n < 9, sort=lambda t: t.n)\nmail(to=x.who, body=x.n)", rows)


def test_one_choice_inside_another_s_element_has_the_whole_label():
    mark = Picked(Pick(()), Label(integrity=DIRECTORY))
    inner = marked(Node("x", Label(readers=["a"])), picked=Picked(Pick(()), Label()))
    outer = Node({"f": inner}, Label(readers=["b"]), picked=mark)
    assert outer.get("f").picked is None
    assert Node({"f": Node("x")}, Label(readers=["b"]), picked=mark).get("f").picked.by is mark.by


def test_integrity_is_judged_as_ever():
    """The mark is for readers alone: who is addressed, and what is paid, is judged by the whole label."""
    node = marked(Node(A, Label(integrity=UNTRUSTED)), picked=Picked(Pick(()), Label()))
    assert not node.label.at_least(DIRECTORY)


FIELDS = st.sampled_from(["t.n", "t.tag", "t.who"])
TESTS = st.sampled_from(
    [
        "t.n > 2", "t.n == s", "t.tag == 'p'", "t.tag == 'p' and t.n > 1", "t.n > 3 or t.n == s", "not (t.n > s)",
        f"t.who == '{A}' or t.n > 2", "t.who != t.other",
    ]
)  # fmt: skip
SORTS = st.sampled_from(["t.n", "-t.n", "t.tag", "t.n * s", "s - t.n"])
BODIES = st.sampled_from(["x.n", "x.tag", "x.n * 2", "x.n + s", 'f"{x.tag}{x.n}"', "[x.n, x.tag]", "x.n == s"])
ROW = st.builds(row, st.sampled_from([A, B, C]), st.integers(0, 4), st.sampled_from(["p", "q"]))


@st.composite
def worlds(draw):
    """Two lists that agree in ann's records and their order, and a secret for each."""
    mine = draw(st.lists(st.builds(row, st.just(A), st.integers(0, 4), st.sampled_from(["p", "q"])), max_size=4))
    both = []
    for _ in range(2):
        out = list(mine)
        for other in draw(st.lists(ROW.filter(lambda r: r["who"] != A), max_size=3)):
            out.insert(draw(st.integers(0, len(out))), other)
        both.append((out, draw(st.integers(0, 4))))
    return both


@given(worlds(), st.sampled_from(["first", "one"]), TESTS, SORTS, BODIES)
def test_a_reader_learns_nothing_but_that_he_is_addressed(both, take, test, sort, body):
    order = f", sort=lambda t: {sort}" if take == "first" else ""
    source = f"s = secret()\nx = {take}(records(), lambda t: {test}{order})\nmail(to=x.who, body={body})"
    told = [[m["body"] for m in run(source, rows, secret)[0] if m["to"] == A] for rows, secret in both]
    if all(told):
        assert told[0] == told[1], source
