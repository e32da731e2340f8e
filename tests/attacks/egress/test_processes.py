"""Row 60, 61, 62 and 64 where two processes serve a cell: one budget, one revocation, one death, one log, one bound."""

import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import ssl
import threading
import time

import pytest

from saggar.audit.sink_host import open_log
from saggar.audit.verify import verify
from saggar.egress.alerts import ACCESS_DENIED
from saggar.policy.model import EgressRule
from saggar.testing import client_hello as h
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import Upstream

HOST = "api.allowed.test"
ELSEWHERE = "203.0.113.9"
SECRET = "real-secret-value-0123456789"
BEARER = {"credential": {"source": "env:REAL", "env": "KEY"}}


@pytest.fixture(autouse=True)
def _many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def terminated(upstream, pki, **http):
    return EgressRule(id="api", host=HOST, connect_to=upstream.address, http=json.dumps({"ca": pki.ca_file, **http}))


@contextlib.contextmanager
def cell_of(*rules, processes=2, **options):
    """With every worker at work: a fresh one would be spared the first connections."""
    with EgressCell(rules, env={"REAL": SECRET}, processes=processes, **options) as cell:
        yield cell


def tls(cell):
    context = ssl.create_default_context(cadata=cell.ca_pem)
    return context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname=HOST)


def get(cell, path="/v1/x"):
    key = cell.environment.get("KEY", "")
    field = f"Authorization: Bearer {key}\r\n" if key else ""
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n{field}\r\n".encode()


def status(sock, request):
    """The status of one exchange, 0 where there is no answer in time."""
    try:
        sock.sendall(request)
        data = sock.recv(4096)
        return int(data[9:12]) if data else 0
    except OSError:
        return 0


def answered(sock, cell):
    """Whether the connection's own process is at work."""
    sock.settimeout(0.5)
    try:
        return status(sock, get(cell)) == 200
    finally:
        sock.settimeout(10)


def ends(sock):
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("processes", [2, 3])
def test_kept_connections_are_spread_evenly(pki, tls_upstream, processes):
    with cell_of(terminated(tls_upstream, pki, **BEARER), processes=processes) as cell:
        socks = [tls(cell) for _ in range(12)]
        assert all(status(s, get(cell)) == 200 for s in socks)
        first, *workers = cell.pids()
        assert len(workers) == processes - 1
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            # whoever still answers is served by the first process
            assert sum(answered(s, cell) for s in socks) == 12 // processes
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)


def test_one_process_starts_no_other(pki, tls_upstream):
    with cell_of(terminated(tls_upstream, pki, **BEARER), processes=1) as cell:
        assert status(tls(cell), get(cell)) == 200
        assert cell.pids() == [cell.broker.pid]


class Greeter:
    """An upstream for very many: says one byte to each connection's first bytes, and keeps it open."""

    def __enter__(self):
        self.sock = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.address = self.sock.getsockname()
        self._open = []
        self._stop = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop = True
        self._thread.join()
        for sock in (self.sock, *self._open):
            sock.close()

    def _serve(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            while not self._stop:
                for key, _ in selector.select(0.1):
                    if key.fileobj is self.sock:
                        sock, _ = self.sock.accept()
                        self._open.append(sock)
                        selector.register(sock, selectors.EVENT_READ)
                    else:
                        with contextlib.suppress(OSError):
                            if key.fileobj.recv(4096):
                                key.fileobj.send(b"!")
                        selector.unregister(key.fileobj)


def flood(cell, count):
    """(let through, refused) of so many connections that send their first flight at the same time, and stay."""
    socks = [cell.connect(ELSEWHERE, 443) for _ in range(count)]
    hello = h.hello()
    for sock in socks:
        sock.sendall(hello)
    replies = [sock.recv(64) for sock in socks]
    for sock in socks:
        sock.close()
    return replies.count(b"!"), replies.count(ACCESS_DENIED)


@pytest.mark.parametrize("budget", ["requests", "connections"])
def test_row_60_a_thousand_at_once_against_five_hundred(budget):
    with Greeter() as upstream:
        rule = EgressRule(id="api", host=HOST, connect_to=upstream.address)
        with cell_of(rule, budget=json.dumps({budget: 500})) as cell:
            assert flood(cell, 1000) == (500, 500)
            removed = cell.remove()
            assert (removed["allowed"], removed["refused"]) == (500, 500)
            effects = [r["effect"] for r in cell.records() if r["kind"] == "egress.decision"]
            assert (effects.count("allow"), effects.count("deny")) == (500, 500)


def test_row_60_requests_on_kept_connections(pki, tls_upstream):
    """Both processes read requests at the same time; each of a refused one's connections ends, and a new one is made."""
    one = terminated(tls_upstream, pki, **BEARER, budget={"requests": 200})
    with cell_of(one) as cell:
        lock = threading.Lock()
        answers = []

        def ask():
            sock = None
            for _ in range(40):
                if sock is None:
                    with lock:
                        raw = cell.connect(ELSEWHERE, 443)
                    context = ssl.create_default_context(cadata=cell.ca_pem)
                    sock = context.wrap_socket(raw, server_hostname=HOST)
                answers.append(status(sock, get(cell)))
                if answers[-1] != 200:
                    sock.close()
                    sock = None

        threads = [threading.Thread(target=ask) for _ in range(10)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert (answers.count(200), answers.count(429)) == (200, 200)


def test_row_61_a_revoked_host_is_cut_in_every_process(pki, tls_upstream):
    with cell_of(terminated(tls_upstream, pki, **BEARER)) as cell:
        socks = [tls(cell) for _ in range(6)]
        assert all(status(s, get(cell)) == 200 for s in socks)
        cell.update([])
        # said only when it holds everywhere
        assert len([r for r in cell.records() if r["reason"] == "revoked"]) == 6
        assert all(map(ends, socks))
        seen = len(tls_upstream.bytes)
        for _ in range(4):
            with pytest.raises(OSError):
                tls(cell)
        assert len(tls_upstream.bytes) == seen


def test_a_host_allowed_while_running_works_in_every_process(pki, tls_upstream):
    plain = EgressRule(id="w", host="*.wild.test", connect_to=tls_upstream.address)
    with cell_of(EgressRule(id="o", host="other.test", connect_to=tls_upstream.address)) as cell:
        cell.update([plain])
        context = ssl.create_default_context(cafile=pki.ca_file)
        address = cell.python("import socket; print(socket.gethostbyname('x.wild.test'))").strip()
        socks = [context.wrap_socket(cell.connect(address, 443), server_hostname="x.wild.test") for _ in range(4)]
        request = b"GET / HTTP/1.1\r\nHost: x.wild.test\r\n\r\n"
        assert [status(s, request) for s in socks] == [200] * 4
        # a name that only the first process gave an address to: a worker knows whose it is all the same
        for _ in range(4):
            with pytest.raises(OSError):
                context.wrap_socket(cell.connect(address, 443), server_hostname="y.wild.test")
        assert len([r for r in cell.records() if r["reason"] == "name_mismatch"]) == 4


def test_row_62_a_workers_death_ends_the_cell(pki, tls_upstream):
    with cell_of(terminated(tls_upstream, pki, **BEARER)) as cell:
        socks = [tls(cell) for _ in range(4)]
        assert all(status(s, get(cell)) == 200 for s in socks)
        os.kill(cell.pids()[1], signal.SIGKILL)
        event = cell.wait_event("fatal")
        assert (event["cell"], event["cause"]) == ("c", "worker_died")
        assert all(map(ends, socks))
        with pytest.raises(OSError):
            tls(cell)
        assert cell.remove()["allowed"] >= 2


def test_row_62_the_first_process_takes_the_others_along(pki, tls_upstream):
    with cell_of(terminated(tls_upstream, pki, **BEARER)) as cell:
        socks = [tls(cell) for _ in range(4)]
        worker = os.pidfd_open(cell.pids()[1])
        os.kill(cell.broker.pid, signal.SIGKILL)
        with selectors.DefaultSelector() as selector:
            selector.register(worker, selectors.EVENT_READ)
            assert selector.select(10)
        os.close(worker)
        assert all(map(ends, socks))


def test_row_62_a_log_that_cannot_be_written_stops_every_process(pki, tls_upstream):
    with cell_of(terminated(tls_upstream, pki, **BEARER)) as cell:
        socks = [tls(cell) for _ in range(4)]
        assert all(status(s, get(cell)) == 200 for s in socks)
        seen = len(tls_upstream.bytes)
        os.rename(cell.audit_path, cell.audit_path + ".away")
        os.unlink(cell.audit_path + ".away")
        assert status(socks[-1], get(cell)) != 200
        assert cell.wait_event("fatal")["cause"].startswith("audit_failed")
        assert all(map(ends, socks))
        assert len(tls_upstream.bytes) == seen


def test_row_62_without_the_secrets_process_every_process_stops(pki, tls_upstream):
    with cell_of(terminated(tls_upstream, pki, **BEARER)) as cell:
        socks = [tls(cell) for _ in range(4)]
        assert all(status(s, get(cell)) == 200 for s in socks)
        os.kill(cell.secrets.pid, signal.SIGKILL)
        assert cell.wait_event("fatal")["cause"] == "secrets_process_died"
        assert all(map(ends, socks))


def test_row_64_a_flood_of_refusals_is_bounded_for_the_task():
    with cell_of(EgressRule(id="o", host="other.test")) as cell:
        for _ in range(24):
            socks = [cell.connect(ELSEWHERE, 443) for _ in range(50)]
            for sock in socks:
                sock.sendall(b"\0")
            assert all(map(ends, socks))
        removed = cell.remove()
        assert removed["refused"] == 1200
        denied = [r for r in cell.records() if r["effect"] == "deny"]
        assert 1000 <= len(denied) < 1190
        assert len([e for e in cell.events if e["event"] == "refused"]) == 100
        totals = [r for r in cell.records() if "total" in r["detail"]]
        assert [t["detail"]["refused_total"] for t in totals] == [1200]


def test_row_64_open_connections_are_bounded_for_the_task(rules):
    with cell_of(*rules) as cell:
        socks = [cell.connect(ELSEWHERE, 443) for _ in range(1040)]
        for sock in socks:
            sock.sendall(b"\x16\x03\x01")
        cell.wait_record(reason="too_many_connections")
        assert len([r for r in cell.records() if r["reason"] == "too_many_connections"]) <= 1040 - 1024
        for sock in socks:
            sock.close()


def test_the_log_of_a_mixed_load_verifies(pki, tls_upstream, http_upstream):
    rules = [
        terminated(tls_upstream, pki, **BEARER),
        EgressRule(id="b", host="b.allowed.test", ports=(443,), connect_to=tls_upstream.address),
        EgressRule(id="b-plain", host="b.allowed.test", ports=(80,), connect_to=http_upstream.address),
    ]
    with cell_of(*rules) as cell:
        lock = threading.Lock()

        def connect(port):
            with lock:
                return cell.connect(ELSEWHERE, port)

        def work(number):
            context = ssl.create_default_context(cadata=cell.ca_pem)
            outside = ssl.create_default_context(cafile=pki.ca_file)
            for turn in range(12):
                with connect(80) as sock:
                    assert status(sock, b"GET / HTTP/1.1\r\nHost: b.allowed.test\r\n\r\n") == 200
                with outside.wrap_socket(connect(443), server_hostname="b.allowed.test"):
                    pass
                with context.wrap_socket(connect(443), server_hostname=HOST) as sock:
                    for _ in range(3):
                        assert status(sock, get(cell, f"/{number}/{turn}")) == 200
                with connect(443) as sock:
                    sock.sendall(h.hello(b"evil.test"))
                    ends(sock)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        removed = cell.remove()
        assert (removed["allowed"], removed["refused"]) == (8 * 12 * 5, 8 * 12)
        with open(cell.audit_path, "rb") as f:
            report = verify(f)
        assert report.ok, report
        records = cell.records()
        allowed = [r for r in records if r["kind"] == "egress.decision" and r["effect"] == "allow"]
        assert len(allowed) == removed["allowed"]
        used = {where: u for r in records for where, u in r["detail"].get("used", {}).items()}
        assert used[f"{HOST}:443"]["count"] == 8 * 12 * 3
        assert sum(u["bytes_down"] for u in used.values()) == removed["bytes_down"]


def test_tokens_that_one_process_issued_are_known_to_the_other(pki):
    tokens = json.dumps({"access_token": "REAL-access-token-1", "refresh_token": "REAL-refresh-token-1"}).encode()

    def respond(request):
        body = tokens if request.startswith(b"POST /token") else b"fine"
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    with (
        Upstream(context=pki.server_context(), respond=respond) as upstream,
        cell_of(
            EgressRule(
                id="auth",
                host="b.allowed.test",
                connect_to=upstream.address,
                http=json.dumps({"ca": pki.ca_file, "token_endpoint": True}),
            ),
            terminated(upstream, pki, tokens_from="auth"),
        ) as cell,
    ):
        context = ssl.create_default_context(cadata=cell.ca_pem)
        # the fewest open ones first: these take turns between the two processes
        ends_ = [context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname="b.allowed.test") for _ in range(2)]
        uses = [context.wrap_socket(cell.connect(ELSEWHERE, 443), server_hostname=HOST) for _ in range(2)]
        body = b"grant_type=authorization_code&code=x"
        for endpoint in ends_:
            endpoint.sendall(
                b"POST /token HTTP/1.1\r\nHost: b.allowed.test\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            answer = endpoint.recv(65536)
            assert b"REAL" not in answer
            placeholder = json.loads(answer.partition(b"\r\n\r\n")[2])["access_token"]
            for use in uses:
                request = f"GET /me HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {placeholder}\r\n\r\n"
                assert status(use, request.encode()) == 200
        assert upstream.bytes.count(b"Bearer REAL-access-token-1") == 4


def test_questions_of_both_processes_find_their_answers(pki, tls_upstream):
    one = terminated(tls_upstream, pki, **BEARER, rules=[{"effect": "ask", "paths": ["/**"]}])
    with cell_of(one) as cell:
        socks = [tls(cell) for _ in range(4)]
        for i, sock in enumerate(socks):
            sock.sendall(get(cell, f"/{i}"))
        asked = [cell.wait_event("ask") for _ in socks]
        assert len({a["id"] for a in asked}) == 4
        for question in asked:
            verdict = "approved" if question["path"] in ("/0", "/1") else "denied"
            cell.control.send(
                json.dumps({"op": "answer", "cell": "c", "id": question["id"], "verdict": verdict}).encode()
            )
        assert [int(s.recv(4096)[9:12]) for s in socks] == [200, 200, 403, 403]


def test_nothing_is_left_after_a_cell(pki, tls_upstream):
    """Many cells in one broker, one after the other, each served by both processes."""

    def descriptors(pid):
        try:
            return len(os.listdir(f"/proc/{pid}/fd"))
        except PermissionError:
            pytest.skip("host feature missing: reading the descriptors of a process that cannot be traced")

    with cell_of(EgressRule(id="o", host="other.test", connect_to=tls_upstream.address)) as cell:
        cell.remove()
        counts = []
        for number in range(6):
            id_ = f"c{number}"
            rules = os.memfd_create("rules")
            egress = {"allow": [r.to_json() for r in cell.rules], "processes": 2}
            os.write(rules, json.dumps({"egress": egress}).encode())
            add = {"op": "add", "cell": id_, "task": "t", "audit": cell.audit_path, "listeners": []}
            logs = [open_log(cell.audit_path) for _ in range(2)]
            socket.send_fds(cell.control, [json.dumps(add).encode()], [rules, *logs])
            for fd in (rules, *logs):
                os.close(fd)
            cell.wait_event("added")
            cell.control.send(json.dumps({"op": "remove", "cell": id_}).encode())
            cell.wait_event("removed")
            counts.append([descriptors(pid) for pid in cell.pids()])
        assert counts[0] == counts[-1]


def test_row_62_in_a_real_cell_the_cause_is_told(tmp_path, monkeypatch, pki, tls_upstream):
    import asyncio

    import saggar
    from saggar.policy.model import EgressPolicy, Policy, WorkspacePolicy

    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    rules = (EgressRule(id="api", host=HOST, connect_to=tls_upstream.address),)
    policy = Policy(egress=EgressPolicy(allow=rules, processes=2), workspace=WorkspacePolicy(mode="none"))
    code = (
        "import socket,time\n"
        "held = [socket.create_connection(('192.0.2.1',443)) for _ in range(4)]\n"
        "for s in held: s.sendall(b'\\x16\\x03\\x01')\n"
        "print('up', flush=True); time.sleep(60)"
    )

    def workers():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
                if b"worker_host" in f.read():
                    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
                        if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                            yield int(pid)

    async def main():
        async with await saggar.spawn(["python3", "-c", code], policy) as process:
            assert await process.stdout.readline() == b"up\n"
            deadline = time.monotonic() + 10
            while not (found := list(workers())):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            os.kill(found[0], signal.SIGKILL)
            return process.id, await process.wait()

    run, result = asyncio.run(main())
    assert result.cause == "broker_died"
    with open(tmp_path / "state" / "runs" / run / "audit.jsonl", encoding="utf-8") as f:
        # whoever sees the death first, the broker or the supervisor, ends the cell and says why
        assert '"reason":"broker_died"' in f.read()
