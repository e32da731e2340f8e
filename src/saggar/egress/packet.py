"""What the kernel refuses by itself inside a cell: read from the replies that it sends (RFC 9293, 792, 4443).

I1  Only a reply is evidence: a reset that answers a connection's first segment, or an ICMP error. Traffic between
    processes of the cell, and resets of connections that were once open, say nothing and are not looked at.
I2  Loopback destinations are the cell's own business.
I3  Bytes give a `KernelRefusal` or None; nothing is allocated for what is ignored.

Every packet on `lo` passes the filter twice, as outgoing and as incoming; only the incoming one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from struct import pack

_TCP, _UDP, _ICMP, _ICMPV6, _SCTP = 6, 17, 1, 58, 132
_NAMES = {_TCP: "tcp", _UDP: "udp", _ICMP: "icmp", _ICMPV6: "icmp", _SCTP: "sctp"}
_FLAG_RST_ACK = 0x14

#: enough of a reply to hold an ICMP error with the head of what it answers
SNAP = 256


@dataclass(frozen=True, slots=True)
class KernelRefusal:
    """protocol: `tcp`, `udp`, `sctp` or `ip-N`; address: where the refused packet went; port 0 where it has none."""

    protocol: str
    address: str
    port: int


# Classic BPF (Documentation/networking/filter.rst), as (code, jump true, jump false, k). With SOCK_DGRAM the packet
# starts at its IP header.
_LD_B_ABS, _LD_H_ABS = 0x30, 0x28
_LD_B_IND, _LDX_MSH = 0x50, 0xB1
_JEQ, _JSET, _AND, _RET = 0x15, 0x45, 0x54, 0x06
_PKTTYPE = 0xFFFFF000 + 4  # SKF_AD_OFF + SKF_AD_PKTTYPE; 0 is PACKET_HOST

FILTER: tuple[tuple[int, int, int, int], ...] = (
    (_LD_B_ABS, 0, 0, _PKTTYPE),
    (_JEQ, 0, 22, 0),  # not an incoming one: drop
    (_LD_B_ABS, 0, 0, 0),
    (_AND, 0, 0, 0xF0),
    (_JEQ, 0, 10, 0x40),  # not IPv4: on to 15
    (_LD_H_ABS, 0, 0, 6),
    (_JSET, 17, 0, 0x1FFF),  # a later fragment: drop
    (_LDX_MSH, 0, 0, 0),  # X = length of the IPv4 header
    (_LD_B_ABS, 0, 0, 9),
    (_JEQ, 3, 0, _TCP),
    (_JEQ, 0, 13, _ICMP),
    (_LD_B_IND, 0, 0, 0),
    (_JEQ, 10, 11, 3),  # destination unreachable
    (_LD_B_IND, 0, 0, 13),  # 13: the flags of TCP over IPv4
    (_JSET, 8, 9, 0x04),  # RST
    (_JEQ, 0, 8, 0x60),  # 15: IPv6
    (_LD_B_ABS, 0, 0, 6),
    (_JEQ, 3, 0, _TCP),
    (_JEQ, 0, 5, _ICMPV6),
    (_LD_B_ABS, 0, 0, 40),
    (_JEQ, 2, 3, 1),  # destination unreachable
    (_LD_B_ABS, 0, 0, 53),  # 21: the flags of TCP over IPv6
    (_JSET, 0, 1, 0x04),
    (_RET, 0, 0, SNAP),
    (_RET, 0, 0, 0),
)


def filter_program() -> bytes:
    """`FILTER` as the kernel's `struct sock_filter[]`, for SO_ATTACH_FILTER."""
    return b"".join(pack("=HBBI", *instruction) for instruction in FILTER)


def parse_reply(packet: bytes) -> KernelRefusal | None:
    """What `packet`, from its IP header on, says was refused; None where it says nothing of the kind."""
    if len(packet) < 20:
        return None
    version = packet[0] >> 4
    if version == 4:
        header = (packet[0] & 15) * 4
        if header < 20 or int.from_bytes(packet[6:8], "big") & 0x1FFF:
            return None
        return _transport(packet[9], packet[header:], packet[12:16])
    if version == 6 and len(packet) >= 40:
        return _transport(packet[6], packet[40:], packet[8:24])
    return None


def _address(packed: bytes) -> str:
    return str(IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed))


def _is_loopback(packed: bytes) -> bool:
    return packed[0] == 127 if len(packed) == 4 else packed == b"\0" * 15 + b"\1"


def _transport(protocol: int, payload: bytes, source: bytes) -> KernelRefusal | None:
    if protocol == _TCP:
        # the reset of a first segment has sequence number 0 and acknowledges; one of an open connection does not
        if len(payload) < 20 or payload[13] & 0x3F != _FLAG_RST_ACK or payload[4:8] != b"\0\0\0\0":
            return None
        if _is_loopback(source):
            return None
        return KernelRefusal("tcp", _address(source), int.from_bytes(payload[:2], "big"))
    if (protocol == _ICMP and payload[:1] == b"\3") or (protocol == _ICMPV6 and payload[:1] == b"\1"):
        return _quoted(payload[8:])
    return None


def _quoted(inner: bytes) -> KernelRefusal | None:
    if len(inner) < 20:
        return None
    if inner[0] >> 4 == 4:
        protocol, destination, payload = inner[9], inner[16:20], inner[(inner[0] & 15) * 4 :]
    elif inner[0] >> 4 == 6 and len(inner) >= 40:
        protocol, destination, payload = inner[6], inner[24:40], inner[40:]
    else:
        return None
    if _is_loopback(destination) or protocol in (_ICMP, _ICMPV6):
        return None
    has_ports = protocol in (_TCP, _UDP, _SCTP) and len(payload) >= 4
    port = int.from_bytes(payload[2:4], "big") if has_ports else 0
    return KernelRefusal(_NAMES.get(protocol, f"ip-{protocol}"), _address(destination), port)
