"""Twin of runtime.subagent: every wall has a child that is narrower and one that is wider."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from saggar.capability.declare import tool
from saggar.capability.desk_host import Desk
from saggar.capability.past import Past
from saggar.core.clock import ManualClock
from saggar.core.errors import Denied, UsageError
from saggar.core.tool import Budget
from saggar.policy.load import parse
from saggar.runtime.starter import starter
from saggar.runtime.subagent import agent_tool, check_narrower, wider
from saggar.runtime.tools_host import ToolSession
from saggar.testing.capability import MemoryLog
from saggar.testing.capability_desk import DECLARATIONS, TOOLS, make_desk

PARENT = """
[isolation]
tier = "gvisor"
read = ["/usr", "/opt/data"]
[limits]
memory = "1GiB"
tasks = 100
timeout = "10m"
require = "enforced"
[workspace]
path = "/srv/project"
mode = "copy-on-write"
protect = ["secrets/**"]
[[egress.allow]]
host = "api.example.com"
ports = [443]
[[egress.allow]]
host = "*.cdn.example.com"
ports = [443, 80]
[environment]
pass = ["LANG", "TZ"]
[environment.set]
MODE = "test"
[tools]
capabilities = ["send:email[to=*@acme.com, cc=*@acme.com, max=5]", "read:notes[day=*]"]
[[tools.rule]]
id = "mail"
effect = "allow"
tool = "send_email"
when = { to = "*@acme.com", cc = "*@acme.com" }
[[tools.rule]]
id = "never"
effect = "deny"
tool = "send_email"
when = { to = "boss@acme.com" }
[[tools.rule]]
id = "notes"
effect = "allow"
tool = "read_notes"
"""


def change(old, new):
    assert old in PARENT
    return PARENT.replace(old, new)


def of(text):
    return wider(parse(text, "child"), parse(PARENT, "parent"), DECLARATIONS)


@pytest.mark.parametrize(
    "text",
    [
        PARENT,
        change('tier = "gvisor"', 'tier = "microvm"'),
        change('read = ["/usr", "/opt/data"]', 'read = ["/usr/lib"]'),
        change('memory = "1GiB"', 'memory = "512MiB"'),
        change('timeout = "10m"', 'timeout = "1m"'),
        change('path = "/srv/project"', 'path = "/srv/project/sub"'),
        change('mode = "copy-on-write"', 'mode = "read-only"'),
        change('protect = ["secrets/**"]', 'protect = ["secrets/**", "x"]'),
        change('host = "*.cdn.example.com"\nports = [443, 80]', 'host = "a.cdn.example.com"\nports = [80]'),
        change('pass = ["LANG", "TZ"]', "pass = []"),
        change("max=5", "max=2"),
        change(
            'capabilities = ["send:email[to=*@acme.com, cc=*@acme.com, max=5]", "read:notes[day=*]"]',
            "capabilities = []",
        ),
        change('when = { to = "*@acme.com", cc = "*@acme.com" }', 'when = { to = "bob@acme.com", cc = "*@acme.com" }'),
    ],
)
def test_narrower(text):
    assert of(text) == []


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (change('tier = "gvisor"', 'tier = "process"'), ["isolation.tier"]),
        (change('tier = "gvisor"', 'tier = "container"'), ["isolation.tier"]),
        (change('tier = "gvisor"', 'tier = "auto"'), ["isolation.tier"]),
        (change('read = ["/usr", "/opt/data"]', 'read = ["/opt"]'), ["isolation.read"]),
        (change('read = ["/usr", "/opt/data"]', 'read = ["/usr2"]'), ["isolation.read"]),
        (change('memory = "1GiB"', 'memory = "2GiB"'), ["limits.memory_bytes"]),
        (change("tasks = 100", "tasks = 101"), ["limits.tasks"]),
        (change('timeout = "10m"', 'timeout = "none"'), ["limits.timeout_s"]),
        (change('require = "enforced"', 'require = "any"'), ["limits.require"]),
        (change('path = "/srv/project"', 'path = "/srv"'), ["workspace.path"]),
        (change('path = "/srv/project"', 'path = "/srv/project2"'), ["workspace.path"]),
        (change('mode = "copy-on-write"', 'mode = "read-write"'), ["workspace.mode"]),
        (change('protect = ["secrets/**"]', "protect = []"), ["workspace.protect"]),
        (change('protect = ["secrets/**"]', 'protect = ["secrets/**"]\nunsafe_broad = true'), ["workspace.unsafe_broad"]),
        (change('host = "api.example.com"\nports = [443]', 'host = "api.example.com"\nports = [443, 22]'), ["egress.allow.api.example.com"]),
        (change('host = "api.example.com"', 'host = "api.evil.example"'), ["egress.allow.api.evil.example"]),
        (change('host = "*.cdn.example.com"', 'host = "a.b.cdn.example.com"'), ["egress.allow.a.b.cdn.example.com"]),
        (change('ports = [443]\n', 'ports = [443]\nconnect_to = "127.0.0.1:443"\n'), ["egress.allow.api.example.com"]),
        (change('pass = ["LANG", "TZ"]', 'pass = ["AWS_SECRET"]'), ["environment.pass"]),
        (change('MODE = "test"', 'MODE = "live"'), ["environment.set"]),
        (change("max=5", "max=6"), ["tools.capabilities.send:email[to=*@acme.com, cc=*@acme.com, max=6]"]),
        (change("[to=*@acme.com, cc", "[to=*, cc"), ["tools.capabilities.send:email[to=*, cc=*@acme.com, max=5]"]),
        (change('"read:notes[day=*]"', '"read:notes[day=*]", "read:inbox"'), ["tools.capabilities.read:inbox"]),
        (change('when = { to = "*@acme.com", cc = "*@acme.com" }', 'when = { to = "*", cc = "*@acme.com" }'), ["tools.rule.mail"]),
        (change('tool = "read_notes"', 'tool = "read_notes"\naccepts = ["builtin.authority"]'), ["tools.rule.notes"]),
        (PARENT.partition("[[tools.rule]]")[0], ["tools.rule.never", "tools.rule"]),
        (change('id = "never"\neffect = "deny"', 'id = "never"\neffect = "ask"'), ["tools.rule.never"]),
    ],
)  # fmt: skip
def test_wider(text, keys):
    assert of(text) == keys


def test_an_empty_child_is_wider_where_the_default_is():
    assert of("") == [
        "isolation.tier",
        "limits.tasks",
        "limits.require",
        "workspace.path",
        "workspace.protect",
        "tools.rule.never",
        "tools.rule",
    ]


def test_a_wildcard_keeps_the_exact_rules_that_beat_it():
    exact = '[[egress.allow]]\nhost = "login.cdn.example.com"\nports = [443]\nconnect_to = "127.0.0.1:1"\n'
    parent = parse(PARENT + exact, "parent")
    assert wider(parse(PARENT, "child"), parent, DECLARATIONS) == ["egress.allow.*.cdn.example.com"]
    assert wider(parse(PARENT + exact, "child"), parent, DECLARATIONS) == []


def test_starting_is_an_operation_and_checked_before_it_starts():
    started = []
    made = agent_tool(parse(PARENT, "p"), TOOLS, lambda policy, task: started.append(task) or "ok")
    cap = "start:agent[name={reader, writer}]"
    desk, log, _ = make_desk(cap, tools=[made])
    token = desk.gateway.token([cap])
    good = {"name": "reader", "policy": change('memory = "1GiB"', 'memory = "4MiB"'), "task": "read"}
    assert desk.gateway.call(token, "start_agent", good).value == "ok"
    assert desk.gateway.call(token, "start_agent", good | {"name": "boss"}).decision.reason == "constraint"
    desk, log, _ = make_desk(cap, tools=[made])  # a task that has not read what an agent said
    token = desk.gateway.token([cap])
    out = desk.gateway.call(token, "start_agent", good | {"policy": change("tasks = 100", "tasks = 101")})
    assert (out.status, started) == ("failed", ["read"])
    assert log.of("capability.outcome")[-1]["detail"]["error"] == "Denied"


def test_denied_says_which_keys():
    with pytest.raises(Denied) as caught:
        check_narrower(parse(change("tasks = 100", "tasks = 101"), "c"), parse(PARENT, "p"), DECLARATIONS)
    assert (caught.value.decision.reason, caught.value.decision.detail) == (
        "subagent_wider",
        {"wider": ["limits.tasks"]},
    )


SEND = "send:email[to=*@acme.com, max=3]"
MAIL = {"to": "bob@acme.com", "subject": "s", "body": "b"}


def child_of(parent, cap, held, task, budget=None):
    log, clock = MemoryLog(), ManualClock()
    above = parent.gateway.above(parent.gateway.grants([held]))
    return Desk(task, TOOLS, audit=log, capabilities=[cap], clock=clock, above=above, budget=budget)


def sent(desk, cap, n, args=MAIL):
    token = desk.gateway.token([cap])
    return [desk.gateway.call(token, "send_email", args).decision.reason for _ in range(n)]


def test_children_share_what_their_parent_may():
    parent, _, _ = make_desk(SEND)
    children = [child_of(parent, SEND, SEND, f"child-{i}") for i in range(3)]
    assert [sent(c, SEND, 1) for c in children] == [["rule_allow"]] * 3
    assert [sent(c, SEND, 1) for c in (*children, parent)] == [["budget_calls"]] * 4


def test_a_child_s_own_budget_holds_and_is_its_own():
    parent, _, _ = make_desk(SEND)
    one = "send:email[to=*@acme.com, max=1]"
    first, second = child_of(parent, one, SEND, "c1"), child_of(parent, one, SEND, "c2")
    assert sent(first, one, 2) == ["rule_allow", "budget_calls"]
    assert sent(second, one, 2) == ["rule_allow", "budget_calls"]
    assert sent(parent, SEND, 2) == ["rule_allow", "budget_calls"]


def test_grandchildren_charge_everybody_above_them():
    parent, _, _ = make_desk(SEND, budget=Budget(calls=2))
    child = child_of(parent, SEND, SEND, "c")
    grand = child_of(child, SEND, SEND, "g")
    assert sent(grand, SEND, 3) == ["rule_allow", "rule_allow", "budget_calls"]
    assert sent(child, SEND, 1) == ["budget_calls"]


def test_what_the_parent_does_not_hold_is_not_the_child_s():
    parent, _, _ = make_desk(SEND)
    child = child_of(parent, "send:email[to=*]", SEND, "c")
    assert sent(child, "send:email[to=*]", 1, MAIL | {"to": "eve@evil.example"}) == ["parent_not_granted"]


def test_a_resumed_child_restores_its_own_accounts_alone():
    parent, _, _ = make_desk(SEND)
    child = child_of(parent, SEND, SEND, "c")
    sent(child, SEND, 2)
    key = next(a for a in parent.gateway._ledger._used if a[0] == "grant")
    child.gateway.restore(Past(used={key: (0, 0, Decimal(0)), ("agent", "c", *key): (3, 0, Decimal(0))}))
    assert parent.gateway._ledger.used(key)[0] == 2
    assert sent(child, SEND, 1) == ["budget_calls"]


def test_sessions_with_a_parent(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    with ToolSession(TOOLS, capabilities=[SEND], channels=[]) as parent:
        got = []
        for _ in range(2):
            with ToolSession(TOOLS, capabilities=[SEND], channels=[], parent=parent) as child:
                got += [child.call("send_email", **MAIL).decision.reason for _ in range(2)]
    assert got == ["rule_allow", "rule_allow", "rule_allow", "budget_calls"]


def agents(opens):
    """A parent's tools: one that opens a session as a sub-agent would, sync and async."""

    @tool("start:child", effect="write", roles={"n": "content"}, reversible=True)
    def start_child(n: int) -> list[str]:
        return opens(n)

    @tool("start:later", effect="write", roles={"n": "content"}, reversible=True)
    async def start_later(n: int) -> list[str]:
        return await asyncio.to_thread(opens, n)

    return [*TOOLS, start_child, start_later]


@pytest.mark.parametrize("name", ["start_child", "start_later"])
def test_a_session_opened_in_a_tool_s_body_is_a_child_of_its_session(tmp_path, monkeypatch, name):
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))

    def opens(n):
        with ToolSession(TOOLS, capabilities=[SEND], channels=[]) as child:
            return [child.call("send_email", **MAIL).decision.reason for _ in range(n)]

    with ToolSession(agents(opens), capabilities=[SEND, "start:child", "start:later"], channels=[]) as parent:
        assert parent.call(name, n=2).value == ["rule_allow", "rule_allow"]
        assert parent.call(name, n=2).value == ["rule_allow", "budget_calls"]
        assert starter() is None
        # outside of its body nobody is anybody's child
        with ToolSession(TOOLS, capabilities=[SEND], channels=[]) as other:
            assert other.call("send_email", **MAIL).done


def test_a_child_of_a_body_has_nothing_that_its_parent_has_not(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))

    def opens(n):
        with ToolSession(TOOLS, capabilities=[SEND], channels=[]) as child:
            return [child.call("send_email", **MAIL).decision.reason for _ in range(n)]

    with ToolSession(agents(opens), capabilities=["start:child", "start:later"], channels=[]) as parent:
        assert parent.call("start_child", n=1).value == ["parent_not_granted"]
        assert parent.call("start_later", n=1).value == ["parent_not_granted"]


def test_two_bodies_at_a_time_have_each_its_own_parent(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    both = threading.Barrier(2, timeout=20)

    def opens(n):
        both.wait()
        here = starter()
        both.wait()
        return [here.id]

    capabilities = [SEND, "start:child", "start:later"]
    with (
        ToolSession(agents(opens), capabilities=capabilities, channels=[]) as one,
        ToolSession(agents(opens), capabilities=capabilities, channels=[]) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        told = [pool.submit(s.call, name, n=1) for s, name in ((one, "start_child"), (two, "start_later"))]
        assert [t.result().value for t in told] == [[one.id], [two.id]]


def test_a_child_has_no_more_processes_than_its_parent():
    two = parse("[egress]\nprocesses = 2\n", "child")
    assert "egress.processes" in wider(two, parse("", "parent"), {})
    assert "egress.processes" not in wider(two, two, {})


def test_a_task_that_outlives_its_starter_opens_nothing_in_its_name(tmp_path, monkeypatch):
    """A background task born in an async body has the body's context for good; the budgets there end with the session."""
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))

    async def later(over):
        with ToolSession(TOOLS, capabilities=[SEND], channels=[]) as early:
            assert early.call("send_email", **MAIL).done
        await over.wait()
        with pytest.raises(UsageError, match="has ended"):
            ToolSession(TOOLS, capabilities=[SEND], channels=[])
        with contextvars.Context().run(ToolSession, TOOLS, capabilities=[SEND], channels=[]) as own:
            return own.call("send_email", **MAIL).decision.reason

    async def main():
        over, born = asyncio.Event(), []

        @tool("start:later", effect="write", reversible=True)
        async def start_later() -> str:
            born.append(asyncio.create_task(later(over)))
            await asyncio.sleep(0)
            return "begun"

        with ToolSession([*TOOLS, start_later], capabilities=[SEND, "start:later"], channels=[]) as parent:
            done = await parent.gateway.acall(parent.token(), "start_later", {})
            assert done.value == "begun"
        over.set()
        return await born[0]

    assert asyncio.run(main()) == "rule_allow"


def test_a_pool_does_not_hand_the_starter_on(tmp_path, monkeypatch):
    """What docs/CAPABILITIES.md says of executors."""
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))

    def opens(_):
        with ThreadPoolExecutor(1) as pool:
            return [str(pool.submit(starter).result()), str(starter().id)]

    with ToolSession(agents(opens), capabilities=["start:child", "start:later"], channels=[]) as parent:
        assert parent.call("start_child", n=1).value == ["None", parent.id]
