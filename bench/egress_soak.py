"""A mixed soak of one broker: `python bench/egress_soak.py [--seconds 600]`.

Good requests (TLS tunnel, plain HTTP kept alive, bodies both ways) beside upstreams that stall, reset, cut and lie, clients that leave in
the middle, and refusals of every kind; the same on terminated hosts, with streams, chunks, WebSockets and half-closed clients
(`soak_terminated.py`), and a host that is taken away and given back every second. At the end: every good answer was right, the memory and
descriptors of the broker and of the secrets process are where they were, and the audit log verifies.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import ssl
import statistics
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))

import soak_terminated as terminated

from saggar.audit.verify import verify
from saggar.policy.model import EgressRule
from saggar.testing import client_hello
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import TestPki, Upstream

ELSEWHERE = "203.0.113.9"
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfine."
LIES = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\ncut",
    b"SSH-2.0-x\r\n\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
)


class Nasty:
    """An upstream that stalls, resets, cuts or lies, by turns."""

    def __init__(self):
        self.sock = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = self.sock.getsockname()
        self.stalled = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        turn = 0
        while True:
            conn, _ = self.sock.accept()
            turn += 1
            if turn % 3 == 0:
                self.stalled.append(conn)
                if len(self.stalled) > 50:
                    self.stalled.pop(0).close()
                continue
            with contextlib.suppress(OSError):
                conn.settimeout(1)
                conn.recv(4096)
                if turn % 3 == 1:
                    conn.sendall(LIES[turn // 3 % len(LIES)])
                else:
                    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            conn.close()


def request(sock, host, body=b""):
    head = b"POST /x HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (host, len(body))
    sock.sendall(head + body)
    got = b""
    while not got.endswith(b"fine."):
        part = sock.recv(65536)
        if not part:
            raise ConnectionError("the answer ended early")
        got += part
    if not got.startswith(b"HTTP/1.1 200 OK\r\n"):
        raise ValueError(f"a wrong answer: {got[:60]!r}")


class Soak:
    def __init__(self, cell, context, until):
        self.cell = cell
        self.context = context
        self.until = until
        self.lock = threading.Lock()
        self.done = {}
        self.ended = {}
        self.failed = []

    def connect(self, port, address=ELSEWHERE):
        with self.lock:  # one agent inside, one request at a time
            return self.cell.connect(address, port)

    def loop(self, name, work):
        while time.monotonic() < self.until:
            try:
                work()
                self.done[name] = self.done.get(name, 0) + 1
            except (OSError, ValueError, http.client.HTTPException, terminated.WrongError) as e:
                if name.startswith("good") or isinstance(e, terminated.WrongError):
                    self.failed.append(f"{name}: {e!r}")
                self.ended[name] = self.ended.get(name, 0) + 1

    def good_tls(self):
        with self.context.wrap_socket(self.connect(443), server_hostname="api.allowed.test") as tls:
            for _ in range(random.randint(1, 20)):
                request(tls, b"api.allowed.test", os.urandom(random.choice((0, 10, 5000, 300_000))))

    def good_http(self):
        with self.connect(80) as sock:
            for _ in range(random.randint(1, 20)):
                request(sock, b"api.allowed.test", os.urandom(random.choice((0, 10, 5000, 300_000))))

    def nasty(self):
        with self.connect(80) as sock:
            sock.settimeout(0.3)
            sock.sendall(b"GET / HTTP/1.1\r\nHost: nasty.test\r\n\r\n")
            while sock.recv(4096):
                pass

    def leaves(self):
        """A client that goes in the middle, by FIN or RST, at any point."""
        time.sleep(0.005)
        data = client_hello.hello(b"api.allowed.test")
        with self.connect(443) as sock:
            sock.sendall(data[: random.randint(0, len(data))])
            if random.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def refused(self):
        port, data = random.choice(
            (
                (443, client_hello.hello(b"evil.test")),
                (443, b"SSH-2.0-x\r\n"),
                (80, b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
                (80, b"\x16\x03\x01\xff\xff"),
            )
        )
        with self.connect(port) as sock:
            sock.sendall(data)
            while sock.recv(4096):
                pass

    def kernel(self):
        with contextlib.suppress(ConnectionRefusedError):
            self.connect(random.randint(1000, 1100)).close()
        time.sleep(0.005)


def rss_mb(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="saggar-soak-") as directory:
        pki = TestPki(directory, ["api.allowed.test", terminated.NAME, terminated.REVOKED])
        context = ssl.create_default_context(cafile=pki.ca_file)
        nasty = Nasty()
        with (
            Upstream(context=pki.server_context(), respond=lambda _: GOOD) as tls,
            Upstream(respond=lambda _: GOOD) as http,
        ):
            rules = [
                EgressRule(id="api", host="api.allowed.test", connect_to=tls.address),
                EgressRule(id="plain", host="api.allowed.test", ports=(80,), connect_to=http.address),
                EgressRule(id="nasty", host="nasty.test", ports=(80,), connect_to=nasty.address),
                *terminated_rules(pki),
            ]
            with EgressCell(rules, env={"SOAK_KEY": terminated.SECRET}) as cell:
                result = soak(cell, context, options.seconds, (tls, http))
    print(json.dumps(result, indent=2))
    return 0 if result["sound"] else 1


def terminated_rules(pki):
    """Rules for the three hosts of `soak_terminated.py`, each with an upstream of its own."""
    any_path = [{"methods": ["GET", "POST"], "paths": ["/**"]}]
    key = {"source": "env:SOAK_KEY", "env": "KEY", "format": "openai"}
    moody, plain = terminated.Moody(pki.server_context()), terminated.Moody(None)
    for id_, host, ports, upstream, terms in (
        ("model", terminated.NAME, (443,), moody, {"credential": key, "websocket": True, "rules": any_path}),
        ("half", terminated.PLAIN, (80,), plain, {"rules": any_path}),
        ("revoked", terminated.REVOKED, (443,), moody, {"rules": any_path}),
    ):
        http = json.dumps({**terms, "ca": pki.ca_file})
        yield EgressRule(id=id_, host=host, ports=ports, connect_to=upstream.address, http=http)


def revoke(cell, until):
    """The operator takes a host away and gives it back; how often."""
    count = 0
    while time.monotonic() < until:
        time.sleep(0.5)
        cell.withdraw("revoked")
        time.sleep(0.5)
        cell.withdraw()
        count += 1
    return count


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def soak(cell, context, seconds, upstreams):
    pid = cell.broker.pid
    secrets = cell.secrets.pid
    run = Soak(cell, context, time.monotonic() + seconds)
    inside = ssl.create_default_context(cadata=cell.ca_pem)
    clients = terminated.Clients(run.connect, inside, cell.environment["KEY"])
    kinds = ("good_tls", "good_http", "good_tls", "good_http", "nasty", "nasty", "leaves", "refused", "kernel")
    threads = [threading.Thread(target=run.loop, args=(k, getattr(run, k))) for k in kinds]
    threads += [threading.Thread(target=run.loop, args=(k, getattr(clients, k))) for k in terminated.KINDS]
    threads.append(threading.Thread(target=lambda: run.done.update(revocations=revoke(cell, run.until))))
    for t in threads:
        t.start()
    samples = []
    held = []
    while any(t.is_alive() for t in threads):
        time.sleep(min(1.0, seconds / 20))
        samples.append(rss_mb(pid))
        held.append((descriptors(pid), descriptors(secrets), rss_mb(secrets)))
        for upstream in upstreams:
            upstream.received.clear()  # what they wrote down is not of interest here
    # everything of the cell is closed: what the broker still holds after a moment, it has lost
    deadline = time.monotonic() + 100
    while (open_now := descriptors(pid)) > 50 and time.monotonic() < deadline:
        time.sleep(0.2)
    third = max(1, len(samples) // 3)
    early, late = statistics.median(samples[:third]), statistics.median(samples[-third:])
    removed = cell.remove()
    with open(cell.audit_path, "rb") as f:
        report = verify(f.readlines(), task="t")
    records = cell.records()
    faults = [r for r in records if r["kind"] == "egress.fault"]
    liars = sorted({r["detail"]["host"] for r in records if r["reason"] == "unsolicited_answer"})
    return {
        "seconds": seconds,
        "done": run.done,
        "ended_otherwise": run.ended,
        "good_failed": run.failed[:5],
        "good_failed_count": len(run.failed),
        "rss_first_mb": samples[0],
        "rss_early_mb": early,
        "rss_late_mb": late,
        "rss_last_mb": samples[-1],
        "secrets_rss_early_mb": statistics.median(h[2] for h in held[:third]),
        "secrets_rss_late_mb": statistics.median(h[2] for h in held[-third:]),
        "descriptors_early": statistics.median(h[0] for h in held[:third]),
        "descriptors_late": statistics.median(h[0] for h in held[-third:]),
        "secrets_descriptors_first_last": [held[0][1], held[-1][1]],
        "descriptors_left": open_now,
        "removed": removed,
        "audit_records": report.records,
        "audit_sound": report.ok,
        "broker_faults": len(faults),
        "fault": faults[:1],
        "answered_unasked": liars,
        "sound": liars == [terminated.REVOKED]
        and not run.failed
        and report.ok
        and not faults
        and open_now <= 50
        and late < early * 1.2 + 5,
    }


if __name__ == "__main__":
    sys.exit(main())
