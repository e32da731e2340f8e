"""Which sockets the launcher opens inside a cell so that every way out ends at the broker.

I1  The plan depends on the rules alone: the same rules give the same plan and the same synthetic addresses.
I2  One host name has one synthetic address in a cell, however many rules name it.
I3  Only 80 and 443 are bound on every address; a further port is bound on the synthetic address of its host, so that
    servers inside the cell keep their ports.
I4  A wildcard has no listener of its own: it is reached on 80 and 443, which take every address.
I5  The cell's /etc/hosts says of a name what the stub would say at the start, and nothing of a name that the stub would refuse.

Pure, and on the `saggar run` path: nothing is imported that costs start-up time.
"""

from __future__ import annotations

from saggar.core.hostname import METADATA_NAMES
from saggar.egress.packet_filter import filter_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypedDict

    from saggar.policy.model import EgressRule

    class ListenerSpec(TypedDict, total=False):
        """One socket. kind: `tcp` (listening), `udp` (bound) or `packet` (AF_PACKET, SOCK_DGRAM, on `lo`)."""

        kind: str
        address: str
        port: int
        #: of `packet`: the classic BPF program to attach before the socket is bound, `struct sock_filter[]` in hexadecimal
        filter: str


#: The stub resolver and the explicit proxy stand here, inside 198.18.0.0/15 (RFC 2544), which no real host has.
RESOLVER_ADDRESS = "198.19.255.53"
RESOLVER_PORT = 53
#: For clients that insist on a proxy: CONNECT, absolute-form and SOCKS5 on one port. No variable points here by default.
PROXY_PORT = 3128

#: Ports whose listeners take every address of the cell.
CAPTURED_PORTS = (80, 443)

_SYNTHETIC_BASE = 0xC6120000  # 198.18.0.0
#: The first 256 addresses stay free; rule i of a non-wildcard host is at 198.18.0.0 + 256 + i.
_SYNTHETIC_FIRST = _SYNTHETIC_BASE + 256
#: Names of wildcards come after the rules'; the top 512 of the /15 belong to the resolver and to what may join it.
_SYNTHETIC_LAST = _SYNTHETIC_BASE + 0x20000 - 512
#: An allowlist longer than this is refused by the policy's loader long before; here it only bounds the arithmetic.
MAX_RULES = 65536
#: A client reads the whole file for every name, and a longer list would cost it more than the stub's answer does.
MAX_HOSTS_NAMES = 64
_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")


def dotted(value: int) -> str:
    """An IPv4 address as text, from its 32-bit value."""
    return f"{value >> 24 & 255}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"


def synthetic_address(index: int) -> str:
    """The address inside the cell that stands for rule number `index` (from 0).

    Raises ValueError when the range is used up.
    """
    value = _SYNTHETIC_FIRST + index
    if index < 0 or value >= _SYNTHETIC_LAST:
        raise ValueError("no synthetic address is left")
    return dotted(value)


def synthetic_addresses(rules: Sequence[EgressRule]) -> dict[str, str]:
    """Host name to synthetic address, of every exact name in `rules`; the first rule that names a host decides."""
    found: dict[str, str] = {}
    for index, rule in enumerate(rules):
        if not rule.host.startswith("*.") and rule.host not in found:
            found[rule.host] = synthetic_address(index)
    return found


def hosts_lines(rules: Sequence[EgressRule]) -> str:
    """What the cell's /etc/hosts has beside `localhost`; "" for none, or for more names than are worth it.

    A name of one label is the stub's: it may be the cell's own (docs/decisions/0020-names-without-a-question.md)."""
    listed = {rule.host for rule in rules if rule.enabled and (rule.allow_metadata or rule.host not in METADATA_NAMES)}
    names = [(a, n) for n, a in synthetic_addresses(rules).items() if n in listed and _may_stand_in_hosts(n)]
    return "".join([f"{a} {n}\n" for a, n in names]) if len(names) <= MAX_HOSTS_NAMES else ""


def _may_stand_in_hosts(name: str) -> bool:
    # the policy's loader gives canonical names; a rule that was made by hand may not write a line of its own
    return _NAME.issuperset(name) and "." in name[1:-1] and not name.endswith(".localhost")


def _further_ports(rules: Sequence[EgressRule]) -> list[tuple[str, int]]:
    addresses = synthetic_addresses(rules)
    wanted: dict[tuple[str, int], None] = {}
    for rule in rules:
        address = addresses.get(rule.host)
        if address is None:
            continue
        for port in rule.ports:
            if port not in CAPTURED_PORTS:
                wanted[address, port] = None
    return list(wanted)


def plan(rules: Iterable[EgressRule]) -> list[ListenerSpec]:
    """The sockets to open in a cell, in the order in which their descriptors travel to the broker.

    80 and 443 are there even when no rule names them: a refusal that says why needs somebody who accepts, and a
    rule allowed while the task runs takes effect without a new socket. The packet socket comes last.
    """
    listed = list(rules)
    specs: list[ListenerSpec] = [
        {"kind": "tcp", "address": any_address, "port": port}
        for port in CAPTURED_PORTS
        for any_address in ("0.0.0.0", "::")  # noqa: S104  # of a namespace that has no other interface than `lo`
    ]
    specs.append({"kind": "udp", "address": RESOLVER_ADDRESS, "port": RESOLVER_PORT})
    specs.append({"kind": "tcp", "address": RESOLVER_ADDRESS, "port": RESOLVER_PORT})
    specs.append({"kind": "tcp", "address": RESOLVER_ADDRESS, "port": PROXY_PORT})
    specs.extend({"kind": "tcp", "address": address, "port": port} for address, port in _further_ports(listed))
    specs.append({"kind": "packet", "filter": filter_program().hex()})
    return specs
