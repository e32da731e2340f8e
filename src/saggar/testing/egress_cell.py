"""A bare network cell with a real broker, for tests and benchmarks of the second wall alone.

User, network and mount namespaces with `lo` up, local default routes, the planned listeners, the stub resolver in
/etc/resolv.conf and the cell's /etc/hosts; no seccomp, no rootfs: only what L2 needs. The real launcher does more and is tested with L1.
"""

from __future__ import annotations

import contextlib
import functools
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

from saggar.audit.sink_host import open_log
from saggar.egress.listeners import RESOLVER_ADDRESS, hosts_lines, plan
from saggar.egress.secrets_spawn_host import start_secrets
from saggar.egress.terms import compile_policy
from saggar.isolation.rootfs import HOSTS
from saggar.policy.model import EgressPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from saggar.egress.secrets_spawn_host import SecretsProcess
    from saggar.policy.model import EgressRule

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

#: opens the planned sockets in the namespace it runs in; part of every program that stands in for the launcher
OPEN_PLANNED = r"""
import array, socket, struct
def open_planned(specs):
    found = []
    for spec in specs:
        if spec["kind"] == "packet":
            s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
            program = array.array("B", bytes.fromhex(spec["filter"]))
            s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", len(program) // 8, program.buffer_info()[0]))
            s.bind(("lo", 3))
        else:
            v6 = ":" in spec["address"]
            s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_STREAM if spec["kind"] == "tcp" else socket.SOCK_DGRAM)
            if v6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.bind((spec["address"], spec["port"]))
            if spec["kind"] == "tcp": s.listen(1024)
        found.append(s)
    return found
"""

#: runs inside the new namespaces: mounts the resolver's configuration, opens what was planned, sends it, waits
_INSIDE = (
    OPEN_PLANNED
    + r"""
import ctypes, json, os, sys
control = socket.socket(fileno=int(sys.argv[1])); specs = json.loads(sys.argv[2]); resolv, hosts = sys.argv[3:]
libc = ctypes.CDLL(None, use_errno=True)
def check(code):
    if code: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
check(libc.mount(b"none", b"/", None, 0x44000, None))
check(libc.mount(resolv.encode(), os.path.realpath("/etc/resolv.conf").encode(), None, 4096, None))
check(libc.mount(hosts.encode(), os.path.realpath("/etc/hosts").encode(), None, 4096, None))
def ask(request):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as n:
        n.send(request); reply = n.recv(4096); code = struct.unpack_from("=i", reply, 16)[0]
        if code: raise OSError(-code, os.strerror(-code))
lo = socket.if_nametoindex("lo")
ask(struct.pack("=IHHIIBBHiII", 32, 16, 5, 1, 0, 0, 0, 0, lo, 1, 1))
for family in (socket.AF_INET, socket.AF_INET6):
    ask(struct.pack("=IHHIIBBBBBBBBIHHi", 36, 24, 0x605, 2, 0, family, 0, 0, 0, 255, 3, 254, 2, 0, 8, 4, lo))
found = open_planned(specs)
socket.send_fds(control, [b"ok"], [s.fileno() for s in found])
for s in found: s.close()
control.recv(1)
"""
)

#: runs in namespaces of the broker's own: a DNS server that answers from a table and writes down what it was asked
_OUTSIDE = r"""
import ctypes, json, os, select, socket, struct, sys
table, log, resolv, boot, fd, worker, fds = json.loads(sys.argv[1]), *sys.argv[2:7], sys.argv[7:]
broker = os.pidfd_open(os.getpid())
libc = ctypes.CDLL(None, use_errno=True)
assert not libc.mount(b"none", b"/", None, 0x44000, None)
assert not libc.mount(resolv.encode(), os.path.realpath("/etc/resolv.conf").encode(), None, 4096, None)
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as n:
    n.send(struct.pack("=IHHIIBBHiII", 32, 16, 5, 1, 0, 0, 0, 0, socket.if_nametoindex("lo"), 1, 1)); n.recv(4096)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.1", 53))
for one in fds:
    if not os.fork():
        s.close()
        for other in {fd, *fds} - {one}: os.close(int(other))
        os.execv(sys.executable, [sys.executable, "-I", "-c", worker, one])
for one in fds: os.close(int(one))
if os.fork():
    s.close()
    os.execv(sys.executable, [sys.executable, "-I", "-c", boot, fd])
os.close(int(fd)); out = open(log, "a", buffering=1)
# not by PR_SET_PDEATHSIG: once the broker is in its Landlock domain no signal leaves it, the kernel's for its children neither
waits = select.poll(); waits.register(s, select.POLLIN); waits.register(broker, select.POLLIN)
while not any(one == broker for one, _ in waits.poll()):
    data, peer = s.recvfrom(4096)
    at, labels = 12, []
    while data[at]: labels.append(data[at + 1 : at + 1 + data[at]].decode()); at += 1 + data[at]
    kind = int.from_bytes(data[at + 1 : at + 3], "big"); name = ".".join(labels); question = data[12 : at + 5]
    out.write(f"{kind} {name}\n")
    turns = table.get(name)
    answers = b""; count = 0
    if turns:
        for a in turns[0] if len(turns) == 1 or kind != 1 else turns.pop(0):
            if a.startswith("CNAME "):
                packed = b"".join(bytes([len(p)]) + p.encode() for p in a[6:].split(".")) + b"\0"; type_ = 5
            else:
                packed = socket.inet_pton(socket.AF_INET6 if ":" in a else socket.AF_INET, a); type_ = 28 if ":" in a else 1
            if type_ in (kind, 5):
                answers += b"\xc0\x0c" + struct.pack("!HHIH", type_, 1, 0, len(packed)) + packed; count += 1
    code = 0x8180 if turns else 0x8183
    s.sendto(data[:2] + struct.pack("!HHHHH", code, 1, count, 0, 0) + question + answers, peer)
"""

_AGENT = r"""
import json, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
while data := control.recv(4096):
    address, port = json.loads(data)
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    s.settimeout(10)
    try:
        s.connect((address, port))
    except OSError as e:
        control.send(str(e.errno or 110).encode())
    else:
        s.setblocking(True)
        socket.send_fds(control, [b"ok"], [s.fileno()])
    s.close()
"""


class EgressCell:
    """A context manager: the namespaces, a broker process serving them, its audit log and its events."""

    #: of every cell; tests that hold for any number of processes set the one, and whom they try with the other
    default_processes = 1
    default_tweak = ""

    def __init__(
        self,
        rules: Sequence[EgressRule],
        *,
        answers: Mapping[str, Sequence[Sequence[str]]] | None = None,
        tweak: str = "",
        nofile: int = 0,
        python: str = sys.executable,
        budget: str = "",
        env: Mapping[str, str] | None = None,
        beside: EgressCell | None = None,
        processes: int = 0,
    ) -> None:
        """answers: name to the answers that the host's resolver gives, one after the other; the broker then runs in
        namespaces of its own, where there is nothing but that resolver, and `queries` tells what it was asked.
        tweak: Python that runs in the broker before it starts, to shorten its time-outs. nofile: its limit of
        descriptors. env: the supervisor's environment, for rules with a credential (`EgressRule.http`); budget: as in
        the policy. beside: a cell whose broker serves this one too. processes: that serve it, 0 takes
        `EgressCell.default_processes`."""
        self._beside = beside
        self.control: socket.socket
        self.broker: subprocess.Popen[bytes]
        self.id: str = "c" if beside is None else f"{beside.id}c"
        self._answers = answers
        self._tweak = self.default_tweak + tweak
        self._nofile = nofile
        self.rules = list(rules)
        self._budget = budget
        self._env = dict(env or {})
        self._processes = processes or self.default_processes
        #: of the task's own CA, for clients inside; "" where no host is terminated
        self.ca_pem = ""
        #: variables of the cell: placeholders in place of keys
        self.environment: dict[str, str] = {}
        self.secrets: SecretsProcess | None = None
        #: the broker's further processes
        self.workers: list[subprocess.Popen[bytes]] = []
        self.events: list[dict[str, Any]] = []
        self._egress: dict[str, Any] = {}
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
        self._query_log = os.path.join(self.directory, "queries")
        self.audit_path = os.path.join(self.directory, "audit.jsonl")
        resolv = os.path.join(self.directory, "resolv.conf")
        with open(resolv, "w", encoding="ascii") as f:
            f.write(f"nameserver {RESOLVER_ADDRESS}\noptions timeout:2 attempts:1\n")
        hosts = os.path.join(self.directory, "hosts")
        with open(hosts, "w", encoding="ascii") as f:
            f.write(HOSTS + hosts_lines(self.rules))
        specs = plan(self.rules)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stack.enter_context(ours)
        inside = ["unshare", "--user", "--map-root-user", "--net", "--mount", self._python, "-I", "-c", _INSIDE]
        self.holder = subprocess.Popen(
            [*inside, str(theirs.fileno()), json.dumps(specs), resolv, hosts], pass_fds=[theirs.fileno()]
        )
        self._stack.callback(_end, self.holder)
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(ours, 16, 253)
        for fd in descriptors:
            os.set_inheritable(fd, False)  # the secrets process, which starts next, would keep them open
        if len(descriptors) != len(specs):
            raise OSError("the namespaces could not be made")
        self._find_broker()
        self._add(specs, descriptors)

    def _find_broker(self) -> None:
        if self._beside is None:
            self._start_broker()
        else:
            self.control, self.broker, self.workers = self._beside.control, self._beside.broker, self._beside.workers

    def _start_broker(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = self._stack.enter_context(ours)
        boot = f"import sys; sys.path.insert(0, {_ROOT!r})\n{self._tweak}\n"
        if self._nofile:
            boot += f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({self._nofile},) * 2)\n"
        worker = boot + "from saggar.egress.worker_host import main; main()"
        boot += "from saggar.egress.broker_host import main; main()"
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(self._processes - 1)]
        fds = [theirs_.fileno() for _, theirs_ in pairs]
        argv = [self._python, "-I", "-c", boot, str(theirs.fileno())]
        if self._answers is not None:
            resolv = os.path.join(self.directory, "outside.conf")
            with open(resolv, "w", encoding="ascii") as f:
                f.write("nameserver 127.0.0.1\n")
            script = [json.dumps(self._answers), self._query_log, resolv, boot, str(theirs.fileno()), worker]
            script += map(str, fds)
            argv = [
                "unshare",
                "--user",
                "--map-root-user",
                "--net",
                "--mount",
                self._python,
                "-I",
                "-c",
                _OUTSIDE,
                *script,
            ]
        inside = self._answers is not None
        self.broker = subprocess.Popen(argv, pass_fds=[theirs.fileno(), *(fds if inside else ())])
        self._stack.callback(_end, self.broker)
        theirs.close()
        for ours_, theirs_ in pairs:
            if not inside:
                argv = [self._python, "-I", "-c", worker, str(theirs_.fileno())]
                self.workers.append(subprocess.Popen(argv, pass_fds=[theirs_.fileno()]))
                self._stack.callback(_end, self.workers[-1])
            socket.send_fds(ours, [b'{"op":"worker","cell":""}'], [ours_.fileno()])
            ours_.close()
            theirs_.close()

    def _add(self, specs: Sequence[Any], descriptors: list[int]) -> None:
        ours = self.control
        add = {"op": "add", "cell": self.id, "task": "t", "audit": self.audit_path, "listeners": list(specs)}
        rules = self._compile(self.rules)
        logs = [open_log(self.audit_path) for _ in range(self._processes)]
        if self.secrets is not None:
            socket.send_fds(
                ours, [json.dumps({"op": "secrets", "cell": self.id}).encode()], [self.secrets.broker.fileno()]
            )
        socket.send_fds(ours, [json.dumps(add).encode()], [rules, *logs, *descriptors])
        for fd in (rules, *logs, *descriptors):
            os.close(fd)
        self.added = self.wait_event("added")

    def _compile(self, rules: Sequence[EgressRule]) -> int:
        """A memfd with what the broker is told; starts the secrets process where a rule needs it."""
        made = compile_policy(
            EgressPolicy(allow=tuple(rules), budget=self._budget, processes=self._processes),
            random=os.urandom,
            read_ca=_read_text,
        )
        if made.hosts:
            if self.secrets is None:
                self.secrets = start_secrets(made.specs, self._env)
                self._stack.callback(self.secrets.stop)
            self.ca_pem, _ = self.secrets.add(self.id, "t", made.hosts, made.specs)
            self.environment = made.environment
        self._egress = made.egress
        return _memfd({"egress": made.egress})

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
        self._update(self._compile(rules))

    def withdraw(self, *ids: str) -> None:
        """The rules as they were compiled, without these; `withdraw()` gives back all."""
        left = [entry for entry in self._egress["allow"] if entry["id"] not in ids]
        self._update(_memfd({"egress": {**self._egress, "allow": left}}))

    def _update(self, fd: int) -> None:
        socket.send_fds(self.control, [json.dumps({"op": "update", "cell": self.id}).encode()], [fd])
        os.close(fd)
        self.wait_event("updated")

    def remove(self) -> dict[str, Any]:
        self.control.send(json.dumps({"op": "remove", "cell": self.id}).encode())
        return self.wait_event("removed")

    def pids(self) -> list[int]:
        """The broker's processes, the first one first (without `answers`: with them, others are not known)."""
        return [self.broker.pid, *(worker.pid for worker in self.workers)]

    def queries(self) -> list[str]:
        """What the host's resolver was asked for, each `TYPE NAME`."""
        with contextlib.suppress(FileNotFoundError), open(self._query_log, encoding="ascii") as f:
            return f.read().splitlines()
        return []

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
        """A TCP connection made inside, used from outside: the socket was born in the cell. Raises OSError."""
        self.agent.send(json.dumps([address, port]).encode())
        reply, descriptors, _, _ = socket.recv_fds(self.agent, 64, 1)
        if not descriptors:
            raise OSError(int(reply), os.strerror(int(reply)))
        sock = socket.socket(fileno=descriptors[0])
        sock.settimeout(10)
        return sock

    @functools.cached_property
    def agent(self) -> socket.socket:
        """A process inside that opens sockets and hands them out."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stack.enter_context(ours)
        process = subprocess.Popen(
            self.argv(self._python, "-I", "-c", _AGENT, str(theirs.fileno())), pass_fds=[theirs.fileno()]
        )
        self._stack.callback(_end, process)
        theirs.close()
        ours.settimeout(20)
        return ours


def _memfd(policy: dict[str, Any]) -> int:
    fd = os.memfd_create("rules")
    os.write(fd, json.dumps(policy).encode())
    return fd


def _read_text(path: str) -> str:
    with open(path, encoding="ascii") as f:
        return f.read()


def _end(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()


def reset_socket(sock: socket.socket) -> None:
    """Close with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
