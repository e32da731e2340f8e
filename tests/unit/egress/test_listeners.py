import pytest

from saggar.egress.listeners import RESOLVER_ADDRESS, plan, synthetic_address, synthetic_addresses
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
