"""Sockets, privilege, namespaces and other processes, run inside as part of one program (see `inside_base`)."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import time

from saggar.bench.escapes.inside_base import CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, attempt, call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# ---- sockets -----------------------------------------------------------------------------------------------------


@attempt
def docker_sock(p: dict[str, Any]) -> str:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(2)
    s.connect(p["path"])
    return s.recv(64).decode()


@attempt
def path_socket_dgram(p: dict[str, Any]) -> str:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.sendto(p["token"].encode(), p["path"])
    return "datagram left"


@attempt
def abstract_socket(p: dict[str, Any]) -> str:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(2)
    s.connect("\0" + p["name"])
    return s.recv(64).decode()


@attempt
def host_loopback_tcp(p: dict[str, Any]) -> str:
    s = socket.create_connection(("127.0.0.1", p["port"]), 2)
    return "token" if p["token"].encode() in s.recv(64) else ""


@attempt
def host_loopback_tcp6(p: dict[str, Any]) -> str:
    s = socket.create_connection(("::1", p["port"]), 2)
    return "token" if p["token"].encode() in s.recv(64) else ""


@attempt
def host_udp(p: dict[str, Any]) -> str:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(1)
    s.sendto(b"ping", ("127.0.0.1", p["port"]))
    return "token" if p["token"].encode() in s.recv(64) else ""


def _socket_family(name: str, family: int, kind: int, protocol: int) -> None:
    def body(_p: dict[str, Any]) -> str:
        socket.socket(family, kind, protocol).close()
        return "socket made"

    body.__name__ = name
    attempt(body)


_socket_family("socket_vsock", 40, socket.SOCK_STREAM, 0)
_socket_family("socket_packet", 17, socket.SOCK_RAW, 0x0300)
_socket_family("socket_alg", 38, socket.SOCK_SEQPACKET, 0)
_socket_family("socket_netlink_audit", 16, socket.SOCK_RAW, 9)
_socket_family("socket_netlink_netfilter", 16, socket.SOCK_RAW, 12)
_socket_family("socket_raw_icmp", socket.AF_INET, socket.SOCK_RAW, 1)
_socket_family("socket_xdp", 44, socket.SOCK_RAW, 0)


def _netlink(kind: int, flags: int, body: bytes) -> None:
    """One rtnetlink request with an acknowledgement; raises OSError on a refusal."""
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.bind((0, 0))
    s.send(struct.pack("IHHII", 16 + len(body), kind, 5 | flags, 1, 0) + body)
    (code,) = struct.unpack_from("i", s.recv(4096), 16)
    if code:
        raise OSError(-code, "netlink")


def _link(up: int) -> None:
    _netlink(16, 0, struct.pack("BBHiII", 0, 0, 0, 1, up, 1))  # RTM_NEWLINK, ifindex 1, IFF_UP


@attempt
def netlink_link_down(_p: dict[str, Any]) -> str:
    _link(0)
    return "loopback taken down"


@attempt
def netlink_flush_routes(_p: dict[str, Any]) -> str:
    """RTM_DELROUTE of `local default`: nothing could leave anyway, but the cell's routes are not the cell's to change."""
    route = struct.pack("BBBBBBBBI", socket.AF_INET, 0, 0, 0, 255, 3, 254, 2, 0) + struct.pack("HHI", 8, 4, 1)
    try:  # where nothing is there yet (the control), make it first
        _link(1)
        _netlink(24, 0x400, route)
    except OSError:
        pass
    _netlink(25, 0, route)
    return "route deleted"


# ---- privilege ---------------------------------------------------------------------------------------------------


@attempt
def capset_raise(_p: dict[str, Any]) -> str:
    header = struct.pack("Ii", 0x20080522, 0)
    data = struct.pack("IIIIII", 0x200000, 0x200000, 0, 0, 0, 0)  # CAP_SYS_ADMIN
    call("capset", header, data)
    return "CAP_SYS_ADMIN raised"


@attempt
def become_uid_0(_p: dict[str, Any]) -> str:
    os.setuid(0)
    return "uid 0"


@attempt
def setuid_program(p: dict[str, Any]) -> str:
    import subprocess

    out = subprocess.run([p["path"], "-u"], capture_output=True, check=False).stdout
    return "effective uid 0" if out.strip() == b"0" else ""


def _namespace(name: str, flags: int) -> None:
    def body(_p: dict[str, Any]) -> str:
        call("unshare", flags)
        return "namespace made"

    body.__name__ = name
    attempt(body)


_namespace("unshare_user", CLONE_NEWUSER)
_namespace("unshare_user_mount", CLONE_NEWUSER | CLONE_NEWNS)
_namespace("unshare_user_net", CLONE_NEWUSER | CLONE_NEWNET)
_namespace("unshare_user_pid", CLONE_NEWUSER | CLONE_NEWPID)


@attempt
def clone3_new_user(_p: dict[str, Any]) -> str:
    args = struct.pack("QQQQQQQQQQQ", CLONE_NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    pid = call("clone3", args, len(args))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "user namespace made"


@attempt
def setns_foreign(p: dict[str, Any]) -> str:
    fd = os.open(p["path"], os.O_RDONLY)
    call("setns", fd, 0)
    return "namespace entered"


def _sibling() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    return pid


@attempt
def ptrace_attach(_p: dict[str, Any]) -> str:
    pid = _sibling()
    try:
        call("ptrace", 16, pid, 0, 0)
        return "attached"
    finally:
        os.kill(pid, signal.SIGKILL)


@attempt
def process_vm_readv(_p: dict[str, Any]) -> str:
    pid = _sibling()
    try:
        buffer = ctypes.create_string_buffer(b"token-in-memory")
        into = ctypes.create_string_buffer(16)
        local = struct.pack("QQ", ctypes.addressof(into), 8)
        remote = struct.pack("QQ", ctypes.addressof(buffer), 8)
        call("process_vm_readv", pid, local, 1, remote, 1, 0)
        return "another process's memory read"
    finally:
        os.kill(pid, signal.SIGKILL)


@attempt
def pidfd_getfd(_p: dict[str, Any]) -> str:
    pid = _sibling()
    try:
        handle = call("pidfd_open", pid, 0)
        call("pidfd_getfd", handle, 0, 0)
        return "descriptor stolen"
    finally:
        os.kill(pid, signal.SIGKILL)


@attempt
def kcmp_probe(_p: dict[str, Any]) -> str:
    call("kcmp", os.getpid(), os.getpid(), 0, 0, 0)
    return "kcmp answered"
