"""What the kernel refuses by itself inside a cell: read from the replies that it sends (RFC 9293, 792, 4443).

I1  Only a reply is evidence: a reset that answers a connection's first segment, or an ICMP error. Traffic between
    processes of the cell, and resets of connections that were once open, say nothing and are not looked at.
I2  Loopback destinations are the cell's own business.
I3  An answer of the name server's that met nobody any more was no attempt of the cell's: no process inside can send from port 53.
I4  Bytes give a `KernelRefusal` or None; nothing is allocated for what is ignored.

Every packet on `lo` passes the filter twice, as outgoing and as incoming; only the incoming one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

_TCP, _UDP, _ICMP, _ICMPV6, _SCTP = 6, 17, 1, 58, 132
_NAMES = {_TCP: "tcp", _UDP: "udp", _ICMP: "icmp", _ICMPV6: "icmp", _SCTP: "sctp"}
_FLAG_RST_ACK = 0x14
_DOMAIN = b"\0\x35"


@dataclass(frozen=True, slots=True)
class KernelRefusal:
    """protocol: `tcp`, `udp`, `sctp` or `ip-N`; address: where the refused packet went; port 0 where it has none."""

    protocol: str
    address: str
    port: int


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
    if protocol == _UDP and payload[:2] == _DOMAIN:
        return None
    has_ports = protocol in (_TCP, _UDP, _SCTP) and len(payload) >= 4
    port = int.from_bytes(payload[2:4], "big") if has_ports else 0
    return KernelRefusal(_NAMES.get(protocol, f"ip-{protocol}"), _address(destination), port)
