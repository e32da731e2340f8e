from __future__ import annotations

import pytest

from saggar.core.errors import ParseError
from saggar.egress.budget import Budget, Limits

NONE = Limits()


def test_requests_per_task_survive_new_connections():
    budget = Budget(Limits(requests=3), 0.0)
    for _ in range(3):
        host = budget.host("a.test", NONE, 0.0)
        assert budget.open(host, 0.0) is None
        assert budget.request(host, 0.0) is None
        budget.close(host)
    refusal = budget.request(budget.host("b.test", NONE, 0.0), 0.0)
    assert (refusal.reason, refusal.scope, refusal.limit, refusal.status) == ("budget_requests", "task", 3, 429)


def test_requests_per_host():
    budget = Budget(NONE, 0.0)
    a, b = budget.host("a.test", Limits(requests=1), 0.0), budget.host("b.test", NONE, 0.0)
    assert budget.request(a, 0.0) is None
    assert budget.request(a, 0.0).scope == "host"
    assert budget.request(b, 0.0) is None


def test_rate_refills_and_says_when():
    budget = Budget(NONE, 0.0)
    host = budget.host("a.test", Limits(rate=2.0), 0.0)
    assert budget.request(host, 0.0) is None
    assert budget.request(host, 0.0) is None
    refusal = budget.request(host, 0.0)
    assert (refusal.reason, refusal.retry_after_s) == ("budget_rate", 1)
    assert budget.request(host, 0.5) is None
    assert budget.request(host, 0.5) is not None


def test_slow_rate_lets_the_first_one_through():
    budget = Budget(NONE, 0.0)
    host = budget.host("a.test", Limits(rate=0.1), 0.0)
    assert budget.request(host, 0.0) is None
    assert budget.request(host, 1.0).retry_after_s == 9
    assert budget.request(host, 10.0) is None


def test_bytes_up_refuses_before_counting():
    budget = Budget(Limits(bytes_up=100), 0.0)
    host = budget.host("a.test", NONE, 0.0)
    assert budget.up(host, 60) is None
    refusal = budget.up(host, 60)
    assert (refusal.reason, refusal.status) == ("budget_bytes_up", 413)
    assert budget.task.bytes_up == host.bytes_up == 60
    assert budget.up(host, 40) is None
    assert budget.request(host, 0.0).reason == "budget_bytes_up"


def test_bytes_down():
    budget = Budget(NONE, 0.0)
    host = budget.host("a.test", Limits(bytes_down=10), 0.0)
    assert budget.down(host, 10) is None
    assert budget.down(host, 1).reason == "budget_bytes_down"


def test_connections_and_hosts():
    budget = Budget(Limits(connections=2, hosts=1), 0.0)
    a = budget.host("a.test", NONE, 0.0)
    assert budget.open(a, 0.0) is None
    assert budget.open(budget.host("b.test", NONE, 0.0), 0.0).reason == "budget_hosts"
    assert budget.open(a, 0.0) is None
    assert budget.open(a, 0.0).reason == "budget_connections"
    budget.close(a)
    assert budget.open(a, 0.0) is None


def test_wall():
    budget = Budget(Limits(wall_s=10), 5.0)
    host = budget.host("a.test", NONE, 5.0)
    assert budget.request(host, 14.9) is None
    assert budget.request(host, 15.0).reason == "budget_wall"
    assert budget.open(host, 15.0).reason == "budget_wall"


def test_tighter_limits_of_a_later_policy_keep_the_counters():
    budget = Budget(NONE, 0.0)
    host = budget.host("a.test", NONE, 0.0)
    for _ in range(5):
        budget.request(host, 0.0)
    assert budget.request(budget.host("a.test", Limits(requests=5), 0.0), 0.0).reason == "budget_requests"


@pytest.mark.parametrize(
    "data", [{"requestz": 1}, {"requests": 0}, {"rate": -1}, {"requests": True}, {"requests": "5"}]
)
def test_bad_limits(data):
    with pytest.raises(ParseError) as e:
        Limits.parse(data)
    assert e.value.reason == "bad_budget"


def test_public_text_names_the_budget():
    budget = Budget(Limits(requests=1), 0.0)
    host = budget.host("a.test", NONE, 0.0)
    budget.request(host, 0.0)
    assert budget.request(host, 0.0).public == "the task's budget of requests (1) is used up"


def test_a_rule_without_limits_loosens_nothing():
    budget = Budget(NONE, 0.0)
    limited = budget.host("a.test", Limits(requests=1, rate=5), 0.0)
    for limits in (NONE, None, Limits(requests=9), Limits(bytes_up=3)):
        assert budget.host("a.test", limits, 0.0) is limited
    assert limited.limits == Limits(requests=1, rate=5, bytes_up=3)


def test_the_limits_of_all_rules_hold_from_the_first_use_and_follow_the_rules():
    budget = Budget(NONE, 0.0)
    budget.limit(NONE, lambda host: Limits(requests=2) if host == "a.test" else NONE)
    meter = budget.host("a.test", NONE, 0.0)
    assert [budget.request(meter, 0.0) is None for _ in range(3)] == [True, True, False]
    budget.limit(NONE, lambda _: NONE)
    assert budget.request(meter, 0.0) is None
    budget.limit(NONE, lambda _: Limits(requests=3))
    assert budget.request(meter, 0.0).limit == 3
