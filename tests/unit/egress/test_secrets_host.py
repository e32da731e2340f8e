"""The secrets process as it runs: what it gives, to whom, and what it has taken away from itself."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import http.server
import json
import os
import socket
import ssl
import sys
import threading
import time

import pytest

from saggar.core.errors import Unenforceable, UsageError
from saggar.egress.ca_host import TaskCa, common_name
from saggar.egress.secrets_client_host import SecretsClient, SecretsError
from saggar.egress.secrets_host import covers
from saggar.egress.secrets_spawn_host import start_secrets
from saggar.egress.sources_host import ATTEMPTS, SourceError, VaultKv, read, read_file
from saggar.egress.terms import Source
from saggar.egress.trust import certificates, subject_hash, trust

SECRET = "real-secret-value-0123"


def spec(source="env:REAL", kind="bearer", host="a.test", credential="c", facts=None, **sources):
    return {
        "credential": credential,
        "host": host,
        "kind": kind,
        "sources": {"value": source, **sources},
        "facts": facts or {},
    }


class Asker:
    """One cell in one secrets process, asked as the broker asks."""

    def __init__(self, *specs, env=None, hosts=("a.test", "*.wild.test")):
        self.process = start_secrets(specs, env or {"REAL": SECRET})
        self.ca, _ = self.process.add("cell", "task", hosts, specs)
        self.loop = asyncio.new_event_loop()
        self.client = SecretsClient(self.loop, self.process.broker, lambda: None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.loop.close()
        self.process.stop()

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def get(self, credential="c", host="a.test", date="", cell="cell"):
        return self.run(self.client.lease(cell, credential, host, date)).values

    def refusal(self, **what):
        with pytest.raises(SecretsError) as e:
            self.get(**what)
        return str(e.value)

    def forget(self):
        """Wait until a `forget` came through."""
        self.run(asyncio.sleep(0.05))


def test_credential_is_given_for_its_task_and_host_alone():
    with Asker(spec()) as asker:
        assert asker.get() == {"value": SECRET}
        assert asker.refusal(host="b.test") == "the credential is not bound to this host"
        assert asker.refusal(host="a.test.evil.test") == "the credential is not bound to this host"
        assert asker.refusal(credential="other") == "the credential is not bound to this host"
        assert asker.refusal(cell="other") == "no such task"


def test_wildcard_covers_one_label():
    assert covers("*.wild.test", "x.wild.test")
    assert not covers("*.wild.test", "wild.test")
    assert not covers("*.wild.test", "a.b.wild.test")
    assert not covers("*.wild.test", ".wild.test")


def test_leaf_only_for_terminated_hosts_and_dead_with_the_task():
    with Asker(spec()) as asker:
        certificate, key = asker.run(asker.client.leaf("cell", "a.test"))
        assert "BEGIN CERTIFICATE" in certificate
        assert "PRIVATE KEY" in key
        asker.run(asker.client.leaf("cell", "x.wild.test"))
        for host in ("evil.test", "wild.test", "a.b.wild.test", "*.wild.test.evil"):
            with pytest.raises(SecretsError, match="not terminated"):
                asker.run(asker.client.leaf("cell", host))
        asker.process.remove("cell")
        with pytest.raises(SecretsError, match="no such task"):
            asker.run(asker.client.leaf("cell", "a.test"))


def test_each_task_has_its_own_ca():
    with Asker(spec()) as asker:
        other, _ = asker.process.add("other", "task2", ["a.test"], [])
        assert other != asker.ca


def test_missing_variable():
    with Asker(spec(), env={"OTHER": "x"}) as asker:
        assert asker.refusal() == "the variable `REAL` is not set"


def test_only_named_variables_are_told(monkeypatch):
    with Asker(spec("env:REAL"), spec("env:UNRELATED", credential="d"), env={"REAL": SECRET}) as asker:
        assert "not set" in asker.refusal(credential="d")


def test_sigv4_key_never_leaves_but_derived():
    one = spec("env:REAL", "sigv4", facts={"region": "eu-west-1", "service": "s3"}, key_id="env:ID")
    with Asker(one, env={"REAL": SECRET, "ID": "AKIAIOSFODNN7EXAMPLE"}) as asker:
        values = asker.get(date="20261130")
        assert sorted(values) == ["date", "key_id", "signing_key"]
        assert SECRET not in json.dumps(values)
        assert len(bytes.fromhex(values["signing_key"])) == 32
        assert asker.get(date="20261201")["signing_key"] != values["signing_key"]


def test_command(tmp_path):
    script = tmp_path / "say"
    script.write_text("#!/bin/sh\necho run >> " + str(tmp_path / "runs") + "\necho " + SECRET + "\necho second line\n")
    script.chmod(0o700)
    with Asker(spec(f"command:{script} x")) as asker:
        assert asker.get() == {"value": SECRET}
        assert asker.get() == {"value": SECRET}
        assert (tmp_path / "runs").read_text() == "run\n"
        asker.process.rotate("cell")
        asker.forget()
        asker.get()
        assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_command_does_not_run_in_the_workspace(tmp_path, monkeypatch):
    """The caller's directory is the workspace: git would read its `.git/config`, which a cell may write."""
    script = tmp_path / "say"
    script.write_text(f"#!/bin/sh\necho {SECRET}$(pwd)\n")
    script.chmod(0o700)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with Asker(spec(f"command:{script}")) as asker:
        assert asker.get() == {"value": SECRET + "/"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!/bin/sh\nexit 3\n", "ended with 3"),
        ("#!/bin/sh\necho short\n", "not 8 or more printable"),
        ("", "cannot be run"),
    ],
)
def test_command_that_fails_says_no_more_than_that(tmp_path, text, why):
    script = tmp_path / "say"
    script.write_text(text)
    script.chmod(0o700)
    with Asker(spec(f"command:{script}")) as asker:
        assert why in asker.refusal()


def test_keyring_missing():
    try:
        import keyring  # noqa: F401

        pytest.skip("the `keyring` package is installed here")
    except ImportError:
        pass
    with Asker(spec("keyring:service/me")) as asker:
        assert asker.refusal() == "the `keyring` package is not installed"


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers from `server.answers`, keeps what was asked."""

    def log_message(self, *_):
        pass

    def do(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path, dict(self.headers), body))
        status, answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if status == 0:
            self.connection.close()
            return
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do


@pytest.fixture
def scripted():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.asked, server.answers = [], []
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


V2 = {"data": {"data": {"key": SECRET}, "metadata": {"version": 1}}}
V1 = {"data": {"key": SECRET}}


@pytest.mark.parametrize("answer", [V1, V2])
def test_vault(scripted, answer):
    scripted.answers = [(200, answer)]
    env = {"VAULT_ADDR": scripted.url, "VAULT_TOKEN": "s.vault-token", "VAULT_NAMESPACE": "team"}
    with Asker(spec("vault:secret/data/app#key"), env=env) as asker:
        assert asker.get() == {"value": SECRET}
    (method, path, headers, _) = scripted.asked[0]
    assert (method, path) == ("GET", "/v1/secret/data/app")
    assert headers["X-Vault-Token"] == "s.vault-token"
    assert headers["X-Vault-Namespace"] == "team"


def test_vault_token_from_a_file(scripted, tmp_path):
    token = tmp_path / "token"
    token.write_text("s.from-file\n")
    token.chmod(0o600)
    scripted.answers = [(200, V2)]
    with Asker(
        spec("vault:secret/data/app#key"), env={"VAULT_ADDR": scripted.url, "VAULT_TOKEN_FILE": str(token)}
    ) as asker:
        asker.get()
    assert scripted.asked[0][2]["X-Vault-Token"] == "s.from-file"


@pytest.mark.parametrize(
    ("answers", "why", "asked"),
    [
        ([(403, {"errors": ["permission denied"]})], "the vault refused: 403", 1),
        ([(404, {"errors": []})], "no such secret", 1),
        ([(200, {"data": {"data": {"other": "x"}, "metadata": {}}})], "no text field `key`", 1),
        ([(200, ["x"])], "malformed", 1),
        ([(503, {"errors": ["sealed"]})], "does not answer (it is sealed, or not ready: 503), tried 3 times", ATTEMPTS),
        ([(429, {})], "does not answer (429)", ATTEMPTS),
        ([(0, {})], "does not answer (RemoteDisconnected)", ATTEMPTS),
    ],
)
def test_vault_that_fails(scripted, answers, why, asked):
    scripted.answers = answers
    with Asker(spec("vault:secret/data/app#key"), env={"VAULT_ADDR": scripted.url, "VAULT_TOKEN": "t"}) as asker:
        assert why in asker.refusal()
    assert len(scripted.asked) == asked


def test_vault_that_is_down():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with Asker(spec("vault:secret/data/app#key"), env={"VAULT_ADDR": url, "VAULT_TOKEN": "t"}) as asker:
        assert asker.refusal() == "the vault does not answer (connection refused), tried 3 times"
        # nothing is kept of a failure: the next request asks anew, and fails anew
        assert "connection refused" in asker.refusal()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
def test_vault_that_is_slow(monkeypatch, said):
    """It accepts and says nothing, or a byte of the body at a time."""
    from saggar.egress import sources_host

    monkeypatch.setattr(sources_host, "VAULT_S", 0.3)
    ended = threading.Event()

    def serve(sock):
        with contextlib.suppress(OSError):
            while not ended.is_set():
                conn, _ = sock.accept()
                with conn, contextlib.suppress(OSError):
                    conn.sendall(said)
                    while said and not ended.wait(0.02):
                        conn.sendall(b"x")
                    conn.recv(9999)
                    conn.recv(9999)

    with socket.create_server(("127.0.0.1", 0)) as sock:
        threading.Thread(target=serve, args=(sock,), daemon=True).start()
        store = VaultKv(
            f"http://127.0.0.1:{sock.getsockname()[1]}", lambda: "t", jitter=lambda: 0.0, sleep=lambda _: None
        )
        began = time.monotonic()
        with pytest.raises(SourceError, match=r"nothing within 0.3 s\), tried 3 times"):
            store.read("secret/data/app", "key")
        assert time.monotonic() - began < 10
        ended.set()


def test_vault_with_a_foreign_certificate(tmp_path):
    ca, other = TaskCa("vault", time.time()), TaskCa("other", time.time())
    leaf, key = ca.leaf("localhost")
    (tmp_path / "leaf.pem").write_text(leaf + key)
    (tmp_path / "ca.pem").write_text(other.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "leaf.pem")
    asked = []

    def serve(sock):
        with contextlib.suppress(OSError):
            while True:
                conn, _ = sock.accept()
                asked.append(conn)
                with contextlib.suppress(OSError):
                    context.wrap_socket(conn, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as sock:
        threading.Thread(target=serve, args=(sock,), daemon=True).start()
        env = {
            "VAULT_ADDR": f"https://localhost:{sock.getsockname()[1]}",
            "VAULT_TOKEN": "t",
            "VAULT_CACERT": str(tmp_path / "ca.pem"),
        }
        with Asker(spec("vault:secret/data/app#key"), env=env) as asker:
            assert asker.refusal().startswith("the vault's certificate cannot be verified: ")
        assert len(asked) == 1  # the token went to nobody, and no second try would mend it


def test_keyring_that_has_nothing_or_fails(monkeypatch):
    import types

    def locked(service, user):
        raise RuntimeError(f"locked, and {SECRET} was in it")

    for get, why in (
        (lambda service, user: None, "no such entry"),
        (locked, "the keyring failed: RuntimeError"),
        (lambda service, user: "short", "not 8 or more"),
    ):
        stub = types.ModuleType("keyring")
        stub.get_password = get
        monkeypatch.setitem(sys.modules, "keyring", stub)
        with pytest.raises(SourceError, match=why) as e:
            read(Source.parse("keyring:service/me"), {})
        assert SECRET not in str(e.value)


def test_command_that_is_slow(tmp_path, monkeypatch):
    from saggar.egress import sources_host

    monkeypatch.setattr(sources_host, "COMMAND_S", 0.2)
    with pytest.raises(SourceError, match=r"took more than 0.2 s"):
        read(Source.parse("command:/bin/sleep 60"), {"PATH": "/usr/bin:/bin"})


def test_vault_retries_with_growing_random_pauses(scripted):
    scripted.answers = [(503, {}), (503, {}), (200, V2)]
    slept = []
    store = VaultKv(scripted.url, lambda: "t", jitter=lambda: 0.5, sleep=slept.append)
    assert store.read("secret/data/app", "key") == SECRET
    assert slept == [pytest.approx(0.2), pytest.approx(0.4)]


def test_vault_address_without_tls_must_be_local():
    with pytest.raises(SourceError, match="not https"):
        VaultKv("http://vault.test", lambda: "t", jitter=lambda: 0.0)


def oauth(scripted, **facts):
    return spec("env:REAL", "oauth2", facts={"token_url": scripted.url + "/token", "client_id": "me", **facts})


def test_client_credentials_are_fetched_once_for_many(scripted):
    scripted.answers = [(200, {"access_token": "token-number-one", "token_type": "bearer", "expires_in": 600})]
    with Asker(oauth(scripted)) as asker:

        async def many():
            return await asyncio.gather(*[asker.client.lease("cell", "c", "a.test") for _ in range(10)])

        assert {lease.values["value"] for lease in asker.run(many())} == {"token-number-one"}
        assert asker.get() == {"value": "token-number-one"}
    assert len(scripted.asked) == 1
    assert scripted.asked[0][3] == b"grant_type=client_credentials"
    assert base64.b64decode(scripted.asked[0][2]["Authorization"].split()[1]) == f"me:{SECRET}".encode()


def test_rotation_fetches_a_new_token(scripted):
    scripted.answers = [(200, {"access_token": "token-number-one"}), (200, {"access_token": "token-number-two"})]
    with Asker(oauth(scripted)) as asker:
        assert asker.get() == {"value": "token-number-one"}
        asker.process.rotate("cell")
        asker.forget()
        assert asker.get() == {"value": "token-number-two"}


def test_refresh_token_rotates(scripted):
    scripted.answers = [
        (200, {"access_token": "access-one-11", "expires_in": 1, "refresh_token": "next"}),
        (200, {"access_token": "access-two-22"}),
    ]
    one = oauth(scripted)
    one["sources"]["refresh_token"] = "env:FIRST"
    with Asker(one, env={"REAL": SECRET, "FIRST": "first-refresh"}) as asker:
        asker.get()
        asker.get()
    assert b"refresh_token=first-refresh" in scripted.asked[0][3]
    assert b"refresh_token=next" in scripted.asked[1][3]


def test_a_refresh_token_that_its_operator_replaced(scripted, tmp_path):
    """The endpoint took back the one that it gave: what the source has now counts, if it is another than before."""
    path = tmp_path / "refresh"
    path.touch(mode=0o600)
    path.write_text("first-refresh")
    no = (400, {"error": "invalid_grant"})
    scripted.answers = [
        (200, {"access_token": "access-one-11", "expires_in": 1, "refresh_token": "rotated"}),
        no,
        no,
        (200, {"access_token": "access-two-22", "expires_in": 1}),
    ]
    with Asker(oauth(scripted) | {"sources": {"value": "env:REAL", "refresh_token": f"file:{path}"}}) as asker:
        asker.get()
        assert asker.refusal() == "the token endpoint refused: 400 `invalid_grant`"
        path.write_text("second-refresh")
        assert asker.get() == {"value": "access-two-22"}
    asked = [body.partition(b"refresh_token=")[2] for *_, body in scripted.asked]
    assert asked == [b"first-refresh", b"rotated", b"rotated", b"second-refresh"]


def test_the_token_urls_query_is_sent(scripted):
    scripted.answers = [(200, {"access_token": "token-number-one"})]
    with Asker(oauth(scripted, token_url=scripted.url + "/token?tenant=a")) as asker:
        asker.get()
    assert scripted.asked[0][1] == "/token?tenant=a"


def test_the_same_value_read_again_is_no_other_version():
    """The broker's connections to an upstream go by the version: a lease that ran out is no reason to make new ones."""
    with Asker(spec(), env={"REAL": SECRET}) as asker:
        versions = []
        for _ in range(3):
            versions.append(asker.run(asker.client.lease("cell", "c", "a.test")).version)
            asker.process.rotate("cell")
            asker.forget()
    assert versions == [1, 1, 1]


@pytest.fixture
def dripping():
    """Sends one byte of a head every 20 ms, and never the last."""
    server = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                conn, _ = server.accept()
                conn.recv(65536)
                with contextlib.suppress(OSError):
                    conn.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                    while not over.wait(0.02):
                        conn.sendall(b"a")

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    over.set()
    server.close()


def test_sources_that_drip_end_in_time(dripping, monkeypatch):
    from saggar.core.errors import PeerError
    from saggar.egress import secrets_host, sources_host

    monkeypatch.setattr(sources_host, "VAULT_S", 0.2)
    monkeypatch.setattr(secrets_host, "TOKEN_S", 0.2)
    store = VaultKv(dripping, lambda: "t", jitter=lambda: 0.0, sleep=lambda s: None)
    with pytest.raises(SourceError, match=r"nothing within 0.2 s"):
        store.read("secret/data/app", "key")
    with pytest.raises(PeerError, match=r"nothing within 0.2 s"):
        secrets_host._post(dripping + "/token", [], b"", "")


def test_no_vault_error_shows_its_token():
    store = VaultKv("http://127.0.0.1:1", lambda: "hvs.real-token\nX: y", jitter=lambda: 0.0)
    with pytest.raises(SourceError, match="not one line of printable") as e:
        store.read("secret/data/app", "key")
    assert "hvs." not in str(e.value)
    for address in ("http://127.0.0.1:port", "https://[vault"):
        with pytest.raises(SourceError, match="is no URL"):
            VaultKv(address, lambda: "t", jitter=lambda: 0.0)


def test_token_endpoint_that_refuses_gives_no_token_and_no_details(scripted):
    scripted.answers = [(400, {"error": "invalid_client", "error_description": SECRET})]
    with Asker(oauth(scripted)) as asker:
        text = asker.refusal()
    assert text == "the token endpoint refused: 400 `invalid_client`"


def test_slow_source_holds_up_no_other(scripted, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    slow = spec(f"command:/bin/cat {fifo}", credential="slow")
    with Asker(spec(), slow) as asker:
        pending = asker.loop.create_task(asker.client.lease("cell", "slow", "a.test"))
        asker.run(asyncio.sleep(0.05))
        assert asker.get() == {"value": SECRET}
        assert not pending.done()
        with open(fifo, "w") as f:
            f.write("slow-secret-value\n")
        assert asker.run(pending).values == {"value": "slow-secret-value"}


def test_files_that_others_could_read_or_replace(tmp_path):
    path = tmp_path / "key"
    path.write_text(SECRET)
    for mode in (0o644, 0o640, 0o660, 0o602, 0o700):
        path.chmod(mode)
        with pytest.raises(SourceError, match="0600"):
            read_file(str(path))
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(SourceError, match="cannot be opened"):
        read_file(str(link))
    with pytest.raises(SourceError, match="not a regular file"):
        read_file(str(tmp_path))
    text, fd = read_file(str(path))
    assert text == SECRET
    with pytest.raises(OSError):
        os.read(fd, 1)
    os.close(fd)


@pytest.mark.parametrize(
    "value", ["short", "with\nnewline-inside", "with\r\nX-Header: y", "nul\0inside-it", "snow☃snow☃snow"]
)
def test_values_that_could_break_a_header(value):
    with pytest.raises(SourceError, match="printable"):
        read(Source.parse("env:A"), {"A": value})


# -- what the process has taken away from itself -----------------------------------------------------------------------


def status_of(pid):
    with open(f"/proc/{pid}/status") as f:
        return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


def test_a_secret_that_fits_in_no_message(tmp_path):
    """A message that is cut is no JSON, and whoever reads it would say so with the secret in hand."""
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text("a" * 62_000)
    with Asker(spec(f"file:{path}")) as asker:
        assert asker.refusal() == "the secret of `file` is longer than 16384 bytes"
    with pytest.raises(UsageError, match="the variable `REAL` is longer") as e:
        start_secrets([spec()], {"REAL": "b" * 62_000})
    assert "bbb" not in str(e.value)


def test_process_is_locked_down():
    with Asker(spec()) as asker:
        pid = asker.process.pid
        assert asker.process.lockdown["dumpable"] == "enforced"
        assert asker.process.lockdown["seccomp"] == "enforced"
        status = status_of(pid)
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        # a process that cannot be dumped has a root-owned /proc entry: nobody of the same user reads its memory
        assert os.stat(f"/proc/{pid}/mem").st_uid == 0
        with open(f"/proc/{pid}/limits") as f:
            core = next(line for line in f if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["0", "0"]


def test_environment_and_argv_hold_nothing():
    with Asker(spec()) as asker:
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{asker.process.pid}/{name}", "rb") as f:
                    data = f.read()
            except PermissionError:
                continue
            assert SECRET.encode() not in data


def test_it_ends_with_either_peer():
    process = start_secrets([spec()], {"REAL": SECRET})
    process.broker.close()
    deadline = time.monotonic() + 10
    while os.waitpid(process.pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.pid = 0
    process.stop()


def test_supervisor_hears_of_its_end():
    process = start_secrets([spec()], {"REAL": SECRET})
    process.broker.close()
    with pytest.raises((Unenforceable, OSError)):
        for _ in range(200):
            process.add("cell", "task", [], [])
            time.sleep(0.01)
    process.stop()


def probe(code, **options):
    """Run code in a child that locked itself down; how it ended."""
    pid = os.fork()
    if not pid:
        from saggar.egress.lockdown_host import lock_down

        try:
            lock_down(**{"files": [], "commands": False, "network": False, **options})
            code()
        except OSError:
            os._exit(77)
        except BaseException:
            os._exit(99)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


SIGSYS = 31


def test_running_programs_kills():
    assert os.WTERMSIG(probe(lambda: os.execv("/bin/true", ["true"]))) == SIGSYS


def test_connecting_kills():
    assert os.WTERMSIG(probe(lambda: socket.create_connection(("127.0.0.1", 9)))) == SIGSYS


def test_tracing_kills():
    import ctypes

    libc = ctypes.CDLL(None)
    assert os.WTERMSIG(probe(lambda: libc.ptrace(0, 0, 0, 0))) == SIGSYS


def test_files_beyond_its_own_are_closed(tmp_path):
    other = tmp_path / "other" / "file"
    other.parent.mkdir()
    other.write_text("x")
    mine = tmp_path / "mine" / "key"
    mine.parent.mkdir()
    mine.write_text("x")
    if os.WEXITSTATUS(probe(lambda: open(other).read(), files=[str(mine)])) == 0:
        pytest.skip("host feature missing: Landlock")
    assert os.WEXITSTATUS(probe(lambda: open(other).read(), files=[str(mine)])) == 77
    assert os.WEXITSTATUS(probe(lambda: open(mine).read(), files=[str(mine)])) == 0
    assert os.WEXITSTATUS(probe(lambda: open(mine, "w"), files=[str(mine)])) == 77


# -- trust -------------------------------------------------------------------------------------------------------------


def test_hash_name_is_openssls(tmp_path):
    import subprocess

    ca = TaskCa("r20261130T100000-Abc  x", time.time())
    path = tmp_path / "ca.pem"
    path.write_text(ca.pem)
    done = subprocess.run(
        ["openssl", "x509", "-hash", "-noout", "-in", str(path)], capture_output=True, text=True, check=True
    )
    assert subject_hash(common_name("r20261130T100000-Abc  x")) == done.stdout.strip()


def test_bundle_keeps_the_roots():
    made = trust(
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "saggar task x",
        "roots",
        ["/etc/ssl/certs/ca-certificates.crt"],
    )
    assert dict(made.files)["/run/saggar/trust/ca-certificates.crt"].startswith(b"roots\n-----BEGIN")
    assert made.covers[0][0] == "/etc/ssl/certs/ca-certificates.crt"
    assert made.environment["NODE_EXTRA_CA_CERTS"] == "/run/saggar/trust/task-ca.pem"
    assert "JAVA_TOOL_OPTIONS" not in made.environment


def test_java_store_and_pem_reading():
    ca = TaskCa("t", time.time())
    other = TaskCa("u", time.time())
    assert len(certificates(ca.pem + other.pem)) == 2
    from cryptography.hazmat.primitives.serialization import pkcs12

    from saggar.egress.ca_host import java_store

    store = pkcs12.load_pkcs12(java_store(ca.pem, other.pem), b"changeit")
    assert len(store.additional_certs) == 2


def test_leaf_serves_as_a_server_alone():
    ca = TaskCa("t", time.time())
    certificate, _ = ca.leaf("a.test")
    context = ssl.create_default_context(cadata=ca.pem)
    assert context.get_ca_certs()[0]["subject"] == ((("commonName", "saggar task t"),),)
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    leaf = x509.load_pem_x509_certificate(certificate.encode())
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_many_start_at_once_and_take_no_descriptor_of_ours(tmp_path):
    mine = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    high = os.dup2(mine, 200)
    before = os.fstat(high).st_ino
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(start_secrets([spec()], {"REAL": SECRET}))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert os.fstat(200).st_ino == before
        assert len({p.pid for p in made}) == 6
        for process in made:
            assert "BEGIN CERTIFICATE" in process.add("cell", "task", ["a.test"], [spec()])[0]
            fds = os.listdir(f"/proc/{process.pid}/fd") if os.geteuid() == 0 else []
            assert len(fds) <= 12
    finally:
        for process in made:
            process.stop()
        os.close(200)
        os.close(mine)


@pytest.mark.skipif(not os.path.exists("/usr/bin/git"), reason="needs git")
def test_a_command_reads_no_configuration_that_a_cell_left(tmp_path, monkeypatch):
    work = tmp_path / "work"
    (work / ".git" / "objects").mkdir(parents=True)
    (work / ".git" / "refs").mkdir()
    (work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (work / ".git" / "config").write_text("[core]\nrepositoryformatversion = 0\n[x]\ny = planted-by-the-cell\n")
    monkeypatch.chdir(work)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    with Asker(spec("command:/usr/bin/git config --get x.y"), env=env) as asker:
        assert "ended with" in asker.refusal()


@pytest.mark.parametrize("moved_days", [-29, -1, 0, 1, 290])
def test_certificates_outlive_a_clock_that_is_set(moved_days):
    from cryptography import x509

    leaf = x509.load_pem_x509_certificate(TaskCa("t", time.time()).leaf("a.test")[0].encode())
    then = dt.datetime.now(dt.UTC) + dt.timedelta(days=moved_days)
    assert leaf.not_valid_before_utc < then < leaf.not_valid_after_utc


@pytest.mark.parametrize("born_ago_s", [0, 400 * 86400, -400 * 86400])
def test_a_leaf_is_valid_as_long_as_its_ca_whatever_the_clock_says(born_ago_s):
    """A clock that had moved past the CA's end made the certificate builder fail, and with it the secrets process."""
    from cryptography import x509

    ca = TaskCa("t", time.time() - born_ago_s)
    leaf, issuer = (x509.load_pem_x509_certificate(pem.encode()) for pem in (ca.leaf("a.test")[0], ca.pem))
    assert leaf.not_valid_before_utc == issuer.not_valid_before_utc
    assert leaf.not_valid_after_utc == issuer.not_valid_after_utc
