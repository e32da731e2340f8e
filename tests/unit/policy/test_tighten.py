import pytest

from saggar.core.errors import UsageError
from saggar.policy.tighten import tighten

FILE = """# ours
[isolation]
tier = "process"

[[egress.allow]]  # the API
host = "a.test"
ports = [443, 80]  # both

[[egress.allow]]
host = "b.test"

[[egress.allow]]
id = "c"
host = "c.test"
ports = [443]

[environment]
set = { X = "y" }
"""


@pytest.mark.parametrize(
    ("unused", "removed", "gone", "stays"),
    [
        ({"egress.allow[1]": (443,)}, ("b.test:443",), 'host = "b.test"', 'host = "a.test"'),
        ({"egress.allow[0]": (80,)}, ("a.test:80",), "443, 80", "ports = [443]  # both"),
        ({"c": (443,), "egress.allow[0]": (443, 80)}, ("a.test:443", "a.test:80", "c.test:443"), "a.test", "b.test"),
    ],
)
def test_tighten(unused, removed, gone, stays):
    made = tighten(FILE, "f", unused)
    assert made.removed == removed
    assert gone not in made.text
    assert stays in made.text
    assert 'set = { X = "y" }' in made.text


TABLES = """
[[egress.allow]]
host = "a.test"
[egress.allow.http]
methods = ["GET"]
[egress.allow.http.budget]
requests = 5

[[egress.allow]]
host = "b.test"
[egress.allow.http]
websocket = true
[[egress.allow.http.rules]]
paths = ["/x"]
[[egress.allow.http.rules]]
paths = ["/y"]

[[egress.allow]]
host = "c.test"
[egress.allow.http]
methods = ["PUT"]
"""


@pytest.mark.parametrize("number", range(3))
def test_tables_of_a_rule_go_with_it(number):
    from saggar.policy.load import parse

    made = tighten(TABLES, "f", {f"egress.allow[{number}]": (443,)})
    before, after = parse(TABLES, "f").egress.allow, parse(made.text, "f").egress.allow
    kept = [rule for i, rule in enumerate(before) if i != number]
    assert [(r.host, r.http) for r in after] == [(r.host, r.http) for r in kept]


@pytest.mark.parametrize(
    ("text", "unused"),
    [
        (FILE, {}),
        (FILE, {"of another policy": (443,)}),
        ('egress = { allow = [{ host = "a.test" }] }\n', {"egress.allow[0]": (443,)}),
        ('[[egress.allow]]\nhost = "a.test"\nports = [443,\n 80]\n', {"egress.allow[0]": (80,)}),
    ],
)
def test_no_proposal(text, unused):
    assert tighten(text, "f", unused) is None


def test_a_file_that_does_not_load_is_said_so():
    with pytest.raises(UsageError):
        tighten("[[egress.allow]]\nhots = 1\n", "f", {})
