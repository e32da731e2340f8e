"""A second, real process that holds a token cannot do more with it than it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from saggar.audit.sink_host import AuditLog
from saggar.capability.desk_host import Desk
from saggar.capability.gateway_host import GatewaySocket
from saggar.capability.keys import PrivateKey
from saggar.capability.rule import Rule
from saggar.testing.capability_desk import TOOLS

HERE = os.path.dirname(__file__)
EXPECTED = {
    "allowed call": "done",
    "other recipient": "denied",
    "extra argument": "denied",
    "list for text": "denied",
    "other tool": "denied",
    "replay": ["done", "denied", "denied"],
    "arguments swapped under a proof": "denied",
    "stale proof": "denied",
    "own signature for the broker's": "denied",
    "own key as issuer": "denied",
    "widened child by the library": "refused by the library",
    "widened child by hand": "denied",
    "longer child by hand": "denied",
    "child for another task": "denied",
    "narrower child": "done",
    "another worker's token": "denied",
    "a host's local token": "denied",
    "garbage": "closed",
    "huge frame": "closed",
    "deep json": "closed",
    "unknown operation": "closed",
    "no proof": "closed",
    "more calls than the budget": ["done", "done", "denied", "denied", "denied", "denied"],
}
REASONS = [
    "constraint", "argument_unknown", "type_confusion", "tool_not_granted", "replayed", "replayed", "wrong_holder",
    "proof_stale", "signature", "issuer_unknown", "widened", "widened", "cross_task", "wrong_holder",
    "local_token_outside", "budget_calls", "budget_calls", "budget_calls", "budget_calls",
]  # fmt: skip


def test_worker_cannot_escalate(tmp_path):
    log = AuditLog(str(tmp_path / "audit.jsonl"), "task-1")
    rules = [
        Rule("all", "allow", tool="send_email"),
        Rule("pay", "allow", tool="pay", accepts=("builtin.destructive",)),
    ]
    desk = Desk("task-1", TOOLS, audit=log, rules=rules)
    worker, other = PrivateKey(os.urandom(32)), PrivateKey(os.urandom(32))
    seed = os.urandom(32)
    worker = PrivateKey(seed)
    narrow = desk.gateway.grants(["send:email[to=*@acme.com, max=5]"])
    wide = desk.gateway.grants(["send:email[to=*, cc=*]", "pay:bill[iban=*, amount=*]"])
    server = GatewaySocket(desk.gateway, str(tmp_path / "gateway.sock"))
    try:
        given = {
            "path": server.path,
            "task": "task-1",
            "seed": seed.hex(),
            "token": desk.issuer.mint(narrow, holder=worker.public),
            "other": desk.issuer.mint(wide, holder=other.public),
            "local": desk.issuer.mint_local(wide),
            "wide": [g.to_json() for g in wide],
        }
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, "worker.py")],
            input=json.dumps(given) + "\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PATH": os.environ.get("PATH", "")},
        )
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EXPECTED
    with open(log.path) as f:
        records = [json.loads(line) for line in f]
    assert [r["reason"] for r in records if r["kind"] == "capability.decision"] == REASONS
    sent = [r["detail"]["args"]["to"] for r in records if r["kind"] == "capability.intent"]
    assert sent == ["bob@acme.com"] * 5


def test_revoking_the_task_ends_a_worker_at_once(tmp_path):
    from saggar.capability.client_host import GatewayClient
    from saggar.testing.capability import MemoryLog

    desk = Desk("task-1", TOOLS, audit=MemoryLog(), rules=[Rule("all", "allow", tool="read_notes")])
    key = PrivateKey(os.urandom(32))
    server = GatewaySocket(desk.gateway, str(tmp_path / "gateway.sock"))
    try:
        grants = desk.gateway.grants(["read:notes[day=*]"])
        client = GatewayClient(server.path, desk.issuer.mint(grants, holder=key.public), key)
        assert [t["name"] for t in client.tools()] == ["read_notes"]
        assert client.call("read_notes", {"day": "x"})["value"] == ["note of x"]
        desk.revoke()
        assert client.call("read_notes", {"day": "x"})["status"] == "denied"
        assert client.tools() == []
        client.close()
    finally:
        server.close()


def test_a_peer_of_another_uid_is_closed(tmp_path):
    import socket

    from saggar.testing.capability import MemoryLog

    desk = Desk("task-1", TOOLS, audit=MemoryLog(), rules=[Rule("all", "allow", tool="read_notes")])
    server = GatewaySocket(desk.gateway, str(tmp_path / "gateway.sock"), uids=[os.getuid() + 1])
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(server.path)
            assert s.recv(1) == b""
    finally:
        server.close()
