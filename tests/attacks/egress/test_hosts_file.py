"""The names in a cell's own /etc/hosts: what the stub would say, and no way to anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

import saggar
from saggar.egress.listeners import MAX_HOSTS_NAMES
from saggar.isolation.rootfs import HOSTS
from saggar.policy.model import EgressPolicy, EgressRule, IsolationPolicy, Policy, WorkspacePolicy
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import Upstream

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))


def inside(script, *rules, read=()):
    result = saggar.run_sync(
        ["/bin/sh", "-c", script],
        Policy(
            workspace=WorkspacePolicy(mode="none"),
            isolation=IsolationPolicy(read=read),
            egress=EgressPolicy(allow=rules),
        ),
    )
    assert result.cause == "exit", result
    with open(result.audit_path) as log:
        return result.stdout.decode(), [json.loads(line) for line in log]


#: what each asks for is what the system's own resolver says
CLIENTS = {
    "getent": "getent hosts NAME | cut -d' ' -f1",
    "getent ahosts": "getent ahosts NAME | cut -d' ' -f1 | sort -u",
    "python3": """python3 -c 'import socket; print(*{a[4][0] for a in socket.getaddrinfo("NAME", 80)})'""",
    "node": """node -e 'require("dns").lookup("NAME", (e, a) => console.log(e || a))'""",
    "curl": "curl -s -o /dev/null -w '%{remote_ip}\\n' http://NAME/",
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_listed_name_has_its_address(client):
    if not shutil.which(client.split()[0]):
        pytest.skip("not on this host")
    said, _ = inside(
        CLIENTS[client].replace("NAME", "b.test") + "; grep -c . /etc/hosts",
        EgressRule(host="a.test"),
        EgressRule(host="b.test", ports=(80,)),
    )
    assert said.split() == ["198.18.1.1", "4"]


def test_the_first_lines_stay_and_nothing_can_be_added():
    said, _ = inside("cat /etc/hosts; echo '1.2.3.4 x' >> /etc/hosts; umount /etc/hosts; rm -f /etc/hosts; cat /etc/hosts", EgressRule(host="a.test"))  # fmt: skip
    assert said == f"{HOSTS}198.18.1.0 a.test\n" * 2


def test_the_next_cell_has_its_own():
    for name in ("a.test", "b.test", "c.test"):
        assert inside("cat /etc/hosts", EgressRule(host=name))[0] == f"{HOSTS}198.18.1.0 {name}\n"
    assert inside("cat /etc/hosts")[0] == HOSTS


def test_more_names_than_are_worth_it_are_asked_for():
    rules = [EgressRule(host=f"h{n}.test") for n in range(MAX_HOSTS_NAMES + 1)]
    said, _ = inside("cat /etc/hosts; getent hosts h64.test", *rules)
    assert said.startswith(HOSTS)
    assert said[len(HOSTS) :].split() == ["198.18.1.64", "h64.test"]


def test_what_the_stub_refuses_is_not_listed():
    said, records = inside(
        "cat /etc/hosts; for n in off.test metadata.google.internal; do getent hosts $n; done; true",
        EgressRule(host="off.test", enabled=False),
        EgressRule(host="metadata.google.internal"),
        EgressRule(host="*.wild.test"),
    )
    assert said == HOSTS
    asked = {(r["detail"]["host"], r["reason"]) for r in records if r["kind"] == "egress.dns"}
    assert asked == {("off.test", "host_not_listed"), ("metadata.google.internal", "metadata_name")}


def test_a_grant_of_the_hosts_own_file_stays():
    with open("/etc/hosts") as file:
        assert inside("cat /etc/hosts", EgressRule(host="a.test"), read=("/etc/hosts",))[0] == file.read()


def test_beside_a_grant_below_etc():
    if not os.path.exists("/etc/hostname"):
        pytest.skip("not on this host")
    said, _ = inside("cat /etc/hosts; echo x >> /etc/hosts", EgressRule(host="a.test"), read=("/etc/hostname",))
    assert said == f"{HOSTS}198.18.1.0 a.test\n"


def test_the_use_of_a_name_is_recorded_without_a_question():
    with Upstream() as upstream:
        rule = EgressRule(host="a.test", ports=(80,), connect_to=("127.0.0.1", upstream.port))
        said, records = inside(
            "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://a.test/\").status)'", rule
        )
    assert said == "200\n"
    assert not [r for r in records if r["kind"] == "egress.dns"]
    assert [r["effect"] for r in records if r["kind"] == "egress.decision" and r["detail"]["host"] == "a.test"] == ["allow"]  # fmt: skip


ASK = """
import sys, urllib.request
for line in sys.stdin:
    try:
        print(urllib.request.urlopen(line.strip(), timeout=20).status, flush=True)
    except OSError as e:
        print(getattr(e, "code", 0), getattr(e, "headers", {}).get("X-Saggar-Reason"), flush=True)
"""


def test_a_revoked_name_has_an_address_and_is_refused(tmp_path):
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SAGGAR_STATE_DIR": str(tmp_path / "state"),
        "PYTHONPATH": os.path.join(ROOT, "src"),
    }

    def argv(*words):
        return [sys.executable, "-m", "saggar", *words]

    def run(*words):
        return subprocess.run(
            argv(*words), env=environ, cwd=tmp_path, check=True, text=True, capture_output=True
        ).stdout

    def ask(name):
        task.stdin.write(f"http://{name}/\n")
        task.stdin.flush()
        return task.stdout.readline().strip()

    with Upstream() as upstream:
        policy = tmp_path / "p.toml"
        policy.write_text(
            f'[[egress.allow]]\nhost = "a.test"\nports = [80]\nconnect_to = "127.0.0.1:{upstream.port}"\n'
        )
        command = argv("run", "-q", "--policy", str(policy), "--workspace", ":none", "--", "python3", "-c", ASK)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=tmp_path
        ) as task:
            assert ask("a.test") == "200"
            run("revoke", "a.test")
            # an address that it knows leads to a refusal that says why, where the stub would have known no name
            assert ask("a.test") == "403 host_not_listed"
            run("allow", "late.test:80")
            assert ask("late.test") == "502 resolve_failed"
            task.stdin.close()
    log = [json.loads(line) for line in run("log", "--json").splitlines()]
    told = [
        (r["effect"], r["reason"]) for r in log if r["kind"] == "egress.decision" and r["detail"]["host"] == "a.test"
    ]
    assert [effect for effect, _ in told] == ["allow", "deny"]
    assert told[1][1] == "host_not_listed"


def test_the_bare_cell_shows_the_same_file():
    rules = [EgressRule(host="a.test"), EgressRule(host="b.test", ports=(5432,))]
    with EgressCell(rules) as cell:
        assert cell.run("cat", "/etc/hosts").stdout == inside("cat /etc/hosts", *rules)[0]
