"""Twin of capability.cedar: it tightens, and an error of its own denies."""

from __future__ import annotations

import pytest

from saggar.capability.cedar import CedarPolicy, plain
from saggar.core.errors import UsageError
from saggar.testing.capability_desk import make_desk

pytest.importorskip("cedarpy", reason="the optional package cedarpy is not installed")

MAIL = {"to": "bob@acme.com", "subject": "s", "body": "b"}
CAP = "send:email[to=*@acme.com]"
PERMIT = "permit(principal, action, resource);"


def reason(policies, capability=CAP, tool="send_email", args=MAIL):
    desk, _, _ = make_desk(capability, outside=[CedarPolicy(policies, principal="task-1")])
    return desk.gateway.call(desk.gateway.token([capability]), tool, args).decision.reason


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        (PERMIT, "rule_allow"),
        ("", "cedar_deny"),
        (PERMIT + 'forbid(principal, action, resource) when { context.args.to == "bob@acme.com" };', "cedar_deny"),
        (PERMIT + 'forbid(principal, action, resource) when { context.args.to == "eve@acme.com" };', "rule_allow"),
        (
            'permit(principal == Holder::"task-1", action == Action::"send", resource == Tool::"send_email");',
            "rule_allow",
        ),
        ('permit(principal == Holder::"task-2", action, resource);', "cedar_deny"),
        (PERMIT + "forbid(principal, action, resource) when { context.args.missing == 1 };", "cedar_error"),
        (PERMIT + 'forbid(principal, action, resource) when { context.effect == "egress" };', "cedar_deny"),
    ],
)
def test_tightens(policies, expected):
    assert reason(policies) == expected


def test_never_allows_what_ours_refuse():
    assert reason(PERMIT, args=MAIL | {"to": "eve@evil.example"}) == "constraint"
    assert reason(PERMIT, tool="read_notes", args={"day": "x"}) == "tool_not_granted"


def test_a_text_that_does_not_parse_does_not_load():
    with pytest.raises(UsageError, match="do not parse"):
        CedarPolicy("permit(principal, action);", principal="t")


def test_plain():
    assert plain({"a": None, "b": [1, None, 2.5], "c": 2**70}) == {"b": [1, "2.5"], "c": str(2**70)}
