"""A process in a real cell: it reaches the gateway by the socket that it was shown, and no other part of the session."""

from __future__ import annotations

import json
import os
import time

import pytest

import saggar
from saggar.capability.gateway_host import GatewaySocket
from saggar.capability.keys import PrivateKey
from saggar.capability.request import request_hash
from saggar.capability.verify import prove
from saggar.capability.wire import call_request
from saggar.policy.model import IsolationPolicy, Policy, WorkspacePolicy
from saggar.testing.capability_desk import send_email

WORKER = """
import json, os, socket, struct, sys
given = json.loads(sys.stdin.read())
out = {}

def ask(message, path):
    body = json.dumps(message, separators=(",", ":"), sort_keys=True).encode()
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10)
        s.connect(path)
        s.sendall(struct.pack(">I", len(body)) + body)
        head = s.recv(4)
        if not head:
            return "closed"
        return json.loads(s.recv(65536))["status"]

def attempt(name, function):
    try:
        out[name] = function()
    except OSError as e:
        out[name] = type(e).__name__

good = given["good"]
attempt("good", lambda: ask(good, given["gateway"]))
attempt("replayed", lambda: ask(good, given["gateway"]))
attempt("other recipient", lambda: ask(good | {"args": good["args"] | {"to": "eve@evil.example"}}, given["gateway"]))
attempt("without proof", lambda: ask({k: v for k, v in good.items() if k != "proof"}, given["gateway"]))
attempt("run directory", lambda: os.listdir(given["run"]))
attempt("audit log", lambda: open(given["run"] + "/audit.jsonl").read(1))
attempt("approvals", lambda: open(given["run"] + "/approvals.jsonl", "a").write("x"))
attempt("approval socket", lambda: os.stat(given["run"] + "/approvals.sock"))
print(json.dumps(out))
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    # the cell's mapped user must be able to pass through what it is shown; pytest's own directories are 0700
    shown = f"/tmp/saggar-attack-{os.getpid()}"
    os.mkdir(shown, 0o755)
    monkeypatch.setenv("SAGGAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    yield shown
    for name in os.listdir(shown):
        os.unlink(os.path.join(shown, name))
    os.rmdir(shown)


def test_a_cell_reaches_the_gateway_and_nothing_else(state, tmp_path):
    key = PrivateKey(os.urandom(32))
    caps = ["send:email[to=*@acme.com, max=5]"]
    with saggar.ToolSession([send_email], capabilities=caps, wait_s=0) as session:
        server = GatewaySocket(session.gateway, f"{state}/gateway.sock", uids=range(2**32))
        os.chmod(server.path, 0o666)
        try:
            token = session.gateway.token_for(key.public, caps)
            args = {"to": "bob@acme.com", "subject": "s", "body": "b"}
            digest = request_hash(session.id, "send_email", args)
            proof = prove(token, digest, key=key, call_id="once", wall=time.time())
            given = {
                "gateway": server.path,
                "run": str(tmp_path / "state" / "runs" / session.id),
                "good": call_request(token, "send_email", args, proof),
            }
            assert os.path.exists(given["run"] + "/approvals.sock")
            policy = Policy(isolation=IsolationPolicy(read=(state,)), workspace=WorkspacePolicy(mode="none"))
            result = saggar.run_sync(
                ["python3", "-I", "-S", "-c", WORKER], policy, input=json.dumps(given).encode(), timeout_s=60
            )
        finally:
            server.close()
        assert result.exit_code == 0, result.stderr.decode()
        with open(session.audit.path) as f:
            records = [json.loads(line) for line in f]
    assert json.loads(result.stdout) == {
        "good": "done",
        "replayed": "denied",
        "other recipient": "denied",
        "without proof": "closed",
        "run directory": "FileNotFoundError",
        "audit log": "FileNotFoundError",
        "approvals": "FileNotFoundError",
        "approval socket": "FileNotFoundError",
    }
    assert [r["reason"] for r in records if r["kind"] == "capability.decision"] == ["replayed", "wrong_holder"]
