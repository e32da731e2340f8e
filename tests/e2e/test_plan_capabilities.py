"""A session's capabilities bound all of its plans' calls together, and are judged as their author wrote them."""

from __future__ import annotations

from decimal import Decimal

import pytest

import saggar
from saggar.capability.rule import Rule
from saggar.core.tool import FieldLabel
from saggar.plan.worker import ScriptedPlanner, ScriptedWorker
from saggar.policy.model import Policy
from saggar.policy.tools import ToolsPolicy
from saggar.runtime.one_call_host import OneCall
from saggar.runtime.tools_host import ToolSession
from saggar.testing.plan import OneAnswer

RECORD = FieldLabel("system", readers="*", private=False)
#: the plan wall and the irreversible effect ask as well; here it is the grants that are tried
FREE = ("builtin.destructive", "builtin.readers", "builtin.trifecta")


@pytest.fixture
def tools(calls):
    @saggar.tool("read:inbox", effect="read", labels={"#": RECORD, "[]#": RECORD})
    def read_inbox() -> list[dict[str, str]]:
        calls.append(("read_inbox",))
        return [{"body": "the account is 666"}]

    @saggar.tool("send:email", effect="egress", roles={"to": "recipient", "body": "content"})
    def send_email(to: str, body: str) -> str:
        calls.append(("send", to, body))
        return "sent"

    @saggar.tool("pay:bank", effect="pay", roles={"to": "recipient", "amount": "amount"})
    def pay(to: str, amount: Decimal) -> str:
        calls.append(("pay", to, str(amount)))
        return "paid"

    @saggar.tool("read:acct", effect="read", roles={"acct": "target"})
    def acct(acct: str) -> str:
        calls.append(("acct", acct))
        return "100"

    @saggar.tool("write:count", effect="write", roles={"n": "content"}, reversible=True)
    def count(n: int) -> str:
        calls.append(("count", n))
        return "counted"

    @saggar.tool("read:file", effect="read", labels={"": RECORD})
    def read_file() -> str:
        return "x" * 200_000

    return [read_inbox, send_email, pay, acct, count, read_file]


def run(tools, plan, capabilities, reviewer=None, worker=None, rules=None):
    reviewer = reviewer or OneAnswer()
    with saggar.open_session(
        tools=tools,
        planner=ScriptedPlanner({"go": plan}),
        worker=worker or ScriptedWorker({}),
        capabilities=capabilities,
        channels=[reviewer],
        wait_s=0,
        rules=rules,
    ) as session:
        answer = session.ask_sync("go")
        return answer, reviewer, session.id


@pytest.fixture
def refused(records):
    """A function: the reasons of what the gateway refused in a run."""
    return lambda task: [r["reason"] for r in records(task) if r["kind"] == "capability.decision"]


def allows(*tools):
    return [Rule(f"allow.{t}", "allow", tool=t, accepts=FREE) for t in tools]


def test_a_count_holds_over_calls_with_other_arguments(refused, tools, calls):
    plan = "\n".join(f'send_email(to="{who}@example.com", body="{who}")' for who in ("ann", "bob", "cyd"))
    _, _, task = run(tools, plan, ["send:email[to=*@example.com, max=1]"])
    assert calls == [("send", "ann@example.com", "ann")]
    assert refused(task) == ["budget_calls", "budget_calls"]


def test_a_count_holds_over_requests_of_one_session(sessions, tools, calls):
    plans = {"a": 'send_email(to="ann@example.com", body="1")', "b": 'send_email(to="bob@example.com", body="2")'}
    with saggar.open_session(
        tools=tools,
        planner=ScriptedPlanner(plans),
        worker=ScriptedWorker({}),
        capabilities=["send:email[to=*@example.com, max=1]"],
        channels=[OneAnswer()],
        wait_s=0,
    ) as session:
        session.ask_sync("a")
        session.ask_sync("b")
    assert len(calls) == 1


def test_a_count_holds_over_a_restart(refused, tools, calls):
    plans = {"a": 'send_email(to="ann@example.com", body="1")', "b": 'send_email(to="bob@example.com", body="2")'}

    def opened(resume=""):
        return saggar.open_session(
            tools=tools,
            planner=ScriptedPlanner(plans),
            worker=ScriptedWorker({}),
            capabilities=["send:email[to=*@example.com, max=1]"],
            channels=[OneAnswer()],
            wait_s=0,
            resume=resume,
        )

    with opened() as session:
        session.ask_sync("a")
        task = session.id
    with opened(task) as session:
        session.ask_sync("b")
    assert len(calls) == 1
    assert refused(task) == ["budget_calls"]


def test_an_amount_holds_over_calls_with_other_amounts(refused, tools, calls):
    plan = "\n".join(f'pay(to="ann", amount="{n}")' for n in (90, 91, 92))
    _, _, task = run(tools, plan, ["pay:bank[to=*, amount=*, max_amount=100]"])
    assert calls == [("pay", "ann", "90")]
    assert refused(task) == ["budget_amount", "budget_amount"]


def test_an_amount_that_nobody_bounded_is_asked_about(sessions, tools):
    _, reviewer, _ = run(
        tools, 'pay(to="ann@example.com", amount="5000")', ["pay:bank[to=*@example.com, amount=*]"], rules=allows("pay")
    )
    assert ["amount_unbounded" in card.reasons for card in reviewer.cards] == [True]


def test_an_untrusted_object_of_a_read_is_asked_about(sessions, tools):
    plan = 'found = extract(read_inbox(), {"n": "string"}, "the account")\nacct(acct=found.n)'
    _, reviewer, _ = run(tools, plan, ["read:inbox", "read:acct[acct=*]"], worker=ScriptedWorker({"s2": {"n": "666"}}))
    assert any("authority_untrusted" in card.reasons for card in reviewer.cards)


def test_a_long_body_does_not_go_into_the_token(refused, tools, calls):
    plan = 'text = read_file()\nsend_email(to="ann@example.com", body=text)'
    _, _, task = run(tools, plan, ["read:file", "send:email[to=*@example.com]"])
    assert refused(task) == []
    assert [len(body) for _, _, body in calls] == [200_000]


ODD = ["\ud800", 2**53, -(2**53), 10**5000, [10**5000], {"a": "\ud800"}, float("nan"), {1: 2}, b"x", object()]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_a_value_that_no_token_carries_is_a_typed_refusal(sessions, tools, calls, value):
    with ToolSession(tools, capabilities=["send:email[to=*@example.com]", "write:count[n=*]"], channels=[]) as held:
        minter = OneCall(held, held.gateway.grants(held.capabilities))
        for tool, args in [
            ("count", {"n": value}),
            ("send_email", {"to": "ann@example.com", "body": value}),
            ("send_email", {"to": value, "body": ""}),
        ]:
            outcome = held.gateway.call(minter.mint(tool, args, 60), tool, args)
            assert (outcome.status, calls) == ("denied", [])
            assert outcome.decision.reason in {"type_confusion", "number_form", "surrogate", "unicode_surrogate"}


def test_each_call_has_a_child_for_it_alone(records, tools):
    _, _, task = run(tools, 'send_email(to="ann@example.com", body="b")', ["send:email[to=*@example.com, max=3]"])
    granted = [r for r in records(task) if r["kind"] == "capability.granted"]
    texts = [(r["reason"], r["detail"]["capabilities"][0]["text"]) for r in granted]
    assert texts == [
        ("minted", "send:email[body=*, to=*@example.com, max=3]"),
        ("narrowed", 'send:email[body="b", to="ann@example.com", max=1]'),
    ]


@pytest.mark.parametrize(
    ("percent", "said", "paid"),
    [
        (10, 1200, [("pay", "landlord", 1200)]),
        # the plan wall asks, and nobody is there to approve
        (0, 1200, []),
        (10, 1211, []),
        # within the policy's bound, and beyond what the capability may pay in all
        (25, 1350, []),
    ],
)
def test_the_policy_lets_an_amount_drift_and_the_capability_caps_it(refused, calls, percent, said, paid):
    record = FieldLabel("directory", readers="owner")

    @saggar.tool("read:notes", effect="read", roles={"path": "target"})
    def notice(path: str) -> str:
        return "the rent goes up by 100"

    @saggar.tool("read:orders", effect="read", labels={"*": record})
    def rent() -> dict[str, float]:
        return {"amount": 1100}

    @saggar.tool("pay:bank", effect="pay", roles={"to": "recipient", "amount": "amount"})
    def pay(to: str, amount: float) -> str:
        calls.append(("pay", to, amount))
        return "paid"

    request = "adjust the rent of landlord to notice.txt"
    plan = (
        'r = rent()\nx = extract([notice(path="notice.txt"), r.amount], {"a": "number"}, "the new rent")\n'
        f'pay(to="landlord", amount=near(x.a, r.amount, {percent or 10}))'
    )
    capabilities = ("read:notes[path=*]", "read:orders", "pay:bank[to=landlord, amount=*, max_amount=1300]")
    reviewer = OneAnswer("denied")
    with saggar.open_session(
        Policy(tools=ToolsPolicy(amount_drift_percent=percent, capabilities=capabilities)),
        tools=[notice, rent, pay],
        planner=ScriptedPlanner({request: plan}),
        worker=ScriptedWorker({"s3": {"a": said}}),
        channels=[reviewer],
        wait_s=0,
        rules=[
            Rule(f"allow.{t}", "allow", tool=t, accepts=("builtin.destructive",)) for t in ("notice", "rent", "pay")
        ],
    ) as session:
        answer, task = session.ask_sync(request), session.id
    assert answer.done
    assert calls == paid
    if percent == 25:
        assert refused(task) == ["budget_amount"]
    elif not paid:
        assert [
            "untrusted_amount" in str(c.reasons) or "amount was chosen" in str(c.reasons) for c in reviewer.cards
        ] == [True]
