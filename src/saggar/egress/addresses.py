"""Which addresses the broker never dials, each with its reason.

I1  The table decides, never `ipaddress.is_global`: that one calls NAT64-embedded metadata addresses, `::127.0.0.1` and
    multicast global.
I2  An IPv4 address embedded in an IPv6 one is judged as the IPv4 address.
I3  Of IPv6 only 2000::/3 (less the ranges below) and NAT64 of an acceptable IPv4 address may be dialled.
I4  What does not parse as an address literal is refused.

Documentation ranges (192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32) are left out on purpose: nothing
answers there on the Internet, so refusing them gains nothing, and networks with an address of their own for a gateway
or a mirror use them. Source: the IANA special-purpose registries, RFC 6890, 8190, 6052, 3056, 4380, 5214, 9637.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_REFUSED_V4 = (
    ("0.0.0.0/8", "this_network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier_grade_nat"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.169.254/32", "metadata"),
    ("169.254.170.2/32", "metadata"),
    ("169.254.0.0/16", "link_local"),
    ("168.63.129.16/32", "metadata"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol_assignments"),
    ("192.31.196.0/24", "as112"),
    ("192.52.193.0/24", "automatic_multicast_tunneling"),
    ("192.88.99.0/24", "6to4_relay"),
    ("192.168.0.0/16", "private"),
    ("192.175.48.0/24", "as112"),
    ("198.18.0.0/15", "synthetic"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
)

_REFUSED_V6 = (
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::/96", "ipv4_compatible"),
    ("::ffff:0:0/96", "ipv4_mapped"),
    ("::ffff:0:0:0/96", "ipv4_translated"),
    ("64:ff9b:1::/48", "local_nat64"),
    ("100::/64", "discard_only"),
    ("100:0:0:1::/64", "dummy_prefix"),
    ("2001::/32", "teredo"),
    ("2001:db8::/32", ""),
    ("2001::/23", "protocol_assignments"),
    ("2002::/16", "6to4"),
    ("2620:4f:8000::/48", "as112"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "segment_routing"),
    ("fd00:ec2::254/128", "metadata"),
    ("fd20:ce::254/128", "metadata"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link_local"),
    ("fec0::/10", "site_local"),
    ("ff00::/8", "multicast"),
)

_NAT64 = IPv6Network("64:ff9b::/96")


def _masked(
    table: Iterable[tuple[str, str]], kind: type[IPv4Network | IPv6Network]
) -> tuple[tuple[int, int, str], ...]:
    """(mask, network, reason), the longest prefix first, so that the most precise reason is given."""
    networks = sorted(((kind(text), reason) for text, reason in table), key=lambda n: -n[0].prefixlen)
    return tuple((int(n.netmask), int(n.network_address), reason) for n, reason in networks)


_V4 = _masked(_REFUSED_V4, IPv4Network)
_V6 = _masked(_REFUSED_V6, IPv6Network)
_NAT64_MASK, _NAT64_NETWORK = int(_NAT64.netmask), int(_NAT64.network_address)
#: ISATAP: the interface identifier 0000:5efe or 0200:5efe carries an IPv4 address in its last 32 bits
_ISATAP = (0x00005EFE, 0x02005EFE)


def _v4(value: int) -> str:
    for mask, network, reason in _V4:
        if value & mask == network:
            return reason
    return ""


def _v6(value: int) -> str:
    if value & _NAT64_MASK == _NAT64_NETWORK:
        inner = _v4(value & 0xFFFFFFFF)
        return f"nat64_{inner}" if inner else ""
    for mask, network, reason in _V6:
        if value & mask == network:
            return reason
    if value >> 125 != 1:
        return "not_global_unicast"
    if (value >> 32) & 0xFFFFFFFF in _ISATAP:
        inner = _v4(value & 0xFFFFFFFF)
        return f"isatap_{inner}" if inner else ""
    return ""


def refusal(address: str) -> str:
    """Why `address` (an IPv4 or IPv6 literal, no zone) may not be dialled; "" where it may."""
    if "%" in address:
        return "zoned"
    try:
        parsed = ip_address(address)
    except ValueError:
        return "not_an_address"
    return _v4(int(parsed)) if parsed.version == 4 else _v6(int(parsed))


def first_refusal(addresses: Iterable[str], *, metadata: bool = False) -> tuple[str, str]:
    """(address, reason) of the first that is refused: one bad answer refuses them all; ("", "") where none is.

    metadata: the rule says `allow_metadata`, so the addresses of metadata services pass.
    """
    for address in addresses:
        reason = refusal(address)
        if reason and not (metadata and reason == "metadata"):
            return address, reason
    return "", ""
