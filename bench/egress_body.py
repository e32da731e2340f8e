"""One very large body each way through a tunnel and a terminated host: `python bench/egress_body.py [--body 10GiB]`.

Zeros from a small server, nothing on disk. The broker's memory is sampled from the first 16 MiB on: flat means that the most it
ever was is within 8 MB of what it was then. Counted on both sides: every byte arrived.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import socket
import ssl
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))

from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import TestPki

TUNNEL, TERMINATED = "tunnel.allowed.test", "model.allowed.test"
SECRET = "sk-" + "B" * 48
WARM = 16 * 1024 * 1024
FLAT_MB = 8.0
_ZEROS = memoryview(bytes(256 * 1024))
_UNITS = {"": 1, "MiB": 1 << 20, "GiB": 1 << 30}


def serve(sock, context):
    """GET /SIZE gives so many zeros, POST takes a body and says how long it was. One connection a thread."""

    def one(conn):
        with contextlib.suppress(OSError), context.wrap_socket(conn, server_side=True) as tls:
            while answer(tls):
                pass

    while True:
        conn, _ = sock.accept()
        threading.Thread(target=one, args=(conn,), daemon=True).start()


def answer(tls):
    """One request; whether there was one."""
    head = b""
    while b"\r\n\r\n" not in head:
        if not (data := tls.recv(65536)):
            return False
        head += data
    head, _, body = head.partition(b"\r\n\r\n")
    if head.startswith(b"GET "):
        size = int(head.split(b" ")[1][1:])
        tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        send_zeros(tls, size)
    else:
        size = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
        told = b"%d" % (len(body) + receive(tls, size - len(body)))
        tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(told), told))
    return True


def send_zeros(sock, size):
    while size:
        piece = _ZEROS[: min(size, len(_ZEROS))]
        sock.sendall(piece)
        size -= len(piece)


def receive(sock, size):
    buffer = bytearray(256 * 1024)
    got = 0
    while got < size:
        count = sock.recv_into(buffer)
        if not count:
            break
        if any(buffer[: min(count, 64)]):
            raise ValueError("not zeros")
        got += count
    return got


class Samples:
    """The resident memory of a process, every 50 ms, in MB."""

    def __init__(self, pid):
        self._pid = pid
        self.values = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._stop.wait(0.05):
            with open(f"/proc/{self._pid}/statm", encoding="ascii") as f:
                self.values.append(int(f.read().split()[1]) * page / 1e6)

    def __enter__(self):
        self._thread.start()
        return self.values

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def exchange(cell, context, name, size, *, up):
    """Bytes that arrived of one body."""
    sock = cell.connect("203.0.113.9", 443)
    sock.settimeout(120)
    with context.wrap_socket(sock, server_hostname=name) as tls:
        key = b"Authorization: Bearer %s\r\n" % cell.environment["KEY"].encode() if name == TERMINATED else b""
        method, path, length = (b"POST", b"/", b"Content-Length: %d\r\n" % size) if up else (b"GET", b"/%d" % size, b"")
        tls.sendall(b"%s %s HTTP/1.1\r\nHost: %s\r\n%s%s\r\n" % (method, path, name.encode(), key, length))
        if up:
            send_zeros(tls, size)
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := tls.recv(16384)):
                raise ConnectionError(f"no answer: {head!r}")
            head += data
        head, _, body = head.partition(b"\r\n\r\n")
        if b" 200 " not in head:
            raise ConnectionError(f"{head!r} {body!r}")
        if not up:
            return len(body) + receive(tls, size - len(body))
        return int(body or tls.recv(100))


def measure(size):
    """Of each path and direction: bytes that arrived, MB/s, and the broker's memory first, most and last."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="saggar-body-") as directory:
        pki = TestPki(directory, [TUNNEL, TERMINATED])
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        server = context.Process(target=serve, args=(listener, pki.server_context()), daemon=True)
        server.start()
        key = {"source": "env:BODY_KEY", "env": "KEY", "format": "openai"}
        rules = [{"methods": ["GET", "POST"], "paths": ["/**"]}]
        terms = json.dumps({"credential": key, "rules": rules, "ca": pki.ca_file})
        to = listener.getsockname()
        entries = [
            EgressRule(id="tunnel", host=TUNNEL, connect_to=to),
            EgressRule(id="model", host=TERMINATED, connect_to=to, http=terms),
        ]
        try:
            with EgressCell(entries, env={"BODY_KEY": SECRET}) as cell:
                contexts = {
                    TUNNEL: ssl.create_default_context(cafile=pki.ca_file),
                    TERMINATED: ssl.create_default_context(cadata=cell.ca_pem),
                }
                return {
                    f"{name.split('.')[0]}_{'up' if up else 'down'}": one(cell, contexts[name], name, size, up=up)
                    for name in (TUNNEL, TERMINATED)
                    for up in (False, True)
                }
        finally:
            server.kill()


def one(cell, context, name, size, *, up):
    exchange(cell, context, name, WARM, up=up)
    with Samples(cell.broker.pid) as values:
        started = time.monotonic()
        arrived = exchange(cell, context, name, size, up=up)
        seconds = time.monotonic() - started
    return {
        "arrived": arrived,
        "mb_s": size / seconds / 1e6,
        "rss_first_mb": values[0],
        "rss_most_mb": max(values),
        "rss_last_mb": values[-1],
        "flat": max(values) - values[0] < FLAT_MB,
    }


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)(|MiB|GiB)", text).groups()
    return int(number) * _UNITS[unit]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--body", type=bytes_of, default="10GiB", help="bytes, MiB or GiB")
    size = parser.parse_args().body
    result = measure(size)
    print(json.dumps({"body_bytes": size, **result}, indent=2))
    return 0 if all(r["flat"] and r["arrived"] == size for r in result.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
