import struct

import pytest

from saggar.egress.packet import KernelRefusal, parse_reply
from saggar.egress.packet_filter import FILTER, filter_program

V4 = bytes([203, 0, 113, 9])
ME = bytes([203, 0, 113, 9])
LOOP = bytes([127, 0, 0, 1])
V6 = bytes.fromhex("20010db8000000000000000000000009")


def ip4(protocol, payload, source=V4, destination=ME, offset=0):
    total = 20 + len(payload)
    return struct.pack("!BBHHHBBH4s4s", 0x45, 0, total, 0, offset, 64, protocol, 0, source, destination) + payload


def ip6(protocol, payload, source=V6, destination=V6):
    return struct.pack("!IHBB16s16s", 0x60000000, len(payload), protocol, 64, source, destination) + payload


def tcp(flags, seq=0, port=22):
    return struct.pack("!HHIIBBHHH", port, 40000, seq, 1, 0x50, flags, 0, 0, 0)


def unreachable(inner, kind=3):
    return struct.pack("!BBHI", kind, 3, 0, 0) + inner


UDP = struct.pack("!HHHH", 40000, 443, 8, 0)
ANSWER = struct.pack("!HHHH", 53, 40000, 8, 0)

CASES = {
    "reset of a first segment": (ip4(6, tcp(0x14)), KernelRefusal("tcp", "203.0.113.9", 22)),
    "reset of a first segment, v6": (ip6(6, tcp(0x14)), KernelRefusal("tcp", "2001:db8::9", 22)),
    "reset of an open connection": (ip4(6, tcp(0x14, seq=7)), None),
    "reset without acknowledgement": (ip4(6, tcp(0x04)), None),
    "first segment": (ip4(6, tcp(0x02)), None),
    "reset from loopback": (ip4(6, tcp(0x14), source=LOOP), None),
    "reset from v6 loopback": (ip6(6, tcp(0x14), source=b"\0" * 15 + b"\1"), None),
    "udp": (ip4(1, unreachable(ip4(17, UDP))), KernelRefusal("udp", "203.0.113.9", 443)),
    "udp v6": (ip6(58, unreachable(ip6(17, UDP), kind=1)), KernelRefusal("udp", "2001:db8::9", 443)),
    "udp to loopback": (ip4(1, unreachable(ip4(17, UDP, destination=LOOP))), None),
    "an answer of the name server's": (ip4(1, unreachable(ip4(17, ANSWER))), None),
    "an answer of the name server's, v6": (ip6(58, unreachable(ip6(17, ANSWER), kind=1)), None),
    "another protocol": (ip4(1, unreachable(ip4(47, b"\0" * 8))), KernelRefusal("ip-47", "203.0.113.9", 0)),
    "sctp": (ip4(1, unreachable(ip4(132, UDP))), KernelRefusal("sctp", "203.0.113.9", 443)),
    "an error about an error": (ip4(1, unreachable(ip4(1, b"\0" * 8))), None),
    "echo reply": (ip4(1, b"\0" * 40), None),
    "later fragment": (ip4(6, tcp(0x14), offset=5), None),
    "cut": (ip4(6, tcp(0x14)[:12]), None),
    "cut quote": (ip4(1, unreachable(b"\x45\0\0")), None),
    "empty": (b"", None),
    "short header length": (b"\x41" + ip4(6, tcp(0x14))[1:], None),
    "another version": (b"\x75" + ip4(6, tcp(0x14))[1:], None),
}


@pytest.mark.parametrize("case", CASES)
def test_parse_reply(case):
    packet, expected = CASES[case]
    assert parse_reply(packet) == expected


def run_filter(packet, pkttype=0):
    """The classic BPF machine, as far as FILTER uses it."""
    a = x = 0
    at = 0
    for _ in range(100):
        code, jt, jf, k = FILTER[at]
        at += 1
        if code == 0x06:
            return k
        if code in (0x30, 0x28, 0x20, 0x50, 0x40):
            width = {0x28: 2, 0x20: 4, 0x40: 4}.get(code, 1)
            offset = k + (x if code in (0x50, 0x40) else 0)
            if k >= 0xFFFFF000:
                a = pkttype
            elif offset + width > len(packet):
                return 0
            else:
                a = int.from_bytes(packet[offset : offset + width], "big")
        elif code == 0xB1:
            x = 4 * (packet[k] & 15)
        elif code == 0x54:
            a &= k
        elif code == 0x15:
            at += jt if a == k else jf
        elif code == 0x45:
            at += jt if a & k else jf
    raise AssertionError("the filter does not end")


@pytest.mark.parametrize("case", CASES)
def test_the_filter_lets_through_all_that_the_parser_takes(case):
    packet, expected = CASES[case]
    if expected is not None:
        assert run_filter(packet) > 0
        assert run_filter(packet, pkttype=4) == 0
    elif case.startswith(("reset of an open", "reset from", "udp to loopback", "first", "echo", "later")):
        assert run_filter(packet) == 0


def test_the_filter_drops_data():
    assert run_filter(ip4(6, tcp(0x10))) == 0
    assert run_filter(ip6(6, tcp(0x18))) == 0
    assert run_filter(ip4(17, UDP)) == 0
    assert run_filter(b"\x75" + b"\0" * 60) == 0


def test_the_program_has_the_kernels_layout():
    assert len(filter_program()) == 8 * len(FILTER)
