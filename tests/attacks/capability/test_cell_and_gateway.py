"""A process in a real cell: it reaches the gateway by its own streams, and no other part of the session.

No Unix socket of the host's is reachable from a cell, whatever directory is shown (docs/WORKSPACE.md); the host side carries each
request from the command's output to the gateway's socket, and the answer back.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
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
out = {}

def send(message):
    body = json.dumps(message, separators=(",", ":"), sort_keys=True).encode()
    sys.stdout.buffer.write(struct.pack(">I", len(body)) + body)
    sys.stdout.buffer.flush()

def receive():
    (size,) = struct.unpack(">I", sys.stdin.buffer.read(4))
    return json.loads(sys.stdin.buffer.read(size)) if size else None

def ask(message):
    send(message)
    answer = receive()
    return answer["status"] if answer else "closed"

def connect(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
    return "connected"

def attempt(name, function):
    try:
        out[name] = function()
    except OSError as e:
        out[name] = type(e).__name__

given = receive()
good = given["good"]
attempt("good", lambda: ask(good))
attempt("replayed", lambda: ask(good))
attempt("other recipient", lambda: ask(good | {"args": good["args"] | {"to": "eve@evil.example"}}))
attempt("without proof", lambda: ask({k: v for k, v in good.items() if k != "proof"}))
attempt("gateway's socket", lambda: connect(given["gateway"]))
attempt("run directory", lambda: os.listdir(given["run"]))
attempt("audit log", lambda: open(given["run"] + "/audit.jsonl").read(1))
attempt("approvals", lambda: open(given["run"] + "/approvals.jsonl", "a").write("x"))
attempt("approval socket", lambda: os.stat(given["run"] + "/approvals.sock"))
send({"out": out})
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


async def frame(reader):
    """One message with its length, empty where the other side closed."""
    try:
        head = await reader.readexactly(4)
        return head + await reader.readexactly(struct.unpack(">I", head)[0])
    except asyncio.IncompleteReadError:
        return b""


async def forward(message, path):
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(message)
    answer = await frame(reader)
    writer.close()
    return answer or struct.pack(">I", 0)


async def converse(policy, given, path):
    """Run the worker and carry its requests; what it saw."""
    async with await saggar.spawn(["python3", "-I", "-S", "-c", WORKER], policy, timeout_s=60) as process:
        body = json.dumps(given).encode()
        process.stdin.write(struct.pack(">I", len(body)) + body)
        while message := await frame(process.stdout):
            said = json.loads(message[4:])
            if "out" in said:
                return said["out"]
            process.stdin.write(await forward(message, path))
        raise AssertionError((await process.stderr.read()).decode())


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
            seen = asyncio.run(converse(policy, given, server.path))
        finally:
            server.close()
        with open(session.audit.path) as f:
            records = [json.loads(line) for line in f]
    assert seen == {
        "good": "done",
        "replayed": "denied",
        "other recipient": "denied",
        "without proof": "closed",
        "gateway's socket": "ConnectionRefusedError",
        "run directory": "FileNotFoundError",
        "audit log": "FileNotFoundError",
        "approvals": "FileNotFoundError",
        "approval socket": "FileNotFoundError",
    }
    assert [r["reason"] for r in records if r["kind"] == "capability.decision"] == ["replayed", "wrong_holder"]
