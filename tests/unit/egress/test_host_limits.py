import json

import pytest

from saggar.egress.budget import NONE, Limits
from saggar.egress.host_limits import HostLimits
from saggar.egress.match import RuleSet
from saggar.policy.model import EgressRule


def rule(host, budget=None, **more):
    return EgressRule(id=host, host=host, http="" if budget is None else json.dumps({"budget": budget}), **more)


RULES = RuleSet(
    [
        rule("a.x.test", {"requests": 9, "rate": 1}),
        rule("a.x.test", {"requests": 5}, ports=(8443,)),
        rule("a.x.test", ports=(80,)),
        rule("a.x.test", {"requests": 1}, ports=(81,), enabled=False),
        rule("*.x.test", {"bytes_up": 7}),
        EgressRule(id="bad", host="bad.test", http="["),
    ]
)


@pytest.mark.parametrize(
    ("host", "limits"),
    [
        ("a.x.test", Limits(requests=5, rate=1, bytes_up=7)),
        ("b.x.test", Limits(bytes_up=7)),
        ("x.test", NONE),
        ("bad.test", NONE),
        ("other.test", NONE),
    ],
)
def test_the_strictest_of_all_rules_that_name_the_host(host, limits):
    assert HostLimits(RULES)(host) == limits
