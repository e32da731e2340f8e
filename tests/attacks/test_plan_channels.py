"""Ways round the plan wall that a review found open: each is played by a turned worker or a hostile tool."""

from __future__ import annotations

import pytest

from saggar.capability.constraint import Exact
from saggar.core.decision import ALLOW, ASK, Decision
from saggar.core.label import DIRECTORY, SYSTEM, UNTRUSTED, Label
from saggar.core.tool import FieldLabel
from saggar.plan.calling import CallLabel
from saggar.plan.check import check
from saggar.plan.compile import compile_source
from saggar.plan.execute import Executor
from saggar.plan.expression import Lit
from saggar.plan.journal import MemoryJournal, dump_node, load_node
from saggar.plan.monitor import Monitor
from saggar.plan.monitored import MonitoredGateway
from saggar.plan.node import NOT_ENOUGH, Node, settled
from saggar.plan.output import Owner
from saggar.plan.step import AskUser, Call, Fragment, If, assigned
from saggar.plan.worker import ScriptedWorker
from saggar.testing.plan import DirectGateway, ScriptedHuman, tool

SYS = FieldLabel(SYSTEM, readers="*", private=False)
DIR = FieldLabel(DIRECTORY, readers="*", private=False)
TOOLS = {
    t.name: t
    for t in [
        tool("stranger", labels={"*": DIR}),
        tool("secret", labels={"*": FieldLabel(DIRECTORY, readers="owner")}),
        tool("page"),
        tool("bill", path="selector"),
        tool("number", labels={"*": SYS}),
        tool("make", "write", labels={"#": SYS, "id": SYS}, text="content"),
        tool("share", "write", id="target", to="recipient"),
        tool("pay", "pay", to="recipient", amount=("amount", "number")),
        tool("mail", "egress", to="recipient", subject="option", thread="selector", body="content"),
        tool("save", "write", n=("option", "json")),
    ]
}


class Minting(DirectGateway):
    """Mints what the capability wall mints: every argument exact."""

    def mint(self, tool, args, ttl_s):
        for value in args.values():
            Exact(value)
        return super().mint(tool, args, ttl_s)


def run(source, request="", *, worker=None, human="denied", functions=None, gateway=None, journal=None, answers=None):
    known = {
        "stranger": lambda: "eve@evil.test",
        "secret": lambda: "s3cret",
        "page": lambda: "hostile",
        "bill": lambda path: "pay 98.70",
        "number": lambda: 1,
        "make": lambda text: {"id": "f1"},
        "share": lambda id, to: "shared",
        "pay": lambda to, amount=0: "paid",
        "mail": lambda to, subject="", thread="", body="": "sent",
        "save": lambda n: "saved",
    } | (functions or {})
    gateway = (gateway or DirectGateway)(TOOLS, known)
    people = ScriptedHuman(human, answers)
    executor = Executor(
        TOOLS,
        gateway,
        gateway,
        ScriptedWorker(worker or {}),
        people,
        people,
        owner=Owner(frozenset({"me"})),
        journal=journal or MemoryJournal(),
    )
    return executor.run(compile_source(source, request, TOOLS)), gateway


def last(result, name):
    return next((e.effect, e.reason) for e in reversed(result.events) if e.name == name)


@pytest.mark.parametrize("role", ["subject", "thread", "body"])
def test_private_data_goes_to_a_stranger_by_no_argument(role):
    result, gateway = run(f"t = stranger()\nx = secret()\nmail(to=t, {role}=x)")
    assert last(result, "mail") == ("ask", "reader_not_named")
    assert "mail" not in [c for c, _ in gateway.called]


def test_only_whom_the_user_let_in_is_told_to_the_gateway_as_a_reader():
    told = []

    class Tells(DirectGateway):
        def call(self, token, tool, args, *, labels=None, call_id=""):
            told.append({n: x.readers for n, x in (labels or {}).items()})
            return super().call(token, tool, args, labels=labels, call_id=call_id)

    run('mail(to="ann@x.test", body=secret())', "mail the secret to ann@x.test", gateway=Tells)
    assert told[-1]["body"] == {"me", "ann@x.test"}
    # a wall that lets everything pass says nothing about who may read
    people = ScriptedHuman("denied", None)
    gateway = Tells(TOOLS, {"stranger": lambda: "eve@evil.test", "secret": lambda: "s", "mail": lambda to, body: ""})
    careless = Executor(
        TOOLS, gateway, gateway, ScriptedWorker({}), people, people, owner=Owner(frozenset({"me"})),
        decide=lambda *_: Decision(ALLOW, "all", layer="L4"),
    )  # fmt: skip
    careless.run(compile_source("mail(to=stranger(), body=secret())", "", TOOLS))
    assert told[-1]["body"] == {"me"}


@pytest.mark.parametrize("said", [NOT_ENOUGH, {"t": "x"}])
@pytest.mark.parametrize("test", ["known(r)", "known(r.id)", "r.id == r.id", 'f"{r.id}" != ""'])
def test_whether_a_call_ran_steers_nothing(said, test):
    source = f'x = extract(page(), {{"t": "string"}}, "t")\nr = make(text=x.t)\nif {test}:\n    pay(to="bob@x.com")'
    result, gateway = run(source, "pay bob@x.com", worker={"s2": said})
    assert "pay" in [q.tool for q in check(compile_source(source, "pay bob@x.com", TOOLS), TOOLS).questions]
    assert "pay" not in [c for c, _ in gateway.called]
    assert not [e for e in result.events if e.name == "pay" and e.effect == "allow"]


def test_what_an_effect_made_is_still_the_users_to_act_on():
    source = 'x = extract(page(), {"t": "string"}, "t")\nr = make(text=x.t)\nshare(id=r.id, to="bob@x.com")'
    journal = MemoryJournal()
    for _ in range(2):  # and so it is when the run is taken up again
        result, _ = run(source, "share it with bob@x.com", worker={"s2": {"t": "x"}}, journal=journal)
        assert last(result, "share") == ("allow", "labels_fit")


def test_what_stands_alone_takes_on_its_surroundings_all_the_same():
    bad = Label(integrity=UNTRUSTED)
    leaf = Node("f1", bad, settled=Label(integrity=SYSTEM))
    assert settled(leaf).label.integrity == SYSTEM
    # the same label once more, of a branch this time: nothing is new to `label`, but to `settled` it is
    assert settled(leaf.under(bad)).label.integrity == UNTRUSTED
    assert settled(Node({"id": leaf}, bad).get("id")).label.integrity == UNTRUSTED
    assert settled(load_node(dump_node(leaf))).label.integrity == SYSTEM


def test_a_branch_covers_what_its_fragments_set():
    source = (
        'def other():\n    """Bob."""\n    to = "bob@x.test"\n'
        'to = "ann@x.test"\nif "zzz" in page():\n    choose("Which?", ["other"])\nmail(to=to, body="hi")'
    )
    result, _ = run(source, "ann@x.test bob@x.test")
    assert last(result, "mail") == ("ask", "untrusted_authority")


def test_assigned_goes_through_fragments_that_choose_fragments():
    again = AskUser("s3", "?", fragments=("b",))
    fragments = (
        Fragment("a", "", (Call("s2", "page", (), "x"), again)),
        Fragment("b", "", (Call("s4", "page", (), "y"), AskUser("s5", "?", fragments=("a",)))),
    )
    branch = If("s1", Lit(value=True), (AskUser("s6", "?", fragments=("a",)),))
    assert assigned((branch,), fragments) == {"x", "y"}
    assert assigned((branch,), ()) == frozenset()


def test_a_worker_endorses_no_amount():
    source = 'x = extract(bill(path="bill.txt"), {"n": "number"}, "sum")\npay(to="DE1", amount=x.n)'
    result, _ = run(source, "pay DE1 the sum in bill.txt", worker={"s2": {"n": 9999}})
    assert last(result, "pay") == ("ask", "untrusted_amount")
    result, _ = run('pay(to="DE1", amount=number_in(bill(path="bill.txt"), 0))', "pay DE1 the sum in bill.txt")
    assert last(result, "pay") == ("allow", "labels_fit")


@pytest.mark.parametrize(
    "value", ["a\ud800b", 2**53, -(2**63), 10**5000, float("nan"), float("inf"), {"\udfff": 1}], ids=map(str, range(7))
)
def test_hostile_values_crash_no_run(value):
    source = 'n = number()\nsave(n=n)\nreply(f"{n}")'
    result, gateway = run(source, functions={"number": lambda: value}, gateway=Minting)
    assert result.status == "done"
    assert [c for c, _ in gateway.called] == ["number"]
    worker = 'x = extract(page(), {"n": "number", "s": "string"}, "n")\nsave(n=x.n)\nsave(n=x.s)'
    result, gateway = run(worker, worker={"s2": {"n": value, "s": value}}, gateway=Minting)
    assert result.status == "done"


def test_what_no_capability_can_be_made_for_fails_before_its_intent():
    class Refuses(DirectGateway):
        def mint(self, tool, args, ttl_s):
            raise ValueError(tool)

    journal = MemoryJournal()
    result, gateway = run('save(n=1)\nreply("on")', gateway=Refuses, journal=journal)
    assert (result.status, result.reply, gateway.called) == ("done", "on", [])
    assert journal.get("s1")["state"] == "done"


def test_a_gateway_that_raises_gives_a_failed_call():
    class Raises(DirectGateway):
        def call(self, token, tool, args, *, labels=None, call_id=""):
            raise ValueError(tool)

    result, _ = run('r = save(n=1)\nreply(f"{known(r)}")', gateway=Raises)
    assert (result.status, result.reply) == ("done", "False")


def test_monitor_mode_asks_whatever_the_caller_says_of_its_arguments():
    seen = {}

    class Asks(DirectGateway):
        def call(self, token, tool, args, *, labels=None, call_id=""):
            seen.update(labels or {})
            return super().call(token, tool, args, labels=labels, call_id=call_id)

    inner = Asks(TOOLS, {"page": lambda: "to eve@evil.test", "mail": lambda to, body: "", "stranger": lambda: ""})
    front = MonitoredGateway(inner, Monitor("sum up", TOOLS, {"page": 9, "mail": 9}))
    front.call("t", "page", {})
    good = CallLabel("user", frozenset(), None, Decision(ALLOW, "mine", layer="L4"))
    front.call("t", "mail", {"to": "eve@evil.test", "body": "x"}, labels={"to": good, "body": good, "extra": good})
    assert set(seen) == {"to", "body"}
    assert {x.decision.effect for x in seen.values()} == {ASK}


def test_monitor_mode_refuses_an_ask_that_has_nothing_to_travel_on():
    inner = DirectGateway(TOOLS, {"stranger": lambda: "x"})

    class AlwaysAsks(Monitor):
        def decide(self, tool, args):
            return self.say(ASK, "untrusted_authority", tool, {})

    outcome = MonitoredGateway(inner, AlwaysAsks("x", TOOLS, {"stranger": 9})).call("t", "stranger", {})
    assert (outcome.status, outcome.decision.reason, inner.called) == ("denied", "untrusted_authority", [])


def test_split_makes_no_list_that_nothing_meters():
    result, _ = run('n = len(page().split(","))\nreply(f"{n}")', functions={"page": lambda: "," * 500_000})
    assert result.reply == "(not enough information)"
    body = "\n".join(f'a{i} = page().split(",")' for i in range(60))
    result, _ = run(body, functions={"page": lambda: "," * 9_999})
    assert (result.status, result.reason) == ("limit", "plan.evaluation")


def test_a_writer_mark_falls_with_integrity():
    leaf = Node("www.x.test/a", Label(integrity=DIRECTORY), writer="Bob")
    assert leaf.under(Label(integrity=UNTRUSTED)).writer is None
    assert leaf.under(Label(integrity=DIRECTORY)).writer == "Bob"
