from saggar.egress.names import MAX_LATE_NAMES, SyntheticNames
from saggar.policy.model import EgressRule


def test_names_keep_their_address_and_late_ones_are_bounded():
    names = SyntheticNames([EgressRule(host="*.w.test"), EgressRule(host="a.test")])
    assert names.address_of("a.test") == "198.18.1.1"
    assert names.address_of("x.w.test") == "198.18.1.2"
    assert names.address_of("x.w.test") == "198.18.1.2"
    assert names.name_of("198.18.1.2") == "x.w.test"
    assert names.name_of("203.0.113.1") == ""
    for i in range(MAX_LATE_NAMES - 1):
        assert names.address_of(f"h{i}.w.test")
    assert names.address_of("one-more.w.test") == ""
    assert names.address_of("a.test") == "198.18.1.1"
