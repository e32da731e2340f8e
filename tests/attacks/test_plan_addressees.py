"""Who counts as addressed, and whom the user's own words let in: every other addressee of private data is a question,
which `plan check` foresees and the audit log has."""

from __future__ import annotations

import pytest

from saggar.core.label import DIRECTORY, MAX_SOURCES
from saggar.core.tool import FieldLabel, TypeSpec
from saggar.plan.check import check
from saggar.plan.compile import compile_source
from saggar.plan.execute import Executor
from saggar.plan.output import Owner
from saggar.plan.worker import ScriptedWorker
from saggar.testing.plan import DirectGateway, ScriptedHuman, tool

MINE = FieldLabel(DIRECTORY, readers="owner")
OPEN = FieldLabel(DIRECTORY, readers="*", private=False)
WRITTEN = FieldLabel(DIRECTORY, readers="owner", author="[].by")
SEEN = FieldLabel(DIRECTORY, readers="[].reader")
PEOPLE = TypeSpec(
    "array",
    items=TypeSpec(
        "object", fields=tuple((k, TypeSpec("integer" if k == "n" else "string")) for k in ("who", "n", "by"))
    ),
)
CHATS = TypeSpec(
    "array",
    items=TypeSpec(
        "object", fields=tuple((k, TypeSpec("string" if k != "n" else "integer")) for k in ("n", "reader", "x"))
    ),
)
TOOLS = {
    t.name: t
    for t in [
        tool("secret", labels={"*": MINE}),
        tool("nobody", labels={"*": MINE}, path="target"),
        tool("people", output=PEOPLE, labels={"#": MINE, "[]#": MINE, **{f"[].{k}": WRITTEN for k in ("who", "n", "by")}}),
        tool("chats", output=CHATS, labels={"#": OPEN, "[]#": OPEN, **{f"[].{k}": SEEN for k in ("n", "reader", "x")}}),
        tool("mail", "egress", to="recipient", body=("content", "json")),
        tool("many", "egress", to=("recipient", "array"), body=("content", "json")),
        tool("chat", "egress", to=("recipient", "integer"), body=("content", "json")),
        tool("any", "egress", to=("recipient", "json"), body=("content", "json")),
        tool("publish", "egress", body=("content", "json")),
        tool("order", "pay", id=("target", "json"), amount=("amount", "json")),
        tool("note", "write", to=("recipient", "json"), body=("content", "json")),
    ]
}  # fmt: skip
OUT = ("mail", "many", "chat", "any", "publish", "order", "note")
REQUEST = "Send my PIN to bob@x.test and to 7007, see memo.txt"


def run(source, *, people=3, chats=(), nobody=None, request=REQUEST):
    rows = [{"who": f"p{i}@x.test", "n": 1000 + i, "by": f"a{i}@x.test"} for i in range(people)]
    functions = {
        "secret": lambda: 1234,
        "nobody": lambda path: nobody,
        "people": lambda: rows,
        "chats": lambda: list(chats),
    }
    gateway = DirectGateway(TOOLS, functions | dict.fromkeys(OUT, lambda **_: "sent"))
    human = ScriptedHuman("denied")
    log = []
    executor = Executor(
        TOOLS, gateway, gateway, ScriptedWorker({}), human, human, owner=Owner(frozenset({"me"})),
        record=lambda kind, **fields: log.append((kind, fields)),
    )  # fmt: skip
    plan = compile_source(source, request, TOOLS)
    result = executor.run(plan)
    asked = {(e.key.rpartition("/")[2], e.rule) for e in result.events if e.effect == "ask"}
    recorded = {(f["detail"]["key"], f["rule"]) for kind, f in log if kind == "plan.step" and f["effect"] == "ask"}
    assert {k for k, _ in recorded} >= {k for k, _ in asked}
    assert {k for k, _ in asked} <= {q.step for q in check(plan, TOOLS, Owner(frozenset({"me"}))).questions}
    return [args for name, args in gateway.called if name in OUT], sorted(rule for _, rule in asked)


def asks(source, **world):
    assert run(source, **world) == ([], ["plan.reader"]), source


def passes(source, **world):
    sent, asked = run(source, **world)
    assert (len(sent), asked) == (1, []), source


@pytest.mark.parametrize("people", [3, MAX_SOURCES - 3, MAX_SOURCES, MAX_SOURCES + 90])
@pytest.mark.parametrize("call", ["mail(to=c.who, body=secret())", "chat(to=c.n, body=secret())"])
def test_more_sources_than_are_kept_let_nobody_in(people, call):
    asks("c = first(people(), sort=lambda t: t.by)\n" + call, people=people)


def test_whom_the_user_s_words_name_is_told_and_nobody_whom_the_planner_made_up():
    passes('mail(to="bob@x.test", body=secret())')
    passes("chat(to=7007, body=secret())")
    passes('many(to=["bob@x.test"], body=secret())')
    asks('mail(to="zed@elsewhere.test", body=secret())')
    asks('many(to=["bob@x.test", "zed@elsewhere.test"], body=secret())')
    asks('mail(to="bob@x.test" + ".evil.test", body=secret())')
    asks("chat(to=7008, body=secret())")
    # what is not private may go to anybody whom the planner looks up or makes up
    passes('mail(to="zed@elsewhere.test", body="hello")')


def test_an_addressee_need_not_be_a_text():
    asks("c = first(people(), sort=lambda t: t.by)\nchat(to=c.n, body=secret())")
    asks("chat(to=len(people()), body=secret())")
    asks("any(to=[[people()[0].n]], body=secret())")
    asks("any(to=True, body=secret())")
    asks("any(to={'p': people()[0].n}, body=secret())")


def test_a_key_is_an_addressee_and_the_planner_s():
    asks("any(to={'zed@elsewhere.test': 7007}, body=secret())")
    asks("any(to={'zed@elsewhere.test': []}, body=secret())")
    asks("mail(to=keys({'zed@elsewhere.test': 'bob@x.test'})[0], body=secret())")
    # a condition on the user's words makes what stands under it none of them
    asks(
        'if "bob@x.test" == "bob@x.test":\n    x = {"zed@elsewhere.test": 7007}\n    mail(to=keys(x)[0], body=secret())'
    )


def test_a_length_is_in_nobody_s_words():
    asks("chat(to=len([7007, 7007]), body=secret())")


def test_what_leaves_and_names_nobody_is_told_to_everybody():
    asks("publish(body=secret())")
    asks("many(to=[], body=secret())")
    asks("any(to=None, body=secret())")
    asks('any(to=nobody(path="memo.txt"), body=secret())')
    asks('any(to=nobody(path="memo.txt"), body=secret())', nobody=[])
    asks("order(id=7007, amount=secret())")
    passes("publish(body='hello')")
    passes("order(id=7007, amount=7007)")
    # an object that the user named says who: whoever stands in it is let in
    passes('any(to=nobody(path="memo.txt"), body=secret())', nobody="ann@x.test")
    # what stays with the user is told to nobody
    passes("note(to=[], body=secret())")


def test_who_is_picked_by_a_number_is_held_to_every_element_that_he_stands_in():
    # 5 stands in two rows, one of which he may not read: that the other was picked tells him of it
    rows = [{"n": 5, "reader": "5", "x": "a"}, {"n": 5, "reader": "6", "x": "b"}]
    asks("c = first(chats(), sort=lambda t: t.x)\nchat(to=c.n, body=c.x)", chats=rows)
    passes("c = first(chats(), sort=lambda t: t.x)\nchat(to=c.n, body=c.x)", chats=[rows[0], rows[1] | {"n": 6}])
