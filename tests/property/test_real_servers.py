"""The same with the servers that people run: Node with its forgiving parser, Go, nginx, and haproxy before Go.

For each request that we sent on, each of them sees one, with the method, target, host and body that were decided on; and what they
answer on one connection is read by a client as just as many answers, in their order.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import time

import h11
import pytest
from hypothesis import HealthCheck, given, settings

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(__file__)), "unit", "egress"))
from terminated_rig import HOST, Rig
from test_live_differential import exchange
from test_terminated_differential import REQUESTS

SETTINGS = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
NODE = """
const http = require('http');
const server = http.createServer({insecureHTTPParser: true, requireHostHeader: false}, (q, r) => {
  const parts = [];
  q.on('data', d => parts.push(d));
  q.on('end', () => {
    const body = Buffer.concat(parts).toString('base64');
    console.log(JSON.stringify({method: q.method, target: q.url, host: q.headers.host, body}));
    r.setHeader('X-Path', encodeURIComponent(q.url));
    if (q.url.startsWith('/chunked')) { r.write('one '); r.end('two'); }
    else if (q.url.startsWith('/none')) { r.statusCode = 204; r.end(); }
    else if (q.url.startsWith('/same')) { r.statusCode = 304; r.end(); }
    else if (q.url.startsWith('/hints')) { r.writeEarlyHints({link: '</a>; rel=preload'}); r.end('hinted'); }
    else r.end('whole');
  });
});
server.listen(+process.argv[1], '127.0.0.1', () => console.log('{}'));
"""
GO = """
package main

import ("encoding/json"; "fmt"; "io"; "net"; "net/http"; "net/url"; "os"; "strings")

func main() {
  l, _ := net.Listen("tcp", "127.0.0.1:" + os.Args[1])
  fmt.Println("{}")
  http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
    body, err := io.ReadAll(r.Body)
    if err != nil { return }
    j, _ := json.Marshal(map[string]any{"method": r.Method, "target": r.RequestURI, "host": r.Host, "body": body})
    fmt.Println(string(j))
    w.Header().Set("X-Path", url.QueryEscape(r.RequestURI))
    switch {
    case strings.HasPrefix(r.RequestURI, "/chunked"): w.Write([]byte("one ")); w.(http.Flusher).Flush(); w.Write([]byte("two"))
    case strings.HasPrefix(r.RequestURI, "/none"): w.WriteHeader(204)
    case strings.HasPrefix(r.RequestURI, "/same"): w.WriteHeader(304)
    case strings.HasPrefix(r.RequestURI, "/hints"): w.Header().Set("Link", "</a>; rel=preload"); w.WriteHeader(103); w.Write([]byte("hinted"))
    default: w.Write([]byte("whole"))
    }
  }))
}
"""
NGINX = """
daemon off; master_process off; pid {place}/pid; error_log {place}/error.log;
events {{ }}
http {{
  log_format seen escape=json '{{"method":"$request_method","target":"$request_uri","host":"$http_host"}}';
  access_log {place}/seen seen;
  client_body_temp_path {place}/b; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f; uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;
  server {{ listen 127.0.0.1:{port}; keepalive_requests 100000; location / {{ return 200 "whole"; }} }}
}}
"""
HAPROXY = """
defaults
  mode http
  timeout client 30s
  timeout server 30s
  timeout connect 5s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  server s 127.0.0.1:{behind}
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Server:
    """What `Rig` takes for its upstream."""

    def __init__(self, kind, place):
        self.kind = kind
        self.port = free_port()
        self.processes = []
        self.seen = b""
        self.marks = 0
        place = str(place)
        if kind in ("go", "haproxy"):
            self._need("go")
            with open(f"{place}/main.go", "w") as f:
                f.write(GO)
            env = {**os.environ, "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
            subprocess.run(["go", "build", "-o", f"{place}/server", f"{place}/main.go"], env=env, check=True, cwd=place)
            behind = self.port if kind == "go" else free_port()
            self._start([f"{place}/server", str(behind)])
            if kind == "haproxy":
                self._need("haproxy")
                with open(f"{place}/haproxy.cfg", "w") as f:
                    f.write(HAPROXY.format(port=self.port, behind=behind))
                self.processes.append(subprocess.Popen(["haproxy", "-q", "-db", "-f", f"{place}/haproxy.cfg"]))
        elif kind == "node":
            self._need("node")
            self._start(["node", "-e", NODE, str(self.port)])
        else:
            self._need("nginx")
            with open(f"{place}/nginx.conf", "w") as f:
                f.write(NGINX.format(place=place, port=self.port))
            os.mkfifo(f"{place}/seen")
            self.fd = os.open(f"{place}/seen", os.O_RDWR | os.O_NONBLOCK)
            self.processes.append(subprocess.Popen(["nginx", "-p", place, "-c", f"{place}/nginx.conf"]))
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)

    @staticmethod
    def _need(tool):
        if shutil.which(tool) is None:
            pytest.skip(f"host feature missing: `{tool}`")

    def _start(self, argv):
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        self.processes.append(process)
        assert process.stdout.readline() == b"{}\n"
        self.fd = process.stdout.fileno()
        os.set_blocking(self.fd, False)

    def requests(self, least):
        """Those that came since the last time, at least so many."""
        deadline = time.monotonic() + 5
        while True:
            with contextlib.suppress(BlockingIOError):
                self.seen += os.read(self.fd, 1 << 20)
            if self.seen.count(b"\n") >= least or time.monotonic() > deadline:
                break
            select.select([self.fd], [], [], 0.1)
        lines, self.seen = self.seen.split(b"\n"), b""
        return [json.loads(line) for line in lines if line]

    def forget(self):
        """Read away what it still tells of requests before: a server that refuses one may tell of it later than we hear of it."""
        self.marks += 1
        mark = f"/mark-{self.marks}"
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as sock:
            sock.sendall(f"GET {mark} HTTP/1.1\r\nHost: mark\r\nConnection: close\r\n\r\n".encode())
            while sock.recv(65536):
                pass
        deadline = time.monotonic() + 10
        while not any(request["target"] == mark for request in self.requests(1)):
            assert time.monotonic() < deadline

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait(10)


@pytest.fixture(scope="module", params=["node", "go", "nginx", "haproxy"])
def rig(request, tmp_path_factory):
    server = Server(request.param, tmp_path_factory.mktemp(request.param))
    rules = [{"methods": ["GET", "POST", "HEAD", "OPTIONS", "PUT"]}]
    with Rig(None, {"rules": rules}, tls=False, trust=False, upstream=server) as rig:
        yield rig


def test_each_request_is_one_to_each_server(rig):
    whole = [0]

    @SETTINGS
    @given(message=REQUESTS)
    def check(message):
        data, body = message
        rig.upstream.forget()
        rig.port.records.clear()
        seen, _ = exchange(rig, data.replace(b"https://", b"http://", 1) + body)
        allowed = [d.detail for d in rig.port.records if d.effect == "allow" and d.reason == "rule_allows"]
        answered = len(re.findall(rb"HTTP/1\.[01] 200 ", seen))
        got = rig.upstream.requests(answered)
        assert answered <= len(got) <= len(allowed), (got, allowed)
        for request, decision in zip(got, allowed, strict=False):
            assert request["method"] == decision["method"]
            assert request["target"].partition("?")[0] == decision["path"]
            assert request["host"] == HOST
        whole[0] += len(got)

    check()
    assert whole[0] >= 5


BODIES = [
    b"",
    b"x",
    b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n",
    b"0\r\n\r\nGET /second HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\n" * 40,
]


def test_bodies_are_what_was_sent(rig):
    if rig.upstream.kind == "nginx":
        pytest.skip("nginx reads no body here")
    for body in BODIES:
        head = b"POST /p HTTP/1.1\r\nHost: " + HOST.encode() + b"\r\n"
        pieces = b"".join(b"%x;a=b\r\n%s\r\n" % (1, body[i : i + 1]) for i in range(len(body)))
        for message in (
            head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
            head + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\nX-After: 1\r\n\r\n",
        ):
            exchange(rig, message)
            (request,) = rig.upstream.requests(1)
            assert base64.b64decode(request["body"] or "") == body
            assert request["target"] == "/p"


ASKED = [
    "GET /one",
    "HEAD /chunked",
    "GET /chunked",
    "GET /none",
    "GET /same",
    "GET /hints",
    "HEAD /one",
    "PUT /chunked",
    "GET /last",
]


def test_answers_on_one_connection_are_read_in_their_order(rig):
    """`X-Path` names the request that each is to; a body that was read wrongly would put the next one out of step."""
    if rig.upstream.kind == "nginx":
        pytest.skip("nginx has one answer here")
    with socket.create_connection(rig.address, timeout=10) as sock:
        client = h11.Connection(h11.CLIENT)
        for asked in ASKED * 3:
            method, path = asked.split()
            body = b"abc" if method == "PUT" else b""
            fields = [("host", HOST), ("content-length", str(len(body)))]
            sock.sendall(client.send(h11.Request(method=method, target=path, headers=fields)))
            if body:
                sock.sendall(client.send(h11.Data(data=body)))
            sock.sendall(client.send(h11.EndOfMessage()))
            hints, answer, content = read_answer(client, sock)
            assert hints == ([103] if path == "/hints" else [])
            assert dict(answer.headers)[b"x-path"] == path.replace("/", "%2F").encode()
            expected = {"/chunked": b"one two", "/none": b"", "/same": b"", "/hints": b"hinted"}.get(path, b"whole")
            assert content == (b"" if method == "HEAD" else expected)
            client.start_next_cycle()
    assert len(rig.upstream.requests(len(ASKED) * 3)) == len(ASKED) * 3


def read_answer(client, sock):
    """(status of each interim answer, the answer's head, its body)"""
    hints, answer, content = [], None, b""
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(sock.recv(65536))
        elif isinstance(event, h11.InformationalResponse):
            hints.append(event.status_code)
        elif isinstance(event, h11.Response):
            answer = event
        elif isinstance(event, h11.Data):
            content += bytes(event.data)
        else:
            assert isinstance(event, h11.EndOfMessage), event
            return hints, answer, content
