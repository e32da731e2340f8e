"""`egress.processes`: 1 to 4, an integer and nothing else, with its origin."""

import pytest

from saggar.core.errors import UsageError
from saggar.policy.load import parse
from saggar.policy.show import to_toml


@pytest.mark.parametrize("value", ["0", "5", "-1", "1.0", "true", '"2"', "[2]"])
def test_refused(value):
    with pytest.raises(UsageError):
        parse(f"[egress]\nprocesses = {value}\n", "f.toml")


def test_taken_and_shown():
    policy = parse("[egress]\nprocesses = 2\n", "f.toml")
    assert policy.egress.processes == 2
    assert "processes = 2  # f.toml:2" in to_toml(policy)
    assert "processes = 1  # default" in to_toml(parse("", "f.toml"))
