"""What the terminated path costs: CPU per request, added latency, new connections, bulk, first event of a stream.

    PYTHONPATH=src python bench/egress_terminated.py [--json] [--seconds 4] [--rounds 3]

Loopback upstream with TLS, a broker process with injection, rules, redaction and audit all on, and a load generator; the
same load goes direct and through the broker in turn, and the medians of the rounds are printed. Everything shares the
machine's cores, as everywhere in this project's figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import statistics
import sys
import tempfile
import time

import uvloop

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

from concurrent.futures import ThreadPoolExecutor

from saggar.audit.sink_host import AuditLog
from saggar.egress.authorize import authorize
from saggar.egress.ca_host import TaskCa
from saggar.egress.destination import Destination
from saggar.egress.dial_host import Dialer
from saggar.egress.match import RuleSet
from saggar.egress.secrets_client_host import SecretsClient
from saggar.egress.secrets_spawn_host import start_secrets
from saggar.egress.terminated_host import Termination
from saggar.egress.terms import Terms, compile_entry
from saggar.policy.model import EgressRule

HOST = "api.allowed.test"
BODY = b'{"id":"chatcmpl-1","choices":[{"message":{"content":"' + b"word " * 40 + b'"}}]}'
BULK = 64 * 1024 * 1024


def context_of(ca: TaskCa) -> ssl.SSLContext:
    certificate, key = ca.leaf(HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    fd = os.memfd_create("leaf")
    os.write(fd, (certificate + key).encode())
    context.load_cert_chain(f"/proc/self/fd/{fd}")
    os.close(fd)
    return context


class Server(asyncio.Protocol):
    ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY

    def connection_made(self, transport):
        self.transport = transport
        self.buffer = b""
        self.task = None

    def data_received(self, data):
        self.buffer += data
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head, self.buffer = self.buffer[:end], self.buffer[end + 4 :]
            if head.startswith(b"GET /bulk"):
                self.task = asyncio.ensure_future(self.bulk())
            elif head.startswith(b"GET /events"):
                self.task = asyncio.ensure_future(self.events())
            else:
                self.transport.write(self.ANSWER)

    def pause_writing(self):
        self.gate = asyncio.get_running_loop().create_future()

    def resume_writing(self):
        self.gate.set_result(None)
        self.gate = None

    gate = None

    async def bulk(self):
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BULK)
        piece = os.urandom(256 * 1024)
        for _ in range(BULK // len(piece)):
            self.transport.write(piece)
            if self.gate is not None:
                await self.gate

    async def events(self):
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for i in range(3):
            event = b"data: %d\n\n" % i
            self.transport.write(b"%x\r\n%s\r\n" % (len(event), event))
            await asyncio.sleep(0.02)
        self.transport.write(b"0\r\n\r\n")

    def connection_lost(self, _):
        if self.task is not None:
            self.task.cancel()


def child(function, *args):
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        function(*args)
    finally:
        os._exit(0)


def serve(sock, ca):
    async def main():
        await asyncio.get_running_loop().create_server(Server, sock=sock, ssl=context_of(ca))
        await asyncio.get_running_loop().create_future()

    uvloop.run(main())


class Port:
    id = "cell"

    def __init__(self, loop, path):
        self.dialer = Dialer(ThreadPoolExecutor(2))
        self.audit = AuditLog(path, "bench")

    def record(self, decision, destination, via):
        self.audit.append(
            "egress.decision",
            layer="L2",
            effect=decision.effect,
            reason=decision.reason,
            rule=decision.rule,
            detail={**decision.detail, "via": via},
        )
        return True

    def commit(self):
        return True

    def refused(self, decision, via):
        print("refused", decision.reason, decision.detail, file=sys.stderr)
        return True

    def moved(self, destination, up, down):
        pass

    def unsolicited(self, host, port, rule):
        print("unsolicited", host, port, rule, file=sys.stderr)

    async def approve(self, decision):
        return "denied"


def broker(sock, process, rule, terms, placeholders, path):
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    client = SecretsClient(loop, process.broker, lambda: os._exit(1))
    termination = Termination(loop, Port(loop, path), client, placeholders=placeholders)
    authorized = authorize(RuleSet([rule]), Destination(HOST, 443, "https"))
    sock.setblocking(False)

    def accept():
        try:
            while True:
                conn, _ = sock.accept()
                conn.setblocking(False)
                conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                termination.accept(conn, authorized, terms)
        except BlockingIOError:
            pass

    loop.add_reader(sock.fileno(), accept)
    if os.environ.get("PROFILE"):
        import cProfile

        profile = cProfile.Profile()
        loop.call_later(
            float(os.environ["PROFILE"]),
            lambda: (profile.disable(), profile.dump_stats("/tmp/proxy_prof"), print("dumped")),
        )
        profile.enable()
    loop.run_forever()


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmRSS"))


def start_mitm(program, folder, ca, port):
    """mitmproxy with one line of injection, as the nearest thing that is used for this. (pid, (address, its CA))"""
    with open(f"{folder}/up.pem", "w") as f:
        f.write(ca.pem)
    with open(f"{folder}/inject.py", "w") as f:
        f.write("def request(flow):\n    flow.request.headers['authorization'] = 'Bearer x'\n")
    free = socket.create_server(("127.0.0.1", 0))
    listen = free.getsockname()[1]
    free.close()
    argv = [program, "-q", "-p", str(listen), "--listen-host", "127.0.0.1", "--set", f"confdir={folder}/mitm", "--set",
            f"ssl_verify_upstream_trusted_ca={folder}/up.pem", "--set", "http2=false", "--set", "stream_large_bodies=1m", "-s", f"{folder}/inject.py"]  # fmt: skip
    pid = os.posix_spawn(program, argv, {"PATH": os.environ["PATH"], "HOME": folder})
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", listen)).close()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    with open(f"{folder}/mitm/mitmproxy-ca-cert.pem") as f:
        return pid, (("127.0.0.1", listen, port), f.read())


class Load(asyncio.Protocol):
    """One keep-alive connection that asks again as soon as it was answered."""

    def __init__(self, request, stop, times):
        self.request, self.stop, self.times = request, stop, times
        self.size = None

    def connection_made(self, transport):
        self.transport = transport
        self.done = asyncio.get_running_loop().create_future()
        self.go()

    def go(self):
        self.left = -1
        self.buffer = b""
        self.began = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data):
        if self.left < 0:
            self.buffer += data
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[:end].lower()
            if not head.startswith(b"http/1.1 200"):
                raise SystemExit(f"not served: {self.buffer[:300]!r}")
            self.left = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            data = self.buffer[end + 4 :]
        self.left -= len(data)
        if self.left == 0:
            now = time.perf_counter()
            self.times.append(now - self.began)
            if now < self.stop:
                self.go()
            else:
                self.transport.close()

    def connection_lost(self, error):
        if not self.done.done():
            self.done.set_result(None)


async def opened(address, factory, context):
    """A TLS connection: straight, or (address of three parts) through a proxy's CONNECT to the upstream."""
    loop = asyncio.get_running_loop()
    if len(address) == 2:
        return await loop.create_connection(factory, *address, ssl=context, server_hostname=HOST)
    host, port, upstream = address
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await loop.sock_connect(sock, (host, port))
    await loop.sock_sendall(sock, b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (upstream, upstream))
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += await loop.sock_recv(sock, 4096)
    return await loop.create_connection(factory, sock=sock, ssl=context, server_hostname=HOST)


async def keep_alive(address, context, request, connections, seconds):
    times = []
    stop = time.perf_counter() + seconds
    began = time.perf_counter()
    made = [await opened(address, lambda: Load(request, stop, times), context) for _ in range(connections)]
    await asyncio.gather(*[p.done for _, p in made])
    took = time.perf_counter() - began
    times.sort()
    return {
        "rate": len(times) / took,
        "count": len(times),
        "p50_ms": times[len(times) // 2] * 1e3,
        "p99_ms": times[len(times) * 99 // 100] * 1e3,
    }


async def new_connections(address, context, request, workers, seconds):
    stop = time.perf_counter() + seconds
    count = 0

    async def one():
        nonlocal count
        while time.perf_counter() < stop:
            _, p = await opened(address, lambda: Load(request, 0, []), context)
            await p.done
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*[one() for _ in range(workers)])
    return {"rate": count / (time.perf_counter() - began), "count": count}


async def bulk(address, context, request):
    times = []
    _, p = await opened(address, lambda: Load(request, 0, times), context)
    await p.done
    return {"rate": BULK / times[0] / 1e6, "count": 1}


async def first_event(address, context, request):
    reader = asyncio.StreamReader()
    transport, protocol = await opened(address, lambda: asyncio.StreamReaderProtocol(reader), context)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    began = time.perf_counter()
    writer.write(request)
    while b"data: 0" not in await reader.read(4096):
        pass
    took = time.perf_counter() - began
    writer.close()
    return {"rate": took * 1e3, "count": 1}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--mitmdump", default="", help="path of a mitmdump to measure in the same run")
    options = parser.parse_args()
    ca = TaskCa("upstream", time.time())
    up = socket.create_server(("127.0.0.1", 0), backlog=512)
    entry = {
        "credential": {"source": "env:REAL_KEY", "env": "OPENAI_API_KEY", "format": "openai"},
        "rules": [
            {"methods": ["GET"], "paths": ["/v1/models", "/v1/models/*", "/bulk", "/events"]},
            {"methods": ["POST"], "paths": ["/v1/chat/completions"], "content_types": ["application/json"]},
            {"effect": "deny", "paths": ["/v1/admin/**"]},
        ],
        "budget": {"requests": 10**9},
    }
    rule = EgressRule(host=HOST, connect_to=("127.0.0.1", up.getsockname()[1]), id="egress.allow[0]")
    made = compile_entry(entry, host=HOST, rule_id=rule.id, random=os.urandom, ca_pem=ca.pem)
    process = start_secrets([made.secret.to_json()], {"REAL_KEY": "sk-" + "R" * 48})
    task_ca, _ = process.add("cell", "bench", [HOST], [made.secret.to_json()])
    sock = socket.create_server(("127.0.0.1", 0), backlog=512)
    folder = tempfile.mkdtemp(prefix="saggar-bench-")
    server = child(serve, up, ca)
    pid = child(
        broker, sock, process, rule, Terms.parse(made.terms, rule.id), made.placeholders, f"{folder}/audit.jsonl"
    )
    process.broker.close()
    fields = (
        b"Host: %s\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\nUser-Agent: bench/1.0\r\nAuthorization: Bearer %s\r\n\r\n"
        % (HOST.encode(), made.placeholders[0].encode())
    )
    ways = {"direct": (up.getsockname(), ca.pem), "terminated": (sock.getsockname(), task_ca)}
    pids = {"terminated": pid}
    if options.mitmdump:
        pids["mitmproxy"], ways["mitmproxy"] = start_mitm(options.mitmdump, folder, ca, up.getsockname()[1])
    results = {}
    try:
        for _ in range(options.rounds):
            for name, (address, pem) in ways.items():
                context = ssl.create_default_context(cadata=pem)
                for what, run in {
                    "c16": lambda a, c: keep_alive(a, c, b"GET /v1/models HTTP/1.1\r\n" + fields, 16, options.seconds),
                    "c1": lambda a, c: keep_alive(
                        a, c, b"GET /v1/models HTTP/1.1\r\n" + fields, 1, options.seconds / 2
                    ),
                    "new": lambda a, c: new_connections(
                        a, c, b"GET /v1/models HTTP/1.1\r\n" + fields, 4, options.seconds
                    ),
                    "bulk": lambda a, c: bulk(a, c, b"GET /bulk HTTP/1.1\r\n" + fields),
                    "sse": lambda a, c: first_event(a, c, b"GET /events HTTP/1.1\r\n" + fields),
                }.items():
                    if options.only and what not in options.only:
                        continue
                    before = cpu_s(pids[name]) if name in pids else 0
                    found = uvloop.run(run(address, context))
                    found["cpu_us"] = (cpu_s(pids[name]) - before) * 1e6 / found["count"] if name in pids else 0
                    results.setdefault((what, name), []).append(found)
        report = {}
        for (what, name), runs in results.items():
            report.setdefault(what, {})[name] = {k: statistics.median(r[k] for r in runs) for k in runs[0]}
        for pair in report.values():
            pair["ratio"] = {n: pair[n]["rate"] / pair["direct"]["rate"] for n in pids}
        report["rss_mb"] = {n: rss_mb(p) for n, p in pids.items()}
    finally:
        for p in (server, *pids.values()):
            os.kill(p, signal.SIGTERM)
            os.waitpid(p, 0)
        process.stop()
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(report, indent=1))
        return
    for what, pair in report.items():
        if what == "rss_mb":
            print("RSS MB", {n: round(v) for n, v in pair.items()})
            continue
        print(what, "of direct:", {n: round(v, 2) for n, v in pair["ratio"].items()})
        for name in ways:
            print("   ", name, {k: round(v, 3) for k, v in pair[name].items()})


if __name__ == "__main__":
    main()
