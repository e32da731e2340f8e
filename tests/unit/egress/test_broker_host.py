"""The control protocol of a real broker process: what it cannot follow to the letter is fatal for the cell, never half done."""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time

import pytest

from saggar.audit.sink_host import open_log

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BOOT = (
    f"import sys; sys.path.insert(0, {os.path.join(ROOT, 'src')!r}); from saggar.egress.broker_host import main; main()"
)


class Control:
    def __init__(self, directory):
        self.directory = directory
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {"PATH": os.environ["PATH"], "https_proxy": "http://127.0.0.1:9", "RES_OPTIONS": "ndots:9"}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", BOOT, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=env
        )
        theirs.close()

    def send(self, message, *fds):
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        socket.send_fds(self.sock, [data], fds)

    def event(self):
        assert select.select([self.sock], [], [], 20)[0], "no event"
        data = self.sock.recv(65536)
        return json.loads(data) if data else None

    def add(self, cell="c", listeners=(), fds=(), policy=None, **changes):
        rules = os.memfd_create("rules")
        os.write(rules, json.dumps(policy if policy is not None else {"egress": {"allow": []}}).encode())
        audit = os.path.join(self.directory, f"{cell}.jsonl")
        log = open_log(audit)
        self.send(
            {"op": "add", "cell": cell, "task": "t", "audit": audit, "listeners": list(listeners), **changes},
            rules,
            log,
            *fds,
        )
        os.close(rules)
        os.close(log)
        event = self.event()
        if event is not None and event["event"] == "added":
            assert event.pop("lockdown")["seccomp"] == "enforced"
        return event


@pytest.fixture
def control(tmp_path):
    made = Control(str(tmp_path))
    try:
        assert made.event() == {"event": "ready"}
        yield made
    finally:
        made.sock.close()
        with contextlib.suppress(ProcessLookupError):
            made.process.kill()
        made.process.wait()


def test_add_update_remove(control):
    assert control.add() == {"event": "added", "cell": "c"}
    rules = os.memfd_create("rules")
    os.write(rules, b'{"egress":{"allow":[]}}')
    control.send({"op": "update", "cell": "c"}, rules)
    os.close(rules)
    assert control.event() == {"event": "updated", "cell": "c"}
    control.send({"op": "remove", "cell": "c"})
    removed = {"event": "removed", "cell": "c", "allowed": 0, "refused": 0, "bytes_up": 0, "bytes_down": 0}
    assert control.event() == removed
    assert control.add() == {"event": "added", "cell": "c"}


RULE = {"id": "r", "host": "a.test", "ports": [443], "connect_to": None}

BAD_POLICIES = {
    "no egress": {},
    "no list": {"egress": {}},
    "a rule without a host": {"egress": {"allow": [{"id": "r", "ports": [443]}]}},
    "an unknown key": {"egress": {"allow": [{**RULE, "deny_path": "/"}]}},
    "ports that are none": {"egress": {"allow": [{**RULE, "ports": 5}]}},
    "a cut override": {"egress": {"allow": [{**RULE, "connect_to": ["127.0.0.1"]}]}},
    "an unknown budget": {"egress": {"allow": [], "budget": {"beer": 3}}},
    "not JSON's shape": [1],
}


@pytest.mark.parametrize("case", BAD_POLICIES)
def test_rules_that_are_not_understood_are_fatal(control, case):
    event = control.add(policy=BAD_POLICIES[case])
    assert (event["event"], event["cell"]) == ("fatal", "c")
    # and the broker goes on with others
    assert control.add(cell="d") == {"event": "added", "cell": "d"}


def test_descriptors_must_be_as_many_as_listeners(control):
    spec = {"kind": "tcp", "address": "0.0.0.0", "port": 443}
    with socket.create_server(("127.0.0.1", 0)) as one:
        assert control.add(listeners=[spec, spec], fds=[one.fileno()])["event"] == "fatal"
        assert control.add(cell="d", fds=[one.fileno()])["event"] == "fatal"
    # a pipe whose writing end nobody holds is at its end: what came with the refused message was closed
    reading, writing = os.pipe()
    try:
        assert control.add(cell="e", listeners=[spec] * 3, fds=[writing] * 2)["event"] == "fatal"
        os.close(writing)
        assert select.select([reading], [], [], 10)[0], "what came with the message is not closed"
        assert os.read(reading, 1) == b""
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"{}",
        b'"x"',
        b'{"op":"add"}',
        b'{"cell":"c"}',
        b'{"op":"dance","cell":"c"}',
        b'{"op":"update","cell":"z"}',
        b'{"op":"remove","cell":"z"}',
        b"\xff",
    ],
)
def test_garbage_is_fatal_for_its_cell_alone(control, data):
    assert control.add(cell="other")["event"] == "added"
    control.send(data)
    event = control.event()
    assert event["event"] == "fatal"
    assert event["cell"] != "other"
    control.send({"op": "remove", "cell": "other"})
    assert control.event()["event"] == "removed"


def test_one_cell_is_added_once(control):
    assert control.add()["event"] == "added"
    assert control.add()["event"] == "fatal"


def test_a_cell_without_its_audit_log_is_fatal(control):
    rules = os.memfd_create("rules")
    os.write(rules, b'{"egress":{"allow":[]}}')
    add = {"op": "add", "cell": "c", "task": "t", "audit": f"{control.directory}/c.jsonl", "listeners": []}
    control.send(add, rules)
    os.close(rules)
    event = control.event()
    assert event["event"] == "fatal"
    assert "the log" in event["cause"]
    assert not os.path.exists(add["audit"])


def test_it_ends_with_its_supervisor(control):
    control.sock.close()
    assert control.process.wait(timeout=10) == 0


def test_a_supervisor_that_does_not_listen_loses_refusals_alone(control):
    for i in range(1200):
        control.send(b'{"op":"dance","cell":"c%d"}' % i)
        if i % 100 == 99:
            time.sleep(0)
    seen = [control.event()["event"] for _ in range(1200)]
    assert set(seen) == {"fatal"}


def test_it_cannot_be_dumped_and_has_nothing_of_the_environment(control):
    pid = control.process.pid
    with open(f"/proc/{pid}/limits", encoding="ascii") as f:
        limits = {line[:26].strip(): line[26:].split() for line in f}
    assert limits["Max core file size"][:2] == ["0", "0"]
    assert limits["Max open files"][0] == limits["Max open files"][1]
    # not dumpable: its files in /proc are root's
    assert os.stat(f"/proc/{pid}/environ").st_uid == 0
    assert os.getsid(pid) == pid


@pytest.mark.parametrize("processes", [0, 5, 2, "2", True, 1.5])
def test_processes_that_cannot_be_had_are_fatal(control, processes):
    """Two need a worker first, which nobody started here."""
    event = control.add(policy={"egress": {"allow": [], "processes": processes}})
    assert (event["event"], event["cause"][:14]) == ("fatal", "control_failed")
