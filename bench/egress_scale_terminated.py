"""Terminated connections of many cells, and leaves minted under load: `python bench/egress_scale_terminated.py`.

CELLS cells, each with its own secrets process and CA, hold CONNECTIONS connections each (5,000 in all by default): handshake done, one
request answered, kept alive. Then each is asked once more. After that one cell asks for one new name after the other under a
wildcard, more than the broker keeps leaves for, while requests of other cells are timed.

With the defaults it takes two minutes on two cores, half of it the start of 200 secrets processes and the handshakes; what is done is
told on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import ssl
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from egress_scale import Fleet, at, enter, one_cpu, rss_mb, settle

from saggar.egress.secrets_spawn_host import start_secrets
from saggar.egress.terms import compile_policy
from saggar.policy.model import EgressPolicy, EgressRule
from saggar.testing.upstream import TestPki

STARTED = time.monotonic()
NAME, WILD = "model.allowed.test", "wild.test"
SECRET = "sk-" + "T" * 48
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def answer_all(sock, chain):
    """The upstream: a small answer to each request, on a uvloop of its own."""
    import asyncio

    import uvloop

    class Server(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(ANSWER * data.count(b"\r\n\r\n"))

    async def main():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        await asyncio.get_running_loop().create_server(Server, sock=sock, backlog=4096, ssl=context)
        await asyncio.Event().wait()

    uvloop.run(main())


def tell(text):
    print(f"{time.monotonic() - STARTED:6.1f} s  {text}", file=sys.stderr, flush=True)


class TerminatedFleet(Fleet):
    def __init__(self, cells, rules, directory):
        with open(f"{directory}/ca.pem", encoding="ascii") as f:
            pem = f.read()
        self.made = compile_policy(EgressPolicy(allow=tuple(rules)), random=os.urandom, read_ca=lambda _: pem)
        with ThreadPoolExecutor(4) as pool:
            self._ready = list(pool.map(lambda _: start_secrets(self.made.specs, {"KEY": SECRET}), range(cells)))
        tell(f"{cells} secrets processes are there")
        self.secrets = {}
        self.contexts = {}
        super().__init__(cells, [rules], directory)

    def memfd(self, _rules):
        fd = os.memfd_create("rules")
        os.write(fd, json.dumps({"egress": self.made.egress}).encode())
        return fd

    def before(self, cell):
        process = self.secrets[int(cell)] = self._ready.pop()
        ca, _ = process.add(cell, "t", self.made.hosts, self.made.specs)
        self.contexts[int(cell)] = ssl.create_default_context(cadata=ca)
        message = json.dumps({"op": "secrets", "cell": cell}).encode()
        socket.send_fds(self.control, [message], [process.broker.fileno()])

    def dial(self, cell, name=NAME):
        return self.contexts[cell].wrap_socket(self.connect(cell), server_hostname=name)

    def close(self):
        super().close()
        for process in (*self.secrets.values(), *self._ready):
            process.stop()


def ask(tls, key):
    got = b""
    with contextlib.suppress(OSError):
        tls.sendall(b"GET /x HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n" % (NAME.encode(), key))
    while not got.endswith(b"ok"):
        part = tls.recv(4096)
        if not part:
            return False
        got += part
    return got.startswith(b"HTTP/1.1 200")


def mint(fleet, start, names, done, group):
    """Runs in a process of its own: a handshake for each of so many names that the cell invents."""
    enter(group)
    for number in range(start, start + names):
        with contextlib.suppress(OSError), fleet.dial(0, f"n{number}.{WILD}"):
            done.value += 1


def timed(socks, key, more):
    """Sorted milliseconds of single requests, over `socks` in turn, while `more()`."""
    found = []
    while more():
        for s in socks:
            started = time.perf_counter()
            if not ask(s, key):
                raise ConnectionError("a kept connection was lost")
            found.append((time.perf_counter() - started) * 1e3)
            time.sleep(0.001)
    return sorted(found)


def for_seconds(seconds):
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--connections", type=int, default=25, help="in each cell")
    parser.add_argument("--names", type=int, default=400, help="minted in each of three rounds")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = multiprocessing.get_context("fork")
    server = socket.create_server(("127.0.0.1", 0), backlog=4096)
    with tempfile.TemporaryDirectory(prefix="saggar-scale-") as directory, one_cpu() as group:
        pki = TestPki(directory, [NAME])
        upstream = context.Process(target=answer_all, args=(server, pki.chain_file), daemon=True)
        upstream.start()
        rules = [{"methods": ["GET"], "paths": ["/**"]}]
        key = {"source": "env:KEY", "env": "KEY", "format": "openai"}
        terms = json.dumps({"credential": key, "rules": rules, "ca": pki.ca_file})
        entries = [
            EgressRule(id="m", host=NAME, connect_to=server.getsockname(), http=terms),
            EgressRule(id="w", host=f"*.{WILD}", http=json.dumps({"rules": rules})),
        ]
        fleet = TerminatedFleet(options.cells, entries, directory)
        try:
            print(json.dumps(run(fleet, options, context, group), indent=2))
        finally:
            fleet.close()
            upstream.kill()


def run(fleet, options, context, group):
    key = fleet.made.environment["KEY"].encode()
    pid = fleet.broker.pid
    # the first connection of each cell brings what a cell costs: leaf, context, lease
    warm = [fleet.dial(cell) for cell in fleet.agents]
    answered = sum(ask(tls, key) for tls in warm)
    empty = rss_mb(pid)
    started = time.perf_counter()
    held = []
    tell(f"{len(warm)} cells have their first connection")
    for number in range(options.connections - 1):
        if number % 5 == 0:
            tell(f"{len(warm) + len(held)} connections, {rss_mb(pid):.0f} MB")
        for cell in fleet.agents:
            # asked at once: the broker waits 15 s for a first head
            held.append(fleet.dial(cell))
            answered += ask(held[-1], key)
    seconds = time.perf_counter() - started
    full = rss_mb(pid)
    alive = sum(ask(tls, key) for tls in (*warm, *held))
    result = {
        "cells": len(fleet.agents),
        "connections_open": len(warm) + len(held),
        "answered": answered,
        "answered_again": alive,
        "opened_per_s": len(held) / seconds,
        "broker_rss_cells_mb": empty,
        "broker_rss_mb": full,
        "kib_per_connection": (full - empty) * 1e6 / len(held) / 1024,
        "secrets_process_rss_mb": statistics.median(rss_mb(p.pid) for p in fleet.secrets.values()),
    }
    return {**result, **minting(fleet, options, context, group, key, warm)}


def minting(fleet, options, context, group, key, warm):
    pid = fleet.broker.pid
    sampled = [tls for cell, tls in zip(fleet.agents, warm, strict=True) if cell in range(1, 9)]
    quiet, loud, rss, rates = [], [], [], []
    for number in range(3):
        settle(pid)
        tell(f"minting, round {number + 1}")
        quiet.append(timed(sampled, key, for_seconds(2)))
        done = context.Value("i", 0)
        worker = context.Process(target=mint, args=(fleet, number * options.names, options.names, done, group))
        started = time.monotonic()
        worker.start()
        loud.append(timed(sampled, key, worker.is_alive))
        rates.append(done.value / (time.monotonic() - started))
        worker.join()
        rss.append(rss_mb(pid))
    found = {
        f"others_{label}_{kind}_ms": statistics.median(at(r, share) for r in trips)
        for label, share in (("p50", 0.5), ("p99", 0.99))
        for kind, trips in (("quiet", quiet), ("minting", loud))
    }
    return {
        "names_minted": 3 * options.names,
        "minted_per_s": statistics.median(rates),
        "broker_rss_after_each_round_mb": rss,
        **found,
        "p99_minting_to_quiet": found["others_p99_minting_ms"] / found["others_p99_quiet_ms"],
    }


if __name__ == "__main__":
    sys.exit(main())
