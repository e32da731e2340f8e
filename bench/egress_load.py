"""What `bench/egress.py` loads the ways out with: two pairs of upstream and client, and how they are read.

light: nginx's `return 200` under wrk (downloads: curl). Both are as cheap as such programs get, so whatever stands between
them shows three times larger than in front of an application.
go: `weight/main.go`, an ordinary server and client of Go's standard library, built when it is asked for. Direct, it comes
to about the 31,000 requests a second of the table that the project's goals were taken from, and its client knows CONNECT,
so the peers can be measured with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import time

NAME = "api.allowed.test"
BULK_BYTES = 256 * 1024 * 1024

_NGINX = """
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


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(argv, port, **options):
    """The process, once it listens on `port`; ended with the block."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None:
                raise OSError(f"{argv[0]} ended with {process.returncode}")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.wait()


class Light:
    """nginx, wrk and curl."""

    needs = ("wrk", "nginx", "curl")
    knows_connect = False

    def __init__(self, directory):
        self._directory = directory

    def server(self, port, pem):
        directory = self._directory
        with open(f"{directory}/bulk", "wb") as f:
            block = os.urandom(1024 * 1024)
            f.writelines(block for _ in range(BULK_BYTES // len(block)))
        with open(f"{directory}/conf", "w", encoding="ascii") as f:
            f.write(_NGINX.format(dir=directory, port=port, pem=pem))
        return running(["nginx", "-c", f"{directory}/conf"], port)

    def load(self, way, connections, seconds, *, close=False):
        headers = ["-H", f"Host: {NAME}"]
        for field in ([way.field] if way.field else []) + (["Connection: close"] if close else []):
            headers += ["-H", field]
        argv = [
            *way.prefix,
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{seconds}",
            "--latency",
            *headers,
            f"{way.base}/small",
        ]
        out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return {
            "rate": float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1]),
            "p50_ms": _milliseconds(out, 50),
            "p99_ms": _milliseconds(out, 99),
            "requests": int(re.search(r"(\d+) requests in", out)[1]),
        }

    def bulk(self, way):
        headers = ["-H", way.field] if way.field else []
        argv = [*way.prefix, "curl", "-sk", *headers, "-o", "/dev/null", "-w", "%{speed_download}", f"{way.base}/bulk"]
        return float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout) / 1e6

    def bulk_checked(self, way):
        """curl takes no digest."""
        del way

    def first_event(self, way):
        """nginx streams no events."""
        del way


def _milliseconds(out, part):
    value, unit = re.search(rf"{part}%\s+([\d.]+)(us|ms|s)", out).groups()
    return float(value) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]


class Go:
    """`weight/main.go`."""

    needs = ("go",)
    knows_connect = True

    def __init__(self, directory):
        self._program = f"{directory}/weight"
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "weight", "main.go")
        subprocess.run(["go", "build", "-o", self._program, source], check=True)

    def server(self, port, pem):
        return running([self._program, "serve", str(port), pem, str(BULK_BYTES)], port)

    def _ask(self, way, path, *options):
        more = [*(["-header", way.field] if way.field else []), *(["-proxy", way.proxy] if way.proxy else [])]
        argv = [*way.prefix, self._program, "load", *options, *more, f"{way.base}{path}"]
        return json.loads(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout)

    def load(self, way, connections, seconds, *, close=False):
        return self._ask(way, "/small", "-c", str(connections), "-s", str(seconds), *(["-close"] if close else []))

    def bulk(self, way):
        return self._ask(way, "/bulk", "-bulk")["rate"]

    def bulk_checked(self, way):
        return self._ask(way, "/bulk", "-bulk", "-digest")["rate"]

    def first_event(self, way):
        return self._ask(way, "/events", "-stream")["p50_ms"]


PAIRS = {"light": Light, "go": Go}
