"""Many cells on one broker: memory, and whether one cell's flood is felt in the others: `python bench/egress_scale.py`.

Opens CELLS network namespaces with CONNECTIONS tunnelled connections each (5,000 in all by default) to an echo server on
loopback, then measures the round trip of single small messages of other cells while one cell is quiet, and while it floods: bulk
in both directions, refused connections and refused names as fast as it can.

The machine is shared too, by the flood's own processes, by its upstream and by whoever measures. So each round has a control:
the same flood from a cell of a second broker, which shares the machine with the first and nothing else. There it is alone, so nobody
paces it. The floor is the other way round: while the first broker is flooded, and paces it, messages of the second broker's other cells
and of connections without any broker are timed in turn with those of the first. What of a delay is in the floor as well is the
machine's (`p99_floor_to_quiet`); the rest is the broker's (`p99_flood_to_floor`).

As in a run, the flooding cell has a limit of one CPU, where this user may make a control group (`flood_cpu_limit`), and is not niced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import select
import socket
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))

import subprocess

from saggar.audit.sink_host import open_log
from saggar.egress.listeners import plan
from saggar.policy.model import EgressRule
from saggar.testing import client_hello
from saggar.testing.egress_cell import OPEN_PLANNED

NAME = "api.allowed.test"
ELSEWHERE = "203.0.113.9"
#: cells whose messages are timed
SAMPLED = 8
ROOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")

#: one process in a new user namespace, one child for each network namespace in it
HOLDER = (
    OPEN_PLANNED
    + r"""
import ctypes, json, os, sys
control = socket.socket(fileno=int(sys.argv[1])); specs = json.loads(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
def ask(request):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as n:
        n.send(request); n.recv(4096)
def cell(index):
    assert not libc.unshare(0x40000000)
    lo = 1
    ask(struct.pack("=IHHIIBBHiII", 32, 16, 5, 1, 0, 0, 0, 0, lo, 1, 1))
    for family in (socket.AF_INET, socket.AF_INET6):
        ask(struct.pack("=IHHIIBBBBBBBBIHHi", 36, 24, 0x605, 2, 0, family, 0, 0, 0, 255, 3, 254, 2, 0, 8, 4, lo))
    found = open_planned(specs)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    socket.send_fds(control, [str(index).encode()], [s.fileno() for s in found] + [theirs.fileno()])
    for s in found: s.close()
    theirs.close(); control.close()
    while data := ours.recv(4096):
        kind, address, port = json.loads(data)
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
        s.settimeout(20); s.connect((address, port)); s.setblocking(True)
        if kind == "tcp": s.setsockopt(6, 1, 1)
        socket.send_fds(ours, [b"k"], [s.fileno()]); s.close()
    os._exit(0)
for index in range(int(sys.argv[3])):
    if not os.fork(): cell(index)
control.recv(1)
"""
)


def echo(sock, nice=0):
    """The upstream: gives back what it gets, on a uvloop of its own."""
    os.nice(nice)
    import asyncio

    import uvloop

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

        def pause_writing(self):
            self.transport.pause_reading()

        def resume_writing(self):
            self.transport.resume_reading()

    async def main():
        await asyncio.get_running_loop().create_server(Echo, sock=sock, backlog=4096)
        await asyncio.Event().wait()

    uvloop.run(main())


class Fleet:
    """Cells of one broker. rules: of each cell in order; those after the last entry have the last one's."""

    def __init__(self, cells, rules, directory):
        specs = plan(rules[0])
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [
            "unshare",
            "--user",
            "--map-root-user",
            sys.executable,
            "-I",
            "-c",
            HOLDER,
            str(theirs.fileno()),
            json.dumps(specs),
        ]
        self.holder = subprocess.Popen([*argv, str(cells)], pass_fds=[theirs.fileno()])
        theirs.close()
        self._holder_end = ours
        self.control, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        boot = f"import sys; sys.path.insert(0, {ROOT!r}); from saggar.egress.broker_host import main; main()"
        self.broker = subprocess.Popen(
            [sys.executable, "-I", "-c", boot, str(child.fileno())], pass_fds=[child.fileno()]
        )
        child.close()
        self.agents = {}
        memfds = [self.memfd(r) for r in rules]
        for _ in range(cells):
            data, fds, _, _ = socket.recv_fds(ours, 16, 253)
            agent = fds.pop()
            index = int(data)
            self.agents[index] = socket.socket(fileno=agent)
            add = {
                "op": "add",
                "cell": data.decode(),
                "task": "t",
                "audit": f"{directory}/{self.broker.pid}-{index}.jsonl",
                "listeners": specs,
            }
            memfd = memfds[min(index, len(memfds) - 1)]
            self.before(data.decode())
            log = open_log(add["audit"])
            socket.send_fds(self.control, [json.dumps(add).encode()], [memfd, log, *fds])
            for fd in (log, *fds):
                os.close(fd)
        added = 0
        while added < cells:
            added += json.loads(self.control.recv(65536))["event"] == "added"

    def before(self, cell):
        """What the broker must hear of a cell first: of terminated hosts, its secrets process."""

    def memfd(self, rules):
        fd = os.memfd_create("rules")
        os.write(fd, json.dumps({"egress": {"allow": [r.to_json() for r in rules]}}).encode())
        return fd

    def connect(self, cell, port=443, kind="tcp", address=ELSEWHERE):
        self.agents[cell].send(json.dumps([kind, address, port]).encode())
        _, fds, _, _ = socket.recv_fds(self.agents[cell], 16, 1)
        return socket.socket(fileno=fds[0])

    def tunnel(self, cell, hello):
        sock = self.connect(cell)
        sock.sendall(hello)
        got = b""
        while len(got) < len(hello):
            got += sock.recv(65536)
        return sock

    def close(self):
        for process in (self.broker, self.holder):
            process.kill()
            process.wait()


class Flood:
    """The first cell of a fleet, as loud as it can be, and no louder than its limit of one CPU lets it."""

    def __init__(self, context, fleet, hello):
        self._context = context
        self._socks = [fleet.tunnel(0, hello) for _ in range(16)]
        self._agent = fleet.agents[0]
        self.moved = context.Array("d", 2)

    def start(self, seconds, group):
        until = time.monotonic() + seconds
        works = ((flood, ([s.fileno() for s in self._socks], 65536)), (knock, (self._agent.fileno(),)))
        self._workers = [
            self._context.Process(target=work, args=(*args, self.moved, until, group)) for work, args in works
        ]
        for w in self._workers:
            w.start()

    def wait(self):
        for w in self._workers:
            w.join()


@contextlib.contextmanager
def one_cpu():
    """A control group (version 1 or 2) with one CPU: where a process is written to go into it, "" where there can be none."""
    for base, name, value in (
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "100000"),
        ("/sys/fs/cgroup", "cpu.max", "100000 100000"),
    ):
        path = f"{base}/egress-scale-{os.getpid()}"
        try:
            os.mkdir(path)
        except OSError:
            continue
        try:
            if os.path.exists(f"{path}/{name}"):
                with open(f"{path}/{name}", "w", encoding="ascii") as f:
                    f.write(value)
                yield f"{path}/cgroup.procs"
                return
        finally:
            os.rmdir(path)
    yield ""


def enter(group):
    """This process is one of the flooding cell's."""
    if group:
        with open(group, "w", encoding="ascii") as f:
            f.write("0")


def flood(fds, bulk, moved, until, group):
    """Runs in a process of its own: bulk on every socket of `fds`, both ways."""
    enter(group)
    socks = [socket.socket(fileno=fd) for fd in fds]
    for s in socks:
        s.setblocking(False)
    data = b"x" * bulk
    poll = select.epoll()
    for s in socks:
        poll.register(s, select.EPOLLIN | select.EPOLLOUT)
    by_fd = {s.fileno(): s for s in socks}
    while time.monotonic() < until:
        for fd, events in poll.poll(0.1):
            with contextlib.suppress(BlockingIOError):
                if events & select.EPOLLIN:
                    moved[0] += len(by_fd[fd].recv(1 << 20))
            with contextlib.suppress(BlockingIOError):
                if events & select.EPOLLOUT:
                    by_fd[fd].send(data)


def knock(agent_fd, moved, until, group):
    """Runs in a process of its own: refused connections, and refused names, one after the other."""
    enter(group)
    agent = socket.socket(fileno=agent_fd)
    hello = client_hello.hello(b"evil.test")
    query = b"\0\1\1\0\0\1\0\0\0\0\0\0\4evil\4test\0\0\1\0\1"
    agent.send(json.dumps(["udp", "198.19.255.53", 53]).encode())
    dns = socket.socket(fileno=socket.recv_fds(agent, 16, 1)[1][0])
    while time.monotonic() < until:
        agent.send(json.dumps(["tcp", ELSEWHERE, 443]).encode())
        with socket.socket(fileno=socket.recv_fds(agent, 16, 1)[1][0]) as s:
            s.sendall(hello)
            s.recv(100)
        moved[1] += 1
        for _ in range(8):
            dns.send(query)
        with contextlib.suppress(BlockingIOError):
            for _ in range(8):
                dns.recv(512, socket.MSG_DONTWAIT)


def round_trips(places, seconds):
    """Sorted milliseconds of single round trips by place, in turn over its sockets, with a pause: an ordinary cell is no flood either."""
    found = {place: [] for place in places}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for socks in zip(*places.values(), strict=True):
            for place, s in zip(places, socks, strict=True):
                started = time.perf_counter()
                s.sendall(b"ping")
                s.recv(100)
                found[place].append((time.perf_counter() - started) * 1e3)
                time.sleep(0.001)
    return {place: sorted(trips) for place, trips in found.items()}


def direct(address, count):
    """Connections to the others' upstream with nothing between."""
    socks = [socket.create_connection(address) for _ in range(count)]
    for s in socks:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return socks


def rss_mb(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def schedule_s(pid):
    """(running, waiting for a CPU), in seconds: what of the delay is the host's."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as f:
        return [int(v) / 1e9 for v in f.read().split()[:2]]


def settle(*pids):
    """Until no broker is busy any longer with what a flood has left in the kernel's buffers; at most 5 s."""
    for _ in range(25):
        before = [schedule_s(pid)[0] for pid in pids]
        time.sleep(0.2)
        if all(schedule_s(pid)[0] - b < 0.004 for pid, b in zip(pids, before, strict=True)):
            return


def at(values, share):
    return values[min(len(values) - 1, int(len(values) * share))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--connections", type=int, default=25, help="in each cell")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = multiprocessing.get_context("fork")
    servers = [socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(2)]
    upstreams = [context.Process(target=echo, args=(s, 10 * i), daemon=True) for i, s in enumerate(servers)]
    for upstream in upstreams:
        upstream.start()
    quiet, loud = ([EgressRule(id="r", host=NAME, connect_to=s.getsockname()[:2])] for s in servers)
    with tempfile.TemporaryDirectory(prefix="saggar-scale-") as directory, one_cpu() as group:
        fleet = Fleet(options.cells, [loud, quiet], directory)
        control = Fleet(1 + SAMPLED, [loud, quiet], directory)
        try:
            result = run(fleet, control, direct(servers[0].getsockname(), SAMPLED), options, context, group)
        finally:
            for ended in (fleet, control):
                ended.close()
            for upstream in upstreams:
                upstream.kill()
    print(json.dumps(result, indent=2))


def run(fleet, control, unbroken, options, context, group):
    hello = client_hello.hello(NAME.encode())
    empty = rss_mb(fleet.broker.pid)
    started = time.perf_counter()
    held = [fleet.tunnel(cell, hello) for _ in range(options.connections) for cell in fleet.agents]
    opening = time.perf_counter() - started
    for s in held:
        s.sendall(b"ping")
    alive = sum(s.recv(100) == b"ping" for s in held)
    sampled, beside = ([f.tunnel(cell, hello) for cell in range(1, 1 + SAMPLED)] for f in (fleet, control))
    floors = {"floor": beside, "direct": unbroken}
    floods = {"flood": Flood(context, fleet, hello), "control": Flood(context, control, hello)}
    trips = {"quiet": [], "flood": [], "control": []}
    waits = []
    for _ in range(options.rounds):
        for kind, found in trips.items():
            settle(fleet.broker.pid, control.broker.pid)
            if kind != "quiet":
                floods[kind].start(options.seconds + 0.5, group)
                time.sleep(0.3)
            before = schedule_s(fleet.broker.pid)
            # the second broker paces its flood where others of its own are active: there they are not
            found.append(round_trips({"others": sampled} | ({} if kind == "control" else floors), options.seconds))
            after = schedule_s(fleet.broker.pid)
            if kind == "flood":
                waits.append([(b - a) / options.seconds for a, b in zip(before, after, strict=True)])
            if kind != "quiet":
                floods[kind].wait()
    seconds = options.rounds * (options.seconds + 0.5)
    found = {
        f"{place}_{label}_{kind}_ms": statistics.median(at(r[place], share) for r in rounds)
        for label, share in (("p50", 0.5), ("p99", 0.99))
        for kind, rounds in trips.items()
        for place in rounds[0]
    }
    p99 = {kind: found[f"others_p99_{kind}_ms"] for kind in trips} | {"floor": found["floor_p99_flood_ms"]}
    return {
        "cells": options.cells,
        "connections_open": len(held),
        "connections_alive": alive,
        "opened_per_s": len(held) / opening,
        "broker_rss_empty_mb": empty,
        "broker_rss_mb": rss_mb(fleet.broker.pid),
        "flood_cpu_limit": "one CPU" if group else "none: no control group can be made",
        **found,
        "p99_flood_to_quiet": p99["flood"] / p99["quiet"],
        "p99_floor_to_quiet": p99["floor"] / p99["quiet"],
        "p99_flood_to_floor": p99["flood"] / p99["floor"],
        "p99_control_to_quiet": p99["control"] / p99["quiet"],
        "direct_p99_flood_to_quiet": found["direct_p99_flood_ms"] / found["direct_p99_quiet_ms"],
        "broker_share_running": statistics.median(w[0] for w in waits),
        "broker_share_waiting_for_cpu": statistics.median(w[1] for w in waits),
        **{f"{kind}_mb_s": f.moved[0] / seconds / 1e6 for kind, f in floods.items()},
        **{f"{kind}_refused_per_s": f.moved[1] / seconds for kind, f in floods.items()},
    }


if __name__ == "__main__":
    main()
