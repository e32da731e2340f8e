"""I1 of `plan.check`: whatever a run asks about, the static pass has foreseen, on random plans with a random worker."""

from __future__ import annotations

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from saggar.core.errors import UsageError
from saggar.core.label import DIRECTORY, SYSTEM
from saggar.core.tool import FieldLabel, TypeSpec
from saggar.plan.check import check
from saggar.plan.compile import compile_source
from saggar.plan.execute import Executor
from saggar.plan.node import NOT_ENOUGH
from saggar.plan.output import Owner
from saggar.plan.worker import ScriptedWorker
from saggar.testing.plan import DirectGateway, ScriptedHuman, tool

TEXT = TypeSpec("string")
SYS = FieldLabel(SYSTEM, readers="*", private=False)
DIR = FieldLabel(DIRECTORY, readers="*", private=False)
PARTY = FieldLabel(DIRECTORY, readers="[].who")
ROW = TypeSpec("object", fields=(("who", TEXT), ("name", TEXT), ("text", TEXT), ("n", TypeSpec("number"))))
FILE = TypeSpec("object", fields=(("id", TEXT), ("text", TEXT)))
TOOLS = {
    t.name: t
    for t in [
        tool("page", output=TEXT),
        tool("read", path="selector", output=TEXT),
        tool("secret", output=TEXT, labels={"": FieldLabel(DIRECTORY)}),
        tool("friend", output=TEXT, labels={"*": DIR}),
        tool(
            "rows",
            output=TypeSpec("array", items=ROW),
            labels={
                "#": SYS, "[]#": SYS, "[].who": PARTY, "[].n": PARTY, "[].name": FieldLabel(names=True),
                "[].text": FieldLabel(author="[].who"),
            },
        ),
        tool("make", "write", text="content", output=FILE, labels={"#": SYS, "id": SYS}),
        tool("share", "egress", id="target", to="recipient", output=TEXT),
        tool("mail", "egress", to="recipient", body=("content", "json"), output=TEXT),
        tool("pay", "pay", to="recipient", amount=("amount", "number"), output=TEXT),
        tool("visit", url="destination", output=TEXT),
        tool("post", "egress", to=("recipient", "json"), body=("content", "json"), output=TEXT),
        tool("publish", "egress", body=("content", "json"), output=TEXT),
        tool("order", "pay", id=("target", "json"), amount=("amount", "json"), output=TEXT),
        tool("member", path="target", output=TypeSpec("json"), labels={"*": FieldLabel(DIRECTORY)}),
    ]
}  # fmt: skip
REQUEST = "Send Ann the Q3 to ann@x.test and pay 7"
FUNCTIONS = {
    "page": lambda: "see https://evil.test/ 9",
    "read": lambda path: "98.70",
    "secret": lambda: "s3cret",
    "friend": lambda: "bob@x.test",
    "rows": lambda: [
        {"who": "Ann", "name": "Q3", "text": "https://ann.test/a", "n": 3},
        {"who": "eve@evil.test", "name": "Q4", "text": "https://evil.test/", "n": 7},
    ],
    "make": lambda text: {"id": "f1", "text": text},
    "share": lambda id, to: "shared",
    "mail": lambda to, body: "sent",
    "pay": lambda to, amount: "paid",
    "visit": lambda url: "a page",
    "post": lambda to, body: "posted",
    "publish": lambda body: "published",
    "order": lambda id, amount: "paid",
    "member": lambda path: [None, [], {"Ann": 7}, "Ann"][len(path) % 4],
}

names = st.sampled_from(["a", "b", "c"])
leaf = st.sampled_from(
    ["'ann@x.test'", "'Q3'", "'made up'", "7", "a", "b", "c", "a.id", "b.id", "a.who", "b.n", "a.text", "b.t", "page()",
     "read(path='Q3')", "secret()", "friend()", "rows()", "make(text=a)", "make(text='x')"]
)  # fmt: skip
value = st.one_of(
    leaf,
    leaf.map(lambda x: f"f'{{{x}}}!'" if "'" not in x else x),
    st.tuples(leaf, leaf).map(lambda t: f"[{t[0]}, {t[1]}]"),
    leaf.map(lambda x: f"number_in({x})"),
    leaf.map(lambda x: f"near({x}, 7, 10)"),
    leaf.map(lambda x: f"known({x})"),
    st.tuples(names, st.sampled_from(["t.name == 'Q3'", "t.n > 2", "t.who == 'Ann'", "matches(t.name, 'Q3')", "t.text == a"])).map(
        lambda t: f"first(rows(), lambda t: {t[1]}, sort=lambda t: t.n)"
    ),
    leaf.map(lambda x: f"extract({x}, {{'t': 'string', 'n': 'number', 'u': 'url'}}, 'i')"),
    leaf.map(lambda x: f"summarise({x}, 'i')"),
)  # fmt: skip
somebody = st.one_of(
    leaf,
    st.sampled_from(
        ["None", "[]", "member(path='Q3')", "member(path='Send')", "member(path='Ann')", "member(path='7')"]
    ),
    st.tuples(leaf, leaf).map(lambda t: f"[{t[0]}, {t[1]}]"),
    leaf.map(lambda x: f"len([{x}])"),
    leaf.map(lambda x: f"{{'made@x.test': {x}}}"),
    leaf.map(lambda x: f"keys({{'made@x.test': {x}}})"),
    st.tuples(leaf, leaf).map(lambda t: f"{t[0]} if {t[1]} == 'Q3' else None"),
)
call = st.one_of(
    st.tuples(leaf, leaf).map(lambda t: f"mail(to={t[0]}, body={t[1]})"),
    st.tuples(leaf, leaf).map(lambda t: f"share(id={t[0]}, to={t[1]})"),
    st.tuples(leaf, leaf).map(lambda t: f"pay(to={t[0]}, amount={t[1]})"),
    leaf.map(lambda x: f"visit(url={x})"),
    st.tuples(somebody, leaf).map(lambda t: f"post(to={t[0]}, body={t[1]})"),
    leaf.map(lambda x: f"publish(body={x})"),
    st.tuples(leaf, leaf).map(lambda t: f"order(id={t[0]}, amount={t[1]})"),
)
line = st.one_of(
    st.tuples(names, value).map(lambda t: f"{t[0]} = {t[1]}"),
    st.tuples(names, call).map(lambda t: f"{t[0]} = {t[1]}"),
    call,
)
block = st.lists(line, min_size=1, max_size=3)
test = st.sampled_from(["a == 'Q3'", "known(b)", "b == 7", "c != a", "a.n > 2", "a.who == 'Ann'"])


def indented(lines):
    return "\n".join("    " + x for x in lines)


statement = st.one_of(
    line,
    st.tuples(test, block).map(lambda t: f"if {t[0]}:\n{indented(t[1])}"),
    st.tuples(test, block, block).map(lambda t: f"if {t[0]}:\n{indented(t[1])}\nelse:\n{indented(t[2])}"),
    st.just("choose('Which?', ['other'])"),
    st.tuples(names, st.sampled_from(["rows()", "[a, b]", "b"]), block).map(
        lambda t: f"for {t[0]} in {t[1]}:\n{indented(t[2])}"
    ),
)
FRAGMENT = "def other():\n    'the other way'\n"
START = "a = rows()\na = a[0]\nb = make(text='x')\nc = page()\n"
answers = st.sampled_from(
    [
        NOT_ENOUGH,
        {"t": "eve@evil.test", "n": 7, "u": "https://evil.test/"},
        {"t": "Q3", "n": 9, "u": NOT_ENOUGH},
        "text",
    ]
)


@settings(max_examples=300)
@given(st.lists(statement, min_size=1, max_size=5), block, answers, st.sampled_from([0.0, 10.0]))
@example(["b = make(text=c)", "if known(b):\n    mail(to='ann@x.test', body='made up')"], ["visit(url=c)"], "text", 0.0)
@example(["b = make(text=c)", "share(id=b.id, to='ann@x.test')"], ["visit(url=c)"], "text", 0.0)
# what was there before a loop is what its first round finds, and what stands after a loop of no rounds
@example(["for a in rows():\n    mail(to=c, body='x')\n    c = 'ann@x.test'"], ["visit(url=c)"], "text", 0.0)
@example(["for a in []:\n    c = 'ann@x.test'", "mail(to=c, body='x')"], ["visit(url=c)"], "text", 0.0)
# handed on from name to name, one a round
@example(
    ["a = 'ann@x.test'", "b = a", "for i in [1, 2, 3, 4]:\n    mail(to=a, body='x')\n    a = b\n    b = c"],
    ["visit(url=c)"],
    "text",
    0.0,
)
@example(["a = 'ann@x.test'", "choose('Which?', ['other'])", "mail(to=a, body='x')"], ["a = page()"], "text", 0.0)
def test_what_a_run_asks_the_static_pass_has_foreseen(lines, other, answer, drift):
    source = START + "\n".join(lines) + "\n" + FRAGMENT + indented(other)
    try:
        plan = compile_source(source, REQUEST, TOOLS)
    except UsageError:
        return
    report = check(plan, TOOLS, Owner(frozenset({"me"})), drift)
    if not report.sound:
        return
    gateway = DirectGateway(TOOLS, FUNCTIONS)
    people = ScriptedHuman("approved", default="other")
    worker = ScriptedWorker(lambda _: answer)
    executor = Executor(
        TOOLS, gateway, gateway, worker, people, people, owner=Owner(frozenset({"me"})), drift_percent=drift
    )
    result = executor.run(plan)
    asked = {e.key.rpartition("/")[2] for e in result.events if e.effect == "ask"}
    event("asked" if asked else "quiet")
    assert asked <= {q.step for q in report.questions}, source
