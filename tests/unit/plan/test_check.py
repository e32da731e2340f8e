from __future__ import annotations

import time

import pytest

from saggar.core.label import DIRECTORY, SYSTEM
from saggar.core.tool import FieldLabel, TypeSpec
from saggar.plan.check import check
from saggar.plan.compile import compile_source
from saggar.testing.plan import tool

SYS = FieldLabel(SYSTEM, readers="*", private=False)
ROW = TypeSpec(
    "object", fields=(("id", TypeSpec("string")), ("name", TypeSpec("string")), ("text", TypeSpec("string")))
)
TOOLS = {
    t.name: t
    for t in [
        tool(
            "files",
            output=TypeSpec("array", items=ROW),
            labels={"#": SYS, "[]#": SYS, "[].id": SYS, "[].name": FieldLabel(names=True)},
        ),
        tool("lookup", who="selector", output=TypeSpec("string"), labels={"*": FieldLabel(DIRECTORY)}),
        tool("send", "egress", to="recipient", body="content"),
        tool("delete", "destructive", id="target"),
        tool("pay", "pay", to="recipient", amount=("amount", "number")),
    ]
}


def report(source, request=""):
    return check(compile_source(source, request, TOOLS), TOOLS)


@pytest.mark.parametrize(
    ("source", "request_", "reasons"),
    [
        ('send(to="a@x.test", body="x")', "a@x.test", []),
        ('f = first(files())\nsend(to=f.text, body="x")', "", ["untrusted_authority"]),
        ('f = one(files(), lambda f: matches(f.name, "Q3"))\ndelete(id=f.id)', "delete Q3", []),
        ('f = one(files(), lambda f: f.text == "Q3")\ndelete(id=f.id)', "delete Q3", ["untrusted_authority"]),
        ('to = "a@x.test"\nfor f in files():\n    send(to=to, body="x")\n    to = f.text', "a@x.test", ["untrusted_authority"]),
        ('if first(files()).text == "x":\n    send(to="a@x.test", body="x")', "a@x.test", ["untrusted_authority"]),
        ('to = "a@x.test"\nif first(files()).text == "x":\n    to = "b@x.test"\nsend(to=to, body="x")', "a@x.test b@x.test", ["untrusted_authority"]),
        ('x = ask_user("whom?")\nsend(to=x, body="x")', "", ["ask_user"]),
        ('choose("now?", ["f"])\ndef f():\n    "w"\n    delete(id=first(files()).text)', "", ["ask_user", "untrusted_authority"]),
    ],
)  # fmt: skip
def test_questions_are_foreseen(source, request_, reasons):
    assert [q.reason for q in report(source, request_).questions] == reasons


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('send(to="a")', "needs `body`"),
        ('send(to="a", body="b", cc="c")', "no argument `cc`"),
        ('pay(to="a", amount="lots")', "takes number, not string"),
        ('if "a":\n    delete(id="x")', "a condition is true or false"),
        ("for x in 7:\n    delete(id=x)", "a loop goes over a list"),
        ('x = first("text")\ndelete(id=x)', "`select` takes a list"),
        ("\n".join(f"for x{i} in bounded(files(), 200):\n    delete(id=x{i}.id)" for i in range(3)), "the plan could make 603 calls"),
    ],
)  # fmt: skip
def test_faults(source, words):
    found = report(source)
    assert not found.sound
    assert any(words in f.message for f in found.faults), found.faults


def test_a_tool_that_is_not_there():
    plan = compile_source('send(to="a", body="b")', "", {"send"})
    assert "no tool `send`" in check(plan, {}).faults[0].message


def test_least_tools_with_their_bounds():
    found = report(
        "for f in bounded(files(), 7):\n    delete(id=f.id)\nx = [lookup(who=f.name) for f in bounded(files(), 3)]"
    )
    assert found.tools == {"files": 2, "delete": 7, "lookup": 3}


def test_trifecta_per_data_flow():
    named = report('send(to="a@x.test", body=first(files()).text)', "send the first to a@x.test")
    assert [f.trifecta for f in named.flows] == [True]
    asked = report("send(to=first(files()).text, body=first(files()).text)")
    assert [(f.trifecta, f.asks) for f in asked.flows] == [(False, True)]
    plain = report('send(to="a@x.test", body="hello")', "a@x.test")
    assert [f.trifecta for f in plain.flows] == [False]


def test_a_question_is_certain_only_where_nothing_can_go_round_it():
    source = (
        'a = ask_user("Which?")\nif a == "x":\n    b = ask_user("And?")\n'
        'for m in files():\n    c = ask_user("Now?")\nd = ask_user("Last?")\n'
    )
    assert [(q.line, q.certain) for q in report(source).questions] == [(1, True), (3, False), (5, False), (6, True)]


def test_loops_in_loops_that_hand_labels_on_end_soon():
    """As deep as a plan may be, each round handing names on: bounded passes, and the question is foreseen all the same."""
    names = [f"n{i}" for i in range(9)]
    source = "".join(f"{n} = 'a@x.test'\n" for n in names) + "z = first(files()).text\n"
    body = ["send(to=n0, body='x')", *(f"{a} = {b}" for a, b in zip(names, [*names[1:], "z"], strict=True))]
    depth = 7
    for d in range(depth):
        source += "    " * d + f"for i{d} in [1, 2]:\n"
    source += "".join("    " * depth + x + "\n" for x in body)
    start = time.process_time()
    found = report(source, "a@x.test")
    assert time.process_time() - start < 10
    assert [q.reason for q in found.questions] == ["untrusted_authority"]
