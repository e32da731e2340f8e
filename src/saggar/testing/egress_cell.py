"""A bare network cell with a real broker, for tests and benchmarks of the second wall alone.

User, network and mount namespaces with `lo` up, local default routes, the planned listeners and the stub resolver in
/etc/resolv.conf; no seccomp, no rootfs: only what L2 needs. The real launcher does more and is tested with L1.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Self

from saggar.egress.listeners import RESOLVER_ADDRESS, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from saggar.policy.model import EgressRule

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

#: runs inside the new namespaces: mounts the resolver's configuration, opens what was planned, sends it, waits
_INSIDE = r"""
import ctypes, json, os, socket, struct, sys
control = socket.socket(fileno=int(sys.argv[1])); specs = json.loads(sys.argv[2]); resolv = sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
def check(code):
    if code: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
check(libc.mount(b"none", b"/", None, 0x44000, None))
check(libc.mount(resolv.encode(), os.path.realpath("/etc/resolv.conf").encode(), None, 4096, None))
def ask(request):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as n:
        n.send(request); reply = n.recv(4096); code = struct.unpack_from("=i", reply, 16)[0]
        if code: raise OSError(-code, os.strerror(-code))
lo = socket.if_nametoindex("lo")
ask(struct.pack("=IHHIIBBHiII", 32, 16, 5, 1, 0, 0, 0, 0, lo, 1, 1))
for family in (socket.AF_INET, socket.AF_INET6):
    ask(struct.pack("=IHHIIBBBBBBBBIHHi", 36, 24, 0x605, 2, 0, family, 0, 0, 0, 255, 3, 254, 2, 0, 8, 4, lo))
found = []
for spec in specs:
    if spec["kind"] == "packet":
        s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)); s.bind(("lo", 3))
    else:
        v6 = ":" in spec["address"]
        s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_STREAM if spec["kind"] == "tcp" else socket.SOCK_DGRAM)
        if v6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.bind((spec["address"], spec["port"]))
        if spec["kind"] == "tcp": s.listen(1024)
    found.append(s)
socket.send_fds(control, [b"ok"], [s.fileno() for s in found])
for s in found: s.close()
control.recv(1)
"""


class EgressCell:
    """A context manager: the namespaces, a broker process serving them, its audit log and its events."""

    def __init__(self, rules: Sequence[EgressRule], *, python: str = sys.executable) -> None:
        self.rules = list(rules)
        self.events: list[dict[str, Any]] = []
        self._python = python
        self._stack = contextlib.ExitStack()

    # -- life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        self.directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="saggar-cell-"))
        self.audit_path = os.path.join(self.directory, "audit.jsonl")
        resolv = os.path.join(self.directory, "resolv.conf")
        with open(resolv, "w", encoding="ascii") as f:
            f.write(f"nameserver {RESOLVER_ADDRESS}\noptions timeout:2 attempts:1\n")
        specs = plan(self.rules)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stack.enter_context(ours)
        inside = ["unshare", "--user", "--map-root-user", "--net", "--mount", self._python, "-I", "-c", _INSIDE]
        self.holder = subprocess.Popen(
            [*inside, str(theirs.fileno()), json.dumps(specs), resolv], pass_fds=[theirs.fileno()]
        )
        self._stack.callback(_end, self.holder)
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(ours, 16, 253)
        if len(descriptors) != len(specs):
            raise OSError("the namespaces could not be made")
        self._start_broker(specs, descriptors)

    def _start_broker(self, specs: Sequence[Any], descriptors: list[int]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = self._stack.enter_context(ours)
        start = f"import sys; sys.path.insert(0, {_ROOT!r}); from saggar.egress.broker_host import main; main()"
        self.broker = subprocess.Popen(
            [self._python, "-I", "-c", start, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        self._stack.callback(_end, self.broker)
        theirs.close()
        add = {"op": "add", "cell": "c", "task": "t", "audit": self.audit_path, "listeners": list(specs)}
        rules = self._memfd(self.rules)
        socket.send_fds(ours, [json.dumps(add).encode()], [rules, *descriptors])
        for fd in (rules, *descriptors):
            os.close(fd)
        self.wait_event("added")

    @staticmethod
    def _memfd(rules: Sequence[EgressRule]) -> int:
        fd = os.memfd_create("rules")
        os.write(fd, json.dumps({"egress": {"allow": [r.to_json() for r in rules]}}).encode())
        return fd

    # -- the supervisor's side -------------------------------------------------------------------------------------

    def wait_event(self, name: str, timeout_s: float = 20.0) -> dict[str, Any]:
        """The next event called `name`; all that pass by are kept in `events`."""
        for event in self.events:
            if event["event"] == name:
                self.events.remove(event)
                return event
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.control], [], [], left)[0]:
                data = self.control.recv(65536)
                if not data:
                    raise EOFError("the broker is gone")
                event = json.loads(data)
                if event["event"] == name:
                    return dict(event)
                self.events.append(event)
        raise TimeoutError(f"no event `{name}`")

    def update(self, rules: Sequence[EgressRule]) -> None:
        fd = self._memfd(rules)
        socket.send_fds(self.control, [json.dumps({"op": "update", "cell": "c"}).encode()], [fd])
        os.close(fd)
        self.wait_event("updated")

    def remove(self) -> dict[str, Any]:
        self.control.send(json.dumps({"op": "remove", "cell": "c"}).encode())
        return self.wait_event("removed")

    def records(self) -> list[dict[str, Any]]:
        """The audit log so far."""
        with contextlib.suppress(FileNotFoundError), open(self.audit_path, encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.endswith("\n")]
        return []

    def wait_record(self, timeout_s: float = 10.0, **wanted: Any) -> dict[str, Any]:
        """The first record with these fields (top level or in `detail`), waited for."""
        deadline = time.monotonic() + timeout_s
        while True:
            for record in self.records():
                if all(record.get(k, record["detail"].get(k)) == v for k, v in wanted.items()):
                    return record
            if time.monotonic() > deadline:
                raise TimeoutError(f"no record {wanted} in {self.records()}")
            time.sleep(0.01)

    # -- the inside ------------------------------------------------------------------------------------------------

    def argv(self, *command: str) -> list[str]:
        """`command`, to be run inside the namespaces."""
        enter = ["nsenter", "--target", str(self.holder.pid), "--user", "--net", "--mount", "--preserve-credentials"]
        return [*enter, "--", *command]

    def run(self, *command: str, timeout_s: float = 30.0, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*command), capture_output=True, text=True, timeout=timeout_s, check=False, **options
        )

    def python(self, code: str, timeout_s: float = 30.0) -> str:
        """The output of Python code run inside; its failure is ours."""
        done = self.run(self._python, "-I", "-c", code, timeout_s=timeout_s)
        if done.returncode:
            raise AssertionError(f"inside: {done.stdout}{done.stderr}")
        return done.stdout

    def connect(self, address: str, port: int) -> socket.socket:
        """A TCP connection made inside, used from outside: the socket was born in the cell."""
        ours, theirs = socket.socketpair()
        code = (
            "import socket,sys\nc=socket.socket(fileno=int(sys.argv[1]))\n"
            "s=socket.create_connection((sys.argv[2],int(sys.argv[3])),timeout=10);s.setblocking(True)\n"
            "socket.send_fds(c,[b'k'],[s.fileno()])"
        )
        with ours:
            process = subprocess.Popen(
                self.argv(self._python, "-I", "-c", code, str(theirs.fileno()), address, str(port)),
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
                text=True,
            )
            theirs.close()
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            _, errors = process.communicate()
        if not descriptors:
            raise ConnectionError(errors.strip().rpartition("\n")[2])
        sock = socket.socket(fileno=descriptors[0])
        sock.settimeout(10)
        return sock


def _end(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()


def reset_socket(sock: socket.socket) -> None:
    """Close with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
