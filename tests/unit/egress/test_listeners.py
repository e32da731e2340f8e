import pytest

from saggar.egress.listeners import (
    MAX_HOSTS_NAMES,
    RESOLVER_ADDRESS,
    hosts_lines,
    plan,
    synthetic_address,
    synthetic_addresses,
)
from saggar.egress.match import RuleSet
from saggar.egress.names import SyntheticNames
from saggar.egress.packet_filter import filter_program
from saggar.policy.model import EgressRule

BASE = [
    {"kind": "tcp", "address": "0.0.0.0", "port": 80},
    {"kind": "tcp", "address": "::", "port": 80},
    {"kind": "tcp", "address": "0.0.0.0", "port": 443},
    {"kind": "tcp", "address": "::", "port": 443},
    {"kind": "udp", "address": RESOLVER_ADDRESS, "port": 53},
    {"kind": "tcp", "address": RESOLVER_ADDRESS, "port": 53},
    {"kind": "tcp", "address": RESOLVER_ADDRESS, "port": 3128},
]


def tcp(address, port):
    return {"kind": "tcp", "address": address, "port": port}


@pytest.mark.parametrize(
    ("rules", "further"),
    [
        ([], []),
        ([EgressRule(host="a.test")], []),
        ([EgressRule(host="a.test", ports=(80, 443))], []),
        ([EgressRule(host="a.test"), EgressRule(host="db.test", ports=(5432,))], [tcp("198.18.1.1", 5432)]),
        (  # one name, one address, however many rules name it
            [
                EgressRule(host="a.test", ports=(22,)),
                EgressRule(host="b.test"),
                EgressRule(host="a.test", ports=(23, 22)),
            ],
            [tcp("198.18.1.0", 22), tcp("198.18.1.0", 23)],
        ),
        ([EgressRule(host="*.w.test", ports=(443, 8443))], []),
    ],
)
def test_plan(rules, further):
    assert plan(rules) == [*BASE, *further, {"kind": "packet", "filter": filter_program().hex()}]


def test_synthetic_addresses_follow_file_order_and_skip_wildcards():
    rules = [EgressRule(host="*.w.test"), EgressRule(host="a.test"), EgressRule(host="a.test")]
    assert synthetic_addresses(rules) == {"a.test": "198.18.1.1"}


def test_synthetic_address_is_bounded():
    assert synthetic_address(0) == "198.18.1.0"
    assert synthetic_address(256) == "198.18.2.0"
    with pytest.raises(ValueError):
        synthetic_address(131072 - 512 - 256)
    with pytest.raises(ValueError):
        synthetic_address(-1)


def test_hosts_lines_are_what_the_stub_says_at_the_start():
    rules = [
        EgressRule(host="*.w.test"),
        EgressRule(host="a.test", ports=(5432,)),
        EgressRule(host="off.test", enabled=False),
        EgressRule(host="part.test", enabled=False),
        EgressRule(host="part.test", ports=(80,)),
        EgressRule(host="a.test"),
        EgressRule(host="metadata.google.internal"),
        EgressRule(host="metadata.goog", allow_metadata=True),
    ]
    lines = [line.split(" ") for line in hosts_lines(rules).splitlines()]
    assert lines == [["198.18.1.1", "a.test"], ["198.18.1.3", "part.test"], ["198.18.1.7", "metadata.goog"]]
    for address, name in lines:
        assert RuleSet(rules).name_reason(name) == ""
        assert SyntheticNames(rules).address_of(name) == address


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "saggar",
        "a.localhost",
        "*.w.test",
        "a.test\n1.2.3.4 b.test",
        "a.test b.test",
        "a.test#",
        "A.test",
        "ä.test",
        ".",
        "",
    ],
)
def test_hosts_lines_leave_to_the_stub_what_is_no_plain_name(host):
    assert hosts_lines([EgressRule(host=host), EgressRule(host="b.test")]) == "198.18.1.1 b.test\n"


def test_a_long_list_is_no_list():
    rules = [EgressRule(host=f"h{n}.test") for n in range(MAX_HOSTS_NAMES + 1)]
    assert hosts_lines(rules[1:]).count("\n") == MAX_HOSTS_NAMES
    assert hosts_lines(rules) == ""
    assert hosts_lines([]) == ""
