"""The way out of a cell against direct, one interleaved run, medians: `python bench/egress.py [--terminated] [--json]`.

The tunnel, or with `--terminated` a host with injection, rules, redaction, budget and audit on.

Direct is the same client on the host, to the same TLS server on the host's loopback. Inside, the client runs in a bare
network cell (user and network namespace, the planned listeners) and its connections end at a real broker process, audit on.

Needs `wrk` and `nginx` (Debian: `wrk`, `nginx-light`); neither is started as a service.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))

from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import TestPki

NAME = "api.allowed.test"
BULK_BYTES = 256 * 1024 * 1024
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

#: goal of the first issue, stretch of the second one
GOALS = {
    "keepalive_ratio": (0.42, 0.45, "least"),
    "new_connections_ratio": (0.65, 0.7, "least"),
    "bulk_ratio": (0.9, 0.92, "least"),
    "added_median_ms": (0.1, 0.08, "most"),
    "cpu_us_per_request": (40.0, 38.0, "most"),
}

TERMINATED_GOALS = {
    "keepalive_ratio": (0.18, 0.3, "least"),
    "new_connections_ratio": (0.6, 0.6, "least"),
    "bulk_ratio": (0.65, 0.65, "least"),
    "added_median_ms": (0.3, 0.3, "most"),
    "cpu_us_per_request": (240.0, 180.0, "most"),
}
#: of a terminated host: what stands between a request and its upstream
TERMS = {
    "credential": {"source": "env:BENCH_KEY", "env": "KEY", "format": "openai"},
    "rules": [
        {"methods": ["GET"], "paths": ["/small", "/bulk"]},
        {"methods": ["POST"], "paths": ["/v1/**"], "content_types": ["application/json"]},
        {"effect": "deny", "paths": ["/admin/**"]},
    ],
    "budget": {"requests": 10**9},
}

NGINX = """
worker_processes 1; pid {dir}/pid; error_log {dir}/error.log; daemon off; master_process off;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 300s;
  client_body_temp_path {dir}; proxy_temp_path {dir}; fastcgi_temp_path {dir}; uwsgi_temp_path {dir}; scgi_temp_path {dir};
  server {{
    listen 127.0.0.1:{port} ssl backlog=4096; ssl_certificate {pem}; ssl_certificate_key {pem};
    ssl_session_tickets off; ssl_session_cache off; root {dir};
    location = /small {{ return 200 "hello, upstream\\n"; }}
  }}
}}
"""


@contextlib.contextmanager
def server(directory, pem):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with open(f"{directory}/bulk", "wb") as f:
        block = os.urandom(1024 * 1024)
        f.writelines(block for _ in range(BULK_BYTES // len(block)))
    with open(f"{directory}/conf", "w", encoding="ascii") as f:
        f.write(NGINX.format(dir=directory, port=port, pem=pem))
    process = subprocess.Popen(["nginx", "-c", f"{directory}/conf"], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait()


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


#: header lines of every request; the placeholder of a terminated host
HEADERS = []


def wrk(prefix, url, connections, seconds, *, close=False):
    """(requests a second, median in ms, requests)."""
    headers = ["-H", f"Host: {NAME}", *HEADERS] + (["-H", "Connection: close"] if close else [])
    argv = [*prefix, "wrk", "-t1", f"-c{connections}", f"-d{seconds}", "--latency", *headers, url]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1])
    value, unit = re.search(r"50%\s+([\d.]+)(us|ms|s)", out).groups()
    requests = int(re.search(r"(\d+) requests in", out)[1])
    return rate, float(value) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit], requests


def bulk(prefix, url):
    """MB/s of one download."""
    argv = [*prefix, "curl", "-sk", *HEADERS, "-o", "/dev/null", "-w", "%{speed_download}", url]
    return float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout) / 1e6


def measure(cell, port, rounds, seconds):
    found = {}

    def add(key, value):
        found.setdefault(key, []).append(value)

    direct, inside = f"https://127.0.0.1:{port}", f"https://{NAME}"
    for _ in range(rounds):
        for where, prefix, base in (("direct", [], direct), ("tunnel", cell.argv(), inside)):
            before = cpu_s(cell.broker.pid)
            rate, _, requests = wrk(prefix, base + "/small", 16, seconds)
            add(f"{where}_keepalive", rate)
            if where == "tunnel":
                add("cpu_us", (cpu_s(cell.broker.pid) - before) / requests * 1e6)
            add(f"{where}_c1_ms", wrk(prefix, base + "/small", 1, 1)[1])
            before = cpu_s(cell.broker.pid)
            rate, _, requests = wrk(prefix, base + "/small", 4, seconds, close=True)
            add(f"{where}_new", rate)
            if where == "tunnel":
                add("cpu_ms_per_connection", (cpu_s(cell.broker.pid) - before) / requests * 1e3)
            add(f"{where}_bulk", bulk(prefix, base + "/bulk"))
    return found


def report(found, rss_mb):
    middle = {key: statistics.median(values) for key, values in found.items()}
    return {
        "keepalive_ratio": middle["tunnel_keepalive"] / middle["direct_keepalive"],
        "new_connections_ratio": middle["tunnel_new"] / middle["direct_new"],
        "bulk_ratio": middle["tunnel_bulk"] / middle["direct_bulk"],
        "added_median_ms": middle["tunnel_c1_ms"] - middle["direct_c1_ms"],
        "cpu_us_per_request": middle["cpu_us"],
        "cpu_ms_per_connection": middle["cpu_ms_per_connection"],
        "direct_keepalive_per_s": middle["direct_keepalive"],
        "tunnel_keepalive_per_s": middle["tunnel_keepalive"],
        "direct_new_per_s": middle["direct_new"],
        "tunnel_new_per_s": middle["tunnel_new"],
        "direct_bulk_mb_s": middle["direct_bulk"],
        "tunnel_bulk_mb_s": middle["tunnel_bulk"],
        "broker_rss_mb": rss_mb,
    }


def show(result, goals):
    for key, value in result.items():
        goal = goals.get(key)
        verdict = ""
        if goal is not None:
            met = [value >= g if goal[2] == "least" else value <= g for g in goal[:2]]
            verdict = f"   goal {goal[0]:g} {'met' if met[0] else 'MISSED'}, stretch {goal[1]:g} {'met' if met[1] else 'missed'}"
        print(f"{key:26}{value:12.3f}{verdict}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2, help="of each load; wrk knows whole ones")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--terminated", action="store_true", help="measure a host whose requests are read")
    options = parser.parse_args()
    missing = [p for p in ("wrk", "nginx", "curl", "nsenter", "unshare") if shutil.which(p) is None]
    if missing:
        print(f"missing: {', '.join(missing)}", file=sys.stderr)
        return 4
    with tempfile.TemporaryDirectory(prefix="saggar-bench-") as directory:
        os.chmod(directory, 0o755)
        pki = TestPki(directory, [NAME])
        with server(directory, pki.chain_file) as port:
            http = json.dumps({**TERMS, "ca": pki.ca_file}) if options.terminated else ""
            rules = [EgressRule(id="bench", host=NAME, connect_to=("127.0.0.1", port), http=http)]
            with EgressCell(rules, env={"BENCH_KEY": "sk-" + "R" * 48}) as cell:
                if options.terminated:
                    HEADERS[:] = ["-H", f"Authorization: Bearer {cell.environment['KEY']}"]
                wrk(cell.argv(), f"https://{NAME}/small", 4, 1)
                found = measure(cell, port, options.rounds, options.seconds)
                with open(f"/proc/{cell.broker.pid}/statm", encoding="ascii") as f:
                    rss_mb = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    result = report(found, rss_mb)
    if options.json:
        print(json.dumps({"result": result, "rounds": found}))
    else:
        show(result, TERMINATED_GOALS if options.terminated else GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
