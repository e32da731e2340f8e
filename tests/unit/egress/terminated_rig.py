"""A terminated path over loopback: real secrets process, real TLS both sides, a scripted upstream that records all bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from saggar.egress.authorize import AuthorizedRequest, authorize
from saggar.egress.budget import Limits
from saggar.egress.ca_host import TaskCa
from saggar.egress.destination import Destination
from saggar.egress.dial_host import Dialer
from saggar.egress.loop_host import Loop
from saggar.egress.match import RuleSet
from saggar.egress.secrets_client_host import SecretsClient
from saggar.egress.secrets_spawn_host import start_secrets
from saggar.egress.terminated_host import Termination
from saggar.egress.terms import Terms, compile_entry
from saggar.policy.model import EgressRule

HOST = "api.allowed.test"
SECRET = "sk-REAL-0123456789-secret-value"


class Upstream:
    """A TLS server on loopback. script(request_bytes, connection) -> bytes to answer, or None to close."""

    def __init__(self, script, *, host=HOST, tls=True, ca=None, born=None):
        born = born or time.time()
        self.ca = ca or TaskCa("upstream", born)
        self.received = []
        self.connections = 0
        self.script = script
        self.sock = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self.sock.getsockname()[1]
        self.context = None
        if tls:
            certificate, key = self.ca.leaf(host)
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            fd = os.memfd_create("c")
            os.write(fd, (certificate + key).encode())
            self.context.load_cert_chain(f"/proc/self/fd/{fd}")
            os.close(fd)
        self.closing = False
        self.threads = []
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()

    def _accept(self):
        while True:
            try:
                conn, _ = self.sock.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(conn,), daemon=True)
            thread.start()

    def _serve(self, conn):
        conn.settimeout(20)
        try:
            if self.context is not None:
                conn = self.context.wrap_socket(conn, server_side=True)
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                request = read_message(conn)
                if not request:
                    return
                self.received.append(request)
                if self.script(request, conn) is None:
                    if self.context is not None:
                        conn.settimeout(1)
                        conn.unwrap()
                    return
        except (OSError, ValueError):
            pass
        finally:
            with contextlib.suppress(OSError):
                conn.close()

    def close(self):
        with contextlib.suppress(OSError):
            # wakes the thread in `accept`, whose call would keep the port open
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


#: the end of a chunked body, with or without trailers
_LAST = re.compile(rb"(?:\A|\r\n)0\r\n(?:[^\r\n]+\r\n)*\r\n\Z")


def read_message(conn, buffer=b""):
    """One whole HTTP message from a blocking socket."""
    while b"\r\n\r\n" not in buffer:
        data = conn.recv(65536)
        if not data:
            return buffer
        buffer += data
    head, _, body = buffer.partition(b"\r\n\r\n")
    fields = {n.strip().lower(): v.strip() for n, _, v in (line.partition(b":") for line in head.split(b"\r\n")[1:])}
    if fields.get(b"transfer-encoding") == b"chunked":
        while not _LAST.search(body):
            data = conn.recv(65536)
            if not data:
                break
            body += data
    else:
        while len(body) < int(fields.get(b"content-length", 0)):
            data = conn.recv(65536)
            if not data:
                break
            body += data
    return head + b"\r\n\r\n" + body


def ok(body=b"hello", *extra):
    def script(request, conn):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(body) + b"".join(e + b"\r\n" for e in extra) + b"\r\n"
        conn.sendall(head + body)
        return True

    return script


def raw(answer, *, close=True):
    def script(request, conn):
        conn.sendall(answer)
        return None if close else True

    return script


class Port:
    """The broker's side of one cell, as `terminated_host.CellPort`."""

    def __init__(self, dialer):
        self.id = "cell"
        self.dialer = dialer
        self.records = []
        self.refusals = []
        self.liars = []
        self.failures = 0
        self.fail_records = False
        #: what `commit` says
        self.commits = True
        self.verdict = "approved"

    def record(self, decision, destination, via):
        if self.fail_records:
            self.failures += 1
            return False
        self.records.append(decision)
        return True

    def commit(self):
        self.failures += not self.commits
        return self.commits

    def refused(self, decision, via):
        self.refusals.append(decision)
        return self.record(decision, None, via)

    def moved(self, destination, up, down):
        pass

    def unsolicited(self, host, port, rule):
        self.liars.append((host, port, rule))

    async def approve(self, decision):
        await asyncio.sleep(0)
        return self.verdict


class CountingDialer(Dialer):
    def __init__(self):
        super().__init__(ThreadPoolExecutor(1))
        self.dialled = []

    async def dial(self, request: AuthorizedRequest):
        self.dialled.append(str(request.destination))
        return await super().dial(request)


class Rig:
    """Everything of one terminated host. entry: the HTTP part of its `[[egress.allow]]`."""

    def __init__(self, script, entry, *, env=None, host=HOST, limits=None, tls=True, upstream=None, trust=True):
        self.upstream = upstream or Upstream(script, tls=tls)
        self.secret = SECRET
        port = 443 if tls else 80
        self.rule = EgressRule(
            host=host, ports=(port,), connect_to=("127.0.0.1", self.upstream.port), id="egress.allow[0]"
        )
        compiled = compile_entry(
            entry, host=host, rule_id=self.rule.id, random=os.urandom, ca_pem=self.upstream.ca.pem if trust else ""
        )
        self.terms = Terms.parse(compiled.terms, self.rule.id)
        self.placeholder = compiled.placeholders[0] if compiled.placeholders else ""
        self.compiled = compiled
        specs = [compiled.secret.to_json()] if compiled.secret else []
        self.process = start_secrets(specs, {"REAL_KEY": SECRET, **(env or {})})
        self.ca, _ = self.process.add("cell", "task", [host], specs)
        authorized = authorize(RuleSet([self.rule]), Destination(host, port, "https" if tls else "http"))
        assert isinstance(authorized, AuthorizedRequest)
        self.authorized = authorized
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.listener.setblocking(False)
        self.address = self.listener.getsockname()
        self.loop = Loop()
        self.started = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(limits,), daemon=True)
        self.thread.start()
        self.started.wait(10)

    def _run(self, limits):
        asyncio.set_event_loop(self.loop)
        self.gone = []
        self.client = SecretsClient(self.loop, self.process.broker, lambda: self.gone.append(1))
        self.port = Port(CountingDialer())
        self.termination = Termination(
            self.loop, self.port, self.client, placeholders=self.compiled.placeholders, limits=limits or Limits()
        )
        self.loop.add_reader(self.listener.fileno(), self._accept)
        self.loop.call_soon(self.started.set)
        self.loop.run_forever()

    def _accept(self):
        try:
            sock, _ = self.listener.accept()
        except BlockingIOError:
            return
        sock.setblocking(False)
        self.termination.accept(sock, self.authorized, self.terms)

    def context(self):
        return ssl.create_default_context(cadata=self.ca)

    def connect(self, *, tls=True, sni=HOST):
        sock = socket.create_connection(self.address, timeout=5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.context().wrap_socket(sock, server_hostname=sni) if tls else sock

    def ask(self, data, conn=None):
        """Send bytes, read one whole answer."""
        own = conn is None
        conn = conn or self.connect()
        try:
            conn.sendall(data)
            return read_message(conn)
        finally:
            if own:
                conn.close()

    def call(self, function):
        """Run in the loop's thread, wait for the result."""
        done = threading.Event()
        box = []

        def run():
            box.append(function())
            done.set()

        self.loop.call_soon_threadsafe(run)
        done.wait(10)
        return box[0]

    def close(self):
        def stop():
            self.termination.close()
            self.loop.remove_reader(self.listener.fileno())
            self.client.close()
            self.loop.stop()

        self.loop.call_soon_threadsafe(stop)
        self.thread.join(10)
        self.loop.close()
        self.listener.close()
        self.upstream.close()
        self.process.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def get(path=b"/v1/models", *fields, host=HOST.encode(), method=b"GET", body=b""):
    lines = [b"%s %s HTTP/1.1" % (method, path), b"Host: " + host, *fields]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
