"""The kernel's part of watching for refusals: lets replies through that may tell of one, and nothing else.

Every packet of the cell passes `lo`. Without a filter each would be copied to the packet socket, and traffic between
processes of the cell would wake the supervisor and start a broker that nobody needs.

On the `saggar run` path (the plan of listeners carries the program): nothing is imported that costs start-up time.
"""

from __future__ import annotations

from sys import byteorder

#: enough of a reply to hold an ICMP error with the head of what it answers
SNAP = 256

_TCP, _ICMP, _ICMPV6 = 6, 1, 58

# Classic BPF (Documentation/networking/filter.rst). With SOCK_DGRAM the packet starts at its IP header.
_LD_B_ABS, _LD_H_ABS, _LD_W_ABS = 0x30, 0x28, 0x20
_LD_B_IND, _LD_W_IND, _LDX_MSH = 0x50, 0x40, 0xB1
_JEQ, _JSET, _AND, _RET = 0x15, 0x45, 0x54, 0x06
_PKTTYPE = 0xFFFFF000 + 4  # SKF_AD_OFF + SKF_AD_PKTTYPE; 0 is PACKET_HOST

#: (label, code, k, where to on yes, where to on no); "" is the next line
_SOURCE: tuple[tuple[str, int, int, str, str], ...] = (
    ("", _LD_B_ABS, _PKTTYPE, "", ""),
    ("", _JEQ, 0, "", "drop"),  # each packet passes twice: only the incoming one counts
    ("", _LD_B_ABS, 0, "", ""),
    ("", _AND, 0xF0, "", ""),
    ("", _JEQ, 0x40, "", "ip6"),
    ("", _LD_H_ABS, 6, "", ""),
    ("", _JSET, 0x1FFF, "drop", ""),  # a later fragment
    ("", _LDX_MSH, 0, "", ""),  # X = length of the IPv4 header
    ("", _LD_B_ABS, 9, "", ""),
    ("", _JEQ, _TCP, "tcp4", ""),
    ("", _JEQ, _ICMP, "", "drop"),
    ("", _LD_B_IND, 0, "", ""),
    ("", _JEQ, 3, "", "drop"),  # destination unreachable
    ("", _LD_B_IND, 24, "", ""),  # the quoted packet's destination
    ("", _JEQ, 127, "drop", "take"),
    ("tcp4", _LD_B_IND, 13, "", ""),
    ("", _JSET, 0x04, "", "drop"),  # RST
    ("", _LD_W_IND, 4, "", ""),
    ("", _JEQ, 0, "", "drop"),  # of a connection that was open
    ("", _LD_B_ABS, 12, "", ""),
    ("", _JEQ, 127, "drop", "take"),  # of the cell's own loopback
    ("ip6", _JEQ, 0x60, "", "drop"),
    ("", _LD_B_ABS, 6, "", ""),
    ("", _JEQ, _TCP, "tcp6", ""),
    ("", _JEQ, _ICMPV6, "", "drop"),
    ("", _LD_B_ABS, 40, "", ""),
    ("", _JEQ, 1, "", "drop"),
    ("", _LD_W_ABS, 72, "", ""),
    ("", _JEQ, 0, "drop", "take"),  # ::1; nothing else of ::/32 goes anywhere
    ("tcp6", _LD_B_ABS, 53, "", ""),
    ("", _JSET, 0x04, "", "drop"),
    ("", _LD_W_ABS, 44, "", ""),
    ("", _JEQ, 0, "", "drop"),
    ("", _LD_W_ABS, 8, "", ""),
    ("", _JEQ, 0, "drop", "take"),
    ("take", _RET, SNAP, "", ""),
    ("drop", _RET, 0, "", ""),
)


def _assemble() -> tuple[tuple[int, int, int, int], ...]:
    """(code, jump true, jump false, k), jumps counted from the next line."""
    lines = {label: index for index, (label, *_) in enumerate(_SOURCE) if label}
    return tuple(
        (code, lines[yes] - at - 1 if yes else 0, lines[no] - at - 1 if no else 0, k)
        for at, (_, code, k, yes, no) in enumerate(_SOURCE)
    )


FILTER = _assemble()


def filter_program() -> bytes:
    """`FILTER` as the kernel's `struct sock_filter[]`, for SO_ATTACH_FILTER."""
    return b"".join(
        code.to_bytes(2, byteorder) + bytes((yes, no)) + k.to_bytes(4, byteorder) for code, yes, no, k in FILTER
    )
