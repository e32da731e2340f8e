"""The worker in a cell of its own, against a scripted model on loopback: one destination, no key, nothing left over."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

import saggar
from saggar.core.errors import PeerError, UsageError
from saggar.core.tool import TypeSpec
from saggar.plan.endpoint import Prompt
from saggar.plan.models import ModelPlanner, ModelWorker
from saggar.plan.worker import WorkerRequest
from saggar.policy.model import (
    EgressPolicy,
    EgressRule,
    EnvironmentPolicy,
    IsolationPolicy,
    LimitsPolicy,
    Policy,
    WorkspacePolicy,
)
from saggar.policy.tools import ToolsPolicy
from saggar.runtime import model_host
from saggar.runtime.model_host import QuarantinedModel
from saggar.testing.model_host import ScriptedEndpoint

pytestmark = [pytest.mark.requires_userns]
HOST = "model.allowed.test"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch, place):
    monkeypatch.setenv("SAGGAR_STATE_DIR", f"{place}/state")


def policy(server, *more):
    port = int(server.url.rpartition(":")[2])
    rule = EgressRule(host=HOST, ports=(80,), connect_to=("127.0.0.1", port), id="model")
    return Policy(egress=EgressPolicy(allow=(rule, *more)))


def model(server, **more):
    return QuarantinedModel("openai", f"http://{HOST}/v1", "m", policy(server), sleep=lambda _: None, **more)


def test_an_answer_comes_out_of_a_cell():
    schema = TypeSpec("object", fields=(("amount", TypeSpec("number")),), required=("amount",))
    with ScriptedEndpoint(lambda _: '{"amount": 12.5}') as server:
        quarantined = model(server)
        worker = ModelWorker(quarantined, lambda: "mark")
        answer = worker.answer(WorkerRequest("s1", "how much", "pay 12.50", schema))
    assert answer == {"amount": 12.5}
    assert len(quarantined.runs) == 1
    assert "pay 12.50" in server.bodies[0]["messages"][1]["content"]
    assert quarantined.spent.prompt == 11


@pytest.mark.parametrize(("fault", "words"), [(("status", 401), "answered 401"), (("cut", "half"), "broke off"), (("status", 503), "503")])  # fmt: skip
def test_faults(fault, words):
    with ScriptedEndpoint(lambda _: fault) as server, pytest.raises(PeerError) as err:
        model(server).say(Prompt("s", "u"))
    assert words in str(err.value)


def test_a_turned_worker_reaches_nothing_else(monkeypatch):
    """Its client replaced by one that tries: another host, another port, a file of ours, a second process's memory."""
    tries = """
import json, os, socket, sys
job = json.load(sys.stdin)
found = []
for host, port in (("192.0.2.7", 443), ("evil.test", 80), ("127.0.0.1", PORT)):
    try:
        s = socket.create_connection((host, port), timeout=3); s.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        if b" 200 " in s.recv(100): found.append(host)
    except OSError: pass
for path in ("/etc/shadow", "/root/.ssh", os.path.expanduser("~/.ssh")):
    try: open(path).read(); found.append(path)
    except OSError: pass
text = json.dumps(found)
print("200 ")
print("data: " + json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}))
"""
    with ScriptedEndpoint(lambda _: "x") as server:
        monkeypatch.setattr(model_host, "CLIENT", tries.replace("PORT", server.url.rpartition(":")[2]))
        said = model(server).say(Prompt("s", "u"))
    assert json.loads(said.text) == []
    assert server.bodies == []


RULE = EgressRule(host=HOST, ports=(80,), id="model")
BASE = f"http://{HOST}/v1"


def given(*rules, **more):
    return Policy(egress=EgressPolicy(allow=rules or (RULE,)), **more)


@pytest.mark.parametrize(
    ("wider", "words"),
    [
        (given(RULE, EgressRule(host="other.test")), "nothing else"),
        (given(RULE.replace(ports=(22, 80))), "nothing else"),
        (given(RULE.replace(ports=(443,))), "nothing else"),
        (given(RULE.replace(host="*.allowed.test")), "nothing else"),
        (given(RULE.replace(allow_metadata=True)), "`egress.allow.allow_metadata`"),
        (given(RULE.replace(enabled=False)), "`egress.allow.enabled`"),
        (given(isolation=IsolationPolicy(read=("/etc",))), "`isolation.read`"),
        (given(environment=EnvironmentPolicy(pass_=("AWS_SECRET",))), "`environment.pass`"),
        (given(environment=EnvironmentPolicy(set=(("OPENAI_API_KEY", "sk-1"),))), "`environment.set`"),
        (given(tools=ToolsPolicy(capabilities=("read:inbox",))), "`tools.capabilities`"),
    ],
)
def test_a_policy_that_gives_more_is_refused(wider, words):
    with pytest.raises(UsageError) as err:
        QuarantinedModel("openai", BASE, "m", wider)
    assert words in str(err.value)
    assert "sk-1" not in str(err.value)


def test_what_a_worker_gets_is_built_anew():
    limits = LimitsPolicy(memory_bytes=1 << 40, tasks=4000, timeout_s=7)
    workspace = WorkspacePolicy(path="/", mode="read-write", unsafe_broad=True)
    made = QuarantinedModel("openai", BASE, "m", given(limits=limits, workspace=workspace)).policy
    assert made.workspace == WorkspacePolicy(mode="none")
    assert (made.limits.memory_bytes, made.limits.tasks, made.limits.timeout_s) == (256 << 20, 16, 7)
    assert made.egress == EgressPolicy(allow=(RULE,))


@pytest.mark.parametrize("base", ["http://elsewhere.test/v1", f"http://{HOST}:8080/v1", f"http://{HOST}:abc/v1", "http://[::1/v1", "http://a..b/v1"])  # fmt: skip
def test_a_base_that_is_not_the_policys_is_refused(base):
    with pytest.raises(UsageError) as err:
        QuarantinedModel("openai", base, "m", given())
    assert "\n" not in str(err.value)


@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"event: message_stop\ndata: {}\n\n"])
def test_a_connection_held_after_the_end_holds_up_no_answer(end):
    """The endpoint says the format's end and keeps the connection; within the deadline the cell is done all the same."""
    over = threading.Event()
    whole = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'

    def hold(server):
        peer, _ = server.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + whole + end[:7])
            peer.sendall(end[7:])
            over.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=hold, args=(server,), daemon=True)
        thread.start()
        rule = RULE.replace(connect_to=("127.0.0.1", server.getsockname()[1]))
        try:
            begun = time.monotonic()
            said = QuarantinedModel("openai", BASE, "m", given(rule), timeout_s=40).say(Prompt("s", "u"))
            assert time.monotonic() - begun < 30
        finally:
            over.set()
            thread.join(10)
    assert said.text == "hi"


def test_a_session_with_both_models_behind_walls():
    @saggar.tool("read:note", effect="read")
    def read_note() -> str:
        """A note."""
        return "the meeting is on Friday"

    def script(body):
        if body["messages"][0]["content"].startswith("You write a plan"):
            return 'x = extract(read_note(), {"day": "string"}, "which day")\nreply(f"It is on {x.day}")'
        return '{"day": "Friday"}'

    with ScriptedEndpoint(script) as server:
        quarantined = model(server)
        with saggar.open_session(
            tools=[read_note],
            planner=ModelPlanner(quarantined),
            worker=ModelWorker(quarantined, lambda: "mark"),
            capabilities=["read:note"],
            channels=[],
            wait_s=0,
        ) as session:
            answer = session.ask_sync("When is the meeting?")
    assert answer.text == "It is on Friday"
    assert "Friday" not in json.dumps(server.bodies[0])
    assert len(quarantined.runs) == 2
