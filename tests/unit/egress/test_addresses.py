import pytest

from saggar.egress.addresses import first_refusal, refusal

CASES = {
    # rows 12 and 13 of the behaviours
    "0.0.0.0": "this_network",
    "0.1.2.3": "this_network",
    "10.0.0.1": "private",
    "100.64.0.1": "carrier_grade_nat",
    "100.127.255.255": "carrier_grade_nat",
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "168.63.129.16": "metadata",
    "169.254.0.1": "link_local",
    "169.254.169.254": "metadata",
    "169.254.170.2": "metadata",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.0.0.1": "protocol_assignments",
    "192.88.99.1": "6to4_relay",
    "192.168.1.1": "private",
    "198.18.1.0": "synthetic",
    "198.19.255.53": "synthetic",
    "224.0.0.1": "multicast",
    "239.255.255.255": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "::": "unspecified",
    "::1": "loopback",
    "::127.0.0.1": "ipv4_compatible",
    "::8.8.8.8": "ipv4_compatible",
    "::ffff:127.0.0.1": "ipv4_mapped",
    "::ffff:8.8.8.8": "ipv4_mapped",
    "::ffff:0:127.0.0.1": "ipv4_translated",
    "64:ff9b::7f00:1": "nat64_loopback",
    "64:ff9b::a9fe:a9fe": "nat64_metadata",
    "64:ff9b::10.0.0.1": "nat64_private",
    "64:ff9b:1::1": "local_nat64",
    "100::1": "discard_only",
    "2001::1": "teredo",
    "2001:0:7f00:1::": "teredo",
    "2001:10::1": "protocol_assignments",
    "2002:7f00:1::": "6to4",
    "2002:0808:0808::": "6to4",
    "3fff::1": "documentation",
    "3fff:fff:ffff::": "documentation",
    "5f00::1": "segment_routing",
    "fc00::1": "private",
    "fd00::1": "private",
    "fd00:ec2::254": "metadata",
    "fe80::1": "link_local",
    "febf::1": "link_local",
    "fec0::1": "site_local",
    "ff02::1": "multicast",
    "4000::1": "not_global_unicast",
    "1::1": "not_global_unicast",
    "2600::5efe:10.0.0.1": "isatap_private",
    "2600::200:5efe:7f00:1": "isatap_loopback",
    "fe80::1%lo": "zoned",
    "127.1": "not_an_address",
    "0x7f000001": "not_an_address",
    "": "not_an_address",
    "localhost": "not_an_address",
    # may be dialled
    "8.8.8.8": "",
    "1.1.1.1": "",
    "99.255.255.255": "",
    "100.128.0.1": "",
    "126.255.255.255": "",
    "172.15.0.1": "",
    "172.32.0.1": "",
    "198.17.255.255": "",
    "198.20.0.1": "",
    "223.255.255.255": "",
    "2600::1": "",
    "2a00:1450::1": "",
    "64:ff9b::8.8.8.8": "",
    # documentation ranges: unroutable, see the module
    "192.0.2.1": "",
    "198.51.100.1": "",
    "203.0.113.1": "",
    "2001:db8::1": "",
}


@pytest.mark.parametrize("address", CASES)
def test_refusal(address):
    assert refusal(address) == CASES[address]


def test_one_bad_answer_refuses_all():
    assert first_refusal(["8.8.8.8", "10.0.0.1", "1.1.1.1"]) == ("10.0.0.1", "private")
    assert first_refusal(["8.8.8.8", "1.1.1.1"]) == ("", "")
    assert first_refusal([]) == ("", "")


def test_metadata_passes_only_where_a_rule_says_so():
    assert first_refusal(["169.254.169.254"]) == ("169.254.169.254", "metadata")
    assert first_refusal(["169.254.169.254"], metadata=True) == ("", "")
    assert first_refusal(["169.254.169.254", "127.0.0.1"], metadata=True) == ("127.0.0.1", "loopback")
