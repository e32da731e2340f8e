"""The network namespace of a cell: every address in the world is local to it, and our listeners stand on them.

Runs in the child, inside the new namespace, with that namespace's capabilities. Netlink is spoken by hand (rtnetlink(7)):
iproute2 may be missing, and starting it twice would cost more than the whole cell.
"""

from __future__ import annotations

import _socket
import os
from fcntl import ioctl
from struct import pack, unpack_from

from saggar.isolation.syscalls_host import buffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_RTM_NEWROUTE = 24
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_CREATE, _NLM_F_EXCL = 1, 4, 0x400, 0x200
_NLMSG_ERROR = 2
_RT_TABLE_LOCAL = 255
_RTPROT_STATIC = 4
_RT_SCOPE_HOST = 254
_RTN_LOCAL = 2
_RTA_OIF = 4
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1
_LO = 1  # `lo` is interface 1 of every network namespace
_ETH_P_ALL = 3
_BACKLOG = 1024
_SO_ATTACH_FILTER = 26

EAFNOSUPPORT = 97


def _route(family: int) -> bytes:
    body = pack("=BBBBBBBBI", family, 0, 0, 0, _RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL, 0)
    body += pack("=HHI", 8, _RTA_OIF, _LO)
    flags = _NLM_F_REQUEST | _NLM_F_ACK | _NLM_F_CREATE | _NLM_F_EXCL
    return pack("=IHHII", 16 + len(body), _RTM_NEWROUTE, flags, 1, 0) + body


def _acknowledged(answer: bytes) -> int:
    """The errno of a netlink acknowledgement, 0 for success."""
    _, kind = unpack_from("=IH", answer)
    if kind != _NLMSG_ERROR:
        return 71  # EPROTO
    (error,) = unpack_from("=i", answer, 16)
    return -int(error)


def own_every_address() -> bool:
    """Bring `lo` up and make all of IPv4 and IPv6 local. Gives whether the kernel has IPv6. Raises OSError."""
    with _closing(_socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM, 0)) as sock:
        request = pack("16sH22x", b"lo", 0)
        (flags,) = unpack_from("=H", ioctl(sock.fileno(), _SIOCGIFFLAGS, request), 16)
        ioctl(sock.fileno(), _SIOCSIFFLAGS, pack("16sH22x", b"lo", flags | _IFF_UP))
    with _closing(_socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, 0)) as netlink:
        netlink.send(_route(_socket.AF_INET))
        error = _acknowledged(netlink.recv(4096))
        if error:
            raise OSError(error, "the IPv4 default route was refused")
        if not _has_ipv6():
            return False
        netlink.send(_route(_socket.AF_INET6))
        error = _acknowledged(netlink.recv(4096))
        if error:
            raise OSError(error, "the IPv6 default route was refused")
    return True


def _has_ipv6() -> bool:
    try:
        probe = _socket.socket(_socket.AF_INET6, _socket.SOCK_DGRAM, 0)
    except OSError:
        return False
    with _closing(probe):
        # a kernel booted with ipv6.disable_ipv6=1 makes sockets but owns no address: `lo` then has no ::1
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


def open_listener(spec: Mapping[str, Any]) -> int:
    """One socket of the plan (docs/ARCHITECTURE.md, listeners). Gives its descriptor. Raises OSError."""
    kind = spec["kind"]
    if kind == "packet":
        # protocol 0 until bound: moving a socket that already receives waits for an RCU grace period (15 to 30 ms measured)
        packet = _socket.socket(_socket.AF_PACKET, _socket.SOCK_DGRAM, 0)
        program = bytes.fromhex(spec.get("filter", ""))
        if program:
            # before the bind: afterwards the traffic of the cell would be queued in between. struct sock_fprog
            holder, address = buffer(program)
            packet.setsockopt(_socket.SOL_SOCKET, _SO_ATTACH_FILTER, pack("HP", len(program) // 8, address))
            del holder
        packet.bind(("lo", _ETH_P_ALL))
        return packet.detach()
    address = spec["address"]
    family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    sock = _socket.socket(family, _socket.SOCK_STREAM if kind == "tcp" else _socket.SOCK_DGRAM, 0)
    if family == _socket.AF_INET6:
        sock.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
    # never SO_REUSEPORT, nor SO_REUSEADDR: with either a process in the cell could bind over it
    sock.bind((address, spec["port"]))
    if kind == "tcp":
        sock.listen(_BACKLOG)
    return sock.detach()


def open_listeners(specs: Sequence[Mapping[str, Any]], *, ipv6: bool) -> tuple[list[int], list[int]]:
    """The plan's sockets, in order, and the indexes of those left out because this kernel has no IPv6."""
    fds: list[int] = []
    left_out: list[int] = []
    for index, spec in enumerate(specs):
        if not ipv6 and ":" in spec.get("address", ""):
            left_out.append(index)
            continue
        try:
            fds.append(open_listener(spec))
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
    return fds, left_out


class _closing:  # noqa: N801  # contextlib's name; its import costs more than this
    __slots__ = ("sock",)

    def __init__(self, sock: _socket.socket) -> None:
        self.sock = sock

    def __enter__(self) -> _socket.socket:
        return self.sock

    def __exit__(self, *_: object) -> None:
        self.sock.close()
