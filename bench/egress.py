"""The way out of a cell against direct, one interleaved run, medians: `python bench/egress.py [--terminated] [--json]`.

The tunnel, or with `--terminated` a host with injection, rules, redaction, budget and audit on; with `--peers` other
programs beside it, in the same rounds (`egress_peers.py`).

Direct is the same client on the host, to the same TLS server on the host's loopback. Inside, the client runs in a bare
network cell (user and network namespace, the planned listeners) and its connections end at a real broker process, audit on.

A ratio says as much about client and upstream as about what stands between them: direct's own rates are printed beside it,
and `--upstream` takes one of two pairs (`egress_load.py`). `bulk_checked` is a download whose SHA-256 the client takes, as
package managers do. Needs nginx, wrk and curl, or `go`; nothing is started as a service.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from types import SimpleNamespace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))

from egress_load import NAME, PAIRS, free_port
from egress_peers import TERMINATED, TUNNELS, Missing, peer

from saggar.policy.model import EgressRule
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import TestPki

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
    "p99_ms": (1.0, 1.0, "most"),
    "cpu_us_per_request": (240.0, 180.0, "most"),
    "added_first_event_ms": (10.0, 10.0, "most"),
}
#: of a terminated host: what stands between a request and its upstream
TERMS = {
    "credential": {"source": "env:BENCH_KEY", "env": "KEY", "format": "openai"},
    "rules": [
        {"methods": ["GET"], "paths": ["/small", "/bulk", "/events"]},
        {"methods": ["POST"], "paths": ["/v1/**"], "content_types": ["application/json"]},
        {"effect": "deny", "paths": ["/admin/**"]},
    ],
    "budget": {"requests": 10**9},
}


def cpu_s(way):
    """Of all its processes together."""
    ticks = 0
    for pid in way.pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * TICK_S


def rss_mb(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(pair, ways, rounds, seconds):
    """Way to measure to its values, one a round."""
    found = {way.name: {} for way in ways}
    for _ in range(rounds):
        for way in ways:
            for key, value in _round(pair, way, seconds).items():
                found[way.name].setdefault(key, []).append(value)
    return found


def _round(pair, way, seconds):
    values = {}

    def cost(load, per):
        if not way.pids:
            return load(), 0.0
        before = cpu_s(way)
        answer = load()
        return answer, (cpu_s(way) - before) / answer["requests"] * per

    busy, values["cpu_us_per_request"] = cost(lambda: pair.load(way, 16, seconds), 1e6)
    values["keepalive_per_s"] = busy["rate"]
    quiet = pair.load(way, 1, 1)
    values["p50_ms"], values["p99_ms"] = quiet["p50_ms"], quiet["p99_ms"]
    new, values["cpu_ms_per_connection"] = cost(lambda: pair.load(way, 4, seconds, close=True), 1e3)
    values["new_per_s"] = new["rate"]
    values["bulk_mb_s"] = pair.bulk(way)
    checked = pair.bulk_checked(way)
    if checked is not None:
        values["bulk_checked_mb_s"] = checked
    event = pair.first_event(way)
    if event is not None:
        values["first_event_ms"] = event
    return values


def report(found, ways):
    """Way to its medians; of all but direct also what they are of direct's."""
    middle = {name: {k: statistics.median(v) for k, v in values.items()} for name, values in found.items()}
    direct = middle["direct"]
    for way in ways:
        values = middle[way.name]
        if not way.pids:
            continue
        middle[way.name] = {
            "keepalive_ratio": values["keepalive_per_s"] / direct["keepalive_per_s"],
            "new_connections_ratio": values["new_per_s"] / direct["new_per_s"],
            "bulk_ratio": values["bulk_mb_s"] / direct["bulk_mb_s"],
            **(
                {"bulk_checked_ratio": values["bulk_checked_mb_s"] / direct["bulk_checked_mb_s"]}
                if "bulk_checked_mb_s" in values
                else {}
            ),
            "added_median_ms": values["p50_ms"] - direct["p50_ms"],
            **(
                {"added_first_event_ms": values["first_event_ms"] - direct["first_event_ms"]}
                if "first_event_ms" in values
                else {}
            ),
            **values,
            "rss_mb": sum(map(rss_mb, way.pids)),
        }
    return middle


def show(result, goals):
    for name, values in result.items():
        print(f"{name}:")
        for key, value in values.items():
            goal = goals.get(key) if name.startswith("saggar") else None
            verdict = ""
            if goal is not None:
                met = [value >= g if goal[2] == "least" else value <= g for g in goal[:2]]
                verdict = f"   goal {goal[0]:g} {'met' if met[0] else 'MISSED'}, stretch {goal[1]:g} {'met' if met[1] else 'missed'}"
            if name != "direct" or value:
                print(f"  {key:24}{value:12.3f}{verdict}")


@contextlib.contextmanager
def cell(pki, port, *, terminated, processes):
    """The way through a cell and our broker."""
    http = json.dumps({**TERMS, "ca": pki.ca_file}) if terminated else ""
    rules = [EgressRule(id="bench", host=NAME, connect_to=("127.0.0.1", port), http=http)]
    with EgressCell(rules, env={"BENCH_KEY": "sk-" + "R" * 48}, processes=processes) as made:
        field = f"Authorization: Bearer {made.environment['KEY']}" if terminated else ""
        yield SimpleNamespace(
            name="saggar" if processes == 1 else f"saggar with {processes} processes",
            prefix=made.argv(),
            base=f"https://{NAME}",
            proxy="",
            field=field,
            pids=made.pids(),
        )


def run(pair, directory, options):
    pki = TestPki(directory, [NAME])
    port = free_port()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pair.server(port, pki.chain_file))
        ways = [
            SimpleNamespace(name="direct", prefix=[], base=f"https://127.0.0.1:{port}", proxy="", field="", pids=())
        ]
        ways += [
            stack.enter_context(cell(pki, port, terminated=options.terminated, processes=n))
            for n in sorted({1, options.processes})
        ]
        for name in options.peers:
            try:
                ways.append(stack.enter_context(peer(name, f"{directory}/{name}", port)))
            except Missing as e:
                print(f"skipped {name}: {e}", file=sys.stderr)
        for way in ways[1:]:
            pair.load(way, 4, 1)
        found = measure(pair, ways, options.rounds, options.seconds)
        return report(found, ways), found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2, help="of each load; wrk knows whole ones")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--terminated", action="store_true", help="measure a host whose requests are read")
    parser.add_argument(
        "--processes", type=int, choices=(1, 2, 3, 4), default=1, help="of the broker's; more than one is beside one"
    )
    parser.add_argument("--upstream", choices=PAIRS, default="light", help="server and client: nginx and wrk, or Go's")
    parser.add_argument(
        "--peers",
        nargs="?",
        const="all",
        default="",
        help="all, or some of squid,haproxy (tunnels), squid-bump,mitmproxy,haproxy-tls,haproxy-tls-2 (terminated); with `--upstream go`",
    )
    options = parser.parse_args()
    known = TERMINATED if options.terminated else TUNNELS
    options.peers = list(known) if options.peers == "all" else [p for p in options.peers.split(",") if p]
    if set(options.peers) - set(known):
        parser.error(f"peers of this path: {', '.join(known)}")
    kind = PAIRS[options.upstream]
    if options.peers and not kind.knows_connect:
        parser.error("wrk knows no CONNECT: peers are measured with `--upstream go`")
    missing = [p for p in (*kind.needs, "nsenter", "unshare") if shutil.which(p) is None]
    if missing:
        print(f"missing: {', '.join(missing)}", file=sys.stderr)
        return 4
    with tempfile.TemporaryDirectory(prefix="saggar-bench-") as directory:
        os.chmod(directory, 0o755)
        result, found = run(kind(directory), directory, options)
    if options.json:
        print(json.dumps({"result": result, "rounds": found}))
    else:
        show(result, TERMINATED_GOALS if options.terminated else GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
