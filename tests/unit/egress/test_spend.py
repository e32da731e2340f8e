import pytest

from saggar.egress.budget import Budget, Limits
from saggar.egress.spend import Spend


def test_open_and_close_balance():
    budget = Budget(Limits(connections=1), 0.0)
    first, second = (Spend(budget, "a.test", lambda: 0.0) for _ in range(2))
    assert first.open() is None
    assert second.open().reason == "budget_connections"
    second.close()
    assert second.open() is not None, "what was not opened gives nothing back"
    first.close()
    first.close()
    assert second.open() is None
    assert budget.task.connections == 1


@pytest.mark.parametrize(
    ("limits", "counts"), [({}, False), ({"requests": 1}, False), ({"bytes_up": 1}, True), ({"bytes_down": 1}, True)]
)
def test_bytes_are_counted_only_where_they_are_limited(limits, counts):
    assert Spend(Budget(Limits(**limits), 0.0), "a.test", lambda: 0.0).counts_bytes is counts


def test_the_hosts_own_limits_stay_when_another_path_looks_at_them():
    budget = Budget(Limits(), 0.0)
    meter = budget.host("a.test", Limits(requests=1), 0.0)
    spend = Spend(budget, "a.test", lambda: 0.0)
    assert spend.request() is None
    assert spend.request().scope == "host"
    assert meter.limits.requests == 1
