"""Requests that a rule asks about: refused, held, answered once, for the task or for good, and taken back; by command and by API."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import saggar
from saggar.policy.load import parse
from saggar.testing.upstream import Upstream

SRC = str(Path(__file__).resolve().parents[2] / "src")

POLICY = """[[egress.allow]]
host = "api.allowed.test"
id = "api"
ports = [80]
connect_to = "127.0.0.1:{port}"
[egress.allow.http]
rules = [
  {{ methods = ["GET"], paths = ["/**"] }},
  {{ effect = "ask", methods = ["DELETE"], paths = ["/v1/jobs/*"] }},
  {{ effect = "deny", paths = ["/v1/jobs/kept"] }},
]
"""
#: sends a request for each line `METHOD PATH`, and says how that went
CLIENT = """
import http.client, sys
for line in sys.stdin:
    method, path = line.split()
    c = http.client.HTTPConnection("api.allowed.test", timeout=60)
    try:
        c.request(method, path)
        r = c.getresponse()
        print(r.status, r.headers.get("X-Saggar-Reason"), flush=True)
    except OSError as e:
        print("cut", flush=True)
"""


@pytest.fixture
def upstream():
    with Upstream() as made:
        yield made


class Task:
    """A running `saggar run` of CLIENT."""

    def __init__(self, process):
        self.process = process

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        return self.process.stdout.readline().strip()

    def ask(self, line):
        self.send(line)
        return self.hear()


class Place:
    def __init__(self, place, workspace, port):
        self.policy = Path(place, "policy.toml")
        self.policy.write_text(POLICY.format(port=port))
        self.workspace = workspace
        self.env = {"PATH": os.environ["PATH"], "HOME": place, "PYTHONPATH": SRC, "SAGGAR_STATE_DIR": f"{place}/state"}

    def saggar(self, *words):
        return subprocess.run(
            [sys.executable, "-m", "saggar", *words], cwd=self.workspace, env=self.env, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip

    @contextlib.contextmanager
    def task(self, *options, policy=None):
        process = subprocess.Popen(
            [sys.executable, "-m", "saggar", "run", "--policy", policy or str(self.policy), *options, "--",
             "/usr/bin/python3", "-c", CLIENT],
            cwd=self.workspace, env=self.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield Task(process)
        finally:
            process.stdin.close()
            process.wait(30)
            self.err = process.stderr.read()
            process.stdout.close()
            process.stderr.close()

    def held(self, count=1):
        """The ids of `count` requests, once so many wait."""
        deadline = time.monotonic() + 30
        while True:
            lines = [x for x in self.saggar("egress", "held").stdout.splitlines() if x.startswith("r")]
            if len(lines) == count:
                return [line.split()[0] for line in lines]
            assert time.monotonic() < deadline, lines

    def records(self, *kinds):
        log = [json.loads(line) for line in self.saggar("log", "--json").stdout.splitlines()]
        return [r for r in log if not kinds or r["kind"] in kinds]


@pytest.fixture
def there(place, workspace, upstream):
    return Place(place, workspace, upstream.port)


def test_without_a_terminal_it_is_refused_at_once(there, upstream):
    with there.task() as task:
        assert task.ask("DELETE /v1/jobs/7") == "403 approval_unattended"
        assert task.ask("GET /v1/jobs/7") == "200 None"
    assert "DELETE api.allowed.test:80/v1/jobs/7 needs your approval, and there is no terminal" in there.err
    assert b"DELETE" not in upstream.bytes
    said = [(r["effect"], r["reason"]) for r in there.records("egress.ask", "egress.decision")]
    assert ("deny", "approval_unattended") in said
    assert there.saggar("run", "--ask", "prompt", "--policy", str(there.policy), "--", "true").returncode == 2
    assert "needs a terminal" in there.saggar("run", "--ask=prompt", "--policy", str(there.policy), "--", "true").stderr
    assert "one of prompt, hold, refuse" in there.saggar("run", "--ask", "yes", "--", "true").stderr


def test_once_is_once(there, upstream):
    with there.task("--ask", "hold") as task:
        for verdict, answer in (("approve", "200 None"), ("deny", "403 approval_denied")):
            task.send("DELETE /v1/jobs/7")
            (number,) = there.held()
            assert there.saggar("egress", verdict, number).returncode == 0
            assert task.hear() == answer
            assert "no request" in there.saggar("egress", verdict, number).stderr
    assert upstream.bytes.count(b"DELETE") == 1
    kinds = [
        (r["kind"], r["effect"], r["reason"]) for r in there.records("egress.ask", "egress.decision", "approval.answer")
    ]
    assert kinds == [
        ("egress.ask", "", "rule_asks"), ("approval.answer", "allow", "approved"), ("egress.decision", "allow", "approved"),
        ("egress.ask", "", "rule_asks"), ("approval.answer", "deny", "denied"), ("egress.decision", "deny", "approval_denied"),
    ]  # fmt: skip
    answer = there.records("approval.answer")[0]
    assert answer["detail"]["uid"] == os.getuid()
    assert answer["detail"]["sha256"] == hashlib.sha256(b"/v1/jobs/7").hexdigest()
    assert (answer["detail"]["path"], answer["detail"]["by"], answer["rule"]) == (
        "/v1/jobs/7",
        "saggar egress",
        "api.rules[1]",
    )
    assert there.saggar("log", "verify").returncode == 0


def test_for_the_task_and_taken_back(there, upstream):
    with there.task("--ask", "hold") as task:
        task.send("DELETE /v1/jobs/7")
        (number,) = there.held()
        assert "/v1/jobs/*" in there.saggar("egress", "held").stdout
        done = there.saggar("egress", "approve", number, "--task")
        assert "held[0]" in done.stdout, done.stderr
        assert task.hear() == "200 None"
        assert task.ask("DELETE /v1/jobs/7") == "200 None"
        # the like of it is this path alone
        task.send("DELETE /v1/jobs/8")
        (number,) = there.held()
        assert there.saggar("egress", "approve", number, "--task", "--pattern").returncode == 0
        assert task.hear() == "200 None"
        assert task.ask("DELETE /v1/jobs/9") == "200 None"
        # a deny stays one, and so does what no rule speaks of
        assert task.ask("DELETE /v1/jobs/kept") == "403 rule_denies"
        assert task.ask("DELETE /v1/other") == "403 no_rule_matches"
        shown = there.saggar("egress", "held").stdout.splitlines()
        assert shown == [
            "approved for the task: held[0]  DELETE api.allowed.test:80/v1/jobs/7  api.rules[1]",
            "approved for the task: held[1]  DELETE api.allowed.test:80/v1/jobs/*  api.rules[1]",
        ]
        assert there.saggar("revoke", "held[1]").stdout.startswith("revoked held[1]")
        assert task.ask("DELETE /v1/jobs/7") == "200 None"
        task.send("DELETE /v1/jobs/9")
        (number,) = there.held()
        there.saggar("egress", "deny", number)
        assert task.hear() == "403 approval_denied"
    changes = [(r["kind"], r["rule"], r["detail"]["paths"]) for r in there.records("policy.allow", "policy.revoke")]
    assert changes == [
        ("policy.allow", "held[0]", ["/v1/jobs/7"]),
        ("policy.allow", "held[1]", ["/v1/jobs/*"]),
        ("policy.revoke", "held[1]", ["/v1/jobs/*"]),
    ]
    standing = [r["detail"]["approval"] for r in there.records("egress.decision") if r["reason"] == "approved_for_task"]
    assert standing == ["held[0]", "held[1]", "held[0]"]


def test_taking_back_cuts_what_is_under_way(there, upstream):
    gate = threading.Event()
    reached = threading.Event()

    def slow(head):
        reached.set()
        gate.wait(30)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    with there.task("--ask", "hold") as task:
        task.send("DELETE /v1/jobs/7")
        (number,) = there.held()
        there.saggar("egress", "approve", number, "--task")
        assert task.hear() == "200 None"
        upstream.respond = slow
        task.send("DELETE /v1/jobs/7")
        assert reached.wait(30)
        there.saggar("revoke", "held[0]")
        assert task.hear() == "cut"
        gate.set()
    assert any(
        r["reason"] == "revoked" and r["detail"]["approval"] == "held[0]" for r in there.records("egress.decision")
    )


def test_a_policy_diff_that_its_owner_applies(there, upstream, workspace):
    before = there.policy.read_text()
    with there.task("--ask", "hold") as task:
        task.send("DELETE /v1/jobs/7")
        (number,) = there.held()
        done = there.saggar("egress", "approve", number, "--policy")
        assert task.hear() == "200 None"
        assert task.ask("DELETE /v1/jobs/7") == "200 None"
    assert there.policy.read_text() == before
    added = [x for x in done.stdout.splitlines() if x.startswith("+") and not x.startswith("+++")]
    assert added == ['+  { effect = "approve", methods = ["DELETE"], paths = ["/v1/jobs/7"] },'], done.stderr
    (kept,) = Path(there.env["SAGGAR_STATE_DIR"], "runs").glob("*/policy.diff")
    assert kept.read_text() == done.stdout
    subprocess.run(["patch", "-s", str(there.policy)], input=done.stdout, text=True, check=True)
    parse(there.policy.read_text(), "p")
    with there.task() as task:
        assert task.ask("DELETE /v1/jobs/7") == "200 None"
        assert task.ask("DELETE /v1/jobs/8") == "403 approval_unattended"
        assert task.ask("DELETE /v1/jobs/kept") == "403 rule_denies"
    # none for a file that the sandbox may write: the request still waits, and can be answered otherwise
    inside = Path(workspace, "p.toml")
    inside.write_text(before)
    with there.task("--ask", "hold", policy=str(inside)) as task:
        task.send("DELETE /v1/jobs/7")
        (number,) = there.held()
        done = there.saggar("egress", "approve", number, "--policy")
        assert done.returncode == 2
        assert "lies in the workspace" in done.stderr
        assert there.saggar("egress", "approve", number).returncode == 0
        assert task.hear() == "200 None"


def test_several_wait_and_the_client_that_leaves_is_forgotten(there, upstream):
    client = (
        "import socket,sys,time\n"
        "def ask(n):\n"
        "    s = socket.create_connection(('api.allowed.test', 80))\n"
        "    s.sendall(f'DELETE /v1/jobs/{n} HTTP/1.1\\r\\nHost: api.allowed.test\\r\\n\\r\\n'.encode())\n"
        "    return s\n"
        "a, b, c = ask(1), ask(2), ask(3)\n"
        "sys.stdin.readline(); a.close(); print('left', flush=True)\n"
        "sys.stdin.readline(); b.shutdown(socket.SHUT_WR); print('left', flush=True)\n"
        "print(c.recv(99)[:12], flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "saggar", "run", "--ask", "hold", "--policy", str(there.policy), "--", "/usr/bin/python3", "-c", client],
        cwd=there.workspace, env=there.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    task = Task(process)
    numbers = there.held(3)
    for left in (2, 1):
        assert task.ask("") == "left"
        assert len(there.held(left)) == left
    assert "no request" in there.saggar("egress", "approve", numbers[0]).stderr
    assert there.saggar("egress", "approve", numbers[2]).returncode == 0
    assert task.hear() == "b'HTTP/1.1 200'"
    process.stdin.close()
    process.wait(30)
    process.stdout.close()
    assert upstream.bytes.count(b"DELETE") == 1
    assert [r["detail"]["path"] for r in there.records("egress.ask") if r["reason"] == "withdrawn"] == [
        "/v1/jobs/1",
        "/v1/jobs/2",
    ]


def test_a_dead_broker_ends_what_waits(there, upstream):
    with there.task("--ask", "hold") as task:
        task.send("DELETE /v1/jobs/7")
        there.held()
        children = Path(f"/proc/{task.process.pid}/task/{task.process.pid}/children").read_text().split()
        (broker,) = [p for p in children if "broker_host" in Path(f"/proc/{p}/cmdline").read_text()]
        os.kill(int(broker), signal.SIGKILL)
        assert task.hear() in ("cut", "")  # the client may see its connection's end before its own
        assert task.hear() == ""
    assert "broker_died" in there.err
    assert upstream.bytes == b""
    assert there.saggar("egress", "held").returncode == 2


def test_an_interrupted_supervisor_ends_with_what_waits(there, upstream):
    with there.task("--ask", "hold") as task:
        task.send("DELETE /v1/jobs/7")
        there.held()
        task.process.send_signal(signal.SIGTERM)
        assert task.hear() == ""
    assert upstream.bytes == b""
    assert "no task is running" in there.saggar("egress", "held").stderr


# the Python API


@pytest.fixture
def policy(there, monkeypatch):
    monkeypatch.chdir(there.workspace)
    for name in ("HOME", "SAGGAR_STATE_DIR"):
        monkeypatch.setenv(name, there.env[name])
    return parse(there.policy.read_text(), str(there.policy))


COMMAND = ["/usr/bin/python3", "-c", CLIENT]


def test_api_verdicts(policy, upstream):
    asked = []

    async def on_ask(ask):
        asked.append(ask)
        return {
            "/v1/jobs/1": saggar.Verdict.once(),
            "/v1/jobs/2": saggar.Verdict.task(),
            "/v1/jobs/3": "yes",
            "/v1/jobs/4": saggar.Verdict.deny(),
        }[ask.path]

    lines = b"".join(b"DELETE /v1/jobs/%d\n" % n for n in (1, 1, 2, 2, 3, 4, 5))
    result = asyncio.run(saggar.run(COMMAND, policy, input=lines, on_ask=on_ask))
    assert result.stdout.split(b"\n")[:-1] == [
        b"200 None", b"200 None", b"200 None", b"200 None", b"403 approval_denied", b"403 approval_denied", b"403 approval_denied",
    ]  # fmt: skip
    assert [a.path[-1] for a in asked] == ["1", "1", "2", "3", "4", "5"]
    first = asked[0]
    assert (first.method, first.host, first.port, first.patterns) == ("DELETE", "api.allowed.test", 80, ("/v1/jobs/*",))
    assert (first.rule, str(first)) == ("api.rules[1]", "DELETE api.allowed.test:80/v1/jobs/1")
    log = [json.loads(line) for line in Path(result.audit_path).read_text().splitlines()]
    assert {r["detail"]["by"] for r in log if r["kind"] == "approval.answer"} == {"on_ask"}


def test_api_blocking_and_unattended(policy):
    async def on_ask(ask):
        await asyncio.sleep(0)
        return saggar.Verdict.task(pattern=True)

    done = saggar.run_sync(COMMAND, policy, input=b"DELETE /v1/jobs/1\nDELETE /v1/jobs/2\n", on_ask=on_ask)
    assert done.stdout == b"200 None\n200 None\n"
    assert saggar.run_sync(COMMAND, policy, input=b"DELETE /v1/jobs/1\n").stdout == b"403 approval_unattended\n"
    with pytest.raises(saggar.UsageError):
        saggar.run_sync(COMMAND, policy, on_ask="always")


def test_api_a_request_that_no_longer_waits_cancels_its_question(policy):
    async def main():
        cancelled = asyncio.Event()
        put = asyncio.Event()

        async def on_ask(ask):
            put.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        async with await saggar.spawn(COMMAND, policy, on_ask=on_ask) as process:
            process.stdin.write(b"DELETE /v1/jobs/1\n")
            await asyncio.wait_for(put.wait(), 30)
            process.kill()
            await asyncio.wait_for(cancelled.wait(), 30)

    asyncio.run(main())
