"""`enabled = false`: a host with a credential, and one with a further port, let in and taken away while the command runs."""

import contextlib
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from saggar.egress.ca_host import TaskCa
from saggar.testing.upstream import Upstream

SRC = str(Path(__file__).resolve().parents[2] / "src")
KEY = "sk-REAL-0123456789-key"
POLICY = """[[egress.allow]]
host = "api.allowed.test"
id = "api"
enabled = false
connect_to = "127.0.0.1:{tls}"
http = {{ ca = "{place}/upstream.pem", credential = {{ source = "env:REAL_KEY", env = "KEY" }}, methods = ["GET"] }}

[[egress.allow]]
host = "db.allowed.test"
ports = [5432]
enabled = false
connect_to = "127.0.0.1:{plain}"

[[egress.allow]]
host = "two.allowed.test"
ports = [5432, 5433]
enabled = false
connect_to = "127.0.0.1:{plain}"
"""
CLIENT = r"""
import os, socket, sys, urllib.error, urllib.request
def https(path):
    request = urllib.request.Request("https://api.allowed.test" + path, headers={"Authorization": "Bearer " + os.environ["KEY"]})
    return str(urllib.request.urlopen(request, timeout=60).status)
def raw(path):
    host, _, port = path.strip("/").partition(":")
    host, port = host or "db.allowed.test", port or "5432"
    with socket.create_connection((host, int(port)), timeout=60) as s:
        s.sendall(b"GET / HTTP/1.0\r\nHost: %s:%s\r\n\r\n" % (host.encode(), port.encode()))
        return s.recv(12).decode() or "nothing"
for line in sys.stdin:
    how, path = line.split()
    try:
        print({"https": https, "raw": raw}[how](path), flush=True)
    except OSError as e:
        print("refused", flush=True)
"""


@pytest.fixture
def flags():
    """Of `saggar run`, beside the policy."""
    return ()


@pytest.fixture
def there(place, workspace, flags):
    ca = TaskCa("upstream", time.time())
    leaf, key = ca.leaf("api.allowed.test")
    Path(place, "leaf.pem").write_text(leaf + key)
    Path(place, "upstream.pem").write_text(ca.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{place}/leaf.pem")
    with Upstream(context=context) as tls, Upstream() as plain:
        Path(place, "p.toml").write_text(POLICY.format(tls=tls.port, plain=plain.port, place=place))
        env = {
            "PATH": os.environ["PATH"],
            "HOME": place,
            "PYTHONPATH": SRC,
            "SAGGAR_STATE_DIR": f"{place}/state",
            "REAL_KEY": KEY,
        }

        def saggar(*words):
            return subprocess.run(
                [sys.executable, "-m", "saggar", *words],
                cwd=workspace,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )

        process = subprocess.Popen(
            [sys.executable, "-m", "saggar", "run", "--policy", f"{place}/p.toml", *flags, "--", "/usr/bin/python3", "-c", CLIENT],
            cwd=workspace, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

        def ask(line):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        saggar.ask, saggar.tls, saggar.plain = ask, tls, plain
        yield saggar
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait(30)
        process.stdout.close()


def test_by_id_and_by_host_and_back(there):
    assert (there.ask("https /a"), there.ask("raw /")) == ("refused", "refused")
    assert there.tls.accepted == there.plain.accepted == 0
    done = there("allow", "api")
    assert done.stdout.startswith("allowed api.allowed.test:443 in r"), done.stderr
    assert there.ask("https /a") == "200"
    assert f"Authorization: Bearer {KEY}".lower().encode() in there.tls.bytes.lower()
    done = there("allow", "db.allowed.test")
    assert (done.stdout.split()[1], done.stderr) == ("db.allowed.test:5432", "")
    assert there.ask("raw /") == "HTTP/1.1 200"
    assert there("revoke", "api.allowed.test").returncode == 0
    assert there.ask("https /a") == "refused"
    assert there("allow", "api.allowed.test").returncode == 0
    assert there.ask("https /b") == "200"
    log = [json.loads(line) for line in there("log", "--json").stdout.splitlines()]
    changes = [(r["kind"], r["rule"]) for r in log if r["layer"] == "policy"]
    assert changes == [
        ("policy.allow", "api"), ("policy.allow", "egress.allow[1]"), ("policy.revoke", "api"), ("policy.allow", "api"),
    ]  # fmt: skip
    refused = [r["reason"] for r in log if r["effect"] == "deny" and r["detail"].get("host") == "api.allowed.test"]
    assert set(refused) == {"operator", "host_not_listed"}


def test_taking_away_cuts_a_request_under_way(there):
    reached, gate = threading.Event(), threading.Event()

    def slow(_):
        reached.set()
        gate.wait(30)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    assert there.ask("raw /") == "refused"  # it runs
    assert there("allow", "api").returncode == 0
    there.tls.respond = slow
    box = []
    thread = threading.Thread(target=lambda: box.append(there.ask("https /a")))
    thread.start()
    assert reached.wait(30)
    there("revoke", "api.allowed.test")
    thread.join(30)
    gate.set()
    assert box == ["refused"]
    log = [json.loads(line) for line in there("log", "--json").stdout.splitlines()]
    assert any(r["reason"] == "revoked" and r["detail"]["host"] == "api.allowed.test" for r in log)


@pytest.mark.parametrize("flags", [("--allow", "two.allowed.test:5433")])
def test_run_with_one_port_of_a_rule_lets_no_other_port_of_it_in(there, flags):
    del flags
    assert there.ask("raw two.allowed.test:5433") == "HTTP/1.1 200"
    assert there.ask("raw two.allowed.test:5432") == "HTTP/1.1 403"
    assert there.plain.accepted == 1
    # what the rule has besides is ready still
    assert there("allow", "two.allowed.test:5432").stdout.startswith("allowed two.allowed.test:5432 in r")
    assert there.ask("raw two.allowed.test:5432") == "HTTP/1.1 200"
